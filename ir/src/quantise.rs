//! Rounds floats to block-quantised rows: the one definition that interpreter and packing share.
//!
//! A block of values x becomes a scale d in the format's type, a zero point z and codes
//! `c = clamp(round(x / d) + z, 0, top)`, top = 15 or 255; an element then stands for `(c - z) d`.
//! Codes are chosen for the scale as it is stored, so rounding the scale costs no accuracy of its
//! own. Every step is one f32 operation in a written order: the same bits on every machine.
//!
//! * **Symmetric, 4 bits** (z = 8): the value of largest magnitude gets code 0, `d = -extreme / 8`
//!   with its sign, so that all 16 codes are used.
//! * **Symmetric, 8 bits** (z = 128): `d = largest magnitude / 127`; code 0 is not used.
//! * **Zero points**: `d = (max - min) / top` over the block and 0, `z = round(-min / d)`.
//!
//! For 4 bits some factors near 1 are tried on d, each followed by the least-squares scale of the
//! codes that it gives, `Σ x (c - z) / Σ (c - z)²`. The best is taken if its squared error is below
//! that of the plain d.
//!
//! # Error of a block
//!
//! With m = max |x| and h the error of storing the scale (2⁻¹¹ for f16, 2⁻⁸ for bf16, 2⁻²⁴ for f32):
//!
//! | format | each element is off by at most |
//! |---|---|
//! | 8 bits, symmetric | `m / 254 · (1 + 128 h)` |
//! | 8 bits, zero points | `(max - min) / 510 · (1 + 512 h)` |
//! | 4 bits, zero points, plain d | `(max - min) / 30 · (1 + 32 h)` |
//! | 4 bits, symmetric, plain d | `m / 16 · (1 + 16 h)`; `m / 8 · (1 + 8 h)` opposite to the extreme |
//!
//! Scales of f16 below 2⁻¹⁴ are subnormal; for them 2⁻²⁵ times the greatest code is added.
//!
//! A searched scale may clip single elements further, but the block's squared error is at most that
//! of the plain d. So a block of n values is off by at most √n times the row of the table in root of
//! the sum of squares. Normal values give `√(2 ln 2n) / (levels √12)` of their deviation, levels = 8
//! or 127, before the search.
//!
//! **Short scales** have at most [`SHORT_SCALE_BITS`] significant bits, so that `(c - z) d` of 4 bits
//! about their middle has at most 8: it is exact in bf16, and products of such numbers are exact
//! wherever bf16 is multiplied. Here h is 2⁻⁵. They are so few that those around the plain one are tried
//! themselves, each with its own codes: 0.0811 of the deviation of normal values in blocks of 32, where
//! f16 has 0.0804 (the tests print both).
//!
//! A block that holds a number that is not finite gets a scale that is not a number, which packing
//! refuses. Searching after Gerganov et al., *ggml-quants* (`make_qx_quants`), and the scale of given
//! codes by least squares.

#[cfg(test)]
mod tests;

use crate::types::{DType, QuantFormat, ZeroPoints};

/// Values that are worked on together; sums have as many lanes, added in order at the end.
const LANES: usize = 8;

/// Factors on the plain scale are `8 / (8 + step / 10)` for steps of at most this magnitude.
const STEPS: i32 = 9;

/// Significant bits of a short scale at most.
pub const SHORT_SCALE_BITS: u32 = 5;

/// Short numbers that are tried on either side of the plain one.
const SHORT_STEPS: i32 = 3;

/// Scales below this count as 0: their inverses leave the range of f32.
const TINY: f32 = 1e-30;

/// Adding and subtracting it rounds a float of magnitude below 2²² to the nearest even integer.
const ROUND: f32 = 12_582_912.0;

/// Rounds rows to one format; keeps its scratch memory from block to block.
#[derive(Clone, Debug)]
pub struct Rounder {
    bits: u8,
    block: usize,
    scale: DType,
    short: bool,
    zero: ZeroPoints,
    /// The block, filled up with zeros to whole lanes.
    padded: Vec<[f32; LANES]>,
}

impl Rounder {
    /// A rounder to a format; `None` where nothing rounds to it: zero points that are floats, or
    /// fixed ones beside the middle of the codes.
    pub fn new(format: &QuantFormat) -> Option<Rounder> {
        let makes = match format.zero {
            ZeroPoints::Fixed(zero) => u32::from(zero) == 1 << (format.bits.clamp(1, 8) - 1),
            ZeroPoints::Codes => true,
            ZeroPoints::Float => false,
        };
        let QuantFormat { bits, block, scale, short, zero } = *format;
        let stores = matches!(scale, DType::F32 | DType::F16 | DType::BF16);
        let can = makes && stores && matches!(bits, 4 | 8) && block > 0;
        can.then(|| Rounder { bits, block: block as usize, scale, short, zero, padded: Vec::new() })
    }

