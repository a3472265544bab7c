//! Answers as interfaces write them, whole and in pieces: one file each.
//!
//! | interface | file |
//! |---|---|
//! | `/v1/chat/completions` | `chat` |
//! | `/v1/completions` | `text` |
//! | `/v1/responses` | `responses` |
//! | `/v1/messages` | `messages` |

mod chat;
mod logprobs;
mod messages;
mod responses;
mod text;
mod usage;

use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;

pub use chat::ChatForm;
pub use logprobs::TokenTexts;
pub use messages::MessagesForm;
pub use responses::{ResponseFields, ResponsesForm};
pub use text::TextForm;
pub use usage::{Counts, UsageForm};

use super::failure::Failure;
use super::mailbox::ChosenToken;
use super::reading::{Ending, Heard};
use crate::FinishReason;
use crate::notation::Spoken;

/// What all pieces of an answer have in common.
#[derive(Clone, Debug)]
pub struct Letterhead {
    /// Name of the answer.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
}

/// What OpenAI's interfaces for completions send, a piece or the whole.
#[derive(Debug, Serialize)]
struct Sheet<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: C,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<UsageForm>,
}

impl Letterhead {
    fn sheet<C>(&self, object: &'static str, choices: C, usage: Option<&Counts>) -> Sheet<'_, C> {
        let Letterhead { id, created, model } = self;
        Sheet { id, object, created: *created, model, choices, usage: usage.map(UsageForm::from) }
    }
}

/// A whole answer among several.
#[derive(Clone, Debug, Default)]
pub struct WholeAnswer {
    /// Its parts, no two neighbours of one kind but calls.
    pub parts: Vec<Spoken>,
    /// Its tokens, where they are reported, with the ends of their texts in the answer's.
    pub tokens: Vec<ChosenToken>,
    /// How it ended.
    pub ending: Option<Ending>,
}

impl WholeAnswer {
    /// Adds parts.
    pub fn extend(&mut self, spoken: Vec<Spoken>) {
        for part in spoken {
            match (self.parts.last_mut(), part) {
                (Some(Spoken::Text(last)), Spoken::Text(more)) => last.push_str(&more),
                (Some(Spoken::Thought(last)), Spoken::Thought(more)) => last.push_str(&more),
                (_, part) => self.parts.push(part),
            }
        }
    }

    /// All of its text.
    pub fn text(&self) -> String {
        let text = |part: &Spoken| match part {
            Spoken::Text(text) => Some(text.clone()),
            _ => None,
        };
        self.parts.iter().filter_map(text).collect()
    }
}

/// Events that are about to be sent.
#[derive(Debug, Default)]
pub struct Events {
    bytes: Vec<u8>,
}

impl Events {
    /// Adds an event without a name.
    pub fn push(&mut self, data: &impl Serialize) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(b"data: ");
        match serde_json::to_writer(&mut self.bytes, data) {
            Ok(()) => self.bytes.extend_from_slice(b"\n\n"),
            // Of maps whose keys are no text, which no form has.
            Err(error) => {
                tracing::error!(%error, "an event cannot be written");
                self.bytes.truncate(begin);
            }
        }
    }

    /// Adds an event without a name whose data are no JSON.
    pub fn push_text(&mut self, data: &str) {
        for part in ["data: ", data, "\n\n"] {
            self.bytes.extend_from_slice(part.as_bytes());
        }
    }

    /// Adds an event whose name is its data's `type`.
    pub fn push_named(&mut self, data: &Value) {
        for part in ["event: ", data["type"].as_str().unwrap_or_default(), "\n"] {
            self.bytes.extend_from_slice(part.as_bytes());
        }
        self.push(data);
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What is sent.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from(self.bytes)
    }
}

/// One interface's way to write the answers of one request.
pub trait Form: Send {
    /// Whether tokens are reported, and not only text.
    fn reports_tokens(&self) -> bool {
        false
    }

    /// The text of the whole response, which is written once: of every token that is reported it has some
    /// two thousand bytes, and as values in memory ten times as many.
    fn whole(&mut self, answers: &[WholeAnswer], counts: &Counts) -> Vec<u8>;

    /// The first piece of an answer.
    fn begin(&mut self, _index: usize, _out: &mut Events) {}

    /// What a token has brought.
    fn hear(&mut self, index: usize, heard: &Heard<'_>, out: &mut Events);

    /// The end of an answer.
    fn end(&mut self, index: usize, ending: &Ending, out: &mut Events);

    /// The end of all answers.
    fn close(&mut self, counts: &Counts, out: &mut Events);

    /// Something went wrong, and nothing follows.
    fn fail(&mut self, failure: &Failure, out: &mut Events);

    /// A sign of life.
    fn keep_alive(&self) -> Bytes {
        Bytes::from_static(b": keep-alive\n\n")
    }
}

/// `cancelled` is never sent: whoever cancels does not listen.
fn finish_name(ending: &Ending) -> &'static str {
    match ending.reason {
        FinishReason::Stop if ending.called => "tool_calls",
        reason => reason.name(),
    }
}
