//! What may be spent on a constraint.

use std::time::Duration;

use llguidance::api::ParserLimits;

use crate::memory::{product, sum};

/// Bytes of a schema, a regular expression, a grammar, or of all texts of a choice.
pub const SOURCE_BYTES: usize = 64 << 10;

/// Grammars that are kept for further requests.
pub const KEPT_GRAMMARS: usize = 8;

/// Bytes of the automaton of a grammar that has been read, as its library counts them.
pub const GRAMMAR_BYTES: usize = 1 << 20;

/// Bytes of memory while a grammar is read, of which there is one at a time.
pub const READING_BYTES: u64 = 64 << 20;

/// How long a request waits for its grammar to be read. Bounds by counts are such that a grammar takes a
/// tenth of it.
pub const READING_TIME: Duration = Duration::from_millis(250);

/// Bytes that the automaton of an answer may grow to, as its library counts them, and what its parser may
/// hold beside it, at once and for each of the answer's tokens.
pub const AUTOMATON_BYTES: usize = 6 << 20;
/// See above.
pub const PARSER_BYTES: usize = 4 << 20;
/// See above.
pub const PARSER_TOKEN_BYTES: usize = 512;

/// Time of the processor that an answer may take at once, and in the long run for each of its tokens, on
/// the thread that all answers wait for: ambiguous grammars take longer with each token. It is the
/// thread's own time, which work beside it does not add to.
pub const ANSWER_TIME: Duration = Duration::from_millis(150);
/// See above.
pub const TOKEN_TIME: Duration = Duration::from_millis(3);

/// Bytes of a token; longer ones are not used in constrained answers. The library's tree of tokens has
/// room for a little more.
pub const TOKEN_BYTES: usize = 512;

/// Entries of a vocabulary, which the library's tree of tokens has room for.
pub const VOCABULARY: usize = 1 << 21;

/// Bytes of a grammar's rules, besides its automaton: 1.25 KiB for a property of an object, of which 800
/// are read.
const RULES_BYTES: usize = 2 << 20;

/// Bytes of a schema for each of its source's.
const VALUE_BYTES: usize = 32;

/// What the library may spend on reading a grammar and on a step.
pub(super) fn of_library() -> ParserLimits {
    ParserLimits {
        // A row is searched item by item when another is added: 8,000 take 16 ms. An object takes four
        // for each property that may be left out.
        max_items_in_row: 1_000,
        step_max_items: 10_000,
        // A symbol may be an item of a row, before the row is too long.
        max_grammar_size: 8_000,
        initial_lexer_fuel: 200_000,
        // 14,000 a millisecond.
        step_lexer_fuel: 100_000,
        max_lexer_states: 12_000,
        // Costs memory and time at the beginning, which are bounded more tightly than a step.
        precompute_large_lexemes: false,
        // The state of the parser, tokens included, is no part of a message.
        verbose_errors: false,
    }
}

/// Bytes that serving constrained answers takes at most, beside the engine: the tree of the vocabulary's
/// tokens, which have `token_bytes` in all, grammars that are kept, being read, or asked for by one of
/// `places` requests that are served or wait, and what is known of the answers in `slots`.
pub fn memory(vocabulary: u32, token_bytes: u64, context: u32, slots: u32, places: u32) -> u64 {
    // Two trees of nodes of 8 bytes, one node for a byte that no other token begins with, the tokens'
    // bytes and places; while it is built the nodes are larger (39 MiB seen with 128,000 tokens of 5
    // random bytes).
    let tree = product([64, sum([token_bytes, vocabulary.into()])]);
    // What the library counts is half of what it holds, with tables that have room to grow.
    let grammar = (2 * GRAMMAR_BYTES + RULES_BYTES) as u64;
    let kept = KEPT_GRAMMARS as u64 * (grammar + (VALUE_BYTES * SOURCE_BYTES) as u64);
    let answer = sum([
        (2 * AUTOMATON_BYTES + PARSER_BYTES) as u64,
        product([context.into(), PARSER_TOKEN_BYTES as u64]),
    ]);
    let asked = sum([product([places.into(), grammar]), product([slots.into(), answer])]);
    sum([tree, READING_BYTES, kept, asked])
}
