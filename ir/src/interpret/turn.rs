//! The turn of keys and queries in front of a cache that holds codes of four bits: one fixed
//! orthogonal matrix R = H · diag(±1) / √n, H a Hadamard matrix. This is part of the cache's format:
//! signs and order never change.
//!
//! Rq · Rk = q · k, so scores stay what they are, but each number of a turned key is a sum over all of
//! its part, and a few large ones no longer decide how coarsely the others are rounded (QuaRot,
//! arXiv:2404.00456, turns keys behind RoPE so; random signs as in QuIP#, arXiv:2402.04396). Values
//! are not turned.
//!
//! A head is turned in parts of n numbers, n the largest power of two that divides its width. Each
//! number is multiplied by ±1/√n, that factor rounded to f32; then for s = 1, 2, 4 … n/2 each pair
//! (a, b) at the distance s becomes (a + b, a - b). Every sum is one of two numbers, so compiled code
//! gives these bits on every level. A number of R x is off by at most (log₂ n + 2) · 2⁻²⁴ · Σ|x| / √n:
//! the factor, its product and each sum are rounded once.

#[cfg(test)]
mod tests;

/// Numbers that are turned together in a head of a width: the largest power of two that divides it,
/// 1 where the width is 0.
pub fn part(width: usize) -> usize {
    if width == 0 { 1 } else { 1 << width.trailing_zeros() }
}

/// What number `index` of a head in parts of `part` numbers is multiplied by. The sign of numbers
/// 64 w to 64 w + 63 is negative where the bits of SplitMix64's output w for the seed 0, from the
/// lowest, are set.
pub fn factor(index: usize, part: usize) -> f32 {
    let magnitude = (1.0 / (part as f64).sqrt()) as f32;
    let bits = splitmix64(index as u64 / 64);
    if bits >> (index % 64) & 1 == 1 { -magnitude } else { magnitude }
}

/// Output `number` of the generator SplitMix64 for the seed 0.
fn splitmix64(number: u64) -> u64 {
    let mut bits = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Turns a head in place.
pub fn turn(head: &mut [f32]) {
    let part = part(head.len());
    for (index, number) in head.iter_mut().enumerate() {
        *number *= factor(index, part);
    }
    for numbers in head.chunks_mut(part) {
        let mut distance = 1;
        while distance < part {
            for pairs in numbers.chunks_mut(2 * distance) {
                let (first, second) = pairs.split_at_mut(distance);
                for (a, b) in first.iter_mut().zip(second) {
                    (*a, *b) = (*a + *b, *a - *b);
                }
            }
            distance *= 2;
        }
    }
}
