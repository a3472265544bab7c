//! Added tokens inside a text: found before the model sees it, longest match at the leftmost
//! place, in the raw text or in the normalised one.
//!
//! The patterns lie sorted by their bytes, so all that share a prefix are neighbours: the longest
//! match at a position is found by narrowing a range byte by byte.

use crate::pattern::Program;
use crate::table::{Section, Table, word};

/// Flag of a record: the token must not touch word characters.
pub(crate) const SINGLE_WORD: u32 = 1;
/// Flag of a record: the token takes the white space to its left.
pub(crate) const STRIP_LEFT: u32 = 2;
/// Flag of a record: the token takes the white space to its right.
pub(crate) const STRIP_RIGHT: u32 = 4;

/// A stretch of text, or an added token in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Text { start: usize, end: usize },
    Token(u32),
}

/// One sorted group of patterns.
pub(crate) struct AddedSet<'a> {
    records: &'a [u8],
    texts: &'a [u8],
    /// Whether a pattern starts with this byte.
    starts: [bool; 256],
}

struct Found {
    end: usize,
    id: u32,
    flags: u32,
}

impl<'a> AddedSet<'a> {
    /// The first `raw` records (raw text), or those after them (normalised text).
    pub(crate) fn new(table: Table<'a>, raw: u32, normalised: bool) -> Self {
        let all = table.section(Section::Added);
        let (head, tail) =
            all.split_at_checked((raw as usize).saturating_mul(16)).unwrap_or((all, &[]));
        let mut set = Self {
            records: if normalised { tail } else { head },
            texts: table.section(Section::AddedTexts),
            starts: [false; 256],
        };
        for index in 0..set.len() {
            if let Some(&first) = set.pattern(index).and_then(<[u8]>::first) {
                set.starts[usize::from(first)] = true;
            }
        }
        set
    }

    fn len(&self) -> usize {
        self.records.len() / 16
    }

    fn pattern(&self, index: usize) -> Option<&'a [u8]> {
        let start = word(self.records, index * 4)? as usize;
        let len = word(self.records, index * 4 + 1)? as usize;
        self.texts.get(start..start.checked_add(len)?)
    }

    /// Cuts `text` at the added tokens in it. `word` is the program for one word character.
    pub(crate) fn cut(&self, text: &str, word: Option<&Program>) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut reached = 0;
        let mut at = 0;
        while at < text.len() {
            let Some(found) = self.longest(text, at) else {
                at += 1;
                continue;
            };
            let (mut start, mut end) = (at, found.end);
            // Whatever the options below decide, the search goes on after the bare match.
            at = end;
            let head = text.get(..start).unwrap_or("");
            let tail = text.get(end..).unwrap_or("");
            if found.flags & SINGLE_WORD != 0 {
                let is_word = |c| word.is_some_and(|word| word.first_class_contains(c));
                if is_word(head.chars().next_back()) || is_word(tail.chars().next()) {
                    continue;
                }
            }
            if found.flags & STRIP_LEFT != 0 {
                start = head.trim_end().len().max(reached);
            }
            if found.flags & STRIP_RIGHT != 0 {
                end += tail.len() - tail.trim_start().len();
            }
            if reached < start {
                parts.push(Part::Text { start: reached, end: start });
            }
            if start < end {
                parts.push(Part::Token(found.id));
            }
            reached = end;
        }
        if reached != text.len() {
            parts.push(Part::Text { start: reached, end: text.len() });
        }
        parts
    }

    fn longest(&self, text: &str, at: usize) -> Option<Found> {
        let rest = text.as_bytes().get(at..)?;
        if !self.starts[usize::from(*rest.first()?)] {
            return None;
        }
        let (mut low, mut high) = (0, self.len());
        let mut best = None;
        for (depth, &byte) in rest.iter().enumerate() {
            // Patterns in low..high agree with the text before `depth`.
            let at_depth = |index: usize| self.pattern(index).and_then(|p| p.get(depth)).copied();
            low = partition(low, high, |index| at_depth(index).is_none_or(|b| b < byte));
            high = partition(low, high, |index| at_depth(index).is_some_and(|b| b == byte));
            if low == high {
                break;
            }
            // A pattern that ends here is the first of those it is a prefix of.
            let end = at + depth + 1;
            if self.pattern(low).is_some_and(|p| p.len() == depth + 1) && text.is_char_boundary(end)
            {
                best = Some(low).zip(Some(end));
            }
        }
        let (index, end) = best?;
        Some(Found {
            end,
            id: word(self.records, index * 4 + 2)?,
            flags: word(self.records, index * 4 + 3)?,
        })
    }
}

/// The first index of `low..high` for which `before` does not hold.
fn partition(mut low: usize, mut high: usize, before: impl Fn(usize) -> bool) -> usize {
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
