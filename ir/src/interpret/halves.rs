//! Attention over a cache of bf16, itself in bf16: the definition that compiled models follow.
//!
//! * The numbers of a query are rounded to bf16, so that a score is a sum of products of bf16.
//! * A weight `exp(s - greatest)` is rounded to bf16 in front of its value, and not in the sum of the
//!   weights that the result is divided by. Compiled models round it beside the greatest score so far
//!   instead of the greatest of all, which moves it by no more than the rounding itself.

use half::bf16;

use super::attend::{Score, exponentials};

/// Attention of a query over rows, each a key and a value; returns the logarithm of the sum of exponentials.
pub(super) fn attend(
    score: Score,
    query: &[f32],
    rows: &[[&[f32]; 2]],
    sink: Option<f32>,
    out: &mut [f32],
) -> f32 {
    let query: Vec<f32> = query.iter().map(|number| rounded(*number)).collect();
    let mut weights: Vec<f32> = rows.iter().map(|[key, _]| score.of(&query, key)).collect();
    let (greatest, total) = exponentials(&mut weights, sink);
    for ([_, value], weight) in rows.iter().zip(weights) {
        let weight = rounded(weight);
        out.iter_mut().zip(*value).for_each(|(sum, value)| *sum += weight * value);
    }
    if greatest > f32::NEG_INFINITY {
        out.iter_mut().for_each(|sum| *sum /= total);
    }
    greatest + total.ln()
}

fn rounded(number: f32) -> f32 {
    bf16::from_f32(number).to_f32()
}