    /// Rounds a row: a code per value, scale and zero point per block.
    pub fn row(&mut self, x: &[f32], codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]) {
        let blocks = x.chunks(self.block).zip(codes.chunks_mut(self.block));
        for ((x, codes), (scale, zero)) in blocks.zip(scales.iter_mut().zip(zeros)) {
            (*scale, *zero) = self.round(x, codes);
        }
    }

    /// Rounds a block and returns its scale and zero point.
    fn round(&mut self, x: &[f32], codes: &mut [u8]) -> (f32, f32) {
        let top = ((1u32 << self.bits) - 1) as f32;
        self.padded.clear();
        self.padded.extend(x.chunks(LANES).map(|part| {
            let mut lanes = [0.0; LANES];
            lanes[..part.len()].copy_from_slice(part);
            lanes
        }));
        let (least, greatest, is_finite) = range(&self.padded);
        let (plain, zero) = match (self.zero, self.bits) {
            _ if !is_finite => (f32::NAN, 0.0),
            (ZeroPoints::Codes, _) => {
                let scale = (greatest - least) / top;
                let zero = if scale < TINY { 0.0 } else { nearest(-least / scale, 0.0, top) };
                (scale, zero)
            }
            (_, 4) => {
                let extreme = if greatest > -least { greatest } else { least };
                (extreme / -8.0, 8.0)
            }
            _ => (greatest.max(-least) / 127.0, 128.0),
        };
        let mut scale = self.stored(plain);
        if self.bits == 4 && scale.is_finite() && scale.abs() >= TINY {
            let mut least = self.error(scale, zero, top);
            let mut try_scale = |candidate| {
                let error = self.error(candidate, zero, top);
                if error < least {
                    (scale, least) = (candidate, error);
                }
            };
            if self.short {
                short_scales(plain).map(|candidate| self.stored(candidate)).for_each(try_scale);
            } else {
                try_scale(self.stored(self.search(plain, zero, top)));
            }
        }
        let inverse = if scale.abs() < TINY { 0.0 } else { 1.0 / scale };
        for (code, x) in codes.iter_mut().zip(x) {
            *code = (nearest(x * inverse, -zero, top - zero) + zero) as u8;
        }
        (scale, zero)
    }

    /// A scale as the format stores it.
    fn stored(&self, scale: f32) -> f32 {
        stored(self.scale, self.short, scale)
    }

    /// The scale with the least squared error among those of the factors' codes. For codes q the
    /// least error is `Σ x² - (Σ x q)² / Σ q²`, so the greatest of the last term wins.
    fn search(&self, plain: f32, zero: f32, top: f32) -> f32 {
        let (mut best, mut gain) = (plain, -1.0);
        for step in -STEPS..=STEPS {
            let inverse = (8.0 + 0.1 * step as f32) / (8.0 * plain);
            let (mut products, mut squares) = ([0.0f32; LANES], [0.0f32; LANES]);
            for x in &self.padded {
                for lane in 0..LANES {
                    let q = nearest(x[lane] * inverse, -zero, top - zero);
                    products[lane] += x[lane] * q;
                    squares[lane] += q * q;
                }
            }
            let (product, square) = (sum(products), sum(squares));
            if square > 0.0 && product * (product / square) > gain {
                gain = product * (product / square);
                best = product / square;
            }
        }
        best
    }

    /// Squared error of the block with a scale.
    fn error(&self, scale: f32, zero: f32, top: f32) -> f32 {
        let inverse = if scale.abs() < TINY { 0.0 } else { 1.0 / scale };
        let mut squares = [0.0f32; LANES];
        for x in &self.padded {
            for lane in 0..LANES {
                let q = nearest(x[lane] * inverse, -zero, top - zero);
                let error = x[lane] - q * scale;
                squares[lane] += error * error;
            }
        }
        sum(squares)
    }
}

/// A scale in a type, to nearest even; a short one with [`SHORT_SCALE_BITS`] significant bits.
pub fn stored(dtype: DType, short: bool, scale: f32) -> f32 {
    let scale = if short { shortened(scale) } else { scale };
    match dtype {
        DType::F16 => half::f16::from_f32(scale).to_f32(),
        DType::BF16 => half::bf16::from_f32(scale).to_f32(),
        _ => scale,
    }
}

/// The nearest number of [`SHORT_SCALE_BITS`] significant bits, ties to even.
fn shortened(x: f32) -> f32 {
    if !x.is_finite() {
        return x;
    }
    let bits = x.to_bits();
    let to_even = (bits >> LOST) & 1;
    f32::from_bits((bits + (1 << (LOST - 1)) - 1 + to_even) & !((1 << LOST) - 1))
}

/// Bits that a short scale has less than a float.
const LOST: u32 = f32::MANTISSA_DIGITS - SHORT_SCALE_BITS;

/// The short numbers around a plain scale.
fn short_scales(plain: f32) -> impl Iterator<Item = f32> {
    let middle = shortened(plain).to_bits();
    (-SHORT_STEPS..=SHORT_STEPS)
        .map(move |step| f32::from_bits(middle.wrapping_add_signed(step << LOST)))
}

/// Whether a scale is one that [`stored`] gives for short ones.
pub fn is_short(scale: f32) -> bool {
    shortened(scale).to_bits() == scale.to_bits()
}

/// Least and greatest value of a block and 0, and whether all values are finite.
fn range(block: &[[f32; LANES]]) -> (f32, f32, bool) {
    let (mut least, mut greatest) = ([0.0f32; LANES], [0.0f32; LANES]);
    // A sum of numbers times zero is zero, and not a number as soon as one of them is not finite.
    let mut nothing = [0.0f32; LANES];
    for x in block {
        for lane in 0..LANES {
            least[lane] = if x[lane] < least[lane] { x[lane] } else { least[lane] };
            greatest[lane] = if x[lane] > greatest[lane] { x[lane] } else { greatest[lane] };
            nothing[lane] += x[lane] * 0.0;
        }
    }
    let least = least.into_iter().fold(0.0, f32::min);
    let greatest = greatest.into_iter().fold(0.0, f32::max);
    (least, greatest, nothing.iter().all(|lane| *lane == 0.0))
}

/// The integer nearest to x within bounds that are integers; ties to even.
fn nearest(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    let x = if x > high { high } else { x };
    (x + ROUND) - ROUND
}

fn sum(lanes: [f32; LANES]) -> f32 {
    lanes.into_iter().fold(0.0, |sum, lane| sum + lane)
}
