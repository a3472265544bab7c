//! Chooses a token from logits.
//!
//! Order, as in Hugging Face's generation: penalties, biases, temperature, top-k, top-p, min-p, draw.
//!
//! * *Repetition penalty* (Keskar et al. 2019, as Hugging Face and vLLM): a positive logit of any
//!   token of prompt or answer is divided by it, a negative one multiplied.
//! * *Presence* and *frequency penalty* (as OpenAI and vLLM): subtracted once, or once per
//!   occurrence, from the logits of tokens of the answer; the prompt does not count.
//! * A *logit bias* (as OpenAI) is added to a token's logit after that.
//! * *Top-k* keeps the k largest; *top-p* keeps the smallest set of largest probabilities whose sum
//!   reaches p (after top-k); *min-p* drops tokens under that share of the largest probability.
//! * Temperature 0 is greedy. Among equal logits the lowest id comes first, everywhere.
//!
//! The draw comes from a counter, not from a state: a SplitMix64 hash of (seed, choice, position),
//! so that nothing other requests do can change it.

mod largest;
mod logprobs;
#[cfg(test)]
mod tests;
mod weights;

use std::cmp::Ordering;
use std::hash::{BuildHasher, Hasher, RandomState};

use self::largest::LargestOfChunks;
pub use self::largest::greedy;
pub use self::logprobs::TokenLogprobs;
use self::weights::{Weight, Weights};

use crate::error::RequestError;

