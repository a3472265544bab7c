//! Steps: embed, every layer, head, over a mixture of rows.

use std::sync::Arc;

use weir_abi::RowSpans;

use super::buffer::Buffer;
use super::long_prompt::PromptJob;
use super::shape::{PrefillBytes, layer_shapes, prefill_bytes};
use super::{LongPrompt, ModelShape, RuntimeOptions, StepFault, StepModel, StepRow};
use crate::cache::{LayerShape, Placement, SlotCache};
use crate::cores::default_threads;
use crate::machine;
use crate::team::{Call, LayerArguments, Team};
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
    hidden: Buffer<f32>,
    pub(super) rows: RowInputs,
    spans: Vec<Vec<RowSpans>>,
    /// One head call's logits, for rows that the caller's buffer takes only later.
    head_limit: usize,
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
}

impl Forward {
    /// Allocates everything and starts the threads.
    pub fn new(
        model: Arc<CompiledModel>,
        options: &RuntimeOptions,
    ) -> Result<Forward, RuntimeError> {
        let shape = ModelShape::new(&model, options.slots)?;
        let segments = machine::choose_level(&model, options.isa)?.clone();
        let layers = layer_shapes(&model);
        let cache = SlotCache::new(&layers, shape.slots)?;
        let threads = options.threads.unwrap_or_else(default_threads);
        if threads == 0 {
            return Err(RuntimeError::Options("0 threads: at least 1 is needed".into()));
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
        let head_limit = header.max_head_rows as usize;
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
            spans: shape.layouts.iter().map(|_| Vec::with_capacity(max_rows)).collect(),
            head_limit,
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
        SlotCache::bytes(&self.layers, self.shape.slots).unwrap_or(u64::MAX)
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

    /// Runs the head on rows of `hidden`, as many at once as the model takes.
    pub(super) fn run_head(
        &mut self,
        hidden: Hidden,
        head_rows: &[u32],
        logits: &mut [f32],
    ) -> Result<(), StepFault> {
        let vocabulary = self.shape.vocabulary as usize;
        let hidden = match hidden {
            Hidden::Step => &mut self.hidden[..],
            Hidden::Prompt => self.prompt.hidden(),
        };
        let calls =
            head_rows.chunks(self.head_limit).zip(logits.chunks_mut(self.head_limit * vocabulary));
        for (head_rows, logits) in calls {
            let call = Call {
                weights: self.model.weights(),
                segment_weights: self.model.head_weights(),
                arena: &mut self.arena,
                hidden: &mut *hidden,
                tokens: &[],
                positions: &[],
                rotary_rows: &[],
                layer: None,
                prompt: None,
                head_rows,
                logits,
                rows: 0,
            };
            self.team.enter(self.segments.head, call)?;
        }
        Ok(())
    }

    fn place_rows(&mut self, rows: &[StepRow]) {
        self.rows.clear();
        for row in rows {
            self.rows.push(row.token, row.position, row.rotary_set, self.shape.context);
        }
        for (spans, layout) in self.spans.iter_mut().zip(&self.shape.layouts) {
            spans.clear();
            spans.extend(
                rows.iter().map(|row| {
                    Placement::new(layout, row.prompt_rows).spans(row.slot, row.position)
                }),
            );
        }
    }
}

/// Which hidden rows the head reads.
#[derive(Clone, Copy)]
pub(super) enum Hidden {
    /// Those of the step.
    Step,
    /// Those of the long prompt.
    Prompt,
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
            logits.len() >= head_rows.len() * self.shape.vocabulary as usize,
            "room for logits"
        );
        self.place_rows(rows);
        let count = rows.len() as u32;
        let model = &self.model;
        let call = Call {
            weights: model.weights(),
            segment_weights: model.embed_weights(),
            arena: &mut self.arena,
            hidden: &mut self.hidden,
            tokens: &self.rows.tokens,
            positions: &self.rows.positions,
            rotary_rows: &self.rows.rotary,
            layer: None,
            prompt: None,
            head_rows: &[],
            logits: &mut [],
            rows: count,
        };
        self.team.enter(self.segments.embed, call)?;
        for (index, layer) in model.layers().iter().enumerate() {
            let call = Call {
                weights: model.weights(),
                segment_weights: model.layer_weights(layer),
                arena: &mut self.arena,
                hidden: &mut self.hidden,
                tokens: &self.rows.tokens,
                positions: &self.rows.positions,
                rotary_rows: &self.rows.rotary,
                layer: Some(LayerArguments {
                    planes: self.cache.planes(index),
                    spans: &self.spans[layer.layout as usize],
                    observed: None,
                }),
                prompt: None,
                head_rows: &[],
                logits: &mut [],
                rows: count,
            };
            self.team.enter(self.segments.kinds[layer.kind as usize].layer, call)?;
        }
        self.run_head(Hidden::Step, head_rows, logits)
    }

    fn begin_prompt(&mut self, prompt: LongPrompt<'_>) {
        self.prompt.begin(prompt);
    }

    fn advance_prompt(&mut self) -> Result<bool, StepFault> {
        self.run_tile()
    }

    fn prompt_logits(&mut self, first: u32, logits: &mut [f32]) -> Result<(), StepFault> {
        let rows = logits.len() / self.shape.vocabulary as usize;
        let head_rows: Vec<u32> = (first..first + rows as u32).collect();
        self.run_head(Hidden::Prompt, &head_rows, logits)
    }
}
