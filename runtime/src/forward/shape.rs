//! What the runtime must know of a model's numbers, checked once.

use weir_abi::{CacheLayout, CachePolicy, FURTHER, HeadResult, IsaLevel, KindEntry};

use super::Past;
use super::compaction::{scratch_values, second_values};
use super::long_prompt::copied_rows;
use crate::cache::{KeptRows, LayerShape, Placement, SlotCount};
use crate::memory::{product, sum};
use crate::{CompiledModel, RuntimeError};

/// Most threads that can be asked for: far above what helps, far below what a system refuses.
pub const MAX_THREADS: usize = 1024;

/// Most slots that can be asked for, when a model is compiled and when it runs.
pub const MAX_SLOTS: u32 = 4096;

/// What a user decides about the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// Sequences at once; absent: what the model was compiled for.
    pub slots: Option<u32>,
    /// How many of them can have a prompt of their own in the cache, the others only a ring beside the
    /// block of a prompt that they are samples of; absent: all.
    pub blocks: Option<u32>,
    /// Compute threads, the caller's included; absent: one per core.
    pub threads: Option<usize>,
    /// Instruction set; absent: the highest that the model and this processor have.
    pub isa: Option<IsaLevel>,
    /// Tokens that an engine guesses ahead, see [`crate::drafts`]; 0: none.
    pub draft: u32,
}

impl RuntimeOptions {
    /// Sequences at once, of this model.
    pub fn slots_of(&self, model: &CompiledModel) -> u32 {
        self.slots.unwrap_or_else(|| model.header().slots)
    }
}

/// Limits of a model, and how its layers keep rows.
#[derive(Clone, Debug)]
pub struct ModelShape {
    /// Token ids that there are.
    pub vocabulary: u32,
    /// What the head gives for a row.
    pub head_result: HeadResult,
    /// How many f32 values: with logits the vocabulary.
    pub head_width: u32,
    /// Positions of a sequence.
    pub context: u32,
    /// Most rows of a step.
    pub max_rows: u32,
    /// Sequences at once.
    pub slots: u32,
    /// How many of them can have a block of their own: slots `0 .. blocks`. Prompts begin in these.
    pub blocks: u32,
    /// f32 values of a hidden row.
    pub hidden_width: u32,
    /// A sequence whose greatest length exceeds this uses rotary set 1; 0 if there is one set.
    pub rotary_switch: u32,
    /// Cache layouts.
    pub layouts: Vec<CacheLayout>,
    /// Longest prompt that every layout takes row by row.
    pub direct_rows: u32,
}

fn check(condition: bool, what: impl FnOnce() -> String) -> Result<(), RuntimeError> {
    if condition { Ok(()) } else { Err(RuntimeError::Tables(what())) }
}

impl ModelShape {
    /// Reads and checks the tables.
    pub fn new(
        model: &CompiledModel,
        options: &RuntimeOptions,
    ) -> Result<ModelShape, RuntimeError> {
        let header = model.header();
        check(header.max_rows > 0 && header.max_head_rows > 0, || "a step has no rows".into())?;
        check(header.context > 0 && header.vocabulary > 0 && header.hidden_width > 0, || {
            "context, vocabulary or hidden width is 0".into()
        })?;
        for (index, layout) in model.layouts().iter().enumerate() {
            check_layout(layout, header.context, header.max_rows)
                .map_err(|what| RuntimeError::Tables(format!("cache layout {index}: {what}")))?;
        }
        let mut dropping = model.layouts().iter().filter(|layout| drops_rows(layout));
        if let Some(first) = dropping.next() {
            check(dropping.all(|layout| layout.reselect == first.reselect), || {
                "some layouts select from their rows anew and others drop them".into()
            })?;
        }
        let windows = model.layouts().iter().filter(|layout| layout.window > 0);
        let anew = model.layouts().iter().filter(|layout| layout.reselect != 0);
        if let Some(observed) = anew.map(|layout| layout.observed).max() {
            // What is computed again looks as far back as it did.
            let needed = |window| window_rows(window, observed, header.context);
            let mut windows = windows.map(|layout| (u64::from(layout.rows), needed(layout.window)));
            check(windows.all(|(rows, needed)| rows >= needed), || {
                format!(
                    "{observed} rows that observe are more than a ring for a window has beside it"
                )
            })?;
        }
        let slots = options.slots_of(model);
        if slots == 0 || slots > MAX_SLOTS {
            let reason = format!("{slots} slots: at least 1 is needed, and at most {MAX_SLOTS}");
            return Err(RuntimeError::Options(reason));
        }
        let blocks = options.blocks.unwrap_or(slots);
        if blocks == 0 || blocks > slots {
            return Err(RuntimeError::Options(format!(
                "{blocks} blocks for {slots} slots: at least 1 is needed, and no more than slots"
            )));
        }
        if blocks < slots && model.layouts().iter().any(|layout| layout.further > 0) {
            return Err(RuntimeError::Options(format!(
                "{blocks} blocks for {slots} slots: a cache with a budget by head has a block in every \
                 slot"
            )));
        }
        let direct_rows = model
            .layouts()
            .iter()
            .filter(|layout| drops_rows(layout))
            .map(CacheLayout::prompt_rows)
            .fold(header.context, u32::min);
        Ok(ModelShape {
            vocabulary: header.vocabulary,
            head_result: model.head_result(),
            head_width: header.head_width,
            context: header.context,
            max_rows: header.max_rows,
            slots,
            blocks,
            hidden_width: header.hidden_width,
            rotary_switch: if header.rotary_sets > 1 { header.rotary_switch } else { 0 },
            layouts: model.layouts().to_vec(),
            direct_rows,
        })
    }

