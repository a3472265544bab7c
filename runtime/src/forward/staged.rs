//! A prompt whose rows all stay: what several layouts, and several questions, choose from.
//!
//! Every layer has a plane with a row for every position ("token-chunked, dense staging" in section 8
//! of the method's document), and the queries and sums of the last rows of the prompt stay beside it.
//! From there a prompt is written into a slot as often as anybody likes, also into one of another
//! model with the same weights and another layout; a prompt that begins as the one before does is
//! computed from where they part. Model code reads the planes through the spans of its rows, so
//! whose code computes the prompt does not matter, and the outcome has the bits of a prompt that was
//! computed layer by layer. Three kinds of layouts have other bits when they compute a prompt by
//! themselves. Sums follow the order of rows in the cache: a static one that keeps the whole prompt
//! divides its rows from the first one on, and a ring for a window turns meanwhile. And one whose block
//! has a number format of its own rounds rows to it before later ones of a prompt that it keeps whole
//! read them; here they have the ring's until the prompt is written into a slot (int8, where the block
//! is a whole cache of int4).

use weir_abi::{CacheLayout, CachePolicy, KindEntry, RowSpans};

use super::buffer::Buffer;
use super::compaction::{Compaction, DenseLayer, last_observed, second_values};
use super::steps::head_visits;
use super::{Forward, StepFault};
use crate::RuntimeError;
use crate::cache::{LayerShape, Placement, Seat, SlotCache, SlotCount};
use crate::team::{LayerArguments, Observed, Visit};

/// Dense rows of one prompt.
pub struct StagedPrompt {
    /// The layers, with layouts that keep every row.
    layers: Vec<LayerShape>,
    planes: SlotCache,
    /// Tokens whose rows lie in the planes.
    tokens: Vec<u32>,
    rotary_set: u32,
    /// Queries that are kept of a prompt, the most that any layout wants; those of all rows where a
    /// layout may ask any.
    observed: u32,
    /// First position whose queries were kept.
    from: u32,
    queries: Vec<Buffer<f32>>,
    lse: Vec<Buffer<f32>>,
    scores: Buffer<f32>,
    scratch: Buffer<f32>,
    floors: Buffer<f32>,
    /// Room to ask rows, for the layouts that do.
    second: Buffer<f32>,
    /// The sums of the queries that score, beside which a layout may write others in their place.
    sums: Vec<f32>,
}

impl StagedPrompt {
    /// Room for sequences of `context` rows of this model, with the last `observed` queries of a prompt,
    /// or those of all rows.
    pub fn new(
        forward: &Forward,
        context: u32,
        observed: u32,
    ) -> Result<StagedPrompt, RuntimeError> {
        let layers: Vec<LayerShape> = forward
            .layers
            .iter()
            .map(|layer| LayerShape::alike(layer.kind, every_row(&layer.layout, context)))
            .collect();
        let observed = observed.min(context);
        let planes = SlotCache::new(&layers, SlotCount::whole(1))?;
        let largest =
            |size: &dyn Fn(&LayerShape) -> u32| layers.iter().map(size).max().unwrap_or(0);
        let scores = largest(&|layer| layer.kind.kv_heads) as usize * context as usize;
        let kept = |width: &dyn Fn(&LayerShape) -> u32| {
            let room = |layer: &LayerShape| {
                Buffer::zeroed(
                    observed as usize * layer.kind.heads as usize * width(layer) as usize,
                )
            };
            layers.iter().map(room).collect()
        };
        Ok(StagedPrompt {
            planes,
            tokens: Vec::with_capacity(context as usize),
            rotary_set: 0,
            observed,
            from: 0,
            queries: kept(&|layer| layer.kind.key_width),
            lse: kept(&|_| 1),
            scores: Buffer::zeroed(scores),
            scratch: Buffer::zeroed(scores),
            floors: Buffer::zeroed(largest(&|layer| layer.kind.heads) as usize),
            second: Buffer::zeroed(0),
            sums: Vec::new(),
            layers,
        })
    }

