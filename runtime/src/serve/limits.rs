//! What a server takes from strangers before it says no.

use std::time::Duration;

use super::tls::UNSENT_BYTES;

/// Limits of requests and connections. [`Limits::default`] has the defaults that `docs/serving.md` lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a body.
    pub body_bytes: usize,
    /// Bytes of all bodies that are being read and of tokens or text that are sent as they are asked for, but
    /// for the first 16 KiB of each.
    pub all_body_bytes: usize,
    /// Bytes of tokens that are reported with probabilities, of all answers together, or fewer where so many
    /// can never be asked for.
    pub all_reported_bytes: usize,
    /// Bytes of a request's head.
    pub head_bytes: usize,
    /// Header fields.
    pub headers: usize,
    /// Bytes of a URL.
    pub url_bytes: usize,
    /// Levels of JSON.
    pub json_depth: usize,
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
    /// Connections of one address at once on which nothing is being answered.
    pub connections_of_address: usize,
}

/// Answers to a prompt.
pub const SAMPLES: u32 = 8;

/// Prompts of a request.
pub const PROMPTS: usize = 64;

/// Texts of a request for embeddings, as OpenAI has it.
pub const INPUTS: usize = 2048;

/// Texts of such a request that are computed before the next ones, or fewer where there are fewer slots.
pub const INPUTS_AT_ONCE: usize = 16;

/// Messages of a conversation.
pub const MESSAGES: usize = 4096;

/// Calls of tools in a message.
pub const CALLS: usize = 128;

/// Tools of a request.
pub const TOOLS: usize = 128;

/// Bytes of a tool's name.
pub const TOOL_NAME: usize = 64;

/// Variables that a request gives the chat template.
pub const VARIABLES: usize = 64;

/// Bytes of JSON in all tools of a request, in the arguments of all calls in its messages, and in its
/// template's variables: each. Values of a template take up to twelve times the space.
pub const TEMPLATE_JSON: usize = 512 << 10;

/// Stop texts, and the bytes of each.
pub const STOPS: usize = 16;
/// See above.
pub const STOP_BYTES: usize = 256;
/// Entries of `stop_token_ids`, which are looked through for every token.
pub const STOP_TOKENS: usize = 64;

/// Entries of `logit_bias`.
pub const BIASES: usize = 1024;

/// Texts that an answer can be chosen from.
pub const CHOICES: usize = 4096;

/// Alternatives reported with a token.
pub const LOGPROBS: u32 = 20;

/// Threads that read requests: parse, apply templates, tokenize.
pub const READERS: usize = 2;

/// Allowance for a connection that says little: buffers of hyper and axum and what the system's pages
/// leave unused. The buffer for heads is [`Limits::head_bytes`] at most, beside it.
const CONNECTION_BYTES: usize = 16 << 10;

/// Bytes of a body for which every connection has room of its own. What all share is for longer ones:
/// whoever holds that back with long bodies that do not come to an end keeps nobody else's short ones out.
pub const OWN_BODY_BYTES: usize = 16 << 10;

/// What TLS holds of a connection at most: a message of the handshake, which is 64 KiB at most, or a
/// record of 18 KiB and what was in it; an answer's end that the client has not taken
/// ([`UNSENT_BYTES`](super::tls::UNSENT_BYTES)) with the frames of its records; keys and state. Seen: 57
/// KiB with greetings of 56 KiB that lack their end, 21 KiB, hyper's included, once keys are agreed on.
const TLS_BYTES: usize = (64 << 10) + (18 << 10) + 2 * UNSENT_BYTES + (8 << 10);

/// Bytes that a reader holds for each of a body's: fields of the smallest messages that JSON can write,
/// and what a template makes of them.
const READING: usize = 8;

/// Bytes that a tokenizer holds for each of a text's: pieces of a letter or two with their places, merges,
/// ids (45 seen with a text of two letters a word).
const TOKENIZING: usize = 64;

impl Limits {
    /// What a server within these limits holds at most, besides the engine, in bytes. `text_bytes` are
    /// those of the longest text that is tokenized, `answer_bytes` those of all answers that can be given
    /// or wait at once.
    pub fn memory(&self, text_bytes: usize, answer_bytes: u64) -> u64 {
        let connection = CONNECTION_BYTES + self.head_bytes + OWN_BODY_BYTES;
        let connections = self.connections.saturating_mul(connection);
        let text = TOKENIZING.saturating_mul(text_bytes.min(self.body_bytes));
        let reader = READING.saturating_mul(self.body_bytes).saturating_add(text);
        let own = connections
            .saturating_add(READERS.saturating_mul(reader))
            .saturating_add(self.all_body_bytes);
        (own as u64).saturating_add(answer_bytes)
    }

    /// What TLS adds to that.
    pub fn tls_memory(&self) -> u64 {
        self.connections.saturating_mul(TLS_BYTES) as u64
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 4 << 20,
            all_body_bytes: 16 << 20,
            all_reported_bytes: 64 << 20,
            head_bytes: 16 << 10,
            headers: 100,
            url_bytes: 8 << 10,
            json_depth: 64,
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
