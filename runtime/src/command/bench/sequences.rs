//! Requests that run side by side, driven step by step.

use std::time::Instant;

use super::measure::{Counted, Setup, Span, prompt_ids, span};
use crate::forward::StepModel;
use crate::{Engine, Event, Request, RequestId, RuntimeError};

/// Requests that run, and the tokens that each has got.
pub(super) struct Sequences(Vec<(RequestId, u32)>);

impl Sequences {
    /// Submits the prompts and waits for every first token.
    pub fn start(
        engine: &mut Engine<Counted>,
        setup: &Setup,
        seed: u32,
    ) -> Result<(Sequences, Span), RuntimeError> {
        let before = engine.model().counter().loads().clone();
        Sequences::prepare(engine, setup, seed)?;
        let start = Instant::now();
        let mut sequences = Sequences::ask(engine, setup, seed)?;
        while !sequences.all_decode() {
            sequences.step(engine)?;
        }
        engine.model_mut().compute();
        Ok((sequences, span(engine, &start, &before)))
    }

    /// Submits the prompts.
    pub fn submit(
        engine: &mut Engine<Counted>,
        setup: &Setup,
        seed: u32,
    ) -> Result<Sequences, RuntimeError> {
        Sequences::prepare(engine, setup, seed)?;
        Sequences::ask(engine, setup, seed)
    }

    /// Sees to it that no prompt takes over rows of another, and that rows are there where prompts are
    /// not computed.
    fn prepare(engine: &mut Engine<Counted>, setup: &Setup, seed: u32) -> Result<(), RuntimeError> {
        let model = engine.model_mut();
        if setup.assumed { model.pass_over(seed) } else { Ok(()) }
    }

    fn ask(
        engine: &mut Engine<Counted>,
        setup: &Setup,
        seed: u32,
    ) -> Result<Sequences, RuntimeError> {
        let shape = engine.model().shape();
        let (vocabulary, answer) = (shape.vocabulary, setup.answer(shape.max_rows));
        let mut sequences = Sequences(Vec::new());
        for sequence in 1..=setup.batch {
            let request = Request {
                prompt: prompt_ids(setup.length as usize, vocabulary, seed + sequence),
                max_tokens: Some(answer),
                ignore_eos: true,
                ..Request::default()
            };
            sequences.0.push((engine.submit(request)?, 0));
        }
        Ok(sequences)
    }

    /// Steps in which every sequence decodes, at most this many.
    pub fn decode(
        &mut self,
        engine: &mut Engine<Counted>,
        count: u32,
    ) -> Result<Vec<Span>, RuntimeError> {
        let mut steps = Vec::new();
        for _ in 0..count {
            let before = engine.model().counter().loads().clone();
            let start = Instant::now();
            self.step(engine)?;
            steps.push(span(engine, &start, &before));
        }
        Ok(steps)
    }

    /// Ends the requests.
    pub fn end(self, engine: &mut Engine<Counted>) {
        self.0.iter().for_each(|(id, _)| engine.cancel(*id));
        while engine.step(|_, _| {}) {}
    }

    /// Whether every sequence has had its first token.
    pub fn all_decode(&self) -> bool {
        self.0.iter().all(|(_, tokens)| *tokens > 0)
    }

    /// Runs a step.
    pub fn step(&mut self, engine: &mut Engine<Counted>) -> Result<(), RuntimeError> {
        let mut fault = None;
        engine.step(|id, event| match event {
            Event::Token { .. } => {
                let known = self.0.iter_mut().find(|(known, _)| *known == id);
                known.into_iter().for_each(|(_, tokens)| *tokens += 1);
            }
            Event::Failed(reason) => fault = Some(reason),
            Event::Embedding { .. } | Event::Finished { .. } => {}
        });
        fault.map_or(Ok(()), |fault| Err(fault.into()))
    }
}