    /// Rows that a sequence may have.
    pub fn context(&self) -> u32 {
        self.layers.iter().map(|layer| layer.layout.rows).min().unwrap_or(0)
    }

    /// Bytes of the dense rows.
    pub fn bytes(&self) -> u64 {
        SlotCache::bytes(&self.layers, SlotCount::whole(1)).unwrap_or(u64::MAX)
    }

    fn spans(&self, layer: &LayerShape, first: usize, rows: usize) -> Vec<RowSpans> {
        let placement = Placement::new(&layer.layout, 0);
        (first..first + rows)
            .map(|position| placement.spans(Seat::own(0), position as u32))
            .collect()
    }
}

/// Whether layers have the same heads and rows of the same bytes.
fn same_kinds(one: &[LayerShape], other: &[LayerShape]) -> bool {
    one.iter().map(|layer| layer.kind).eq(other.iter().map(|layer| layer.kind))
}

/// A layout that keeps every row of a context; attention keeps its window.
pub(super) fn every_row(layout: &CacheLayout, context: u32) -> CacheLayout {
    let policy = if layout.window == 0 { CachePolicy::Full } else { CachePolicy::Window };
    CacheLayout {
        policy: policy as u32,
        elastic: 0,
        sinks: 0,
        selected: 0,
        recent: 0,
        rows: context,
        window: layout.window,
        observed: 0,
        pool: 1,
        growth: 0,
        in_flight: 0,
        reservoir: 0,
        reselect: 0,
        redundancy: 0,
        block_rows: 0,
        further: 0,
        first_head: 0,
        second: 0,
        second_share: 0,
    }
}

impl Forward {
    /// Computes a prompt into dense rows, from where it parts from the one that lies there, and writes
    /// the logits of its last row. The sequence will have at most `rows` rows, which decides how
    /// positions are rotated. Returns how many rows were taken over.
    ///
    /// # Panics
    ///
    /// If the prompt is empty, or longer than the room for it or than this model has positions.
    pub fn stage(
        &mut self,
        staged: &mut StagedPrompt,
        prompt: &[u32],
        rows: u32,
        logits: &mut [f32],
    ) -> Result<usize, StepFault> {
        let room = staged.context().min(self.shape.context) as usize;
        assert!(!prompt.is_empty() && prompt.len() <= room, "a prompt's rows");
        let rotary_set = self.shape.rotary_set(rows);
        let alike = staged.tokens.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let alike = if rotary_set == staged.rotary_set { alike } else { 0 };
        let from = prompt.len() - (staged.observed as usize).min(prompt.len());
        // Queries are not kept with their rows, unless all are: those that observe are computed for each
        // prompt.
        let keeps_all = staged.observed >= staged.context();
        let last = if keeps_all { alike } else { alike.min(from) };
        let from = if keeps_all { 0 } else { from };
        let taken_over = last.min(prompt.len() - 1);
        staged.tokens.truncate(taken_over);
        staged.rotary_set = rotary_set;
        staged.from = from as u32;
        let steps = prompt[taken_over..].chunks(self.shape.max_rows as usize);
        let last = steps.len() - 1;
        for (index, tokens) in steps.enumerate() {
            let head_row = tokens.len() as u32 - 1;
            let head_rows: &[u32] = if index == last { &[head_row] } else { &[] };
            self.step_staged(staged, tokens, head_rows, logits)?;
        }
        Ok(taken_over)
    }

