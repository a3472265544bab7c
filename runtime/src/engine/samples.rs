//! Several answers to one prompt.
//!
//! The prompt is computed once. From the logits of its last row every sample chooses its first token,
//! and goes on by itself: in a slot of its own, beside the block of the prompt that nothing is written to
//! any more, or with a copy of what the prompt has left where that is not so
//! ([`crate::forward::ModelShape::shares`]). Samples of a prompt wait until there are slots for all; more
//! than there are slots run in turns, each of which computes the prompt.

use weir_abi::HeadResult;

use super::left::Beginning;
use super::sequence::{Choice, Sequence};
use super::{Engine, Event, History, Request, RequestId};
use crate::constraint::Matcher;
use crate::error::RequestError;
use crate::forward::{StepFault, StepModel};
use crate::sampling::{Sampler, SamplingOptions};
use crate::scheduler::Turn;
use crate::text::TextStream;

impl<M: StepModel> Engine<M> {
    /// Checks a request and queues it.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, RequestError> {
        self.rules().check(&request)?;
        Ok(self.queue(request, 1)[0])
    }

    /// Queues a request that is to be answered so many times, and names the answers. Number i, from 0, is
    /// that of a request by itself whose seed is greater by i (as vLLM does it): without a temperature
    /// all are equal.
    pub fn submit_samples(
        &mut self,
        request: Request,
        samples: u32,
    ) -> Result<Vec<RequestId>, RequestError> {
        self.rules().check(&request)?;
        if samples == 0 {
            return Err(RequestError::NoSamples);
        }
        if samples > 1 && request.history == History::Incremental {
            return Err(RequestError::SamplesIncremental { samples });
        }
        Ok(self.queue(request, samples))
    }

    /// Queues a request that can be served, in turns of as many samples as there can be at once.
    fn queue(&mut self, request: Request, samples: u32) -> Vec<RequestId> {
        let prompt_rows = request.prompt.len() as u32;
        let shape = self.model.shape();
        let (most, shares) = (shape.most_samples(prompt_rows), shape.shares(prompt_rows));
        let ids: Vec<u64> = (self.next_id..).take(samples as usize).collect();
        for (sample, id) in (0..).zip(&ids) {
            let sequence = self.sequence(&request, sample);
            self.sequences.insert(*id, sequence);
        }
        self.next_id += u64::from(samples);
        let turn = Turn { owner: request.owner, priority: request.priority };
        for group in ids.chunks(most as usize) {
            let others = group[1..].to_vec();
            self.scheduler.submit_samples(group[0], prompt_rows, others, shares, turn);
        }
        ids.into_iter().map(RequestId).collect()
    }

    /// One of the answers to a request.
    fn sequence(&self, request: &Request, sample: u64) -> Sequence {
        let shape = self.model.shape();
        let Request { prompt, sampling, choice, history, .. } = request;
        let mut ends = request.stop_tokens.clone();
        if !request.ignore_eos {
            ends.extend_from_slice(&self.eos);
        }
        let prompt_rows = prompt.len() as u32;
        // The last token needs no row, so there is room for one more than rows are left.
        let room = shape.context - prompt_rows + 1;
        let max_tokens = match shape.head_result {
            HeadResult::Logits => request.max_tokens.unwrap_or(u32::MAX).clamp(1, room),
            HeadResult::Hidden => 1,
        };
        let seed = sampling.seed.wrapping_add(sample);
        let sampling = SamplingOptions { seed, ..sampling.clone() };
        let mut tokens = Vec::with_capacity(prompt.len() + max_tokens as usize);
        tokens.extend_from_slice(prompt);
        let text = |tokenizer| {
            let (stops, shown) = (request.stop.clone(), request.shown_tokens.clone());
            let mut text = TextStream::new(tokenizer, stops, shown);
            if request.goes_on {
                text.go_on_with(prompt);
            }
            text
        };
        Sequence {
            rotary_set: shape.rotary_set(prompt_rows + max_tokens - 1),
            sampler: Sampler::new(sampling, *choice),
            text: self.tokenizer.as_ref().map(text),
            stopped_by: None,
            max_tokens,
            draft: Vec::with_capacity(self.guesses.as_ref().map_or(0, |all| all.most as usize)),
            drafted: 0,
            accepted: 0,
            stop_tokens: ends,
            matcher: request.constraint.clone().map(Matcher::new),
            tokens,
            prompt_rows,
            laid_out: prompt_rows,
            anew: None,
            history: *history,
            beginning: Beginning::Alike(0),
            logprobs: request.logprobs,
            owner: request.owner,
        }
    }

    /// A sequence is to be removed: what has been computed of its prompt is that of the sample which waits
    /// for it, if one does.
    pub(super) fn hand_over(&mut self, id: u64) {
        let Some(heir) = self.scheduler.heir(id) else { return };
        let beginning = self.sequences.get(&id).map(|sequence| sequence.beginning);
        if let Some((heir, beginning)) = self.sequences.get_mut(&heir).zip(beginning) {
            heir.beginning = beginning;
        }
    }

    /// Chooses the first token of a sequence, from row `row` of the logits, and of the samples that have
    /// waited for its prompt.
    pub(super) fn choose_first(
        &mut self,
        id: u64,
        row: usize,
        report: &mut impl FnMut(RequestId, Event<'_>),
    ) {
        let mut samples = std::mem::take(&mut self.samples);
        self.scheduler.start_samples(id, &mut samples);
        if let Some((prompt, from)) = self.sequences.get(&id).zip(self.scheduler.held(id)) {
            let rows = prompt.prompt_rows;
            for (sample, to) in &samples {
                self.left.forget(to.slot);
                self.model.copy_prompt(rows, from.slot, to.slot);
                if let Some(sample) = self.sequences.get_mut(sample) {
                    sample.beginning = Beginning::Copied(rows);
                }
            }
        }
        // All have the same penalties until then.
        let _: Choice = self.choose(id, row, None, report);
        for (sample, _) in &samples {
            let _: Choice = self.choose(*sample, row, None, report);
        }
        self.samples = samples;
    }

    /// A sequence could not be computed, and what waits for it neither.
    pub(super) fn fail(
        &mut self,
        id: u64,
        fault: StepFault,
        report: &mut impl FnMut(RequestId, Event<'_>),
    ) {
        let mut samples = std::mem::take(&mut self.samples);
        self.scheduler.list_samples(id, &mut samples);
        let failed = samples.iter().map(|(sample, _)| *sample).chain([id]);
        for id in failed {
            self.scheduler.remove(id);
            if self.sequences.remove(&id).is_some() {
                report(RequestId(id), Event::Failed(fault));
            }
        }
        self.samples = samples;
    }
}