    /// Rotary tables for a sequence that will have at most `rows` rows. Chosen once, for a switch
    /// within a sequence would contradict the keys in its cache.
    pub fn rotary_set(&self, rows: u32) -> u32 {
        u32::from(self.rotary_switch != 0 && rows > self.rotary_switch)
    }

    /// How many sequences there is room for.
    pub fn slot_count(&self) -> SlotCount {
        SlotCount { slots: self.slots, blocks: self.blocks }
    }

    /// Whether samples of a prompt of so many rows read one block: no layout writes to it any more, and
    /// none selects anew. Each has a copy of it otherwise.
    pub fn shares(&self, prompt_rows: u32) -> bool {
        self.layouts.iter().all(|layout| Placement::new(layout, prompt_rows).is_closed())
    }

    /// Most samples of such a prompt that run at once.
    pub fn most_samples(&self, prompt_rows: u32) -> u32 {
        if self.shares(prompt_rows) { self.slots } else { self.blocks }
    }

    /// Most tokens that may be guessed ahead, so that all can be taken back: D − 1 in the layout with
    /// fewest, and no more than a step has room for. What never overwrites a row takes back any number.
    pub fn max_draft(&self) -> u32 {
        let window = CachePolicy::Window as u32;
        let turns = |layout: &&CacheLayout| {
            drops_rows(layout) || (layout.policy == window && layout.rows < self.context)
        };
        let rooms = self.layouts.iter().filter(turns);
        rooms.map(|layout| layout.in_flight.saturating_sub(1)).fold(self.max_rows - 1, u32::min)
    }

    /// An error if so many tokens cannot be guessed ahead.
    pub fn check_draft(&self, most: u32) -> Result<(), RuntimeError> {
        let room = self.max_draft();
        if most <= room {
            return Ok(());
        }
        Err(RuntimeError::Options(format!(
            "{most} tokens cannot be guessed ahead: the model was compiled with room for {room}; \
             compile it with draft={most} in --kv"
        )))
    }

    /// Where a sequence goes on from if a layout has no room for its next row and selects from its rows
    /// anew: in front of the rows that are observed, which are computed again together with the next
    /// one. `before` as for [`ModelShape::kept`].
    pub fn reselects(&self, past: Past, before: &[u32]) -> Option<Past> {
        let before = before.iter().copied().chain(std::iter::repeat(0));
        let is_full = |(layout, before): (&CacheLayout, u32)| {
            let placement = Placement::new(layout, past.prompt_rows.saturating_sub(before));
            layout.reselect != 0 && placement.is_full(past.rows.saturating_sub(before))
        };
        if !self.layouts.iter().zip(before).any(is_full) {
            return None;
        }
        let observed = self.layouts.iter().filter(|layout| layout.reselect != 0);
        let observed = observed.map(|layout| layout.observed).max().unwrap_or(1).max(1);
        Some(Past { rows: (past.rows + 1).saturating_sub(observed), ..past })
    }

