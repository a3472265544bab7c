//! What becomes of requests: answers with the times of their tokens, or failures by kind.

use std::fmt::{Display, Formatter};

/// What is known of an answer. Times are counted from the moment at which the request is sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// Seconds to the first token; nothing if there was no text.
    pub first: Option<f64>,
    /// Seconds between each token and the one before it.
    pub gaps: Vec<f64>,
    /// Seconds to the end of the answer.
    pub seconds: f64,
    /// Tokens of the prompt, if the server says so.
    pub prompt_tokens: Option<u64>,
    /// Tokens of the answer, if the server says so.
    pub output_tokens: Option<u64>,
    /// Its text, if it is kept.
    pub text: Option<String>,
}

impl Answer {
    /// Chunks with text.
    pub fn chunks(&self) -> u64 {
        self.first.map_or(0, |_| 1 + self.gaps.len() as u64)
    }

    /// Tokens: as the server counts them, else chunks.
    pub fn tokens(&self) -> u64 {
        self.output_tokens.unwrap_or(self.chunks())
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Failed {
    /// What kind of failure it is.
    pub kind: Kind,
    /// What happened.
    pub message: String,
}

/// Kinds of failures, which are counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// No connection, or one that broke before the answer began.
    Connection,
    /// The server refused.
    Status(u16),
    /// The answer broke off, said that something went wrong, or was no answer.
    Stream,
    /// It took too long.
    Timeout,
}

impl Display for Kind {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Connection => f.write_str("connection"),
            Kind::Status(status) => write!(f, "HTTP {status}"),
            Kind::Stream => f.write_str("stream"),
            Kind::Timeout => f.write_str("timeout"),
        }
    }
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Seconds after its time, if it had one and a clock had to be met.
    pub late: Option<f64>,
    /// Its answer.
    pub answer: Result<Answer, Failed>,
}

/// What became of all requests of a rate.
#[derive(Debug)]
pub struct Sent {
    /// In the order in which they ended.
    pub outcomes: Vec<Outcome>,
    /// Seconds from the start to the last end.
    pub seconds: f64,
    /// Most that were under way at once.
    pub most_at_once: usize,
}
