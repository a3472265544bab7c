//! Pre-tokenizers: a normalised text becomes the pieces that the model sees.
//!
//! Pieces keep their order and are never empty.

use crate::TokenizerError;
use crate::component::{Behaviour, Needle, PreTokenizer, PrependScheme};
use crate::normalize::{Span, bytes_to_letters, find_all, find_program};
use crate::pattern::Program;

/// Applies all pre-tokenizers in order.
pub(crate) fn pre_tokenize(
    pre_tokenizers: &[PreTokenizer],
    span: Span,
    programs: &[Program],
) -> Result<Vec<Span>, TokenizerError> {
    let mut pieces = vec![span];
    for pre_tokenizer in pre_tokenizers {
        let mut next = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if !piece.text.is_empty() {
                apply(pre_tokenizer, piece, programs, &mut next)?;
            }
        }
        pieces = next;
    }
    pieces.retain(|piece| !piece.text.is_empty());
    Ok(pieces)
}

fn apply(
    pre_tokenizer: &PreTokenizer,
    mut piece: Span,
    programs: &[Program],
    out: &mut Vec<Span>,
) -> Result<(), TokenizerError> {
    match pre_tokenizer {
        PreTokenizer::ByteLevel { add_prefix_space, pattern } => {
            if *add_prefix_space && !piece.text.starts_with(' ') {
                piece.prepend(" ");
            }
            let spell = |part: Span| {
                let text = bytes_to_letters(&part.text);
                // A character's letters all stem from it.
                let at_start = part.text.get(..part.at_start).map_or(0, |head| {
                    head.bytes()
                        .map(|b| crate::normalize::BYTE_LETTERS[usize::from(b)].len_utf8())
                        .sum()
                });
                Span { text, at_start }
            };
            match pattern {
                None => out.push(spell(piece)),
                Some(index) => {
                    let matches = find_program(*index, &piece.text, programs)?;
                    let spans = with_gaps(&matches, piece.text.len(), false);
                    out.extend(spans.map(|(start, end, _)| spell(piece.slice(start, end))));
                }
            }
        }
        PreTokenizer::Split { needle, behaviour, invert } => {
            let matches = find_all(needle, &piece.text, programs)?;
            split(&piece, with_gaps(&matches, piece.text.len(), *invert), *behaviour, out);
        }
        PreTokenizer::Metaspace { replacement, scheme, split: splits } => {
            let mut buffer = [0; 4];
            let mark = replacement.encode_utf8(&mut buffer);
            piece.replace(&Needle::Literal(" ".to_owned()), mark, programs)?;
            let wanted = match scheme {
                PrependScheme::Always => true,
                PrependScheme::First => piece.is_at_start(),
                PrependScheme::Never => false,
            };
            if wanted && !piece.text.starts_with(*replacement) {
                piece.prepend(mark);
            }
            if *splits {
                split_chars(&piece, |c| c == *replacement, Behaviour::MergedWithNext, out);
            } else {
                out.push(piece);
            }
        }
        PreTokenizer::Digits { individual } => {
            let behaviour = if *individual { Behaviour::Isolated } else { Behaviour::Contiguous };
            split_chars(&piece, char::is_numeric, behaviour, out);
        }
        PreTokenizer::WhitespaceSplit => {
            split_chars(&piece, char::is_whitespace, Behaviour::Removed, out);
        }
    }
    Ok(())
}

/// Splits at every character of a kind.
fn split_chars(
    piece: &Span,
    kind: impl Fn(char) -> bool,
    behaviour: Behaviour,
    out: &mut Vec<Span>,
) {
    let matches: Vec<(usize, usize)> = piece
        .text
        .char_indices()
        .filter(|&(_, c)| kind(c))
        .map(|(at, c)| (at, at + c.len_utf8()))
        .collect();
    split(piece, with_gaps(&matches, piece.text.len(), false), behaviour, out);
}

/// Matches and the stretches between them: `(start, end, is a match)`. `invert` swaps the roles.
fn with_gaps(
    matches: &[(usize, usize)],
    len: usize,
    invert: bool,
) -> impl Iterator<Item = (usize, usize, bool)> {
    let mut reached = 0;
    matches
        .iter()
        .copied()
        .chain([(len, len)])
        .enumerate()
        .flat_map(move |(index, (start, end))| {
            let gap = (reached != start).then_some((reached, start, invert));
            reached = end;
            // The last one only closes the final gap.
            let last = index == matches.len();
            [gap, (!last).then_some((start, end, !invert))]
        })
        .flatten()
}

fn split(
    piece: &Span,
    spans: impl Iterator<Item = (usize, usize, bool)>,
    behaviour: Behaviour,
    out: &mut Vec<Span>,
) {
    let joined = join(spans, behaviour);
    out.extend(joined.into_iter().map(|(start, end)| piece.slice(start, end)));
}

fn join(
    spans: impl Iterator<Item = (usize, usize, bool)>,
    behaviour: Behaviour,
) -> Vec<(usize, usize)> {
    let mut joined: Vec<(usize, usize)> = Vec::new();
    let mut previous = false;
    match behaviour {
        Behaviour::Isolated => joined.extend(spans.map(|(start, end, _)| (start, end))),
        Behaviour::Removed => {
            joined.extend(spans.filter(|s| !s.2).map(|(start, end, _)| (start, end)));
        }
        Behaviour::Contiguous => {
            for (start, end, is_match) in spans {
                match joined.last_mut() {
                    Some(last) if is_match == previous => last.1 = end,
                    _ => joined.push((start, end)),
                }
                previous = is_match;
            }
        }
        Behaviour::MergedWithPrevious => {
            for (start, end, is_match) in spans {
                match joined.last_mut() {
                    Some(last) if is_match && !previous => last.1 = end,
                    _ => joined.push((start, end)),
                }
                previous = is_match;
            }
        }
        Behaviour::MergedWithNext => {
            let spans: Vec<_> = spans.collect();
            for &(start, end, is_match) in spans.iter().rev() {
                match joined.last_mut() {
                    Some(last) if is_match && !previous => last.0 = start,
                    _ => joined.push((start, end)),
                }
                previous = is_match;
            }
            joined.reverse();
        }
    }
    joined
}
