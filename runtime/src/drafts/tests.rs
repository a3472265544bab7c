//! What is guessed behind small sequences, and guesses for other tests.

use super::*;

/// Guesses tokens of known sequences, each right with a chance of one half, any number of them.
pub(crate) struct HalfRight {
    /// Prompts with their answers.
    pub known: Vec<Vec<u32>>,
    pub vocabulary: u32,
    pub seed: u64,
}

impl HalfRight {
    fn lot(&mut self, below: u32) -> u32 {
        self.seed =
            self.seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((self.seed >> 33) % u64::from(below)) as u32
    }
}

impl Drafter for HalfRight {
    fn draft(&mut self, tokens: &[u32], most: usize, draft: &mut Vec<u32>) {
        let known = self.known.iter().find(|known| known.starts_with(tokens));
        let rest = known.map(|known| known[tokens.len()..].to_vec()).unwrap_or_default();
        for index in 0..self.lot(most as u32 + 1) as usize {
            let lot = self.lot(2 * self.vocabulary);
            // Beyond the end of an answer nothing is right.
            let right = rest.get(index).copied();
            draft.push(right.filter(|_| lot >= self.vocabulary).unwrap_or(lot % self.vocabulary));
        }
    }
}

fn draft(tokens: &[u32], most: usize) -> Vec<u32> {
    let mut draft = Vec::new();
    PromptLookup.draft(tokens, most, &mut draft);
    draft
}

#[test]
fn what_followed_before_follows_again() {
    assert_eq!(draft(&[1, 2, 3, 4, 5, 9, 1, 2], 3), [3, 4, 5]);
    assert_eq!(draft(&[1, 2, 3, 4, 5, 9, 1, 2], 1), [3]);
    assert!(draft(&[1, 2, 3, 9, 1, 2], 0).is_empty());
}

#[test]
fn the_longest_occurrence_counts_and_of_equals_the_last() {
    // 7 1 2 occurs as it is, 1 2 also later on.
    assert_eq!(draft(&[7, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 2), [3, 8]);
    assert_eq!(draft(&[1, 2, 3, 8, 1, 2, 4, 1, 2], 2), [4, 1]);
    // Four alike are as good as five.
    assert_eq!(draft(&[6, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 7, 6, 1, 2, 3, 4], 1), [7]);
}

#[test]
fn a_single_token_or_none_is_no_occurrence() {
    for tokens in [&[][..], &[1], &[1, 1], &[1, 2, 3, 1], &[1, 2, 3, 4]] {
        assert!(draft(tokens, 4).is_empty(), "{tokens:?}");
    }
}

#[test]
fn a_sequence_that_repeats_itself_goes_on_so() {
    assert_eq!(draft(&[9, 1, 1, 1], 4), [1, 1, 1, 1]);
    assert_eq!(draft(&[9, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
}
