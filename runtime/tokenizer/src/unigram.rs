//! Unigram encoding of one piece: the segmentation with the highest sum of scores (Kudo, 2018).
//!
//! One pass forward keeps, for every character boundary, the best path that ends there. Sums are
//! taken in the reference's order, in f64, so ties and rounding fall the same way.

use crate::TokenizerError;
use crate::bpe::byte_token;
use crate::component::Unknown;
use crate::table::{MODEL, Table};

/// The options of a unigram model, copied from the config.
#[derive(Clone, Copy)]
pub(crate) struct UnigramOptions {
    pub(crate) unknown: Unknown,
    pub(crate) byte_fallback: bool,
    pub(crate) unknown_score: f64,
    pub(crate) longest: u32,
}

#[derive(Clone, Copy)]
struct Node {
    /// `None` for a character outside the vocabulary.
    id: Option<u32>,
    score: f64,
    start: usize,
    reached: bool,
}

/// Appends the ids of `piece`.
pub(crate) fn encode(
    table: Table<'_>,
    options: UnigramOptions,
    piece: &str,
    ids: &mut Vec<u32>,
) -> Result<(), TokenizerError> {
    let start = Node { id: None, score: 0.0, start: 0, reached: false };
    let mut best = vec![start; piece.len() + 1];
    for (at, character) in piece.char_indices() {
        let so_far = best[at].score;
        let width = character.len_utf8();
        let mut offer = |end: usize, id: Option<u32>, score: f64| {
            let node = &mut best[end];
            if !node.reached || score > node.score {
                *node = Node { id, score, start: at, reached: true };
            }
        };
        let mut has_single = false;
        let rest = &piece[at..];
        for (offset, last) in rest.char_indices() {
            let len = offset + last.len_utf8();
            if len > options.longest as usize {
                break;
            }
            if let Some(id) = table.find(&rest.as_bytes()[..len], MODEL)
                && let Some(score) = table.score(id)
            {
                offer(at + len, Some(id), score + so_far);
                has_single |= len == width;
            }
        }
        if !has_single {
            if options.unknown == Unknown::None {
                return Err(TokenizerError::NoUnknownToken { character });
            }
            offer(at + width, None, options.unknown_score + so_far);
        }
    }
    // Back along the best path; neighbouring unknown characters form one unknown piece.
    let mut path: Vec<(Option<u32>, usize, usize)> = Vec::new();
    let mut end = piece.len();
    while end > 0 {
        let node = best[end];
        let unknown = node.id.is_none() || node.id.map(Unknown::Id) == Some(options.unknown);
        let id = node.id.filter(|_| !unknown);
        match path.last_mut() {
            Some((None, begin, _)) if unknown => *begin = node.start,
            _ => path.push((id, node.start, end)),
        }
        end = node.start;
    }
    for (id, begin, end) in path.into_iter().rev() {
        match id {
            Some(id) => ids.push(id),
            None => push_unknown(table, options, &piece[begin..end], ids)?,
        }
    }
    Ok(())
}

fn push_unknown(
    table: Table<'_>,
    options: UnigramOptions,
    text: &str,
    ids: &mut Vec<u32>,
) -> Result<(), TokenizerError> {
    // A fused run may spell a token (the unknown-token itself, for one).
    if let Some(id) = table.find(text.as_bytes(), MODEL) {
        ids.push(id);
        return Ok(());
    }
    if options.byte_fallback {
        let bytes: Option<Vec<u32>> = text.bytes().map(|byte| byte_token(table, byte)).collect();
        if let Some(bytes) = bytes {
            ids.extend(bytes);
            return Ok(());
        }
    }
    match options.unknown {
        Unknown::Id(id) => {
            ids.push(id);
            Ok(())
        }
        _ => Err(TokenizerError::NoUnknownToken { character: text.chars().next().unwrap_or('\0') }),
    }
}
