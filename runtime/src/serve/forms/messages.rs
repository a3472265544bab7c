//! Anthropic's `/v1/messages`: an answer is a list of blocks (thoughts, texts, uses of tools).

use bytes::Bytes;
use serde_json::{Value, json};

use super::{Counts, Events, Form, Letterhead, WholeAnswer};
use crate::FinishReason;
use crate::notation::Spoken;
use crate::serve::failure::Failure;
use crate::serve::json::written;
use crate::serve::reading::{Ending, Heard};
use crate::template::ToolCall;

/// What a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thought,
    Text,
}

/// The answer to one request.
pub struct MessagesForm {
    letterhead: Letterhead,
    prompt_tokens: u32,
    blocks: usize,
    open: Option<Kind>,
    ending: Option<Ending>,
}

impl MessagesForm {
    /// For an answer to a prompt of so many tokens.
    pub fn new(letterhead: Letterhead, prompt_tokens: usize) -> MessagesForm {
        let prompt_tokens = u32::try_from(prompt_tokens).unwrap_or(u32::MAX);
        MessagesForm { letterhead, prompt_tokens, blocks: 0, open: None, ending: None }
    }

    fn message(&self, content: Vec<Value>, usage: Value) -> Value {
        let (reason, stop) = self.ending.as_ref().map(stop_reason).unwrap_or_default();
        json!({
            "id": self.letterhead.id,
            "type": "message",
            "role": "assistant",
            "model": self.letterhead.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": stop,
            "usage": usage,
        })
    }

    fn open_block(&mut self, kind: Option<Kind>, block: Value, out: &mut Events) {
        out.push_named(&json!({
            "type": "content_block_start", "index": self.blocks, "content_block": block,
        }));
        self.open = kind;
    }

    fn delta(&self, delta: Value, out: &mut Events) {
        out.push_named(
            &json!({"type": "content_block_delta", "index": self.blocks, "delta": delta}),
        );
    }

    fn close_block(&mut self, out: &mut Events) {
        if self.open.take().is_some() {
            self.stop_block(out);
        }
    }

    fn stop_block(&mut self, out: &mut Events) {
        out.push_named(&json!({"type": "content_block_stop", "index": self.blocks}));
        self.blocks += 1;
    }

    fn grow(&mut self, kind: Kind, text: &str, out: &mut Events) {
        if self.open != Some(kind) {
            self.close_block(out);
            self.open_block(Some(kind), kind.block(""), out);
        }
        let delta = match kind {
            Kind::Thought => json!({"type": "thinking_delta", "thinking": text}),
            Kind::Text => json!({"type": "text_delta", "text": text}),
        };
        self.delta(delta, out);
    }
}

impl Kind {
    fn block(self, text: &str) -> Value {
        match self {
            // Nothing is signed here: what comes back is believed.
            Kind::Thought => json!({"type": "thinking", "thinking": text, "signature": ""}),
            Kind::Text => json!({"type": "text", "text": text}),
        }
    }
}

fn tool_use(call: &ToolCall, input: Value) -> Value {
    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
}

/// Why an answer ended, and the stop text that ended it.
fn stop_reason(ending: &Ending) -> (Option<&'static str>, Option<String>) {
    match (ending.reason, &ending.stop) {
        (FinishReason::Stop, Some(stop)) => (Some("stop_sequence"), Some(stop.clone())),
        (FinishReason::Stop, None) if ending.called => (Some("tool_use"), None),
        (FinishReason::Length, _) => (Some("max_tokens"), None),
        _ => (Some("end_turn"), None),
    }
}

fn usage(counts: &Counts) -> Value {
    json!({
        "input_tokens": counts.prompt_tokens.saturating_sub(counts.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": counts.cached_tokens,
        "output_tokens": counts.completion_tokens,
        "kv_rows_kept": counts.kv_rows_kept,
        "kv_rows_dropped": counts.kv_rows_dropped,
    })
}

impl Form for MessagesForm {
    fn whole(&mut self, answers: &[WholeAnswer], counts: &Counts) -> Vec<u8> {
        let mut content = Vec::new();
        for answer in answers {
            content.extend(answer.parts.iter().map(|part| match part {
                Spoken::Thought(text) => Kind::Thought.block(text),
                Spoken::Text(text) => Kind::Text.block(text),
                Spoken::Call(call) => {
                    tool_use(call, serde_json::from_str(&call.arguments).unwrap_or_default())
                }
            }));
            self.ending = answer.ending.clone();
        }
        written(&self.message(content, usage(counts)))
    }

    fn begin(&mut self, _index: usize, out: &mut Events) {
        // Which tokens lay in a slot is told at the end.
        let counts = Counts { prompt_tokens: self.prompt_tokens, ..Counts::default() };
        let message = self.message(Vec::new(), usage(&counts));
        out.push_named(&json!({"type": "message_start", "message": message}));
        out.push_named(&json!({"type": "ping"}));
    }

    fn hear(&mut self, _index: usize, heard: &Heard<'_>, out: &mut Events) {
        for part in &heard.spoken {
            match part {
                Spoken::Thought(text) => self.grow(Kind::Thought, text, out),
                Spoken::Text(text) => self.grow(Kind::Text, text, out),
                Spoken::Call(call) => {
                    self.close_block(out);
                    self.open_block(None, tool_use(call, json!({})), out);
                    let json = call.arguments.as_str();
                    self.delta(json!({"type": "input_json_delta", "partial_json": json}), out);
                    self.stop_block(out);
                }
            }
        }
    }

    fn end(&mut self, _index: usize, ending: &Ending, out: &mut Events) {
        self.ending = Some(ending.clone());
        self.close_block(out);
    }

    fn close(&mut self, counts: &Counts, out: &mut Events) {
        let (reason, stop) = self.ending.as_ref().map(stop_reason).unwrap_or_default();
        out.push_named(&json!({
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": stop},
            "usage": usage(counts),
        }));
        out.push_named(&json!({"type": "message_stop"}));
    }

    fn fail(&mut self, failure: &Failure, out: &mut Events) {
        out.push_named(&failure.anthropic_body());
    }

    fn keep_alive(&self) -> Bytes {
        Bytes::from_static(b"event: ping\ndata: {\"type\": \"ping\"}\n\n")
    }
}
