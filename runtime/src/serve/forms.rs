//! Answers as OpenAI's API writes them, whole and in pieces.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use weir_tokenizer::Tokenizer;

use super::mailbox::ChosenToken;
use crate::{FinishReason, Usage};

/// Which of the two interfaces an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Text,
}

/// What all pieces of an answer have in common.
#[derive(Clone, Debug)]
pub struct Letterhead {
    /// The interface.
    pub form: Form,
    /// Name of the answer.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// Name of the model.
    pub model: String,
    /// Whether probabilities of tokens were asked for.
    pub logprobs: bool,
    /// For the texts of tokens beside probabilities.
    pub tokenizer: Option<Tokenizer>,
}

/// A whole answer among several.
#[derive(Clone, Debug, Default)]
pub struct WholeAnswer {
    /// Its text.
    pub text: String,
    /// Its tokens, with the ends of their texts.
    pub tokens: Vec<ChosenToken>,
    /// How it ended.
    pub end: Option<(FinishReason, Usage)>,
}

/// Counts of a request, over all of its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UsageForm {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: CachedTokens,
    /// Rows per layer and head that the cache held at the end.
    kv_rows_kept: u32,
    /// Rows that were computed and no longer held.
    kv_rows_dropped: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct CachedTokens {
    cached_tokens: u32,
}

impl UsageForm {
    /// Of the answers to prompts, `samples` to each.
    pub fn new(answers: &[Usage], samples: usize) -> UsageForm {
        let mut form = UsageForm::default();
        for of_prompt in answers.chunks(samples.max(1)) {
            // The others found the prompt's rows that the first one computed.
            if let Some(first) = of_prompt.first() {
                form.prompt_tokens += first.prompt_tokens;
                form.prompt_tokens_details.cached_tokens += first.reused_tokens;
            }
        }
        for usage in answers {
            form.completion_tokens += usage.completion_tokens;
            form.kv_rows_kept += usage.kv_rows_kept;
            form.kv_rows_dropped += usage.kv_rows_dropped;
        }
        form.total_tokens = form.prompt_tokens + form.completion_tokens;
        form
    }
}

/// `cancelled` is never sent: whoever cancels does not listen.
fn finish_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Cancelled => "cancelled",
    }
}

impl Letterhead {
    fn base(&self, object: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": object,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }

    /// The whole response.
    pub fn whole(&self, answers: &[WholeAnswer], usage: UsageForm) -> Value {
        let choice = |(index, answer): (usize, &WholeAnswer)| {
            let reason = answer.end.map(|(reason, _)| finish_name(reason));
            let logprobs = self.logprobs(&answer.text, 0, &answer.tokens);
            match self.form {
                Form::Chat => json!({
                    "index": index,
                    "message": {"role": "assistant", "content": answer.text, "refusal": null},
                    "logprobs": logprobs,
                    "finish_reason": reason,
                }),
                Form::Text => json!({
                    "index": index,
                    "text": answer.text,
                    "logprobs": logprobs,
                    "finish_reason": reason,
                }),
            }
        };
        let object = match self.form {
            Form::Chat => "chat.completion",
            Form::Text => "text_completion",
        };
        let mut whole = self.base(object, answers.iter().enumerate().map(choice).collect());
        whole["usage"] = json!(usage);
        whole
    }

    fn piece_object(&self) -> &'static str {
        match self.form {
            Form::Chat => "chat.completion.chunk",
            Form::Text => "text_completion",
        }
    }

    /// The piece that a chat's answer begins with.
    pub fn first_piece(&self, index: usize) -> Value {
        let choice = json!({
            "index": index,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": null,
            "finish_reason": null,
        });
        self.base(self.piece_object(), vec![choice])
    }

    /// A piece of text, `offset` bytes into the answer, with the tokens that made it.
    pub fn piece(&self, index: usize, text: &str, offset: usize, tokens: &[ChosenToken]) -> Value {
        let logprobs = self.logprobs(text, offset, tokens);
        let choice = match self.form {
            Form::Chat => json!({
                "index": index,
                "delta": {"content": text},
                "logprobs": logprobs,
                "finish_reason": null,
            }),
            Form::Text => json!({
                "index": index,
                "text": text,
                "logprobs": logprobs,
                "finish_reason": null,
            }),
        };
        self.base(self.piece_object(), vec![choice])
    }

    /// The piece that says why an answer ended.
    pub fn last_piece(&self, index: usize, reason: FinishReason) -> Value {
        let reason = finish_name(reason);
        let choice = match self.form {
            Form::Chat => {
                json!({"index": index, "delta": {}, "logprobs": null, "finish_reason": reason})
            }
            Form::Text => {
                json!({"index": index, "text": "", "logprobs": null, "finish_reason": reason})
            }
        };
        self.base(self.piece_object(), vec![choice])
    }

    /// The piece with the counts.
    pub fn usage_piece(&self, usage: UsageForm) -> Value {
        let mut piece = self.base(self.piece_object(), Vec::new());
        piece["usage"] = json!(usage);
        piece
    }

    /// Text of a token by itself; what is no text is replaced.
    fn token_text(&self, id: u32) -> (String, Vec<u8>) {
        let bytes = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.token_bytes(id));
        let bytes = bytes.unwrap_or_default();
        (String::from_utf8_lossy(&bytes).into_owned(), bytes)
    }

    fn logprobs(&self, text: &str, offset: usize, tokens: &[ChosenToken]) -> Value {
        if !self.logprobs {
            return Value::Null;
        }
        match self.form {
            Form::Chat => {
                let entry = |id: u32, logprob: f32| {
                    let (token, bytes) = self.token_text(id);
                    json!({"token": token, "logprob": logprob, "bytes": bytes})
                };
                let content = tokens.iter().filter_map(|token| {
                    let logprobs = token.logprobs.as_ref()?;
                    let mut chosen = entry(token.id, logprobs.chosen);
                    let best = logprobs.best.iter().map(|(id, logprob)| entry(*id, *logprob));
                    chosen["top_logprobs"] = best.collect::<Vec<_>>().into();
                    Some(chosen)
                });
                json!({"content": content.collect::<Vec<_>>(), "refusal": null})
            }
            Form::Text => {
                let with =
                    tokens.iter().filter_map(|token| Some((token, token.logprobs.as_ref()?)));
                let mut form = LegacyLogprobs::default();
                let mut begin = 0;
                for (token, logprobs) in with {
                    form.tokens.push(self.token_text(token.id).0);
                    form.token_logprobs.push(logprobs.chosen);
                    let best = logprobs.best.iter();
                    let best = best.map(|(id, logprob)| (self.token_text(*id).0, *logprob));
                    form.top_logprobs.push(best.collect());
                    // Offsets count characters.
                    form.text_offset.push(offset + text[..begin].chars().count());
                    begin = token.text_end.min(text.len());
                }
                json!(form)
            }
        }
    }
}

#[derive(Debug, Default, Serialize)]
struct LegacyLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    text_offset: Vec<usize>,
}