    /// Rows kept and dropped of a sequence, in the layout that keeps fewest; layers with a window count
    /// only if there are no others. `before` are the rows that each layout dropped before its last
    /// prompt, nothing for none.
    pub fn kept(&self, past: Past, before: &[u32]) -> KeptRows {
        let before = before.iter().copied().chain(std::iter::repeat(0));
        let kept = self.layouts.iter().zip(before).map(|(layout, before)| {
            let placement = Placement::new(layout, past.prompt_rows.saturating_sub(before));
            let KeptRows { kept, dropped } = placement.kept(past.rows.saturating_sub(before));
            (
                layout.policy == CachePolicy::Window as u32,
                KeptRows { kept, dropped: dropped + before },
            )
        });
        kept.min_by_key(|(windowed, kept)| (*windowed, kept.kept)).unwrap_or_default().1
    }
}

/// Whether a layout selects from prompts that are longer than its planes.
pub(super) fn drops_rows(layout: &CacheLayout) -> bool {
    CachePolicy::from_number(layout.policy).is_some_and(CachePolicy::drops_rows)
}

fn check_layout(layout: &CacheLayout, context: u32, max_rows: u32) -> Result<(), String> {
    let policy = CachePolicy::from_number(layout.policy)
        .ok_or_else(|| format!("unknown policy {}", layout.policy))?;
    let CacheLayout { sinks, selected, recent, rows, window, observed, growth, reservoir, .. } =
        *layout;
    let in_flight = layout.in_flight;
    let block_rows = layout.block_rows;
    let is_block =
        policy.drops_rows() && (u64::from(block_rows) == block_of(layout) || block_rows == rows);
    if block_rows != 0 && !is_block {
        return Err(format!("{block_rows} rows with a number format of their own are no block"));
    }
    if layout.reselect != 0 {
        check_reselecting(layout)?;
    } else if layout.redundancy != 0 {
        return Err("redundancy of rows that are never selected anew".into());
    }
    if layout.further > 0 {
        check_by_head(layout, policy)?;
    }
    check_second(layout, policy)?;
    match policy {
        _ if in_flight > 0 && (reservoir > 0 || layout.reselect != 0) => {
            Err(format!("{in_flight} rows in flight beside a reservoir or selection anew"))
        }
        CachePolicy::Full if in_flight > 0 => {
            Err(format!("{in_flight} rows in flight of a cache that overwrites none"))
        }
        CachePolicy::Window if u64::from(window) + u64::from(in_flight) > u64::from(rows) => {
            Err(format!("{rows} rows for a window of {window} and {in_flight} in flight"))
        }
        CachePolicy::Full | CachePolicy::Window if reservoir > 0 => {
            Err(format!("a reservoir of {reservoir} rows with policy {}", policy.name()))
        }
        CachePolicy::Full if rows < context => {
            Err(format!("{rows} rows are fewer than the context of {context}"))
        }
        CachePolicy::Window if window == 0 => Err("a window policy without a window".into()),
        CachePolicy::Window if u64::from(rows) < window_rows(window, max_rows, context) => {
            Err(format!("{rows} rows cannot hold a window of {window} and a step of {max_rows}"))
        }
        CachePolicy::Full | CachePolicy::Window => Ok(()),
        _ => {
            let parts = [sinks, selected, recent, growth, in_flight, reservoir];
            let sum = parts.into_iter().map(u64::from).sum::<u64>();
            let scores = (selected > 0 || layout.further > 0) && policy != CachePolicy::Random;
            if sum != u64::from(rows) || recent == 0 {
                Err(format!(
                    "{rows} rows are not {sinks} + {selected} + {recent} + {growth} + {in_flight} \
                     + {reservoir} with a ring"
                ))
            } else if observed > recent || (scores && observed == 0) {
                Err(format!("{observed} observed queries with {recent} recent rows"))
            } else if window != 0 {
                Err(format!("a window of {window} with a policy that selects rows"))
            } else {
                Ok(())
            }
        }
    }
}

/// S + K.
fn block_of(layout: &CacheLayout) -> u64 {
    u64::from(layout.sinks) + u64::from(layout.selected)
}

