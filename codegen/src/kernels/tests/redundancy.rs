//! Redundancy of candidates in double precision, and how far a kernel may be from it.

use weir_ir::interpret::select::ALIKE;

use super::*;

/// Numbers with the bounds of their errors.
type Bounded = (f64, f64);

/// Scores with redundancy counted as so many percent of them.
///
/// A mean's error moves its weight relative to itself, and the total by the mean of the errors. The shift
/// by the largest mean rounds once, of at most their span; exp adds 2 ulp, 4u; the total adds a rounding
/// for each, the division one. Each share, its product and the difference round once.
pub(super) fn counted(keys: &[Vec<f64>], scores: &[Bounded], percent: u32) -> Vec<Bounded> {
    let means = means(keys);
    let most = means.iter().map(|mean| mean.0).fold(f64::MIN, f64::max);
    let least = means.iter().map(|mean| mean.0).fold(f64::MAX, f64::min);
    let weights: Vec<f64> = means.iter().map(|mean| (mean.0 - most).exp()).collect();
    let total: f64 = weights.iter().sum();
    let of_total: f64 =
        means.iter().zip(&weights).map(|(mean, weight)| mean.1 * weight / total).sum();
    let roundings = 2.0 * (most - least + 4.0) + keys.len() as f64 + 1.0;
    let share = f64::from(percent) / 100.0;
    let score = |((score, mean), weight): ((&Bounded, &Bounded), &f64)| {
        let redundancy = weight / total;
        let error = redundancy * (mean.1 + of_total + roundings * U);
        let (of_score, of_redundancy) = ((1.0 - share) * score.0, share * redundancy);
        let counted = of_score - of_redundancy;
        let rounded = 2.0 * of_score.abs() + 2.0 * of_redundancy + counted.abs();
        (counted, (1.0 - share) * score.1 + share * error + rounded * U)
    };
    scores.iter().zip(&means).zip(&weights).map(score).collect()
}

/// The cosine of two keys: their product adds each number with a rounding, and so do the squares of
/// their lengths, whose roots halve that; a root, an inverse and a product round once for each of them.
fn likeness(one: &[f64], other: &[f64]) -> Bounded {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let lengths = (dot(one, one) * dot(other, other)).sqrt();
    let size: f64 = one.iter().zip(other).map(|(a, b)| (a * b).abs()).sum();
    let (cosine, width) = (dot(one, other) / lengths, one.len() as f64);
    (cosine, (width * size / lengths + (width + 6.0) * cosine.abs()) * U)
}

/// Mean likeness of the others to each key, without those to which it is the newest that is alike.
///
/// A sum adds the candidates of a place in their blocks, then sixteen sums in four steps; what it does
/// not count is subtracted with a rounding each. Where the cosine that makes a key alike is within its
/// error of the limit, either may be the newest, and the sums of both may be with or without it.
fn means(keys: &[Vec<f64>]) -> Vec<Bounded> {
    let count = keys.len();
    let all: Vec<Vec<Bounded>> = (0..count)
        .map(|one| {
            let to = |other: usize| match one == other {
                true => (0.0, 0.0),
                false => likeness(&keys[one], &keys[other]),
            };
            (0..count).map(to).collect()
        })
        .collect();
    let size = |row: &[Bounded]| row.iter().map(|likeness| likeness.0.abs()).sum::<f64>();
    let depth = count as f64 / 16.0 + 6.0;
    let sum = |row: &Vec<Bounded>| {
        let error: f64 = row.iter().map(|likeness| likeness.1).sum();
        (row.iter().map(|likeness| likeness.0).sum::<f64>(), error + depth * U * size(row))
    };
    let mut sums: Vec<Bounded> = all.iter().map(sum).collect();
    let limit = f64::from(ALIKE);
    for row in &all {
        let newest = (0..count).rev().find(|other| row[*other].0 > limit);
        if let Some(newest) = newest {
            let (likeness, error) = row[newest];
            sums[newest].0 -= likeness;
            // What has been subtracted before is no more than the sizes of the column are.
            sums[newest].1 += error + 2.0 * size(&all[newest]) * U;
        }
        let possible = (0..count).rev().filter(|other| row[*other].0 > limit - row[*other].1);
        let (mut is_certain, mut those) = (false, Vec::new());
        for other in possible {
            those.push(other);
            is_certain = row[other].0 > limit + row[other].1;
            if is_certain {
                break;
            }
        }
        if those.len() > 1 || !is_certain {
            those.into_iter().for_each(|other| sums[other].1 += row[other].0.abs());
        }
    }
    let divided = |(sum, error): Bounded| {
        (sum / count as f64, error / count as f64 + (sum / count as f64).abs() * U)
    };
    sums.into_iter().map(divided).collect()
}
