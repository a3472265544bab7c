//! What many answers say together.
//!
//! Percentiles are exact and by nearest rank: the p-th of n sorted values is the one at place
//! ⌈p · n / 100⌉, a value that was measured, where vLLM's benchmark interpolates between two. Gaps of
//! all answers are one sample; time per output token is one value an answer: from its first token to
//! its last, divided by its tokens without the first.

use std::collections::BTreeMap;

use super::offer::Offered;
use super::outcome::{Answer, Kind, Sent};

/// Sorted values in short, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Distribution {
    /// Mean.
    pub mean: f64,
    /// Standard deviation, of these values and not of what they are drawn from.
    pub deviation: f64,
    /// 50th percentile.
    pub median: f64,
    /// 90th percentile.
    pub p90: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The largest.
    pub max: f64,
}

impl Distribution {
    /// Of values in any order; nothing of none.
    pub fn of(mut values: Vec<f64>) -> Option<Distribution> {
        values.sort_unstable_by(f64::total_cmp);
        let max = *values.last()?;
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let [median, p90, p99] = [50, 90, 99].map(|percent| percentile(&values, percent));
        Some(Distribution { mean, deviation: (squares / count).sqrt(), median, p90, p99, max })
    }
}

/// A percentile by nearest rank of sorted values, of which there is at least one.
pub fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(percent * sorted.len()).div_ceil(100).max(1) - 1]
}

/// Failures of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Failures {
    /// How many.
    pub count: usize,
    /// What the first of them said.
    pub example: String,
}

/// What was measured at one rate.
#[derive(Clone, Debug)]
pub struct Figures {
    /// What was offered.
    pub offered: Offered,
    /// Seconds from the start to the last answer.
    pub seconds: f64,
    /// Requests that were sent.
    pub sent: usize,
    /// Answers.
    pub completed: usize,
    /// What failed, by kind.
    pub failures: BTreeMap<Kind, Failures>,
    /// Most requests that were under way at once.
    pub most_at_once: usize,
    /// Tokens of all prompts that were answered, if the server says so for each.
    pub prompt_tokens: Option<u64>,
    /// Tokens of all answers.
    pub output_tokens: u64,
    /// Answers whose tokens the server did not count.
    pub uncounted: usize,
    /// Time to the first token.
    pub first: Option<Distribution>,
    /// Time from token to token.
    pub gaps: Option<Distribution>,
    /// Time per output token behind the first.
    pub per_token: Option<Distribution>,
    /// Time to the end of the answer.
    pub whole: Option<Distribution>,
    /// How long after its time a request was sent, in an open loop.
    pub late: Option<Distribution>,
}

impl Figures {
    /// Gathers what was measured.
    pub fn new(offered: Offered, sent: Sent) -> Figures {
        let mut failures: BTreeMap<Kind, Failures> = BTreeMap::new();
        let mut late = Vec::new();
        let mut answers: Vec<Answer> = Vec::new();
        let requests = sent.outcomes.len();
        for outcome in sent.outcomes {
            late.extend(outcome.late);
            match outcome.answer {
                Ok(answer) => answers.push(answer),
                Err(failed) => {
                    let first = Failures { count: 0, example: failed.message };
                    failures.entry(failed.kind).or_insert(first).count += 1;
                }
            }
        }
        Figures {
            offered,
            seconds: sent.seconds,
            sent: requests,
            completed: answers.len(),
            failures,
            most_at_once: sent.most_at_once,
            prompt_tokens: answers.iter().map(|answer| answer.prompt_tokens).sum(),
            output_tokens: answers.iter().map(Answer::tokens).sum(),
            uncounted: answers.iter().filter(|answer| answer.output_tokens.is_none()).count(),
            first: Distribution::of(answers.iter().filter_map(|answer| answer.first).collect()),
            per_token: Distribution::of(answers.iter().filter_map(per_token).collect()),
            whole: Distribution::of(answers.iter().map(|answer| answer.seconds).collect()),
            gaps: Distribution::of(answers.into_iter().flat_map(|answer| answer.gaps).collect()),
            late: Distribution::of(late),
        }
    }

    /// Requests without an answer.
    pub fn failed(&self) -> usize {
        self.sent - self.completed
    }

    /// So much of something per second.
    pub fn per_second(&self, count: u64) -> f64 {
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }
}

/// Seconds per token behind the first; nothing for answers of one token, or that came in one piece.
fn per_token(answer: &Answer) -> Option<f64> {
    let tokens = answer.tokens().checked_sub(1).filter(|tokens| *tokens > 0)?;
    let seconds: f64 = answer.gaps.iter().sum();
    (!answer.gaps.is_empty()).then(|| seconds / tokens as f64)
}

#[cfg(test)]
mod tests;
