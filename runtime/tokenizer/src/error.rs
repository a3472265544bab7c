//! The one error type of this crate. Every variant says whose fault it is and where.

use thiserror::Error;

/// Why a tokenizer could not be packed, opened or used.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum TokenizerError {
    /// `tokenizer.json` is not JSON at all (the file's fault).
    #[error("tokenizer.json is not valid JSON: {message}")]
    Json {
        /// The parser's message, with line and column.
        message: String,
    },
    /// A part of `tokenizer.json` contradicts the format (the file's fault).
    #[error("tokenizer.json, {path}: {reason}")]
    Malformed {
        /// The place in the JSON, such as `model.merges[17]`.
        path: String,
        /// What is wrong there.
        reason: String,
    },
    /// A part of `tokenizer.json` is legal but not something Weir implements.
    #[error("tokenizer.json, {path}: {what} is not supported")]
    Unsupported {
        /// The place in the JSON, such as `pre_tokenizer.pretokenizers[0]`.
        path: String,
        /// The component, option or pattern construct.
        what: String,
    },
    /// The packed table is damaged or of another version (the artefact's fault).
    #[error("tokenizer table, section {section}: {reason}")]
    Table {
        /// The section's name.
        section: &'static str,
        /// What does not hold.
        reason: &'static str,
    },
    /// The text holds a character that the vocabulary cannot express, and the tokenizer names an
    /// unknown-token that the vocabulary lacks (the file's fault, seen only with such a text).
    #[error("the vocabulary has no token for {character:?} and no unknown-token")]
    NoUnknownToken {
        /// The first such character.
        character: char,
    },
    /// Matching a split pattern took more steps than allowed (a text that makes it backtrack).
    #[error("split pattern {pattern}: more than {steps} steps on this text")]
    PatternTooCostly {
        /// Index of the pattern in the table.
        pattern: u32,
        /// The limit.
        steps: u64,
    },
    /// The text or vocabulary is larger than 4 GiB.
    #[error("{what} exceeds 4 GiB")]
    TooLarge {
        /// Which input.
        what: &'static str,
    },
}
