//! Guesses what a model is about to say, so that one step can run several tokens of a sequence.
//!
//! A guess costs a row of a step and changes nothing else: a guessed token is taken only if it is the one
//! that is chosen from the logits of the row before it, by the request's own sampling, whose draws go by
//! position (Leviathan et al. 2023 sample otherwise to keep the distribution alone). So an answer is the
//! same, token for token, whoever guesses.
//!
//! [`PromptLookup`] needs no second model (Saxena 2023; `lookup` of llama.cpp, `ngram` of vLLM): where
//! the last few tokens have occurred before, in the prompt or the answer, it guesses that what followed
//! them there follows again. That is often so where an answer quotes, corrects or sums up its prompt.

#[cfg(test)]
pub(crate) mod tests;

/// Guesses the next tokens of sequences.
pub trait Drafter {
    /// Appends at most `most` tokens that may follow `tokens`, a prompt with its answer so far, to
    /// `draft`; all of the model's vocabulary. Nothing if there is no guess that is worth its row.
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>);
}

/// Fewest tokens that have to recur: what followed a single one is rarely what follows again.
const LEAST: usize = 2;

/// Tokens after which an occurrence is as good as any longer one.
const MOST: usize = 4;

/// Guesses that what followed the last tokens before follows again: behind the occurrence that agrees in
/// most of them, up to four, and of equals the last one. Reads the sequence once for each guess: 0.1 ms
/// for 100,000 tokens, where a step takes many times as long.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptLookup;

impl Drafter for PromptLookup {
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>) {
        let Some(end) = earlier(tokens) else { return };
        // A guess that reaches the end of the sequence goes on as if the sequence repeated itself.
        draft.extend(tokens[end..].iter().cycle().take(most));
    }
}

/// Where the best earlier occurrence of the last tokens ends.
fn earlier(tokens: &[u32]) -> Option<usize> {
    let (last, before) = tokens.split_last()?;
    let mut best = (LEAST - 1, None);
    for place in (0..before.len()).rev().filter(|place| before[*place] == *last) {
        let pairs = before[..place].iter().rev().zip(before.iter().rev());
        let alike = 1 + pairs.take(MOST - 1).take_while(|(one, other)| one == other).count();
        if alike > best.0 {
            best = (alike, Some(place + 1));
        }
        if alike == MOST {
            break;
        }
    }
    best.1
}
