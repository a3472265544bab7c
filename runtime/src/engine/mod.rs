//! Serves requests: schedule, run, postprocess, once per step.
//!
//! The engine is driven by its caller: [`Engine::submit`] queues, [`Engine::step`] advances every
//! sequence that holds a slot by one step and reports what happened. What a request gets does not
//! depend on who else is served. After warm-up a step that only decodes allocates nothing
//! (`tests/allocations`), unless it reports probabilities.
//!
//! Where tokens are guessed ahead ([`Engine::guess`]) a sequence that decodes brings its guesses along:
//! a step computes the logits of all their rows, and tokens are chosen from these one after the other,
//! exactly as one by one, until one is not what was guessed. A model that gives embeddings has one for a
//! prompt, and no tokens ([`Event::Embedding`]). An answer that keeps to a grammar is followed
//! token by token in the same order, so that there is never anything to take back.

mod choosing;
mod embedding;
mod left;
mod request;
mod samples;
mod sequence;
#[cfg(test)]
mod tests;
mod whole;

use std::collections::{HashMap, VecDeque};

use weir_tokenizer::Tokenizer;

pub(crate) use embedding::normalise;
use left::{Beginning, Slots, Wanted};
pub use request::{
    Completion, Event, FinishReason, History, Request, RequestId, RequestRules, Usage,
};
use sequence::{Guesses, Sequence};

use crate::cache::KeptRows;
use crate::drafts::Drafter;
use crate::error::RuntimeError;
use crate::forward::{LongPrompt, ModelShape, StepModel, StepRow};
use crate::sampling::SamplingScratch;
use crate::scheduler::{
    Admission, Held, PlannedRows, PlannedTile, Scheduler, SchedulerLimits, StepPlan,
};

/// Bytes that the buffer for a token's text begins with: stop strings may have held back more than one.
const PIECE_ROOM: usize = 4096;

/// A model that serves requests.
pub struct Engine<M> {
    model: M,
    tokenizer: Option<Tokenizer>,
    eos: Vec<u32>,
    scheduler: Scheduler,
    sequences: HashMap<u64, Sequence>,
    next_id: u64,
    plan: StepPlan,
    rows: Vec<StepRow>,
    head_rows: Vec<u32>,
    /// Sequences of a step that choose, with the first row of their logits.
    sampled: Vec<(PlannedRows, usize)>,
    /// What the head gives for rows: logits in most models.
    logits: Vec<f32>,
    scratch: SamplingScratch,
    guesses: Option<Guesses>,
    piece: String,
    /// Requests that were cancelled since the last step, and the slots that they held.
    cancelled: VecDeque<(u64, Option<Held>)>,
    /// Samples whose prompt has been computed in a step, or could not be.
    samples: Vec<(u64, Held)>,
    /// What finished requests have left.
    left: Slots,
    /// Rows of prompts that were computed, and tokens chosen.
    prompt_rows: u64,
    chosen_tokens: u64,
}

impl<M: StepModel> Engine<M> {
    /// An engine without requests. `eos` are the tokens that end every answer.
    pub fn new(model: M, tokenizer: Option<Tokenizer>, eos: Vec<u32>) -> Engine<M> {
        let shape = model.shape();
        let (rows, width) = (shape.max_rows as usize, shape.head_width as usize);
        // Rows of a step whose logits are wanted.
        let chosen = rows.min(shape.slots as usize);
        let scheduler = Scheduler::new(SchedulerLimits {
            slots: shape.slots,
            blocks: shape.blocks,
            rows: shape.max_rows,
            direct_rows: shape.direct_rows,
        });
        let left = Slots::new(shape.slots);
        let scratch = SamplingScratch::new(shape.vocabulary as usize);
        Engine {
            model,
            tokenizer,
            eos,
            scheduler,
            sequences: HashMap::new(),
            next_id: 0,
            plan: StepPlan::default(),
            rows: Vec::with_capacity(rows),
            head_rows: Vec::with_capacity(chosen),
            sampled: Vec::with_capacity(chosen),
            logits: vec![0.0; chosen * width],
            scratch,
            guesses: None,
            piece: String::with_capacity(PIECE_ROOM),
            cancelled: VecDeque::new(),
            samples: Vec::new(),
            left,
            prompt_rows: 0,
            chosen_tokens: 0,
        }
    }

