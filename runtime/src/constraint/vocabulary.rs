//! A tokenizer's tokens as the bytes that they write, which a grammar is followed through.
//!
//! Special tokens write nothing in an answer: they are there under their names only, for grammars that
//! ask for them. The end of an answer is not among them, it is allowed where the grammar may end.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, INVALID_TOKEN, TokEnv, TokRxInfo, TokTrie};
use weir_tokenizer::Tokenizer;

use super::ConstraintError;
use super::limits::{TOKEN_BYTES, VOCABULARY};

/// The tokens of a model with `vocabulary` entries, `eos` of which end an answer.
pub(super) fn tokens(
    tokenizer: &Tokenizer,
    vocabulary: u32,
    eos: &[u32],
) -> Result<TokEnv, ConstraintError> {
    if vocabulary as usize > VOCABULARY {
        return Err(ConstraintError::Model("its vocabulary is too large"));
    }
    let bytes: Vec<Vec<u8>> =
        (0..vocabulary).map(|id| written(tokenizer, id, eos.contains(&id))).collect();
    let joins = (0..vocabulary).filter(|id| !tokenizer.is_special(*id) && !eos.contains(id));
    check_joins(tokenizer, joins, &bytes)?;
    let ends: Vec<u32> = eos.iter().copied().filter(|id| *id < vocabulary).collect();
    let end = ends.first().copied().unwrap_or(INVALID_TOKEN);
    let mut trie = TokTrie::from(&TokRxInfo::new(vocabulary, end), &bytes);
    if ends.len() > 1 {
        trie = trie.with_eos_tokens(&ends);
    }
    // Masks go by bytes alone: any tokens that write them are as good.
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// What a token writes; nothing if it is not used.
fn written(tokenizer: &Tokenizer, id: u32, ends: bool) -> Vec<u8> {
    let Some(text) = tokenizer.token_text(id) else { return Vec::new() };
    if ends || tokenizer.is_special(id) {
        let mut named = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        named.extend_from_slice(text.as_bytes());
        named.truncate(TOKEN_BYTES);
        return named;
    }
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    if bytes.len() > TOKEN_BYTES { Vec::new() } else { bytes }
}

/// Tokens of letters that are tried.
const TRIED: usize = 8;

/// Refuses tokenizers that put something between tokens, or leave something out, when they write them.
fn check_joins(
    tokenizer: &Tokenizer,
    ids: impl Iterator<Item = u32>,
    bytes: &[Vec<u8>],
) -> Result<(), ConstraintError> {
    let is_plain = |id: &u32| {
        let bytes = &bytes[*id as usize];
        !bytes.is_empty() && bytes.iter().all(u8::is_ascii_alphanumeric)
    };
    let tried: Vec<u32> = ids.filter(is_plain).take(TRIED).collect();
    let joined: Vec<u8> = tried.iter().flat_map(|id| bytes[*id as usize].clone()).collect();
    match tokenizer.decode(&tried, true).into_bytes() == joined {
        true => Ok(()),
        false => Err(ConstraintError::Model("its tokenizer writes more than its tokens say")),
    }
}
