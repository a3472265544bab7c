//! Which rows of a long prompt a cache keeps: scoring, pooling and selection (sections 4.2 to 4.4
//! of the method's document) in scalar f32, in the document's order of sums; and how much rows that are
//! selected anew repeat each other (section 14; R-KV, Cai et al., arXiv:2505.24133).

use std::ops::Range;

use super::EvalFault;
use super::attend::{Score, weigh};
use crate::graph::{Aggregate, Normalise, Pooling, Scoring};

/// The last queries of a prompt as one key/value head sees them.
#[derive(Debug)]
pub struct Observed<'a> {
    /// Rotated queries per head of the group, then per observed row, in order.
    pub queries: Vec<Vec<&'a [f32]>>,
    /// Logarithm of each query's sum of exponentials over all its keys, in the same order.
    pub sums: Vec<Vec<f32>>,
    /// How scores are made.
    pub score: Score,
}

/// s: how much attention each key gets from the observed queries, by key. `candidates` are the keys
/// that attention and means may be relative to.
pub fn scores(
    observed: &Observed<'_>,
    keys: &[&[f32]],
    candidates: Range<usize>,
    scoring: Scoring,
) -> Vec<f32> {
    let is_mean = scoring.aggregate == Aggregate::Mean;
    let by_head = observed.queries.iter().zip(&observed.sums).map(|(queries, sums)| {
        let sum = |(query, sum): (&&[f32], &f32)| match scoring.normalise {
            Normalise::All => *sum,
            Normalise::Candidates => log_sum_exp(
                keys[candidates.clone()].iter().map(|key| observed.score.of(query, key)),
            ),
        };
        let sums: Vec<f32> = queries.iter().zip(sums).map(sum).collect();
        let of_key = |key: &&[f32]| {
            let score = |query: &&[f32]| observed.score.of(query, key);
            let weights = queries.iter().zip(&sums).map(|(query, sum)| (score(query) - sum).exp());
            match is_mean {
                true => weights.fold(0.0, |sum, weight| sum + weight) / queries.len() as f32,
                false => weights.fold(0.0, larger),
            }
        };
        let mut attention: Vec<f32> = keys.iter().map(of_key).collect();
        if scoring.aggregate == Aggregate::Defensive {
            let total = attention[candidates.clone()].iter().fold(0.0, |sum, weight| sum + weight);
            let mean = total / candidates.len() as f32;
            attention.iter_mut().for_each(|weight| *weight = larger(*weight, mean));
        }
        attention
    });
    let heads: Vec<Vec<f32>> = by_head.collect();
    let of_key = |key: usize| {
        let weights = heads.iter().map(|attention| attention[key]);
        match is_mean {
            true => weights.fold(0.0, |sum, weight| sum + weight) / heads.len() as f32,
            false => weights.fold(0.0, larger),
        }
    };
    (0..keys.len()).map(of_key).collect()
}

/// The larger of two numbers; no number if one is none.
pub(super) fn larger(a: f32, b: f32) -> f32 {
    if a.is_nan() || a > b { a } else { b }
}

/// The logarithm of a sum of exponentials.
fn log_sum_exp(scores: impl Iterator<Item = f32> + Clone) -> f32 {
    let most = scores.clone().fold(f32::NEG_INFINITY, larger);
    most + scores.fold(0.0, |sum, score| sum + (score - most).exp()).ln()
}

/// A number in [0, 1) for a row, drawn by a hash of where it is.
pub fn lot(seed: u32, layer: u32, head: u32, position: u32) -> f32 {
    // 24 bits are what an f32 holds.
    (hash(seed, layer, head, position) >> 8) as f32 / (1 << 24) as f32
}

