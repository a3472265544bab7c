//! Texts on their way to the model, and the normalizers.
//!
//! A [`Span`] carries, beside the text, how many of its leading bytes come from the very start of
//! the input. That is all of the reference's alignment that can influence ids: a metaspace of
//! scheme `first` is put only before a piece that begins where the input begins.

use unicode_normalization::char::is_combining_mark;

use crate::TokenizerError;
use crate::component::{Needle, Normalizer};
use crate::normal_forms::{Form, normal_form};
use crate::pattern::{Program, step_budget};

#[cfg(test)]
mod tests;

/// A text and what is known of its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) text: String,
    /// Leading bytes that stem from the input's first character.
    pub(crate) at_start: usize,
}

impl Span {
    /// A stretch of the raw input, beginning at byte `offset` of it.
    pub(crate) fn of_input(text: &str, offset: usize) -> Self {
        let first = text.chars().next().map_or(0, char::len_utf8);
        Self { text: text.to_owned(), at_start: if offset == 0 { first } else { 0 } }
    }

    /// The part `start..end`; positions are at character boundaries.
    pub(crate) fn slice(&self, start: usize, end: usize) -> Self {
        let text = self.text.get(start..end).unwrap_or("").to_owned();
        let at_start = self.at_start.saturating_sub(start).min(text.len());
        Self { text, at_start }
    }

    pub(crate) fn is_at_start(&self) -> bool {
        self.at_start > 0
    }

    /// Puts `head` before a text that is not empty; it shares the first character's origin.
    pub(crate) fn prepend(&mut self, head: &str) {
        self.text.insert_str(0, head);
        if self.at_start > 0 {
            self.at_start += head.len();
        }
    }

    /// Replaces every match by `content`, which takes over the origin of the match's last byte.
    pub(crate) fn replace(
        &mut self,
        needle: &Needle,
        content: &str,
        programs: &[Program],
    ) -> Result<(), TokenizerError> {
        let matches = find_all(needle, &self.text, programs)?;
        if matches.is_empty() {
            return Ok(());
        }
        let mut text = String::with_capacity(self.text.len());
        let mut at_start = 0;
        let mut copied = 0;
        for (start, end) in matches {
            let between = &self.text[copied..start];
            text.push_str(between);
            if copied < self.at_start {
                at_start += between.len().min(self.at_start - copied);
            }
            text.push_str(content);
            if end.saturating_sub(1) < self.at_start {
                at_start += content.len();
            }
            copied = end;
        }
        let rest = &self.text[copied..];
        text.push_str(rest);
        at_start += rest.len().min(self.at_start.saturating_sub(copied));
        *self = Self { text, at_start };
        Ok(())
    }

    /// Replaces the text by one whose characters derive from its own in order.
    fn rewrite(&mut self, text: String) {
        let first = text.chars().next().map_or(0, char::len_utf8);
        self.at_start = if self.at_start > 0 { first } else { 0 };
        self.text = text;
    }

    fn rewrite_as(&mut self, form: Form) {
        if let Some(text) = normal_form(&self.text, form) {
            self.rewrite(text);
        }
    }

    /// Drops `count` bytes at the front.
    fn drop_front(&mut self, count: usize) {
        self.text.drain(..count);
        self.at_start = self.at_start.saturating_sub(count);
    }
}

/// Matches of a search in `text`, leftmost first.
pub(crate) fn find_all(
    needle: &Needle,
    text: &str,
    programs: &[Program],
) -> Result<Vec<(usize, usize)>, TokenizerError> {
    match needle {
        Needle::Literal(literal) => {
            Ok(text.match_indices(literal.as_str()).map(|(at, m)| (at, at + m.len())).collect())
        }
        Needle::Program(index) => find_program(*index, text, programs),
    }
}

/// Matches of one program of the patterns section.
pub(crate) fn find_program(
    index: u32,
    text: &str,
    programs: &[Program],
) -> Result<Vec<(usize, usize)>, TokenizerError> {
    let Some(program) = programs.get(index as usize) else { return Ok(Vec::new()) };
    program.find_all(text).map_err(|_| TokenizerError::PatternTooCostly {
        pattern: index,
        steps: step_budget(text.len()),
    })
}

/// Applies all normalizers in order.
pub(crate) fn normalize(
    normalizers: &[Normalizer],
    span: &mut Span,
    programs: &[Program],
) -> Result<(), TokenizerError> {
    for normalizer in normalizers {
        apply(normalizer, span, programs)?;
    }
    Ok(())
}

fn apply(
    normalizer: &Normalizer,
    span: &mut Span,
    programs: &[Program],
) -> Result<(), TokenizerError> {
    match normalizer {
        Normalizer::Prepend(head) => {
            if !span.text.is_empty() {
                span.prepend(head);
            }
        }
        Normalizer::Replace { needle, content } => span.replace(needle, content, programs)?,
        Normalizer::Nfc => span.rewrite_as(Form::Nfc),
        Normalizer::Nfd => span.rewrite_as(Form::Nfd),
        Normalizer::Nfkc => span.rewrite_as(Form::Nfkc),
        Normalizer::Nfkd => span.rewrite_as(Form::Nfkd),
        Normalizer::Lowercase => {
            // Character by character: no rule for a final sigma.
            let text = span.text.chars().flat_map(char::to_lowercase).collect();
            span.rewrite(text);
        }
        Normalizer::Strip { left, right } => {
            if *right {
                span.text.truncate(span.text.trim_end().len());
                span.at_start = span.at_start.min(span.text.len());
            }
            if *left {
                span.drop_front(span.text.len() - span.text.trim_start().len());
            }
        }
        Normalizer::StripAccents => {
            let marks = span.text.find(|c| !is_combining_mark(c)).unwrap_or(span.text.len());
            span.drop_front(marks);
            span.text.retain(|c| !is_combining_mark(c));
            span.at_start = span.at_start.min(span.text.len());
        }
        Normalizer::ByteLevel => {
            let text = bytes_to_letters(&span.text);
            span.rewrite(text);
        }
    }
    Ok(())
}

/// The byte-level alphabet: printable Latin-1 bytes stand for themselves, the other 68 for the
/// letters from U+0100 on, in order of the byte.
pub(crate) const BYTE_LETTERS: [char; 256] = {
    let mut letters = ['\0'; 256];
    let mut next = 0x100;
    let mut byte = 0;
    while byte < 256 {
        let itself = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
        let code = if itself { byte as u32 } else { next };
        if !itself {
            next += 1;
        }
        letters[byte] = match char::from_u32(code) {
            Some(letter) => letter,
            None => panic!("codes below U+0200 are characters"),
        };
        byte += 1;
    }
    letters
};

/// The byte that a letter of the byte-level alphabet stands for.
pub(crate) fn letter_to_byte(letter: char) -> Option<u8> {
    let code = u32::from(letter);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => Some(code as u8),
        // The bytes below `!`, then DEL to NBSP, then the soft hyphen.
        0x100..=0x120 => Some((code - 0x100) as u8),
        0x121..=0x142 => Some((code - 0x121 + 0x7f) as u8),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// Spells every byte of `text` as its letter.
pub(crate) fn bytes_to_letters(text: &str) -> String {
    text.bytes().map(|byte| BYTE_LETTERS[usize::from(byte)]).collect()
}