fn check_reselecting(layout: &CacheLayout) -> Result<(), String> {
    if layout.redundancy > 100 {
        return Err(format!("a redundancy of {} % of a score", layout.redundancy));
    }
    let CacheLayout { policy, growth, reservoir, .. } = *layout;
    if policy != CachePolicy::Snapstream as u32 || growth == 0 || reservoir > 0 {
        return Err("selects from its rows anew without room for others".into());
    }
    Ok(())
}

/// Rows are asked by what scores rows, and choose some of those that are selected.
fn check_second(layout: &CacheLayout, policy: CachePolicy) -> Result<(), String> {
    let CacheLayout { second, second_share, .. } = *layout;
    let scores = matches!(policy, CachePolicy::Snapstream | CachePolicy::Snapkv);
    if (second > 0) != (1..=100).contains(&second_share) || (second > 0 && !scores) {
        return Err(format!("{second} rows asked for {second_share} % of what is selected"));
    }
    Ok(())
}

/// Heads have different rows beside sinks, a ring, and nothing that is moved or selected anew.
fn check_by_head(layout: &CacheLayout, policy: CachePolicy) -> Result<(), String> {
    let selects =
        matches!(policy, CachePolicy::Snapstream | CachePolicy::Snapkv | CachePolicy::Random);
    let is_apart = layout.block_rows != 0 && layout.block_rows != layout.rows;
    if !selects || layout.reservoir > 0 || layout.reselect != 0 || is_apart {
        return Err("rows by head with what they do not go with".into());
    }
    if layout.rows >= FURTHER {
        return Err(format!("{} rows beside rows by head", layout.rows));
    }
    Ok(())
}

fn window_rows(window: u32, max_rows: u32, context: u32) -> u64 {
    (u64::from(window) + u64::from(max_rows)).min(context.into())
}

/// The layers' kinds and layouts, looked up.
pub(crate) fn layer_shapes(model: &CompiledModel, layouts: &[CacheLayout]) -> Vec<LayerShape> {
    let layer_shape = |layer: &weir_abi::LayerEntry| {
        let layout = layouts[layer.layout as usize];
        LayerShape {
            kind: model.kinds()[layer.kind as usize],
            layout,
            by_head: match layout.further {
                // Also of a layout that keeps every row of a model with others.
                0 => std::sync::Arc::default(),
                _ => model.selected_by_head(layer).into(),
            },
        }
    };
    model.layers().iter().map(layer_shape).collect()
}

/// Bytes of what long prompts need besides the slot cache; all zero if no layout drops rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefillBytes {
    /// Hidden rows of the longest prompt.
    pub hidden: u64,
    /// Dense key and value rows of the largest layer.
    pub rows: u64,
    /// Observed queries with their log-sum-exp (all of a prompt's, where any may be asked), scores and
    /// scratch.
    pub scores: u64,
}

/// Sizes for the longest prompt. Saturating: what overflows cannot be allocated anyway.
pub(crate) fn prefill_bytes(shape: &ModelShape, layers: &[LayerShape]) -> PrefillBytes {
    let length = u64::from(shape.context);
    if shape.direct_rows >= shape.context {
        return PrefillBytes::default();
    }
    let plane = |kind: &KindEntry| {
        crate::cache::strides(kind, length, 0)
            .map_or(u64::MAX, |strides| strides.key_slot.saturating_add(strides.value_slot))
    };
    let scores = |layer: &LayerShape| {
        let kind = &layer.kind;
        let (heads, kept) = (u64::from(kind.heads), layer.layout.kept_queries().min(shape.context));
        let observed = product([kept.into(), heads, u64::from(kind.key_width) + 1]);
        let second = second_values(layer, shape.context);
        let scores = product([length, kind.kv_heads.into()]);
        let scratch = scores.max(scratch_values(layer));
        product([4, sum([observed, scores, scratch, heads, second])])
    };
    let dropping = || layers.iter().filter(|layer| drops_rows(&layer.layout));
    let copied = copied_rows(shape.max_rows as usize, shape.hidden_width as usize) as u64;
    PrefillBytes {
        hidden: product([4, sum([length, copied]), shape.hidden_width.into()]),
        rows: dropping().map(|layer| plane(&layer.kind)).max().unwrap_or(0),
        scores: dropping().map(scores).max().unwrap_or(0),
    }
}
