//! What follows from a step's logits: the next token of each sequence, and the end of those that are over.

use weir_abi::HeadResult;

use super::left::{Beginning, LeftRows};
use super::sequence::{Choice, Sequence};
use super::{Engine, Event, FinishReason, History, RequestId, Usage};
use crate::constraint::ConstraintFault;
use crate::forward::{Past, StepFault, StepModel};
use crate::scheduler::{Held, PlannedRows};

impl<M: StepModel> Engine<M> {
    /// Chooses tokens from the logits of a sequence's rows, which begin at row `row`: the next one, and
    /// behind each that was guessed the one after it.
    pub(super) fn choose_guessed(
        &mut self,
        planned: PlannedRows,
        row: usize,
        report: &mut impl FnMut(RequestId, Event<'_>),
    ) {
        let PlannedRows { sequence: id, guesses, .. } = planned;
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.draft.truncate(guesses as usize);
            sequence.drafted += guesses;
        }
        for index in 0..=guesses {
            let sequence = self.sequences.get(&id);
            let guess = sequence.and_then(|sequence| sequence.draft.get(index as usize)).copied();
            match self.choose(id, row + index as usize, guess, report) {
                Choice::Guessed => {}
                Choice::Other => return self.scheduler.keep(id, index),
                Choice::Last => return,
            }
        }
    }

    /// Chooses a sequence's next token from row `row` of the logits; `guess` is what was expected, if
    /// anything was.
    pub(super) fn choose(
        &mut self,
        id: u64,
        row: usize,
        guess: Option<u32>,
        report: &mut impl FnMut(RequestId, Event<'_>),
    ) -> Choice {
        if self.model.shape().head_result == HeadResult::Hidden {
            self.embed(id, row, report);
            return Choice::Last;
        }
        let Some(sequence) = self.sequences.get_mut(&id) else { return Choice::Last };
        let vocabulary = self.model.shape().vocabulary as usize;
        let logits = &mut self.logits[row * vocabulary..(row + 1) * vocabulary];
        let position = sequence.tokens.len() as u32;
        sequence.sampler.begin(&sequence.tokens[..sequence.prompt_rows as usize], vocabulary);
        // Samples of a prompt choose their first tokens from one row, so it is kept for all of them.
        let is_penalised = sequence.is_penalised();
        if !is_penalised && sequence.logprobs.is_some() {
            self.scratch.keep(logits);
        }
        // Before all else that chooses. Samples keep to the same grammar, which takes nothing away twice.
        if let Some(matcher) = &mut sequence.matcher
            && let Err(fault) = matcher.mask(logits, &sequence.stop_tokens)
        {
            self.fail(id, fault.into(), report);
            return Choice::Last;
        }
        if !is_penalised {
            sequence.sampler.penalise(logits);
        }
        let Some(token) = sequence.sampler.choose(logits, position, &mut self.scratch) else {
            self.fail(id, StepFault::NotFinite, report);
            return Choice::Last;
        };
        let ends = sequence.stop_tokens.contains(&token);
        let is_whole = match &mut sequence.matcher {
            // Where the model gives all allowed tokens minus infinity, another one is as good.
            Some(_) if logits[token as usize] == f32::NEG_INFINITY => Err(ConstraintFault::NoToken),
            Some(matcher) if !ends => matcher.take(token),
            _ => Ok(false),
        };
        let is_whole = match is_whole {
            Ok(is_whole) => is_whole,
            Err(fault) => {
                self.fail(id, fault.into(), report);
                return Choice::Last;
            }
        };
        let logprobs = sequence.logprobs.map(|count| self.scratch.logprobs(token, count));
        sequence.tokens.push(token);
        self.chosen_tokens += 1;
        let is_guessed = guess == Some(token);
        sequence.accepted += u32::from(is_guessed);
        self.piece.clear();
        let text = sequence.text.as_mut().filter(|_| !ends);
        sequence.stopped_by = text.and_then(|text| text.push(token, &mut self.piece));
        let logprobs = logprobs.as_ref();
        report(RequestId(id), Event::Token { token, text: &self.piece, logprobs });
        let reason = if ends {
            FinishReason::Stop
        } else if sequence.stopped_by.is_some() {
            // What the decoder still holds comes after the stop string.
            sequence.text = None;
            FinishReason::Stop
        } else if is_whole {
            FinishReason::Stop
        } else if sequence.chosen() == sequence.max_tokens {
            FinishReason::Length
        } else {
            self.reselect(id);
            return if is_guessed { Choice::Guessed } else { Choice::Other };
        };
        let held = self.scheduler.remove(id);
        self.finish(id, held, reason, report);
        Choice::Last
    }

    /// Has a sequence's rows selected anew, by its own last tokens, if its slot has no room for the
    /// next one.
    fn reselect(&mut self, id: u64) {
        let held = self.scheduler.held(id);
        let Some((sequence, held)) = self.sequences.get_mut(&id).zip(held) else { return };
        sequence.anew = sequence.past().and_then(|past| self.model.reselects(held.slot, past));
        if sequence.anew.is_some() {
            sequence.laid_out = sequence.tokens.len() as u32;
            self.scheduler.reselect(id, sequence.laid_out);
        }
    }

    /// Reports the end of a request, and leaves its rows in the slot that it held, if all are there.
    pub(super) fn finish(
        &mut self,
        id: u64,
        held: Option<Held>,
        mut reason: FinishReason,
        report: &mut impl FnMut(RequestId, Event<'_>),
    ) {
        let Some(mut sequence) = self.sequences.remove(&id) else { return };
        self.piece.clear();
        if let Some(stop) = sequence.text.as_mut().and_then(|text| text.finish(&mut self.piece)) {
            reason = FinishReason::Stop;
            sequence.stopped_by = Some(stop);
        }
        let stop = sequence.stopped_by;
        let held = held.zip(sequence.past());
        let kept = held.map(|(held, past)| self.model.kept(held.slot, past)).unwrap_or_default();
        let usage = Usage {
            prompt_tokens: sequence.prompt_rows,
            completion_tokens: sequence.chosen(),
            reused_tokens: sequence.beginning.rows(),
            drafted_tokens: sequence.drafted,
            accepted_tokens: sequence.accepted,
            history: match sequence.beginning {
                Beginning::BehindSome(_) => History::Incremental,
                _ => History::Exact,
            },
            kv_rows_kept: kept.kept,
            kv_rows_dropped: kept.dropped,
        };
        if let Some((Held { slot, block }, Past { rows, prompt_rows })) = held
            && slot == block
        {
            let Sequence { mut tokens, rotary_set, owner, .. } = sequence;
            tokens.truncate(rows as usize);
            self.left.leave(slot, LeftRows { tokens, prompt_rows, rotary_set, owner });
        }
        report(RequestId(id), Event::Finished { text: &self.piece, reason, stop, usage });
    }
}