/// The row of a reservoir of `rows` rows that takes the row at `position`, the `rank`-th that leaves
/// the ring, counted from 1; none if it is dropped. Every row that has left is then in the reservoir
/// with the same chance (algorithm R of Vitter, 1985).
pub fn reservoir_row(
    lots: (u32, u32),
    head: u32,
    position: u32,
    rank: usize,
    rows: usize,
) -> Option<usize> {
    let (seed, layer) = lots;
    if rank <= rows {
        return rank.checked_sub(1);
    }
    let hash = u64::from(hash(seed, layer, head, position));
    // A number below the rank: the upper half of the product.
    let drawn = ((hash * rank as u64) >> 32) as usize;
    (drawn < rows).then_some(drawn)
}

/// 32 bits for a row by where it is: the finaliser of MurmurHash3 (Appleby, 2011) over a sum of odd
/// multiples.
fn hash(seed: u32, layer: u32, head: u32, position: u32) -> u32 {
    let place = [(layer, 0x85eb_ca6b), (head, 0xc2b2_ae35), (position, 0x9e37_79b1)];
    let mut hash = place.into_iter().fold(seed, |sum, (number, factor): (u32, u32)| {
        sum.wrapping_add(number.wrapping_mul(factor))
    });
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// ŝ: what `width` neighbours come to, those that exist.
pub fn pooled(scores: &[f32], width: usize, pooling: Pooling) -> Vec<f32> {
    let reach = width / 2;
    (0..scores.len())
        .map(|place| {
            let first = place.saturating_sub(reach);
            let end = place.saturating_add(reach).saturating_add(1).min(scores.len());
            let covered = &scores[first..end];
            let sum = covered.iter().fold(0.0, |sum, score| sum + score);
            match pooling {
                Pooling::Average => sum / covered.len() as f32,
                Pooling::Max => covered.iter().copied().fold(0.0, larger),
                Pooling::Reference => sum / (2 * reach + 1) as f32,
            }
        })
        .collect()
}

/// Cosine from which on two keys are alike, R-KV's.
pub const ALIKE: f32 = 0.5;

/// Keys that are shorter count as so long: nothing is like a key of zeros.
pub const LEAST_LENGTH: f32 = 1e-30;

/// λ and 1 - λ: how much of a score is what else scores a candidate, and how much is its redundancy.
pub fn shares(percent: u32) -> [f32; 2] {
    [100u32.saturating_sub(percent), percent].map(|percent| percent as f32 / 100.0)
}

/// How much each key repeats the others: the softmax of the mean likeness of others to it. Keys' likeness
/// is their cosine; of those that are alike to one key, that one's does not count for the newest, which
/// stays in the place of the others.
pub fn redundancies(keys: &[&[f32]]) -> Vec<f32> {
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b);
    let length = |key: &&[f32]| product(key, key).sqrt().max(LEAST_LENGTH);
    let lengths: Vec<f32> = keys.iter().map(length).collect();
    let likeness = |one: usize, other: usize| match one == other {
        true => 0.0,
        false => product(keys[one], keys[other]) / lengths[one] / lengths[other],
    };
    let sum = |one: usize| (0..keys.len()).fold(0.0, |sum, other| sum + likeness(one, other));
    let mut means: Vec<f32> = (0..keys.len()).map(sum).collect();
    for one in 0..keys.len() {
        let newest = (0..keys.len()).rev().find(|other| likeness(one, *other) > ALIKE);
        if let Some(newest) = newest {
            means[newest] -= likeness(one, newest);
        }
    }
    means.iter_mut().for_each(|sum| *sum /= keys.len() as f32);
    weigh(&mut means, None);
    means
}

/// The `count` best candidates (all, if there are fewer), ascending; of equal scores the earlier
/// candidate is the better.
pub fn selected(scores: &[f32], count: usize) -> Result<Vec<usize>, EvalFault> {
    if let Some(candidate) = scores.iter().position(|score| !score.is_finite()) {
        return Err(EvalFault::Score { candidate, score: scores[candidate].to_string() });
    }
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| {
        let descending = scores[*b].partial_cmp(&scores[*a]).expect("all scores are finite");
        descending.then(a.cmp(b))
    });
    order.truncate(count);
    order.sort_unstable();
    Ok(order)
}