    fn step_staged(
        &mut self,
        staged: &mut StagedPrompt,
        tokens: &[u32],
        head_rows: &[u32],
        logits: &mut [f32],
    ) -> Result<(), StepFault> {
        let first = staged.tokens.len();
        assert!(first + tokens.len() <= staged.context() as usize, "room for rows");
        let spans: Vec<Vec<RowSpans>> =
            staged.layers.iter().map(|layer| staged.spans(layer, first, tokens.len())).collect();
        staged.tokens.extend_from_slice(tokens);
        self.rows.clear();
        for (position, token) in (first as u32..).zip(tokens) {
            self.rows.push(*token, position, staged.rotary_set, self.model.header().context);
        }
        let (model, segments) = (&self.model, &self.segments);
        let entry = self.rows.entry(model.weights(), &mut self.arena, &mut self.hidden);
        let from = staged.from;
        let observed = staged
            .queries
            .iter_mut()
            .zip(&mut staged.lse)
            .map(|(queries, lse)| (!lse.is_empty()).then_some(Observed { queries, lse, from }));
        let planes = staged.planes.all_planes();
        let embed = Visit::new(segments.embed, model.embed_weights());
        let layers = (0..).zip(model.layers()).zip(planes).zip(&spans).zip(observed).map(
            |((((number, layer), planes), spans), observed)| Visit {
                layer: Some(LayerArguments { planes, spans, number, observed }),
                ..Visit::new(segments.kinds[layer.kind as usize].layer, model.layer_weights(layer))
            },
        );
        let head = head_visits(segments, model, head_rows, logits);
        Ok(self.team.enter(entry, [embed].into_iter().chain(layers).chain(head))?)
    }

    /// Whether two models have layers with the same heads and as many bytes a row. One may take over
    /// what the other has staged if these bytes also mean the same numbers, which is not known here.
    pub fn has_layers_of(&self, other: &Forward) -> bool {
        same_kinds(&self.layers, &other.layers)
    }

    /// Writes a staged prompt into a slot, as this model's layouts keep it.
    ///
    /// The prompt may have been computed by another model with the same layers, weights and number
    /// format of rows.
    ///
    /// # Panics
    ///
    /// If the layers are others, or a layout wants more queries than were kept.
    pub fn adopt(&mut self, staged: &mut StagedPrompt, slot: u32) -> Result<(), StepFault> {
        assert!(same_kinds(&self.layers, &staged.layers), "layers of the same kind");
        let length = staged.tokens.len() as u32;
        self.cache.expect(slot, length);
        self.begin_sequence(slot);
        let kept_queries = length - staged.from;
        let Forward { model, segments, team, arena, cache, layers, .. } = self;
        let latest = length;
        let is_anew = false;
        let mut compaction =
            Compaction { team, model, segments, arena, cache, slot, length, latest, is_anew };
        let StagedPrompt { planes, queries, lse, scores, scratch, floors, second, sums, .. } =
            staged;
        let observed = queries.iter_mut().zip(lse);
        for (index, (layer, (queries, lse))) in layers.iter().zip(observed).enumerate() {
            let wanted = layer.layout.kept_queries().min(length);
            assert!(wanted <= kept_queries, "queries that observe");
            let values = second_values(layer, length) as usize;
            if second.len() < values {
                *second = Buffer::zeroed(values);
            }
            // The others that take the prompt over find the sums as they were.
            let heads = layer.kind.heads;
            let scoring = (kept_queries - layer.layout.observed.min(kept_queries)) * heads;
            let scoring = scoring as usize..(kept_queries * heads) as usize;
            sums.clear();
            sums.extend_from_slice(&lse[scoring.clone()]);
            let planes = planes.planes(index);
            let (queries, last) = last_observed(layer, queries, lse, kept_queries);
            let dense = DenseLayer { planes, queries, lse: last, scores, scratch, floors, second };
            compaction.write(index, layer, dense)?;
            lse[scoring].copy_from_slice(sums);
        }
        Ok(())
    }

    /// Fills every slot with the rows of a staged prompt of at least one tile, over and over: for
    /// measurements of steps that read many rows whatever they hold.
    pub fn fill_slots(&mut self, staged: &StagedPrompt) {
        assert!(same_kinds(&self.layers, &staged.layers), "layers of the same kind");
        let kinds: Vec<KindEntry> = self.layers.iter().map(|layer| layer.kind).collect();
        self.cache.expect(0, self.shape.context);
        self.cache.repeat(&staged.planes, staged.tokens.len() as u32, &kinds);
    }
}
