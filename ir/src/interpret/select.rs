//! Which rows of a long prompt a cache keeps: scoring, pooling and selection (sections 4.2 to 4.4
//! of the method's document) in scalar f32, in the document's order of sums.

use super::EvalFault;
use super::attend::Score;

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

/// s: the mean attention that each candidate key gets from the observed queries, per key; first
/// the mean over queries, then over the heads of the group.
pub fn scores<'a>(observed: &Observed<'_>, keys: impl Iterator<Item = &'a [f32]>) -> Vec<f32> {
    keys.map(|key| {
        let heads = observed.queries.iter().zip(&observed.sums).map(|(queries, sums)| {
            let mass = queries.iter().zip(sums).fold(0.0, |sum, (query, whole)| {
                sum + (observed.score.of(query, key) - whole).exp()
            });
            mass / queries.len() as f32
        });
        heads.fold(0.0, |sum, head| sum + head) / observed.queries.len() as f32
    })
    .collect()
}

/// ŝ: averages over `width` neighbours, inside the candidates only, divided by the neighbours that
/// exist.
pub fn pooled(scores: &[f32], width: usize) -> Vec<f32> {
    let reach = width / 2;
    (0..scores.len())
        .map(|place| {
            let first = place.saturating_sub(reach);
            let end = place.saturating_add(reach).saturating_add(1).min(scores.len());
            let covered = &scores[first..end];
            covered.iter().fold(0.0, |sum, score| sum + score) / covered.len() as f32
        })
        .collect()
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
