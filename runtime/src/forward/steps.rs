//! Steps: embed, every layer, head, over a mixture of rows. A step is one entry of the team.

use std::sync::Arc;

use weir_abi::RowSpans;

use super::buffer::Buffer;
use super::long_prompt::PromptJob;
use super::shape::{MAX_THREADS, PrefillBytes, layer_shapes, prefill_bytes};
use super::staged::every_row;
use super::{LongPrompt, ModelShape, Past, RuntimeOptions, StepFault, StepModel, StepRow};
use crate::cache::{KeptRows, LayerShape, Placement, Seat, SlotCache};
use crate::cores::default_threads;
use crate::machine;
use crate::memory::MemoryCeiling;
use crate::team::{Entry, HeadArguments, LayerArguments, Team, Visit};
use crate::weights::LevelSegments;
use crate::{CompiledModel, RuntimeError};

/// A compiled model with the memory and threads that it runs with.
pub struct Forward {
    pub(super) model: Arc<CompiledModel>,
    pub(super) segments: LevelSegments,
    pub(super) shape: ModelShape,
    pub(super) layers: Vec<LayerShape>,
    pub(super) cache: SlotCache,
    pub(super) team: Team,
    pub(super) arena: Buffer<u8>,
    pub(super) prompt: PromptJob,
    prefill: PrefillBytes,
    pub(super) hidden: Buffer<f32>,
    pub(super) rows: RowInputs,
    spans: Vec<Vec<RowSpans>>,
    /// Rows dropped before the last prompt, `[slot][layout]`.
    pub(super) dropped: Vec<u32>,
    /// The slot whose block the sequence in a slot reads.
    pub(super) blocks: Vec<u32>,
    /// A layer of each layout, if there is one.
    layer_of_layout: Vec<Option<usize>>,
}

/// Inputs of the rows of one call; reused from call to call.
#[derive(Default)]
pub(super) struct RowInputs {
    pub tokens: Vec<u32>,
    pub positions: Vec<u32>,
    pub rotary: Vec<u32>,
}

impl RowInputs {
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.rotary.clear();
    }

    pub fn push(&mut self, token: u32, position: u32, rotary_set: u32, context: u32) {
        self.tokens.push(token);
        self.positions.push(position);
        self.rotary.push(rotary_set * context + position);
    }

    /// An entry of these rows.
    pub fn entry<'a>(
        &'a self,
        weights: &'a [u8],
        arena: &'a mut [u8],
        hidden: &'a mut [f32],
    ) -> Entry<'a> {
        Entry {
            weights,
            arena,
            hidden,
            tokens: &self.tokens,
            positions: &self.positions,
            rotary_rows: &self.rotary,
            rows: self.tokens.len() as u32,
        }
    }
}

impl Forward {
    /// Allocates everything and starts the threads.
    pub fn new(
        model: Arc<CompiledModel>,
        options: &RuntimeOptions,
    ) -> Result<Forward, RuntimeError> {
        let shape = ModelShape::new(&model, options)?;
        Self::with_shape(model, options, shape)
    }

    /// The same with layouts that keep every row of `context` rows, whatever the model was compiled
    /// for: what a compressed cache is compared with.
    pub fn keeping_all(
        model: Arc<CompiledModel>,
        options: &RuntimeOptions,
        context: u32,
    ) -> Result<Forward, RuntimeError> {
        let mut shape = ModelShape::new(&model, options)?;
        shape.context = shape.context.min(context);
        shape.direct_rows = shape.context;
        for layout in &mut shape.layouts {
            *layout = every_row(layout, shape.context);
        }
        Self::with_shape(model, options, shape)
    }

