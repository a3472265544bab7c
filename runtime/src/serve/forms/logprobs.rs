//! Tokens beside their probabilities, as the two interfaces that report them write them.
//!
//! A conversation's are written token by token straight into the answer's text: one with twenty
//! alternatives has two kilobytes there, as values in memory it would have twenty.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use weir_tokenizer::Tokenizer;

use crate::serve::mailbox::ChosenToken;

/// Texts of tokens that are reported.
#[derive(Clone, Debug)]
pub struct TokenTexts {
    /// Absent where the model has none.
    pub tokenizer: Option<Tokenizer>,
}

/// Tokens of a conversation's answer.
#[derive(Debug, Serialize)]
pub struct ChatLogprobs<'a> {
    content: ChatTokens<'a>,
    refusal: Option<&'static str>,
}

#[derive(Debug)]
struct ChatTokens<'a> {
    texts: &'a TokenTexts,
    tokens: &'a [ChosenToken],
}

#[derive(Debug, Serialize)]
struct ChatToken<'a> {
    token: Cow<'a, str>,
    logprob: f32,
    bytes: &'a [u8],
    #[serde(skip_serializing_if = "Option::is_none")]
    top_logprobs: Option<Alternatives<'a>>,
}

#[derive(Debug)]
struct Alternatives<'a> {
    texts: &'a TokenTexts,
    best: &'a [(u32, f32)],
}

/// Tokens of a text, each in several lists.
#[derive(Debug, Default, Serialize)]
pub struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<BTreeMap<String, f32>>,
    text_offset: Vec<usize>,
}

impl TokenTexts {
    /// A token by itself.
    fn bytes(&self, id: u32) -> Vec<u8> {
        let bytes = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.token_bytes(id));
        bytes.unwrap_or_default()
    }

    /// Text of a token by itself; what is no text is replaced.
    fn text_of(&self, id: u32) -> String {
        String::from_utf8_lossy(&self.bytes(id)).into_owned()
    }

    /// For a conversation.
    pub fn chat<'a>(&'a self, tokens: &'a [ChosenToken]) -> ChatLogprobs<'a> {
        ChatLogprobs { content: ChatTokens { texts: self, tokens }, refusal: None }
    }

    /// For a text, `offset` characters into the answer.
    pub fn text(&self, text: &str, offset: usize, tokens: &[ChosenToken]) -> TextLogprobs {
        let with = tokens.iter().filter_map(|token| Some((token, token.logprobs.as_ref()?)));
        let mut form = TextLogprobs::default();
        let mut begin = 0;
        let mut characters = offset;
        for (token, logprobs) in with {
            form.tokens.push(self.text_of(token.id));
            form.token_logprobs.push(logprobs.chosen);
            let best = logprobs.best.iter();
            form.top_logprobs
                .push(best.map(|(id, logprob)| (self.text_of(*id), *logprob)).collect());
            // Offsets count characters.
            form.text_offset.push(characters);
            let end = token.text_end.min(text.len());
            characters += text.get(begin..end).map_or(0, |text| text.chars().count());
            begin = end;
        }
        form
    }
}

impl Serialize for ChatTokens<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ChatTokens { texts, tokens } = *self;
        let mut list = serializer.serialize_seq(None)?;
        for token in tokens {
            let Some(logprobs) = &token.logprobs else { continue };
            let best = Alternatives { texts, best: &logprobs.best };
            let bytes = texts.bytes(token.id);
            list.serialize_element(&ChatToken::new(&bytes, logprobs.chosen, Some(best)))?;
        }
        list.end()
    }
}

impl Serialize for Alternatives<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.best.len()))?;
        for (id, logprob) in self.best {
            list.serialize_element(&ChatToken::new(&self.texts.bytes(*id), *logprob, None))?;
        }
        list.end()
    }
}

impl<'a> ChatToken<'a> {
    fn new(bytes: &'a [u8], logprob: f32, top_logprobs: Option<Alternatives<'a>>) -> ChatToken<'a> {
        ChatToken { token: String::from_utf8_lossy(bytes), logprob, bytes, top_logprobs }
    }
}