/// How a request's tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Divisor of the logits; 0 is greedy.
    pub temperature: f32,
    /// Number of tokens that stay; 0 is all.
    pub top_k: u32,
    /// Mass of the most probable tokens that stay; 1 is all.
    pub top_p: f32,
    /// Share of the best token's probability that a token needs to stay; 0 is all.
    pub min_p: f32,
    /// Divisor of the logits of tokens that have occurred; 1 changes nothing.
    pub repetition_penalty: f32,
    /// Subtracted from logits of tokens that the answer contains.
    pub presence_penalty: f32,
    /// Subtracted from those logits once per occurrence.
    pub frequency_penalty: f32,
    /// What is added to the logits of these tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Default for SamplingOptions {
    fn default() -> SamplingOptions {
        SamplingOptions {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingOptions {
    /// Refuses values outside their range.
    pub fn check(&self) -> Result<(), RequestError> {
        let rules = [
            ("temperature", self.temperature, self.temperature >= 0.0, "0 or more"),
            ("top-p", self.top_p, self.top_p > 0.0 && self.top_p <= 1.0, "above 0 and at most 1"),
            ("min-p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            (
                "repetition penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0,
                "above 0",
            ),
            ("presence penalty", self.presence_penalty, true, "finite"),
            ("frequency penalty", self.frequency_penalty, true, "finite"),
        ];
        for (option, value, holds, rule) in rules {
            if !holds || !value.is_finite() {
                return Err(RequestError::Sampling { option, value, rule });
            }
        }
        match self.logit_bias.iter().find(|(_, bias)| !bias.is_finite()) {
            Some((_, value)) => {
                let option = "logit bias";
                Err(RequestError::Sampling { option, value: *value, rule: "finite" })
            }
            None => Ok(()),
        }
    }

    fn counts_tokens(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }
}

/// Chooses the tokens of one request.
#[derive(Clone, Debug)]
pub struct Sampler {
    options: SamplingOptions,
    choice: u32,
    /// Per token: occurrences in the answer, and whether the prompt has it. Empty unless penalised, and until
    /// the first choice: requests that wait hold none, of which there may be many.
    answer_counts: Vec<u32>,
    in_prompt: Vec<bool>,
}

/// Room for the candidates of one choice, shared by all requests.
#[derive(Clone, Debug, Default)]
pub struct SamplingScratch {
    candidates: Vec<(f32, u32)>,
    largest: LargestOfChunks,
    weights: Weights,
    /// A row of logits before penalties, where probabilities are asked for.
    raw: Vec<f32>,
}

impl SamplingScratch {
    /// Room for a vocabulary.
    pub fn new(vocabulary: usize) -> SamplingScratch {
        SamplingScratch {
            candidates: Vec::with_capacity(vocabulary),
            largest: LargestOfChunks::new(vocabulary),
            weights: Weights::new(vocabulary),
            raw: Vec::new(),
        }
    }

    /// Keeps logits as they are before penalties.
    pub fn keep(&mut self, logits: &[f32]) {
        self.raw.clear();
        self.raw.extend_from_slice(logits);
    }

    /// How probable a token was, by the logits that were kept.
    pub fn logprobs(&mut self, token: u32, count: u32) -> TokenLogprobs {
        TokenLogprobs::new(&self.raw, token, count, &mut self.candidates)
    }
}

impl Sampler {
    /// A sampler for answer number `choice` to a prompt.
    pub fn new(options: SamplingOptions, choice: u32) -> Sampler {
        Sampler { options, choice, answer_counts: Vec::new(), in_prompt: Vec::new() }
    }

    /// Makes the tables that penalties need, unless they are there; to be called before the first choice.
    /// `vocabulary` bounds all ids.
    pub fn begin(&mut self, prompt: &[u32], vocabulary: usize) {
        if !self.options.counts_tokens() || !self.answer_counts.is_empty() {
            return;
        }
        self.answer_counts = vec![0; vocabulary];
        self.in_prompt = vec![false; vocabulary];
        for token in prompt {
            if let Some(seen) = self.in_prompt.get_mut(*token as usize) {
                *seen = true;
            }
        }
    }

    /// Chooses the token at `position` from logits that have been penalised. `None` if none of them is a
    /// number.
    pub fn choose(
        &mut self,
        logits: &[f32],
        position: u32,
        scratch: &mut SamplingScratch,
    ) -> Option<u32> {
        let token = if self.options.temperature == 0.0 {
            greedy(logits)
        } else {
            let draw = uniform(self.options.seed, self.choice, position);
            self.draw(logits, draw, scratch)
        }?;
        if let Some(count) = self.answer_counts.get_mut(token as usize) {
            *count += 1;
        }
        Some(token)
    }

    /// Changes logits by the penalties and biases, as far as there are any.
    pub fn penalise(&self, logits: &mut [f32]) {
        let SamplingOptions { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.options;
        let seen = self.answer_counts.iter().zip(&self.in_prompt);
        for (logit, (count, in_prompt)) in logits.iter_mut().zip(seen) {
            if *count > 0 || *in_prompt {
                *logit = if *logit > 0.0 {
                    *logit / repetition_penalty
                } else {
                    *logit * repetition_penalty
                };
            }
            if *count > 0 {
                *logit -= presence_penalty + frequency_penalty * *count as f32;
            }
        }
        for (token, bias) in &self.options.logit_bias {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit += bias;
            }
        }
    }

    fn draw(&self, logits: &[f32], draw: f64, scratch: &mut SamplingScratch) -> Option<u32> {
        let SamplingOptions { temperature, top_k, top_p, min_p, .. } = self.options;
        let SamplingScratch { candidates, largest, weights, .. } = scratch;
        // Among these are the k best, and the best of all.
        let least = largest.least_of_best(logits, top_k as usize);
        let weight = Weight { best: largest.best(), temperature };
        if top_k == 0 && top_p == 1.0 && min_p == 0.0 {
            weights.weigh(weight, logits.iter().copied());
            return weights.draw(draw).map(|id| id as u32);
        }
        candidates.clear();
        candidates.extend(largest.at_least(logits, least));
        let k = if top_k == 0 { candidates.len() } else { candidates.len().min(top_k as usize) };
        if k < candidates.len() {
            candidates.select_nth_unstable_by(k - 1, by_rank);
            candidates.truncate(k);
        }
        // By id here and below: sums then have one order, whatever selected the candidates.
        candidates.sort_unstable_by_key(|(_, id)| *id);
        if top_p < 1.0 {
            weights.weigh(weight, candidates.iter().map(|(logit, _)| *logit));
            let mass = f64::from(top_p) * weights.total();
            keep_mass(candidates, mass, |logit| f64::from(weight.of(logit)));
            candidates.sort_unstable_by_key(|(_, id)| *id);
        }
        if min_p > 0.0 {
            candidates.retain(|(logit, _)| weight.of(*logit) >= min_p);
        }
        weights.weigh(weight, candidates.iter().map(|(logit, _)| *logit));
        weights.draw(draw).and_then(|index| candidates.get(index)).map(|(_, id)| *id)
    }
}

/// Larger logits first, then lower ids. The logits are numbers.
fn by_rank(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}

/// Keeps the smallest set of best candidates whose weights reach `target`.
///
/// Sorts only as many of the best as turn out to be needed: a peaked distribution over 150,000
/// tokens needs a few hundred.
fn keep_mass(candidates: &mut Vec<(f32, u32)>, target: f64, weight: impl Fn(f32) -> f64) {
    let (mut sorted, mut mass, mut block) = (0, 0.0, 256);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let end = block.min(rest.len());
        if end < rest.len() {
            rest.select_nth_unstable_by(end - 1, by_rank);
        }
        rest[..end].sort_unstable_by(by_rank);
        for index in sorted..sorted + end {
            mass += weight(candidates[index].0);
            if mass >= target {
                candidates.truncate(index + 1);
                return;
            }
        }
        sorted += end;
        block *= 8;
    }
}

/// A seed that differs from call to call: the standard library's hash keys are random.
pub fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// SplitMix64's output function (Steele, Lea, Flood 2014).
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A number in [0, 1) for a seed, an answer and a position.
fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;
    let counter = u64::from(choice) << 32 | u64::from(position);
    let bits = mix(mix(seed.wrapping_add(GAMMA)).wrapping_add(counter.wrapping_mul(GAMMA)));
    // 53 bits are what an f64 holds.
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}