    fn with_shape(
        model: Arc<CompiledModel>,
        options: &RuntimeOptions,
        shape: ModelShape,
    ) -> Result<Forward, RuntimeError> {
        let segments = machine::choose_level(&model, options.isa)?.clone();
        let layers = layer_shapes(&model, &shape.layouts);
        // Below, sizes are products of numbers out of the tables.
        let ceiling = MemoryCeiling::of_shape(&model, options, &shape, &layers)?.total();
        if isize::try_from(ceiling).is_err() {
            return Err(RuntimeError::Tables("the model needs more than the address space".into()));
        }
        let cache = SlotCache::new(&layers, shape.slot_count())?;
        let threads = options.threads.unwrap_or_else(default_threads);
        if threads == 0 || threads > MAX_THREADS {
            let reason =
                format!("{threads} threads: at least 1 is needed, and at most {MAX_THREADS}");
            return Err(RuntimeError::Options(reason));
        }
        let team = Team::new(threads).map_err(|error| {
            RuntimeError::Machine(format!("cannot start {threads} threads: {error}"))
        })?;
        let header = model.header();
        let arena_bytes = usize::try_from(header.arena_bytes)
            .map_err(|_| RuntimeError::Tables("the arena is too large".into()))?;
        let max_rows = shape.max_rows as usize;
        let prefill = prefill_bytes(&shape, &layers);
        let prompt = PromptJob::new(&shape, &layers)?;
        Ok(Forward {
            segments,
            cache,
            team,
            prefill,
            arena: Buffer::zeroed(arena_bytes),
            hidden: Buffer::zeroed(max_rows * shape.hidden_width as usize),
            prompt,
            rows: RowInputs {
                tokens: Vec::with_capacity(max_rows),
                positions: Vec::with_capacity(max_rows),
                rotary: Vec::with_capacity(max_rows),
            },
            dropped: vec![0; shape.layouts.len() * shape.slots as usize],
            blocks: (0..shape.slots).collect(),
            layer_of_layout: (0..shape.layouts.len() as u32)
                .map(|layout| model.layers().iter().position(|layer| layer.layout == layout))
                .collect(),
            spans: shape.layouts.iter().map(|_| Vec::with_capacity(max_rows)).collect(),
            layers,
            shape,
            model,
        })
    }

    /// The model that runs.
    pub fn model(&self) -> &Arc<CompiledModel> {
        &self.model
    }

    /// The level that runs.
    pub fn level(&self) -> weir_abi::IsaLevel {
        self.segments.level
    }

    /// Threads of the team.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// Bytes of what long prompts need.
    pub fn prefill_bytes(&self) -> PrefillBytes {
        self.prefill
    }

    /// Bytes of the slot cache.
    pub fn cache_bytes(&self) -> u64 {
        SlotCache::bytes(&self.layers, self.shape.slot_count()).unwrap_or(u64::MAX)
    }

    /// The segments that run.
    pub fn segments(&self) -> &LevelSegments {
        &self.segments
    }

    /// The threads that run them.
    pub fn team_mut(&mut self) -> &mut Team {
        &mut self.team
    }

    #[cfg(test)]
    pub(crate) fn poison_cache(&mut self, byte: u8) {
        self.cache.poison(byte);
    }

    fn place_rows(&mut self, rows: &[StepRow]) {
        self.rows.clear();
        for row in rows {
            self.rows.push(row.token, row.position, row.rotary_set, self.model.header().context);
        }
        let layouts = &self.shape.layouts;
        for (index, (spans, layout)) in self.spans.iter_mut().zip(layouts).enumerate() {
            let (cache, blocks) = (&self.cache, &self.blocks);
            let seat = |slot: u32| match self.layer_of_layout[index] {
                Some(layer) => cache.seat(layer, slot, blocks[slot as usize]),
                None => Seat::default(),
            };
            spans.clear();
            spans.extend(rows.iter().map(|row| {
                let before = self.dropped[row.slot as usize * layouts.len() + index];
                let placement = Placement::new(layout, row.prompt_rows - before);
                placement.spans(seat(row.slot), row.position - before)
            }));
        }
    }
}

/// Visits of the head, each with as many rows as the model takes at once.
pub(super) fn head_visits<'a>(
    segments: &LevelSegments,
    model: &'a CompiledModel,
    head_rows: &'a [u32],
    logits: &'a mut [f32],
) -> impl Iterator<Item = Visit<'a>> {
    let segment = segments.head;
    let limit = model.header().max_head_rows as usize;
    let width = model.header().head_width as usize;
    head_rows.chunks(limit).zip(logits.chunks_mut(limit * width)).map(move |(rows, logits)| Visit {
        head: Some(HeadArguments { rows, logits }),
        ..Visit::new(segment, model.head_weights())
    })
}

impl StepModel for Forward {
    fn shape(&self) -> &ModelShape {
        &self.shape
    }

