//! Thoughts in front of an answer that keeps to a grammar.
//!
//! They are anything, so no token needs to be held to them: masks of all tokens that any text goes on with
//! would take longer than a step has. The grammar knows their marks with nothing in between; here it is
//! seen where they begin and end, as [`crate::notation::Reader`] sees it.

use llguidance::toktrie::TokTrie;

use crate::notation::forced::ForcedCalls;

/// The marks of thoughts.
pub(super) struct Lead {
    begin: &'static [u8],
    end: &'static [u8],
    /// Tokens that write the mark of their end.
    end_tokens: Vec<u32>,
    /// Whether the prompt has opened them.
    is_open: bool,
}

/// Where an answer is with its thoughts.
#[derive(Debug)]
pub(super) enum Place {
    /// In front of them, if there are any; what it has written.
    Before(Vec<u8>),
    /// Within them; the end of what it has written.
    Within(Vec<u8>),
    /// Behind them, or there are none.
    Behind,
}

impl Lead {
    /// Of answers with these calls; `None` where there are no thoughts.
    pub fn of(calls: &ForcedCalls, tokens: &TokTrie) -> Option<Lead> {
        let marks = calls.thoughts?;
        let end_tokens = match tokens.get_special_token(marks.end) {
            Some(id) => vec![id],
            None => tokens.greedy_tokenize(marks.end.as_bytes()),
        };
        Some(Lead {
            begin: marks.begin.as_bytes(),
            end: marks.end.as_bytes(),
            end_tokens,
            is_open: calls.in_thoughts,
        })
    }

    /// The beginning of an answer.
    pub fn place(&self) -> Place {
        if self.is_open { Place::Within(Vec::new()) } else { Place::Before(Vec::new()) }
    }

    /// The place behind a token that the grammar has taken, in front of thoughts.
    pub fn after(&self, written: &mut Vec<u8>, text: &[u8]) -> Option<Place> {
        written.extend_from_slice(text);
        let written = written.trim_ascii_start();
        if written == self.begin {
            return Some(Place::Within(Vec::new()));
        }
        (!self.begin.starts_with(written)).then_some(Place::Behind)
    }

    /// Takes a token of thoughts. Behind their end, the tokens that a grammar takes in their place: the
    /// mark's, and those of what the token has written behind it.
    pub fn take(&self, tail: &mut Vec<u8>, text: &[u8], tokens: &TokTrie) -> Option<Vec<u32>> {
        tail.extend_from_slice(text);
        let Some(place) = tail.windows(self.end.len()).position(|part| part == self.end) else {
            let known = tail.len().saturating_sub(self.end.len() - 1);
            tail.drain(..known);
            return None;
        };
        let rest = tokens.greedy_tokenize(&tail[place + self.end.len()..]);
        Some([&self.end_tokens[..], &rest].concat())
    }
}
