//! An answer, token by token, and when each token came.
//!
//! Times are counted from the moment at which the request is sent. A token here is a chunk with text,
//! as a user sees it; chunks that carry none, such as the first of a chat, which names the role, are
//! nobody's first token.

use std::borrow::Cow;
use std::time::Instant;

use serde::Deserialize;
use serde_json::Value;

use super::said::said;
use crate::traffic::outcome::{Answer, Failed};

/// Most gaps that room is made for beforehand: most answers are shorter than they might be.
const MOST_RESERVED: u32 = 4096;

/// An answer that is being read.
pub struct Reading {
    start: Instant,
    last: Instant,
    answer: Answer,
    /// Whether the model has said why it ends.
    has_ended: bool,
    /// Whether nothing more is to come.
    is_done: bool,
}

impl Reading {
    /// Time begins to count now. The answer may have about so many tokens.
    pub fn new(tokens: u32, keep_text: bool) -> Reading {
        let start = Instant::now();
        let gaps = Vec::with_capacity(tokens.min(MOST_RESERVED) as usize);
        let text = keep_text.then(String::new);
        let answer = Answer { gaps, text, ..Answer::default() };
        Reading { start, last: start, answer, has_ended: false, is_done: false }
    }

    /// Reads an event.
    pub fn read(&mut self, data: &[u8]) -> Result<(), Failed> {
        if self.is_done {
            return Ok(());
        }
        if data == b"[DONE]" {
            self.is_done = true;
            return Ok(());
        }
        let chunk: Chunk<'_> = serde_json::from_slice(data)
            .map_err(|error| Failed::stream(format!("an event is no chunk: {error}")))?;
        let is_error = chunk.error.is_some()
            || chunk.object.as_ref().is_some_and(|object| object.0 == "error");
        if is_error {
            return Err(Failed::stream(said(&String::from_utf8_lossy(data))));
        }
        if let Some(usage) = chunk.usage {
            self.answer.prompt_tokens = usage.prompt_tokens.or(self.answer.prompt_tokens);
            self.answer.output_tokens = usage.completion_tokens.or(self.answer.output_tokens);
        }
        let Some(choice) = chunk.choices.into_iter().flatten().next() else { return Ok(()) };
        let delta = choice.delta.unwrap_or_default();
        let parts = [choice.text, delta.reasoning, delta.reasoning_content, delta.content];
        let mut has_text = false;
        for Text(part) in parts.into_iter().flatten() {
            has_text |= !part.is_empty();
            if let Some(text) = &mut self.answer.text {
                text.push_str(&part);
            }
        }
        if has_text {
            let now = Instant::now();
            match self.answer.first {
                None => self.answer.first = Some((now - self.start).as_secs_f64()),
                Some(_) => self.answer.gaps.push((now - self.last).as_secs_f64()),
            }
            self.last = now;
        }
        self.has_ended |= choice.finish_reason.is_some();
        Ok(())
    }

    /// Whether the answer's last event was there.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// The answer, if it is whole.
    pub fn end(mut self) -> Result<Answer, Failed> {
        if !self.is_done && !self.has_ended {
            return Err(Failed::stream("the answer ended before the model did"));
        }
        self.answer.seconds = self.start.elapsed().as_secs_f64();
        Ok(self.answer)
    }
}

/// What an event says. Text is borrowed from it where nothing in it is escaped.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow)]
    choices: Option<Vec<Choice<'a>>>,
    usage: Option<Usage>,
    error: Option<Value>,
    object: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
    delta: Option<Delta<'a>>,
    finish_reason: Option<Text<'a>>,
}

/// What a chat's chunk adds; models that think aloud have a field of its own for it, of two names.
#[derive(Default, Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
    reasoning: Option<Text<'a>>,
    reasoning_content: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

#[cfg(test)]
mod tests;
