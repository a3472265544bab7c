//! What all forms of attention share: scores, masks and softmax, one query at a time in f32.

use super::{EvalFault, Tensor, checked_count};
use crate::interpret::tensor::move_elements;
use crate::ops::rules::{broadcast_strides, strided};

/// How scores are made from products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// Factor of the scores.
    pub scale: f32,
    /// c of c tanh(s / c); 0 for none.
    pub softcap: f32,
}

impl Score {
    /// The score of a query and a key, widths equal.
    pub fn of(&self, query: &[f32], key: &[f32]) -> f32 {
        let product = query.iter().zip(key).fold(0.0, |sum, (q, k)| sum + q * k);
        self.capped(product * self.scale)
    }

    /// The score of a query and a key that are codes with a scale each. The sum of products of codes
    /// is exact and rounded once.
    pub fn of_codes(&self, query: (&[f32], f32), key: (&[f32], f32)) -> f32 {
        let ((query, query_scale), (key, key_scale)) = (query, key);
        let sum = query.iter().zip(key).fold(0.0, |sum, (q, k)| sum + f64::from(q * k));
        self.capped((sum as f32 * key_scale) * (query_scale * self.scale))
    }

    fn capped(&self, score: f32) -> f32 {
        if self.softcap == 0.0 { score } else { self.softcap * (score / self.softcap).tanh() }
    }
}

/// Turns scores into weights: their softmax, with one more score in the denominator for a sink.
/// Returns the logarithm of the sum of exponentials. With no score at all every weight is 0: a
/// query that may see nothing gives zeros.
pub fn weigh(scores: &mut [f32], sink: Option<f32>) -> f32 {
    let (greatest, sum) = exponentials(scores, sink);
    if greatest > f32::NEG_INFINITY {
        scores.iter_mut().for_each(|weight| *weight /= sum);
    }
    greatest + sum.ln()
}

/// Turns scores into the exponentials of what they are less than the greatest. Returns the greatest
/// and the sum of exponentials, with that of a sink; with no score at all every one is 0.
pub fn exponentials(scores: &mut [f32], sink: Option<f32>) -> (f32, f32) {
    let start = sink.unwrap_or(f32::NEG_INFINITY);
    let greatest = scores.iter().copied().fold(start, f32::max);
    if greatest == f32::NEG_INFINITY {
        scores.fill(0.0);
        return (greatest, 0.0);
    }
    let mut sum = 0.0;
    for score in scores.iter_mut() {
        *score = (*score - greatest).exp();
        sum += *score;
    }
    if let Some(sink) = sink {
        sum += (sink - greatest).exp();
    }
    (greatest, sum)
}

/// A mask broadcast to `[batch, heads, rows, keys]`.
pub(crate) enum Mask {
    Keep(Vec<bool>, usize),
    Add(Vec<f32>, usize),
}

impl Mask {
    pub(crate) fn new(mask: &Tensor, scores: &[usize; 4]) -> Result<Mask, EvalFault> {
        checked_count(scores)?;
        let strides = broadcast_strides(mask.sizes(), 4);
        let whole = move_elements!(mask, scores.to_vec(), |v| strided(v, 0, &strides, scores));
        let keys = scores[3];
        Ok(match whole.bools() {
            Ok(keep) => Mask::Keep(keep.to_vec(), keys),
            Err(_) => Mask::Add(whole.f32s()?.to_vec(), keys),
        })
    }

    /// Changes the scores of a row (numbered through batch and heads).
    pub(crate) fn apply(&self, row: usize, scores: &mut [f32]) {
        match self {
            Mask::Keep(keep, keys) => {
                for (score, keep) in scores.iter_mut().zip(&keep[row * keys..]) {
                    if !keep {
                        *score = f32::NEG_INFINITY;
                    }
                }
            }
            Mask::Add(add, keys) => {
                scores.iter_mut().zip(&add[row * keys..]).for_each(|(score, add)| *score += add);
            }
        }
    }
}

/// Four sizes.
pub(crate) fn four(sizes: &[usize]) -> Result<[usize; 4], EvalFault> {
    sizes.try_into().map_err(|_| EvalFault::Operand("attention needs four dimensions".into()))
}
