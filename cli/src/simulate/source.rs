//! Where simulated requests come from: times that are given, or the ends of others.

use std::collections::VecDeque;
use std::iter::Peekable;

use super::lengths::Lengths;
use crate::traffic::Draws;
use crate::traffic::arrivals::{Arrival, Bounds, Wanted};
use crate::traffic::dataset::{Prompt, Prompts, Question, tokens_of};

/// A request as a scheduler sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// When, in seconds from the start.
    pub at: f64,
    /// Tokens of the prompt, at least 1.
    pub prompt_rows: u32,
    /// Tokens of the answer, at least 1.
    pub tokens: u32,
    /// Whose it is.
    pub key: Option<String>,
    /// Lower ones wait less.
    pub priority: i32,
}

/// Lengths of prompts and answers.
pub struct Sizes {
    /// Of prompts that neither a trace nor a file has.
    pub prompts: Lengths,
    /// Of answers likewise.
    pub answers: Lengths,
    /// Prompts of a file.
    pub dataset: Option<Prompts>,
    /// A stream of their own.
    pub draws: Draws,
}

impl Sizes {
    fn asked(&mut self, arrival: Arrival) -> Asked {
        let Arrival { at, prompt, max_tokens, key, priority } = arrival;
        // Both are drawn always, so that one recorded length does not change all that come after it.
        let drawn = (self.prompts.draw(&mut self.draws), self.answers.draw(&mut self.draws));
        let question = match (&prompt, &mut self.dataset) {
            (Wanted::Next, Some(prompts)) => Some(prompts.take(Wanted::Next)),
            _ => None,
        };
        let of_question = question.as_ref().and_then(|question| question.max_tokens);
        let prompt_rows = match prompt {
            Wanted::Tokens(tokens) => tokens,
            Wanted::Text(text) => tokens_of(&Prompt::Text(text)),
            Wanted::Next => question.map_or(drawn.0, |Question { prompt, .. }| tokens_of(&prompt)),
        };
        let tokens = max_tokens.or(of_question).unwrap_or(drawn.1);
        Asked { at, prompt_rows, tokens, key, priority: priority.unwrap_or(0) }
    }
}

/// Requests to come.
pub struct Source<'a> {
    sizes: &'a mut Sizes,
    from: Times<'a>,
}

enum Times<'a> {
    /// At their times.
    Open(Peekable<Box<dyn Iterator<Item = Arrival> + 'a>>),
    /// When others have ended: at these times.
    Closed { times: VecDeque<f64>, bounds: Bounds, sent: usize },
}

impl<'a> Source<'a> {
    /// Requests at given times.
    pub fn open(arrivals: impl Iterator<Item = Arrival> + 'a, sizes: &'a mut Sizes) -> Source<'a> {
        let arrivals: Box<dyn Iterator<Item = Arrival> + 'a> = Box::new(arrivals);
        Source { sizes, from: Times::Open(arrivals.peekable()) }
    }

    /// So many requests under way, as long as the bounds allow.
    pub fn closed(concurrency: usize, bounds: Bounds, sizes: &'a mut Sizes) -> Source<'a> {
        let first = concurrency.min(bounds.requests.unwrap_or(usize::MAX));
        let times = std::iter::repeat_n(0.0, first).collect();
        Source { sizes, from: Times::Closed { times, bounds, sent: 0 } }
    }

    /// A request that is there at this time.
    pub fn due(&mut self, now: f64) -> Option<Asked> {
        if self.next_at()? > now {
            return None;
        }
        let arrival = match &mut self.from {
            Times::Open(arrivals) => arrivals.next()?,
            Times::Closed { times, sent, .. } => {
                *sent += 1;
                Arrival { at: times.pop_front()?, ..Arrival::default() }
            }
        };
        Some(self.sizes.asked(arrival))
    }

    /// When the next request comes; nothing if none does before another has ended.
    pub fn next_at(&mut self) -> Option<f64> {
        match &mut self.from {
            Times::Open(arrivals) => arrivals.peek().map(|arrival| arrival.at),
            Times::Closed { times, bounds, sent } => {
                times.front().copied().filter(|at| bounds.allow(*sent, *at))
            }
        }
    }

    /// Whether requests go on as long as time does: each that has ended makes room for another.
    pub fn is_endless(&self) -> bool {
        matches!(&self.from, Times::Closed { bounds: Bounds { requests: None, .. }, .. })
    }

    /// A request has ended.
    pub fn ended(&mut self, at: f64) {
        if let Times::Closed { times, .. } = &mut self.from {
            times.push_back(at);
        }
    }
}
