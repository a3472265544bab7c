//! `/v1/chat/completions`, with the fields for thoughts that vLLM, DeepSeek and their clients have.

use serde_json::{Value, json};

use super::{Counts, Events, Form, Letterhead, TokenTexts, UsageForm, WholeAnswer, finish_name};
use crate::notation::Spoken;
use crate::serve::failure::Failure;
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

    fn base(&self, object: &str, choices: Vec<Value>) -> Value {
        let Letterhead { id, created, model } = &self.letterhead;
        json!({"id": id, "object": object, "created": created, "model": model, "choices": choices})
    }

    fn piece(&self, index: usize, delta: Value, logprobs: Value, reason: Option<&str>) -> Value {
        let choice =
            json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason});
        self.base("chat.completion.chunk", vec![choice])
    }

    fn finish_name(&self, ending: &Ending) -> &'static str {
        match self.is_named {
            true => ending.reason.name(),
            false => finish_name(ending),
        }
    }

    fn choice(&self, index: usize, answer: &WholeAnswer) -> Value {
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
        json!({
            "index": index,
            "message": message,
            "logprobs": self.logprobs.as_ref().map(|texts| texts.chat(&answer.tokens)),
            "finish_reason": answer.ending.as_ref().map(|ending| self.finish_name(ending)),
        })
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

    fn whole(&mut self, answers: &[WholeAnswer], counts: &Counts) -> Value {
        let choices = (0..).zip(answers).map(|(index, answer)| self.choice(index, answer));
        let mut whole = self.base("chat.completion", choices.collect());
        whole["usage"] = json!(UsageForm::from(counts));
        whole
    }

    fn begin(&mut self, index: usize, out: &mut Events) {
        let delta = json!({"role": "assistant", "content": ""});
        out.push(&self.piece(index, delta, Value::Null, None));
    }

    fn hear(&mut self, index: usize, heard: &Heard<'_>, out: &mut Events) {
        let token = heard.token.map(std::slice::from_ref).unwrap_or_default();
        let mut logprobs = match &self.logprobs {
            Some(texts) => texts.chat(token),
            None => Value::Null,
        };
        if heard.spoken.is_empty() && self.logprobs.is_some() {
            out.push(&self.piece(index, json!({"content": ""}), logprobs.take(), None));
        }
        for part in &heard.spoken {
            let delta = match part {
                Spoken::Text(text) => json!({"content": text}),
                Spoken::Thought(thought) => {
                    json!({"reasoning_content": thought, "reasoning": thought})
                }
                Spoken::Call(call) => {
                    let mut call = whole_call(call);
                    call["index"] = self.calls[index].into();
                    self.calls[index] += 1;
                    json!({"tool_calls": [call]})
                }
            };
            // A token is reported once.
            out.push(&self.piece(index, delta, logprobs.take(), None));
        }
    }

    fn end(&mut self, index: usize, ending: &Ending, out: &mut Events) {
        out.push(&self.piece(index, json!({}), Value::Null, Some(self.finish_name(ending))));
    }

    fn close(&mut self, counts: &Counts, out: &mut Events) {
        if self.include_usage {
            let mut piece = self.base("chat.completion.chunk", Vec::new());
            piece["usage"] = json!(UsageForm::from(counts));
            out.push(&piece);
        }
        out.push_text("[DONE]");
    }

    fn fail(&mut self, failure: &Failure, out: &mut Events) {
        out.push(&failure.body());
    }
}