    /// From now on guesses up to `most` tokens ahead for every sequence. Answers stay what they are; an
    /// error if the cache has no room to take so many back.
    pub fn guess(
        &mut self,
        most: u32,
        drafter: impl Drafter + Send + 'static,
    ) -> Result<(), RuntimeError> {
        let shape = self.model.shape();
        shape.check_draft(most)?;
        let rows = u64::from(shape.slots) * (1 + u64::from(most));
        let rows = rows.min(shape.max_rows.into()) as usize;
        self.logits.resize(rows * shape.head_width as usize, 0.0);
        self.head_rows.reserve(rows);
        self.guesses = Some(Guesses { most, drafter: Box::new(drafter) });
        Ok(())
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.model
    }

    /// The model, for whoever wants logits instead of tokens. Its cache is the engine's: only while
    /// the engine is idle. Rows of earlier requests are not taken over any more.
    pub fn model_mut(&mut self) -> &mut M {
        self.left.clear();
        &mut self.model
    }

    /// The tokenizer, if the model has one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// What requests it can serve.
    pub fn rules(&self) -> RequestRules {
        let ModelShape { context, vocabulary, .. } = *self.model.shape();
        RequestRules { context, vocabulary, has_tokenizer: self.tokenizer.is_some() }
    }

    /// Whether a request waits for a slot.
    pub fn waits(&self, id: RequestId) -> bool {
        self.sequences.contains_key(&id.0) && self.scheduler.held(id.0).is_none()
    }

    /// Requests that wait for a slot.
    pub fn waiting(&self) -> usize {
        self.scheduler.waiting()
    }

    /// Requests that hold a slot.
    pub fn running(&self) -> usize {
        self.scheduler.running()
    }

    /// Tokens that were chosen since the beginning.
    pub fn chosen_tokens(&self) -> u64 {
        self.chosen_tokens
    }

    /// Rows of prompts that were computed since the beginning.
    pub fn prompt_rows(&self) -> u64 {
        self.prompt_rows
    }

    /// Slots that requests hold, each with what the cache has of its sequence; nothing while a prompt is
    /// being computed.
    pub fn held_rows(&self) -> impl Iterator<Item = (u32, KeptRows)> {
        self.sequences.iter().filter_map(|(id, sequence)| {
            let slot = self.scheduler.held(*id)?.slot;
            let kept = sequence.past().map(|past| self.model.kept(slot, past));
            Some((slot, kept.unwrap_or_default()))
        })
    }

