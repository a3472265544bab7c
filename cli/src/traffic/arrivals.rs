//! When requests are sent in an open loop: at times that no answer delays.
//!
//! Gaps between arrivals come from a gamma distribution whose mean is 1 / rate and whose shape is the
//! burstiness, as in vLLM's benchmark. A shape of 1 is the exponential distribution, so arrivals are a
//! Poisson process; less makes bursts, more makes gaps alike. Unlike there, times are not stretched so
//! that the last arrival is where its mean would be: that would no longer be the process.

use super::Draws;

/// A request that is to be sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arrival {
    /// Seconds from the start.
    pub at: f64,
    /// What is asked.
    pub prompt: Wanted,
    /// Most tokens of its answer, if it says so itself.
    pub max_tokens: Option<u32>,
    /// Whose it is, where keys share a server.
    pub key: Option<String>,
    /// Lower ones wait less.
    pub priority: Option<i32>,
}

/// What an arrival asks.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Wanted {
    /// The next of the prompts.
    #[default]
    Next,
    /// A passage of about so many tokens.
    Tokens(u32),
    /// This.
    Text(String),
}

/// How much is sent: whichever ends first, and at least one of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Requests.
    pub requests: Option<usize>,
    /// Seconds within which requests are sent.
    pub seconds: Option<f64>,
}

impl Bounds {
    /// Whether a request may still be sent at a time behind so many others.
    pub fn allow(&self, sent: usize, at: f64) -> bool {
        self.requests.is_none_or(|requests| sent < requests)
            && self.seconds.is_none_or(|seconds| at < seconds)
    }
}

/// Arrivals at random with a mean rate.
pub struct Random {
    draws: Draws,
    rate: f64,
    burstiness: f64,
    bounds: Bounds,
    sent: usize,
    at: f64,
}

impl Random {
    /// Arrivals at so many requests per second, drawn from a stream of their own.
    pub fn new(rate: f64, burstiness: f64, bounds: Bounds, draws: Draws) -> Random {
        Random { draws, rate, burstiness, bounds, sent: 0, at: 0.0 }
    }
}

impl Iterator for Random {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        self.at += self.draws.gamma(self.burstiness) / (self.burstiness * self.rate);
        if !self.bounds.allow(self.sent, self.at) {
            return None;
        }
        self.sent += 1;
        Some(Arrival { at: self.at, prompt: Wanted::Next, ..Arrival::default() })
    }
}

#[cfg(test)]
mod tests;
