//! Attention over a cache of codes, itself in codes: keys, values, queries and weights. This is the
//! definition; its error is derived in `docs/numerics.md`.
//!
//! * A row of keys, values or of a query has, per head, the scale `m / 127`, m the largest magnitude,
//!   and the codes `x · (127 / m)`, rounded to nearest even.
//! * In an int4 cache a code of keys and values is the nearest of 16 [levels](LEVELS) to that code,
//!   the one further from zero if two are as near, and the scale is m as a half, times 1/127.
//!   Everything else is as over int8, queries included.
//! * The score of a key is `(Σ q k · key's scale) · (query's scale · factor)`, capped as ever.
//! * Weights are rounded per tile of [`TILE`] rows of the cache, each range of a query by itself.
//!   With p a weight times its value's scale and c the greatest p of the tile that the query sees,
//!   the code is `p · (255 / c)`. c has the factor of the weights, so codes do not depend on it.
//! * The result is `Σ_tiles (c / 255) · Σ code · value's code`, divided by the sum of the weights as
//!   they were before rounding and of the sink.
//!
//! Sums of products of codes are exact.
//!
//! Where the immutable block has a format of its own, attention computes as over the ring's: levels
//! are codes of an int8 ring, whose tiles end where the block does, and over a ring of floats a row of
//! the block is code times scale, rounded to a number of the ring's.

#[cfg(test)]
mod tests;

use super::attend::{Score, exponentials};
use super::plane::stored;
use crate::graph::CacheFormat;

/// Rows of the cache whose weights share a scale; tiles begin at its multiples.
pub const TILE: usize = 64;

/// Below this no element of a row is distinguished from zero.
const NEGLIGIBLE: f32 = 1e-30;

/// 2⁻¹⁰⁰: the least c of a tile, so that 255 / c is finite.
const LEAST_UNIT: f32 = f32::from_bits((127 - 100) << 23);

/// Magnitudes of the levels that codes of 4 bits name: those of either sign, and no zero. They stand
/// for code - 8 from -8 to 7: level `i` of these for 8 + i, its negative for 7 - i.
///
/// Values of a row are dense near zero, so levels are, too: an error of 0.091 of a row's root mean
/// square for 64 normal values and 0.119 where two of them are 6 and 4 times as large, where levels at
/// equal distances have 0.108 and 0.204. They are the means of what is rounded to them (Lloyd's
/// method, in parts of a row's root mean square) for rows of 64 normal values, half as many of 128,
/// as many of each with Laplace's distribution, and half as many of 64 with those two larger.
pub const LEVELS: [i8; 8] = [4, 13, 24, 36, 50, 68, 90, 122];

/// The least magnitudes of codes that become the second level and those behind it.
pub const BOUNDS: [i8; 7] = [9, 19, 30, 43, 59, 79, 106];

/// Codes of a head of a row, and its scale: not a number if any value is not finite.
pub fn encode(values: &[f32], codes: &mut [f32]) -> f32 {
    encode_with_largest(values, codes) / 127.0
}

/// The same in 4 bits: levels, and their scale.
pub fn encode_levels(values: &[f32], codes: &mut [f32]) -> f32 {
    let largest = encode_with_largest(values, codes);
    levels_of(codes, largest)
}

/// Codes become the nearest levels; returns the scale for the largest magnitude that they stand for.
fn levels_of(codes: &mut [f32], largest: f32) -> f32 {
    for code in codes.iter_mut() {
        let level = BOUNDS.iter().filter(|bound| code.abs() >= f32::from(**bound)).count();
        let magnitude = f32::from(LEVELS[level]);
        *code = if *code < 0.0 { -magnitude } else { magnitude };
    }
    stored(largest, CacheFormat::F16) * (1.0 / 127.0)
}

/// Codes of 8 bits and their scale become levels and theirs: what [`encode_levels`] makes of the row
/// itself, but for the last place of the scale. Levels stay what they are.
pub fn codes_to_levels(codes: &mut [f32], scale: f32) -> f32 {
    levels_of(codes, scale * 127.0)
}

/// [`encode_levels`] for a row that may have been levels before: if its numbers are levels in parts of
/// the largest, they stay these. The largest is a level then and no code 127, so that the row would
/// shrink every time otherwise. A row of w numbers that never was one passes with a chance of about
/// 0.1ʷ, and loses nothing by it.
pub fn encode_levels_again(values: &[f32], codes: &mut [f32]) -> f32 {
    let top = f32::from(LEVELS[LEVELS.len() - 1]);
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let inverse = top / largest;
    let is_level = |value: &f32| {
        let code = (value * inverse).round_ties_even().abs();
        LEVELS.iter().any(|level| f32::from(*level) == code)
    };
    if largest <= NEGLIGIBLE || !values.iter().all(is_level) {
        return encode_levels(values, codes);
    }
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (value * inverse).round_ties_even();
    }
    levels_of(codes, largest * (127.0 / top))
}

/// Codes of 8 bits; returns the largest magnitude, or no number if any value is not finite.
fn encode_with_largest(values: &[f32], codes: &mut [f32]) -> f32 {
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    // A maximum leaves out what is not a number, a sum of zeros does not.
    let nothing = values.iter().fold(0.0, |nothing, value| nothing + value * 0.0);
    let inverse = if largest > NEGLIGIBLE { 127.0 / largest } else { 0.0 };
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (value * inverse).round_ties_even();
    }
    largest + nothing
}

/// A cached key and its value: codes and scale of each.
pub(super) type Row<'a> = ((&'a [f32], f32), (&'a [f32], f32));

/// Attention of a query over tiles of rows. Adds to `out`, which is zero, and returns the logarithm
/// of the sum of exponentials.
pub(super) fn attend(
    score: Score,
    query: &[f32],
    tiles: &[Vec<Row<'_>>],
    sink: Option<f32>,
    out: &mut [f32],
) -> f32 {
    let mut codes = vec![0.0; query.len()];
    let scale = encode(query, &mut codes);
    let keys = tiles.iter().flatten().map(|(key, _)| key);
    let mut weights: Vec<f32> = keys.map(|key| score.of_codes((&codes, scale), *key)).collect();
    let (greatest, total) = exponentials(&mut weights, sink);
    let mut weights = weights.into_iter();
    for tile in tiles {
        let scaled = tile.iter().zip(&mut weights).map(|((_, (_, scale)), weight)| weight * scale);
        let scaled: Vec<f32> = scaled.collect();
        let unit = scaled.iter().copied().fold(LEAST_UNIT, f32::max);
        let mut sums = vec![0.0; out.len()];
        for ((_, (value, _)), scaled) in tile.iter().zip(scaled) {
            let code = (scaled * (255.0 / unit)).round_ties_even();
            sums.iter_mut().zip(*value).for_each(|(sum, value)| *sum += code * value);
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out += unit / 255.0 * sum;
        }
    }
    if total > 0.0 || total.is_nan() {
        out.iter_mut().for_each(|out| *out *= 1.0 / total);
    }
    greatest + total.ln()
}