    /// Whether no request waits or runs.
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.cancelled.is_empty()
    }

    /// Ends a request early; the next step reports it. Unknown and finished ones are ignored.
    pub fn cancel(&mut self, id: RequestId) {
        let is_new = self.cancelled.iter().all(|(cancelled, _)| *cancelled != id.0);
        if self.sequences.contains_key(&id.0) && is_new {
            self.hand_over(id.0);
            let held = self.scheduler.remove(id.0);
            self.cancelled.push_back((id.0, held));
        }
    }

    /// Runs one step and reports what happened to whom. `false` when there is nothing left to do.
    pub fn step(&mut self, mut report: impl FnMut(RequestId, Event<'_>)) -> bool {
        while let Some((id, held)) = self.cancelled.pop_front() {
            self.finish(id, held, FinishReason::Cancelled, &mut report);
        }
        let mut plan = std::mem::take(&mut self.plan);
        self.plan(&mut plan);
        if !plan.rows.is_empty() {
            self.run_rows(&plan, &mut report);
        }
        if let Some(tile) = plan.tile {
            self.run_tile(tile, &mut report);
        }
        self.plan = plan;
        !self.is_idle()
    }

    fn plan(&mut self, plan: &mut StepPlan) {
        let Engine { scheduler, sequences, left, model, guesses, .. } = self;
        scheduler.plan(plan, |id, free| {
            let Some(sequence) = sequences.get_mut(&id) else {
                return Admission { slot: free[0], done: 0 };
            };
            let Sequence { tokens, rotary_set, history, owner, .. } = &*sequence;
            let wanted = Wanted {
                prompt: tokens,
                rotary_set: *rotary_set,
                history: *history,
                owner: *owner,
            };
            let kept = |slot, past| model.kept(slot, past);
            let (slot, beginning) = left.take(wanted, free, model.shape(), kept);
            sequence.beginning = beginning;
            let done = if let Beginning::Alike(rows) = beginning { rows } else { 0 };
            Admission { slot, done }
        });
        if let Some(guesses) = guesses {
            scheduler.guess(plan, |id| {
                sequences.get_mut(&id).map_or(0, |sequence| sequence.guess(guesses))
            });
        }
    }

    fn run_rows(&mut self, plan: &StepPlan, report: &mut impl FnMut(RequestId, Event<'_>)) {
        self.rows.clear();
        self.head_rows.clear();
        self.sampled.clear();
        for planned in &plan.rows {
            let Some(sequence) = self.sequences.get(&planned.sequence) else { continue };
            let tokens = sequence.tokens.iter().chain(&sequence.draft);
            let tokens = tokens.skip(planned.first as usize).take(planned.rows as usize);
            if sequence.chosen() == 0 {
                self.prompt_rows += u64::from(planned.rows);
            }
            self.rows.extend((planned.first..).zip(tokens).map(|(position, token)| StepRow {
                token: *token,
                position,
                slot: planned.slot,
                prompt_rows: sequence.laid_out,
                rotary_set: sequence.rotary_set,
            }));
            if planned.samples {
                self.sampled.push((*planned, self.head_rows.len()));
                let end = self.rows.len() as u32;
                self.head_rows.extend(end - 1 - planned.guesses..end);
            }
        }
        let width = self.model.shape().head_width as usize;
        let logits = &mut self.logits[..self.head_rows.len() * width];
        if let Err(fault) = self.model.step(&self.rows, &self.head_rows, logits) {
            for planned in &plan.rows {
                self.fail(planned.sequence, fault, report);
            }
            return;
        }
        for index in 0..self.sampled.len() {
            let (planned, row) = self.sampled[index];
            let sequence = self.sequences.get(&planned.sequence);
            if sequence.is_some_and(|sequence| sequence.chosen() == 0) {
                self.choose_first(planned.sequence, row, report);
            } else {
                self.choose_guessed(planned, row, report);
            }
        }
    }

    fn run_tile(&mut self, tile: PlannedTile, report: &mut impl FnMut(RequestId, Event<'_>)) {
        let Some(sequence) = self.sequences.get(&tile.sequence) else { return };
        let past = sequence.behind();
        let new = &sequence.tokens[past.map_or(0, |past| past.rows as usize)..];
        if tile.starts {
            self.model.begin_prompt(LongPrompt {
                tokens: new,
                slot: tile.slot,
                rotary_set: sequence.rotary_set,
                past,
                is_anew: sequence.anew.is_some(),
            });
        }
        let last_row = new.len() as u32 - 1;
        let width = self.model.shape().head_width as usize;
        let outcome = self.model.advance_prompt().and_then(|done| {
            if done {
                self.model.prompt_logits(last_row, &mut self.logits[..width])?;
            }
            Ok(done)
        });
        match outcome {
            Ok(false) => {}
            Ok(true) => {
                let Some(sequence) = self.sequences.get_mut(&tile.sequence) else { return };
                sequence.anew = None;
                self.prompt_rows += u64::from(last_row) + 1;
                let is_first = sequence.chosen() == 0;
                self.scheduler.finish_long_prompt(tile.sequence);
                if is_first {
                    self.choose_first(tile.sequence, 0, report);
                } else {
                    self.choose(tile.sequence, 0, None, report);
                }
            }
            Err(fault) => self.fail(tile.sequence, fault, report),
        }
    }
}
