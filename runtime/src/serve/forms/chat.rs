//! `/v1/chat/completions`, with the fields for thoughts that vLLM, DeepSeek and their clients have.

use serde::Serialize;
use serde_json::{Value, json};

use super::logprobs::ChatLogprobs;
use super::{Counts, Events, Form, Letterhead, TokenTexts, WholeAnswer, finish_name};
use crate::notation::Spoken;
use crate::serve::failure::Failure;
use crate::serve::json::written;
use crate::serve::reading::{Ending, Heard};
use crate::template::ToolCall;

/// Answers to a conversation.
pub struct ChatForm {
    letterhead: Letterhead,
    logprobs: Option<TokenTexts>,
    include_usage: bool,
    /// Whether the request has named the function that is called: clients are told of a call that they do
    /// not know of yet, as OpenAI's API does.
    is_named: bool,
    /// Calls that each answer has made.
    calls: Vec<usize>,
}

/// What a piece is called.
const PIECE: &str = "chat.completion.chunk";

/// A piece of an answer.
#[derive(Debug, Serialize)]
struct Choice<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'static str>,
}

/// An answer among several.
#[derive(Debug, Serialize)]
struct WholeChoice<'a> {
    index: usize,
    message: Value,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'static str>,
}

/// What a piece adds.
#[derive(Debug, Default, Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[Value; 1]>,
}

impl ChatForm {
    /// For so many answers.
    pub fn new(
        letterhead: Letterhead,
        answers: usize,
        logprobs: Option<TokenTexts>,
        include_usage: bool,
        is_named: bool,
    ) -> ChatForm {
        ChatForm { letterhead, logprobs, include_usage, is_named, calls: vec![0; answers] }
    }

    fn piece(
        &self,
        index: usize,
        delta: Delta<'_>,
        logprobs: Option<ChatLogprobs<'_>>,
        finish_reason: Option<&'static str>,
        out: &mut Events,
    ) {
        let choice = Choice { index, delta, logprobs, finish_reason };
        out.push(&self.letterhead.sheet(PIECE, [choice], None));
    }

    fn finish_name(&self, ending: &Ending) -> &'static str {
        match self.is_named {
            true => ending.reason.name(),
            false => finish_name(ending),
        }
    }

    fn choice<'a>(&'a self, index: usize, answer: &'a WholeAnswer) -> WholeChoice<'a> {
        let text = answer.text();
        let thoughts: String = answer
            .parts
            .iter()
            .filter_map(|part| match part {
                Spoken::Thought(thought) => Some(thought.as_str()),
                _ => None,
            })
            .collect();
        let calls: Vec<Value> = answer
            .parts
            .iter()
            .filter_map(|part| match part {
                Spoken::Call(call) => Some(whole_call(call)),
                _ => None,
            })
            .collect();
        let says_nothing = text.is_empty() && !calls.is_empty();
        let content = if says_nothing { Value::Null } else { text.into() };
        let mut message = json!({"role": "assistant", "content": content, "refusal": null});
        if !thoughts.is_empty() {
            message["reasoning_content"] = thoughts.as_str().into();
            message["reasoning"] = thoughts.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        let logprobs = self.logprobs.as_ref().map(|texts| texts.chat(&answer.tokens));
        let finish_reason = answer.ending.as_ref().map(|ending| self.finish_name(ending));
        WholeChoice { index, message, logprobs, finish_reason }
    }
}

fn whole_call(call: &ToolCall) -> Value {
    let ToolCall { id, name, arguments } = call;
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

impl Form for ChatForm {
    fn reports_tokens(&self) -> bool {
        self.logprobs.is_some()
    }

    fn whole(&mut self, answers: &[WholeAnswer], counts: &Counts) -> Vec<u8> {
        let choices = (0..).zip(answers).map(|(index, answer)| self.choice(index, answer));
        let choices: Vec<WholeChoice<'_>> = choices.collect();
        written(&self.letterhead.sheet("chat.completion", choices, Some(counts)))
    }

    fn begin(&mut self, index: usize, out: &mut Events) {
        let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
        self.piece(index, delta, None, None, out);
    }

    fn hear(&mut self, index: usize, heard: &Heard<'_>, out: &mut Events) {
        let token = heard.token.map(std::slice::from_ref).unwrap_or_default();
        let mut logprobs = self.logprobs.as_ref().map(|texts| texts.chat(token));
        if heard.spoken.is_empty() && logprobs.is_some() {
            let delta = Delta { content: Some(""), ..Delta::default() };
            self.piece(index, delta, logprobs.take(), None, out);
        }
        for part in &heard.spoken {
            let mut delta = Delta::default();
            match part {
                Spoken::Text(text) => delta.content = Some(text),
                Spoken::Thought(thought) => {
                    delta.reasoning_content = Some(thought);
                    delta.reasoning = Some(thought);
                }
                Spoken::Call(call) => {
                    let mut call = whole_call(call);
                    call["index"] = self.calls[index].into();
                    self.calls[index] += 1;
                    delta.tool_calls = Some([call]);
                }
            }
            // A token is reported once.
            self.piece(index, delta, logprobs.take(), None, out);
        }
    }

    fn end(&mut self, index: usize, ending: &Ending, out: &mut Events) {
        self.piece(index, Delta::default(), None, Some(self.finish_name(ending)), out);
    }

    fn close(&mut self, counts: &Counts, out: &mut Events) {
        if self.include_usage {
            out.push(&self.letterhead.sheet(PIECE, [(); 0], Some(counts)));
        }
        out.push_text("[DONE]");
    }

    fn fail(&mut self, failure: &Failure, out: &mut Events) {
        out.push(&failure.body());
    }
}
