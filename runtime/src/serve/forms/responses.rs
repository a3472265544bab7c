//! `/v1/responses`: an answer is a list of items (thoughts, a message, calls), each of which is begun,
//! grows and is done.
//!
//! Whole answers and streams are written by the same steps, so they say the same.

use serde_json::{Value, json};

use super::{Counts, Events, Form, Letterhead, WholeAnswer};
use crate::FinishReason;
use crate::notation::Spoken;
use crate::serve::failure::Failure;
use crate::serve::json::written;
use crate::serve::reading::{Ending, Heard};
use crate::template::ToolCall;

/// What a response repeats of its request.
#[derive(Clone, Debug, Default)]
pub struct ResponseFields {
    /// Text in front of the conversation.
    pub instructions: Option<String>,
    /// Most tokens.
    pub max_output_tokens: Option<u32>,
    /// How tokens were chosen.
    pub temperature: f32,
    /// See above.
    pub top_p: f32,
    /// Tools as they were sent.
    pub tools: Vec<Value>,
    /// What was to be called, as it was sent.
    pub tool_choice: Value,
    /// The form of the answer, as it was sent.
    pub text_format: Value,
    /// Whether an answer may call several.
    pub parallel_tool_calls: bool,
}

/// What an item is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Thought,
    Message,
}

/// An item that grows.
struct OpenItem {
    kind: Kind,
    id: String,
    text: String,
}

/// The answer to one request.
pub struct ResponsesForm {
    letterhead: Letterhead,
    fields: ResponseFields,
    output: Vec<Value>,
    open: Option<OpenItem>,
    events: u64,
    ending: Option<Ending>,
}

impl ResponsesForm {
    /// For an answer of which nothing has come.
    pub fn new(letterhead: Letterhead, fields: ResponseFields) -> ResponsesForm {
        let (output, open, ending) = (Vec::new(), None, None);
        ResponsesForm { letterhead, fields, output, open, events: 0, ending }
    }

    fn response(&self, status: &str, usage: Value) -> Value {
        let Letterhead { id, created, model } = &self.letterhead;
        let fields = &self.fields;
        let incomplete = (status == "incomplete").then(|| json!({"reason": "max_output_tokens"}));
        json!({
            "id": id,
            "object": "response",
            "created_at": created,
            "status": status,
            "background": false,
            "error": null,
            "incomplete_details": incomplete,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "metadata": {},
            "model": model,
            "output": self.output,
            "parallel_tool_calls": fields.parallel_tool_calls,
            "previous_response_id": null,
            "store": false,
            "temperature": fields.temperature,
            "text": {"format": fields.text_format},
            "tool_choice": fields.tool_choice,
            "tools": fields.tools,
            "top_p": fields.top_p,
            "truncation": "disabled",
            "usage": usage,
        })
    }

    /// Adds an event; they are numbered.
    fn push(&mut self, mut event: Value, out: &mut Events) {
        event["sequence_number"] = self.events.into();
        self.events += 1;
        out.push_named(&event);
    }

    fn is_cut(&self) -> bool {
        self.ending.as_ref().is_some_and(|ending| ending.reason == FinishReason::Length)
    }

    /// A further name, for an item.
    fn item_id(&self, prefix: &str) -> String {
        let own = self.letterhead.id.trim_start_matches("resp_");
        format!("{prefix}_{own}{}", self.output.len())
    }

    fn grow(&mut self, kind: Kind, text: &str, out: &mut Events) {
        if self.open.as_ref().is_some_and(|open| open.kind != kind) {
            self.close_item(out);
        }
        if self.open.is_none() {
            self.open_item(kind, out);
        }
        let index = self.output.len();
        let Some(open) = &mut self.open else { return };
        open.text.push_str(text);
        let mut delta = json!({
            "type": format!("{}.delta", kind.event()),
            "item_id": open.id,
            "output_index": index,
            "content_index": 0,
            "delta": text,
        });
        if kind == Kind::Message {
            delta["logprobs"] = json!([]);
        }
        self.push(delta, out);
    }

    fn open_item(&mut self, kind: Kind, out: &mut Events) {
        let id = self.item_id(kind.prefix());
        let index = self.output.len();
        let item = kind.item(&id, "in_progress", Vec::new());
        self.push(
            json!({"type": "response.output_item.added", "output_index": index, "item": item}),
            out,
        );
        let added = json!({
            "type": "response.content_part.added",
            "item_id": id,
            "output_index": index,
            "content_index": 0,
            "part": kind.part(""),
        });
        self.push(added, out);
        self.open = Some(OpenItem { kind, id, text: String::new() });
    }

    fn close_item(&mut self, out: &mut Events) {
        let Some(OpenItem { kind, id, text }) = self.open.take() else { return };
        let index = self.output.len();
        let mut done = json!({
            "type": format!("{}.done", kind.event()),
            "item_id": id,
            "output_index": index,
            "content_index": 0,
            "text": text,
        });
        if kind == Kind::Message {
            done["logprobs"] = json!([]);
        }
        self.push(done, out);
        let part = kind.part(&text);
        let done = json!({
            "type": "response.content_part.done",
            "item_id": id,
            "output_index": index,
            "content_index": 0,
            "part": part,
        });
        self.push(done, out);
        let status = if self.is_cut() { "incomplete" } else { "completed" };
        let item = kind.item(&id, status, vec![part]);
        self.finish_item(item, out);
    }

