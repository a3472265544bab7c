//! How probable a chosen token was, beside the most probable ones.
//!
//! Of the model's own distribution: before penalties, biases, temperature and filters, which is what
//! OpenAI's and vLLM's interfaces mean by `logprobs`.

use super::by_rank;

/// Logarithms of probabilities at one place of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// That of the token which was chosen.
    pub chosen: f32,
    /// The most probable tokens with theirs, the best first; of equals the lowest id.
    pub best: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// Of a token chosen by these logits, with the `count` most probable ones. `ranked` is room for
    /// candidates.
    pub fn new(
        logits: &[f32],
        token: u32,
        count: u32,
        ranked: &mut Vec<(f32, u32)>,
    ) -> TokenLogprobs {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // In double precision a sum over any vocabulary is exact far beyond a logit's own precision.
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
        let total = f64::from(largest) + sum.ln();
        let logprob = |logit: f32| (f64::from(logit) - total) as f32;
        ranked.clear();
        ranked.extend(logits.iter().copied().zip(0..).filter(|(logit, _)| !logit.is_nan()));
        let count = ranked.len().min(count as usize);
        if count > 0 && count < ranked.len() {
            ranked.select_nth_unstable_by(count - 1, by_rank);
        }
        ranked.truncate(count);
        ranked.sort_unstable_by(by_rank);
        TokenLogprobs {
            chosen: logits.get(token as usize).map_or(f32::NEG_INFINITY, |logit| logprob(*logit)),
            best: ranked.iter().map(|(logit, id)| (*id, logprob(*logit))).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_those_of_the_softmax() {
        let logits = [1.0_f32, 3.0, 2.0, 3.0, f32::NEG_INFINITY];
        let sum: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        let expected = |logit: f64| ((logit.exp() / sum).ln()) as f32;
        let logprobs = TokenLogprobs::new(&logits, 2, 3, &mut Vec::new());
        assert!((logprobs.chosen - expected(2.0)).abs() < 1e-6);
        let ids: Vec<u32> = logprobs.best.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids, [1, 3, 2]);
        assert!((logprobs.best[0].1 - expected(3.0)).abs() < 1e-6);
        assert_eq!(TokenLogprobs::new(&logits, 4, 0, &mut Vec::new()).best, []);
        assert_eq!(TokenLogprobs::new(&logits, 4, 9, &mut Vec::new()).best.len(), 5);
    }
}
