//! What a server takes from strangers before it says no.

use std::time::Duration;

/// Limits of requests and connections. [`Limits::default`] has the defaults that `docs/serving.md` lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Bytes of all bodies that are being read.
    pub all_body_bytes: usize,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Header fields.
    pub headers: usize,
    /// Bytes of a URL.
    pub url_bytes: usize,
    /// Levels of JSON.
    pub json_depth: usize,
    /// Answers to a prompt.
    pub samples: u32,
    /// Prompts of a request.
    pub prompts: usize,
    /// Stop texts, and the bytes of each.
    pub stops: (usize, usize),
    /// Entries of `logit_bias`.
    pub biases: usize,
    /// Alternatives reported with a token.
    pub logprobs: u32,
    /// Until a head is complete.
    pub head: Duration,
    /// Between two pieces of a body.
    pub body_idle: Duration,
    /// Until a body is complete.
    pub body_total: Duration,
    /// While a client takes nothing of its answer.
    pub write_stall: Duration,
    /// Between two signs of life in a stream.
    pub keep_alive: Duration,
    /// Connections at once.
    pub connections: usize,
    /// Connections of one address at once.
    pub connections_of_address: usize,
}

/// Threads that read requests: parse, apply templates, tokenize.
pub const READERS: usize = 2;

/// Allowance for a connection that says little: buffers of hyper and axum and what the system's pages
/// leave unused. The buffer for heads is [`Limits::head_bytes`] at most, beside it.
const CONNECTION_BYTES: usize = 16 << 10;

/// Bytes that a reader holds for each of a body's while it turns it into tokens: the fields' texts, what
/// the template makes of them, pieces of the tokenizer, and four bytes for a token of one.
const READING: usize = 12;

impl Limits {
    /// What a server within these limits holds at most, besides the engine, in bytes. `answer_bytes` are
    /// those of all answers that can be given or wait at once.
    pub fn memory(&self, answer_bytes: u64) -> u64 {
        let connections = self.connections.saturating_mul(CONNECTION_BYTES + self.head_bytes);
        let reading = (READERS * READING).saturating_mul(self.body_bytes);
        let own = connections.saturating_add(reading).saturating_add(self.all_body_bytes);
        (own as u64).saturating_add(answer_bytes)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 4 << 20,
            all_body_bytes: 16 << 20,
            head_bytes: 16 << 10,
            headers: 100,
            url_bytes: 8 << 10,
            json_depth: 64,
            samples: 8,
            prompts: 64,
            stops: (16, 256),
            biases: 1024,
            logprobs: 20,
            head: Duration::from_secs(10),
            body_idle: Duration::from_secs(30),
            body_total: Duration::from_secs(60),
            write_stall: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
            connections: 1024,
            connections_of_address: 64,
        }
    }
}