    fn finish_item(&mut self, item: Value, out: &mut Events) {
        let index = self.output.len();
        self.push(
            json!({"type": "response.output_item.done", "output_index": index, "item": item}),
            out,
        );
        self.output.push(item);
    }

    fn call(&mut self, call: &ToolCall, out: &mut Events) {
        self.close_item(out);
        let (id, index) = (self.item_id("fc"), self.output.len());
        let item = |status: &str, arguments: &str| {
            json!({
                "id": id,
                "type": "function_call",
                "status": status,
                "call_id": call.id,
                "name": call.name,
                "arguments": arguments,
            })
        };
        let (begun, done) = (item("in_progress", ""), item("completed", &call.arguments));
        self.push(
            json!({"type": "response.output_item.added", "output_index": index, "item": begun}),
            out,
        );
        let event = |name: &str, field: &str| {
            let mut event = json!({
                "type": format!("response.function_call_arguments.{name}"),
                "item_id": id,
                "output_index": index,
            });
            event[field] = call.arguments.as_str().into();
            event
        };
        self.push(event("delta", "delta"), out);
        let mut whole = event("done", "arguments");
        whole["name"] = call.name.as_str().into();
        self.push(whole, out);
        self.finish_item(done, out);
    }

    fn say(&mut self, spoken: &[Spoken], out: &mut Events) {
        for part in spoken {
            match part {
                Spoken::Thought(text) => self.grow(Kind::Thought, text, out),
                Spoken::Text(text) => self.grow(Kind::Message, text, out),
                Spoken::Call(call) => self.call(call, out),
            }
        }
    }

    fn finished(&self, counts: &Counts) -> Value {
        let status = if self.is_cut() { "incomplete" } else { "completed" };
        self.response(status, usage(counts))
    }
}

impl Kind {
    fn prefix(self) -> &'static str {
        match self {
            Kind::Thought => "rs",
            Kind::Message => "msg",
        }
    }

    fn event(self) -> &'static str {
        match self {
            Kind::Thought => "response.reasoning_text",
            Kind::Message => "response.output_text",
        }
    }

    fn part(self, text: &str) -> Value {
        match self {
            Kind::Thought => json!({"type": "reasoning_text", "text": text}),
            Kind::Message => {
                json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
            }
        }
    }

    fn item(self, id: &str, status: &str, content: Vec<Value>) -> Value {
        match self {
            Kind::Thought => json!({
                "id": id, "type": "reasoning", "summary": [], "content": content, "status": status,
            }),
            Kind::Message => json!({
                "id": id, "type": "message", "role": "assistant", "content": content,
                "status": status,
            }),
        }
    }
}

fn usage(counts: &Counts) -> Value {
    json!({
        "input_tokens": counts.prompt_tokens,
        "input_tokens_details": {"cached_tokens": counts.cached_tokens},
        "output_tokens": counts.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": counts.thought_tokens},
        "total_tokens": counts.prompt_tokens + counts.completion_tokens,
        "kv_rows_kept": counts.kv_rows_kept,
        "kv_rows_dropped": counts.kv_rows_dropped,
    })
}

impl Form for ResponsesForm {
    fn whole(&mut self, answers: &[WholeAnswer], counts: &Counts) -> Vec<u8> {
        // Nobody reads these.
        let mut out = Events::default();
        for answer in answers {
            self.say(&answer.parts, &mut out);
            self.ending = answer.ending.clone();
            self.close_item(&mut out);
        }
        written(&self.finished(counts))
    }

    fn begin(&mut self, _index: usize, out: &mut Events) {
        let response = self.response("in_progress", Value::Null);
        self.push(json!({"type": "response.created", "response": response}), out);
        self.push(json!({"type": "response.in_progress", "response": response}), out);
    }

    fn hear(&mut self, _index: usize, heard: &Heard<'_>, out: &mut Events) {
        self.say(&heard.spoken, out);
    }

    fn end(&mut self, _index: usize, ending: &Ending, out: &mut Events) {
        self.ending = Some(ending.clone());
        self.close_item(out);
    }

    fn close(&mut self, counts: &Counts, out: &mut Events) {
        let response = self.finished(counts);
        let name = if self.is_cut() { "response.incomplete" } else { "response.completed" };
        self.push(json!({"type": name, "response": response}), out);
    }

    fn fail(&mut self, failure: &Failure, out: &mut Events) {
        let mut response = self.response("failed", Value::Null);
        let code = failure.code.unwrap_or("server_error");
        response["error"] = json!({"code": code, "message": failure.message});
        self.push(json!({"type": "response.failed", "response": response}), out);
    }
}
