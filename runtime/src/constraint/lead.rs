//! Thoughts in front of an answer that keeps to a grammar.
//!
//! They are anything, so no token needs to be held to them: masks of all tokens that any text goes on with
//! would take longer than a step has. The grammar knows nothing of them; here it is seen where they begin
//! and end, as [`crate::notation::Reader`] sees it, and the grammar begins behind them.

use llguidance::toktrie::TokTrie;

use crate::notation::ThoughtMarks;

/// The marks of thoughts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    marks: ThoughtMarks,
    /// Whether the prompt has opened them.
    are_open: bool,
}

/// Where an answer is with its thoughts.
#[derive(Debug)]
pub(super) enum Place {
    /// In front of them, if there are any.
    Before {
        /// What it has written, which may be the beginning of their mark.
        written: Vec<u8>,
        /// Whether that keeps to the grammar as well.
        keeps: bool,
    },
    /// Within them; the end of what it has written.
    Within(Vec<u8>),
    /// Behind them, or there are none.
    Behind,
}

impl Lead {
    /// Thoughts between these marks, the first of which the prompt may have.
    pub fn new(marks: ThoughtMarks, are_open: bool) -> Lead {
        Lead { marks, are_open }
    }

    /// The beginning of an answer.
    pub fn place(&self) -> Place {
        match self.are_open {
            true => Place::Within(Vec::new()),
            false => Place::Before { written: Vec::new(), keeps: true },
        }
    }

    /// Tokens that go on with the mark that opens thoughts.
    pub fn opening(&self, written: &[u8], tokens: &TokTrie) -> Vec<u32> {
        let begin = self.marks.begin;
        let written = written.trim_ascii_start();
        let Some(rest) = begin.as_bytes().strip_prefix(written) else { return Vec::new() };
        let special = tokens.get_special_token(begin).filter(|_| written.is_empty());
        let written = (1..=rest.len()).filter_map(|end| tokens.token_id_at_bytes(&rest[..end]));
        special.into_iter().chain(written).collect()
    }

    /// The place behind what an answer has written that does (`keeps`) or does not keep to the grammar.
    pub fn after(&self, written: Vec<u8>, keeps: bool) -> Place {
        let begin = self.marks.begin.as_bytes();
        match written.trim_ascii_start() {
            mark if mark == begin => Place::Within(Vec::new()),
            mark if begin.starts_with(mark) => Place::Before { written, keeps },
            _ => Place::Behind,
        }
    }

    /// Takes the text of a token of thoughts. Behind their end, what the token has written there, without
    /// white space, which means nothing.
    pub fn end(&self, tail: &mut Vec<u8>, text: &[u8]) -> Option<Vec<u8>> {
        let end = self.marks.end.as_bytes();
        tail.extend_from_slice(text);
        let Some(place) = tail.windows(end.len()).position(|part| part == end) else {
            let known = tail.len().saturating_sub(end.len() - 1);
            tail.drain(..known);
            return None;
        };
        Some(tail[place + end.len()..].trim_ascii_start().to_vec())
    }
}
