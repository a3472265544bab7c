//! Second queries: what a question leads to by way of what it names.
//!
//! The last queries of a prompt find what they ask for, not what that refers to: they have not met it
//! yet. The rows there have, and their queries looked it up when they were read. So those near what the
//! last queries attend to are asked again, and a share of the rows is selected by their attention.
//!
//! Per key/value head: f of a row is the largest score s, before pooling, of it and the seven rows in
//! front of it, for what looks further stands up to so many rows behind what was found. Of the rows
//! between the sinks and the observed ones the N with the largest f are asked, of equals the first. s2
//! of a key is the largest, over the rows asked, of their heads' mean attention to it, relative to all
//! keys; a row's eight nearest keys and it itself get nothing, for attention to neighbours is no lookup.
//! s2 is pooled as s is. `share` percent of the V rows are selected by it, among those that s, pooled,
//! has not selected.
//!
//! Only rows of the prompt that runs have queries: not those that a prompt goes on behind. Where there
//! is none to ask, all V rows are selected by s.

#[cfg(test)]
mod tests;

use super::EvalFault;
use super::attend::Score;
use super::select::{larger, selected};

/// Rows of which f is the largest score: a row and those in front of it.
pub const FOLLOWING: usize = 8;

/// A row's attention to keys that are no more rows in front of it does not count.
pub const NEAR: usize = 8;

/// A row that is asked, as one key/value head sees it.
#[derive(Debug)]
pub struct Asked<'a> {
    /// Its place among the rows.
    pub row: usize,
    /// Its rotated queries per head of the group.
    pub queries: Vec<&'a [f32]>,
    /// Logarithm of each query's sum of exponentials over all its keys.
    pub sums: Vec<f32>,
}

/// Places of the rows that are asked, ascending. `scores` are s of the rows between the sinks and the
/// observed ones, those before `from` have no queries.
pub fn asked(scores: &[f32], from: usize, count: usize) -> Result<Vec<usize>, EvalFault> {
    let peak = |row: usize| {
        let near = &scores[(row + 1).saturating_sub(FOLLOWING)..=row];
        near.iter().copied().fold(0.0, larger)
    };
    let peaks: Vec<f32> = (from..scores.len()).map(peak).collect();
    Ok(selected(&peaks, count)?.into_iter().map(|place| from + place).collect())
}

/// s2 of keys, of which the first is in row `first`.
pub fn scores(asked: &[Asked<'_>], keys: &[&[f32]], first: usize, score: Score) -> Vec<f32> {
    let mean = |row: &Asked<'_>, key: &[f32]| {
        let weights = row.queries.iter().zip(&row.sums);
        let weights = weights.map(|(query, sum)| (score.of(query, key) - sum).exp());
        weights.fold(0.0, |sum, weight| sum + weight) / row.queries.len() as f32
    };
    let of_key = |(place, key): (usize, &&[f32])| {
        let far = asked.iter().filter(|row| row.row > first + place + NEAR);
        far.map(|row| mean(row, key)).fold(0.0, larger)
    };
    keys.iter().enumerate().map(of_key).collect()
}

/// How many of so many selected rows are chosen by second queries.
pub fn share_of(selected: usize, percent: u32) -> usize {
    (selected as u64 * u64::from(percent) / 100) as usize
}

/// The best candidates by the first scores, and by the second ones as many as they have a share in
/// among those that are left; ascending. Of equals the earlier candidate is the better.
pub fn selected_by_both(
    [first, second]: [&[f32]; 2],
    count: usize,
    percent: u32,
) -> Result<Vec<usize>, EvalFault> {
    let chosen = selected(first, count - share_of(count, percent))?;
    if let Some(candidate) = second.iter().position(|score| !score.is_finite()) {
        return Err(EvalFault::Score { candidate, score: second[candidate].to_string() });
    }
    let mut scores = second.to_vec();
    // Attention is at most 1, so these come first.
    chosen.into_iter().for_each(|candidate| scores[candidate] = f32::MAX);
    selected(&scores, count)
}