    fn step(
        &mut self,
        rows: &[StepRow],
        head_rows: &[u32],
        logits: &mut [f32],
    ) -> Result<(), StepFault> {
        assert!(!rows.is_empty() && rows.len() <= self.shape.max_rows as usize, "rows of a step");
        assert!(
            logits.len() >= head_rows.len() * self.shape.head_width as usize,
            "room for what the head gives"
        );
        let sets = self.model.header().rotary_sets.max(1);
        for row in rows {
            assert!(row.position < self.shape.context, "a position that the model has");
            assert!(row.rotary_set < sets, "a rotary set that the model has");
        }
        assert!(head_rows.iter().all(|row| (*row as usize) < rows.len()), "rows of this step");
        for sequence in rows.chunk_by(|one, next| one.slot == next.slot) {
            let behind = sequence.iter().filter(|row| row.position >= row.prompt_rows);
            let (rows, most) = (behind.count() as u32, self.shape.max_draft() + 1);
            if rows > most {
                return Err(StepFault::InFlight { rows, most });
            }
        }
        for row in rows {
            self.cache.expect(row.slot, row.prompt_rows);
            if row.position == 0 {
                assert!(row.slot < self.shape.blocks, "a prompt begins in a slot with a block");
                self.begin_sequence(row.slot);
            }
        }
        self.place_rows(rows);
        let model = &self.model;
        let (segments, spans) = (&self.segments, &self.spans);
        let entry = self.rows.entry(model.weights(), &mut self.arena, &mut self.hidden);
        let embed = Visit::new(segments.embed, model.embed_weights());
        let layers = (0..).zip(model.layers()).zip(self.cache.all_planes());
        let layers = layers.map(|((number, layer), planes)| {
            let spans = &spans[layer.layout as usize];
            let segment = segments.kinds[layer.kind as usize].layer;
            Visit {
                layer: Some(LayerArguments { planes, spans, number, observed: None }),
                ..Visit::new(segment, model.layer_weights(layer))
            }
        });
        let head = head_visits(segments, model, head_rows, logits);
        Ok(self.team.enter(entry, [embed].into_iter().chain(layers).chain(head))?)
    }

    fn begin_prompt(&mut self, prompt: LongPrompt<'_>) {
        assert!(prompt.slot < self.shape.blocks, "a prompt begins in a slot with a block");
        let before = prompt.past.map_or(0, |past| past.rows);
        let room = self.shape.context.saturating_sub(before) as usize;
        assert!(prompt.tokens.len() <= room, "a prompt's rows");
        self.cache.expect(prompt.slot, before + prompt.tokens.len() as u32);
        self.take_stock(&prompt);
        self.prompt.begin(prompt);
    }

    fn copy_prompt(&mut self, prompt_rows: u32, from: u32, to: u32) {
        assert_eq!(self.blocks[from as usize], from, "a prompt has a block of its own");
        let dropped = self.dropped_before(from).iter().any(|rows| *rows > 0);
        assert!(!dropped, "a prompt is computed from its first token on");
        let shares = self.shape.shares(prompt_rows);
        assert!(shares || to < self.shape.blocks, "a block for what is written to");
        self.cache.expect(to, prompt_rows);
        self.begin_sequence(to);
        self.cache.copy(&self.layers, prompt_rows, [from, to], shares);
        if shares {
            self.blocks[to as usize] = from;
        }
    }

    fn kept(&self, slot: u32, past: Past) -> KeptRows {
        self.kept_of(slot, past)
    }

    fn reselects(&self, slot: u32, past: Past) -> Option<Past> {
        self.shape.reselects(past, self.dropped_before(slot))
    }

    fn advance_prompt(&mut self) -> Result<bool, StepFault> {
        self.run_tile()
    }

    fn prompt_logits(&mut self, first: u32, logits: &mut [f32]) -> Result<(), StepFault> {
        let rows = logits.len() / self.shape.head_width as usize;
        let width = self.model.header().hidden_width as usize;
        let computed = self.prompt.hidden().len() / width;
        assert!(first as usize + rows <= computed, "rows of the prompt");
        let head_rows: Vec<u32> = (first..first + rows as u32).collect();
        let entry = Entry {
            weights: self.model.weights(),
            arena: &mut self.arena,
            hidden: self.prompt.hidden(),
            ..Entry::default()
        };
        let visits = head_visits(&self.segments, &self.model, &head_rows, logits);
        Ok(self.team.enter(entry, visits)?)
    }
}
