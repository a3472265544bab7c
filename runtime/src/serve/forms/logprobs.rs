//! Tokens beside their probabilities, as the two interfaces that report them write them.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};
use weir_tokenizer::Tokenizer;

use crate::serve::mailbox::ChosenToken;

/// Texts of tokens that are reported.
#[derive(Clone, Debug)]
pub struct TokenTexts {
    /// Absent where the model has none.
    pub tokenizer: Option<Tokenizer>,
}

#[derive(Debug, Default, Serialize)]
struct LegacyLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    text_offset: Vec<usize>,
}

impl TokenTexts {
    /// Text of a token by itself; what is no text is replaced.
    fn of(&self, id: u32) -> (String, Vec<u8>) {
        let bytes = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.token_bytes(id));
        let bytes = bytes.unwrap_or_default();
        (String::from_utf8_lossy(&bytes).into_owned(), bytes)
    }

    /// For a conversation.
    pub fn chat(&self, tokens: &[ChosenToken]) -> Value {
        let entry = |id: u32, logprob: f32| {
            let (token, bytes) = self.of(id);
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

    /// For a text, `offset` characters into the answer.
    pub fn text(&self, text: &str, offset: usize, tokens: &[ChosenToken]) -> Value {
        let with = tokens.iter().filter_map(|token| Some((token, token.logprobs.as_ref()?)));
        let mut form = LegacyLogprobs::default();
        let mut begin = 0;
        let mut characters = offset;
        for (token, logprobs) in with {
            form.tokens.push(self.of(token.id).0);
            form.token_logprobs.push(logprobs.chosen);
            let best = logprobs.best.iter();
            form.top_logprobs.push(best.map(|(id, logprob)| (self.of(*id).0, *logprob)).collect());
            // Offsets count characters.
            form.text_offset.push(characters);
            let end = token.text_end.min(text.len());
            characters += text.get(begin..end).map_or(0, |text| text.chars().count());
            begin = end;
        }
        json!(form)
    }
}
