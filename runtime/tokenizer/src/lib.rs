//! Text to token ids and back, over one compact table that is used where it lies.
//!
//! The compiler turns a Hugging Face `tokenizer.json` into a table (`pack`, behind the feature of
//! that name); the artefact maps the table and opens it ([`Tokenizer::open`]) without decoding the
//! vocabulary. Ids and texts equal those of the `tokenizers` crate, which the tests compare with.
//! A part of a `tokenizer.json` that this crate does not know is an error that names it, never
//! approximated. `truncation` and `padding` are ignored, as transformers ignores them unless asked.
//!
//! Known departures from the crate, all of them outside what language models' files contain today:
//! `^` and `$` in patterns match at lines, as in Oniguruma (the Python package's engine) and not as
//! in `fancy-regex`, and the names in brackets such as `[[:alpha:]]` are Unicode's, likewise; the
//! `Punctuation` pre-tokenizer and the `StripAccents` normalizer know the punctuation and marks of
//! scripts that joined Unicode after version 9, the crate's do not; and
//! where a text makes the crate give up on a pattern, this one goes on for longer, then fails. Malformed runs
//! of byte tokens, which models write and texts never have, are not streamed as they are decoded whole
//! ([`Tokenizer::decode_stream`]).
//!
//! # The table
//!
//! All numbers are little-endian; offsets count bytes from the start of the table, which may lie
//! at any address. The header is
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | magic `WEIRTOK\0` |
//! | 8..12 | version of the layout (1) |
//! | 12..16 | length of the whole table in bytes |
//! | 16..104 | eleven pairs of `u32`: offset and length in bytes of each section below |
//!
//! Sections start at multiples of 16 bytes, in this order:
//!
//! | section | unit | content |
//! |---|---|---|
//! | config | byte stream | model and its options, then lists (a `u32` count each) of normalizers, pre-tokenizers, template parts, decoders: a tag byte and its fields; then the number of added-token patterns for raw text, and the pattern for one word character |
//! | patterns | byte stream | a `u32` count; per pattern its character classes (128-bit ASCII map, then ranges of code points, inclusive) and its instructions (four `u32` each) |
//! | text offsets | `u32`, ids + 1 | byte offset into texts where each id's text starts; the next one ends it |
//! | texts | bytes | UTF-8 texts of all ids, back to back |
//! | flags | `u8`, one per id | 1 in the model's vocabulary, 2 added token, 4 special; 0 is an unused id |
//! | vocabulary slots | `u32`, a power of two | id + 1 at the slot of the text's hash or the next free one after it; 0 is empty |
//! | merges | three `u32` per merge | left id, right id, joined id; the index is the rank |
//! | merge slots | `u32`, a power of two | rank + 1 at the slot of the pair's hash, likewise |
//! | added tokens | four `u32` per pattern | offset and length in added texts, id, flags (1 single word, 2 strip left, 4 strip right); patterns for the raw text first, each group sorted by bytes |
//! | added texts | bytes | the patterns of the added tokens, normalised where they match normalised text |
//! | scores | `f64`, one per id | log probabilities of a unigram model; empty for other models |
//!
//! The hash of a text is 64-bit FNV-1a, of a pair `left << 32 | right`; both are then mixed by
//! `h ^= h >> 32; h *= 0x9e3779b97f4a7c15; h ^= h >> 29`. Opening checks the header, the sizes, the
//! config and the patterns, a few kilobytes; contents of the other sections are read with bounds
//! checks when they are used.

mod added;
mod bpe;
mod component;
mod decode;
mod error;
mod normal_forms;
mod normalize;
#[cfg(feature = "pack")]
mod pack;
mod pattern;
mod split;
mod table;
mod tokenizer;
mod unigram;

pub use decode::DecodeStream;
pub use error::TokenizerError;
#[cfg(feature = "pack")]
pub use pack::pack;
pub use tokenizer::Tokenizer;
