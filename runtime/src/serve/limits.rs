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

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 4 << 20,
            all_body_bytes: 32 << 20,
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
