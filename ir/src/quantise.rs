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
//! wherever bf16 is multiplied. Those of a row are whole multiples, at most [`SHORT_SCALE_MOST`], of one
//! power of two ([`unit_of`]), so that a signed byte stores one. Here h is 2⁻⁵ where the block's extreme
//! is two sevenths of its row's or more; in others the scale is off by half a unit, 1/112 of the row's
//! largest scale at most. They are so few that those around the plain one are tried themselves, each with
//! its own codes: 0.0811 of the deviation of normal values in blocks of 32, where f16 has 0.0804 (the
//! tests print both).
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

/// The greatest multiple of its row's unit that a short scale is: of [`SHORT_SCALE_BITS`] bits and in a
/// signed byte.
pub const SHORT_SCALE_MOST: f32 = 124.0;

/// The least number that has all of them in front of the point: from here on a number of so many bits is
/// whole, and below every whole number has no more.
const FIVE_BITS: f32 = (1 << (SHORT_SCALE_BITS - 1)) as f32;

/// Short numbers that are tried on either side of the plain one.
const SHORT_STEPS: i32 = 3;

/// The greatest multiple of the unit that a row's largest plain scale may be: the numbers that are tried
/// beyond it are short, too.
const PLAIN_SCALE_MOST: f32 = SHORT_SCALE_MOST - 4.0 * SHORT_STEPS as f32;

/// The least unit: the smallest half above zero.
const LEAST_UNIT: f32 = 1.0 / (1 << 24) as f32;

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
        let unit = if self.short { unit_of_row(x) } else { 1.0 };
        let blocks = x.chunks(self.block).zip(codes.chunks_mut(self.block));
        for ((x, codes), (scale, zero)) in blocks.zip(scales.iter_mut().zip(zeros)) {
            (*scale, *zero) = self.round(x, unit, codes);
        }
    }

    /// Rounds a block and returns its scale and zero point; `unit` is that of short scales.
    fn round(&mut self, x: &[f32], unit: f32, codes: &mut [u8]) -> (f32, f32) {
        let top = ((1u32 << self.bits) - 1) as f32;
        // A scale that was rounded down, as only subnormal ones are by so much, would reach code 0.
        let low = if self.bits == 8 && self.zero != ZeroPoints::Codes { 1.0 } else { 0.0 };
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
        let mut scale = self.stored(plain, unit);
        if self.bits == 4 && scale.is_finite() && plain.abs() >= TINY {
            let first = scale;
            let mut least = self.error(first, zero, top);
            let mut try_scale = |candidate| {
                let error = self.error(candidate, zero, top);
                if error < least {
                    (scale, least) = (candidate, error);
                }
            };
            if self.short {
                around(first, unit).for_each(try_scale);
            } else {
                try_scale(self.stored(self.search(plain, zero, top), unit));
            }
        }
        let inverse = if scale.abs() < TINY { 0.0 } else { 1.0 / scale };
        for (code, x) in codes.iter_mut().zip(x) {
            *code = (nearest(x * inverse, low - zero, top - zero) + zero) as u8;
        }
        (scale, zero)
    }

    /// A scale as the format stores it, in a row of this unit.
    fn stored(&self, scale: f32, unit: f32) -> f32 {
        if self.short { short_scale(scale, unit) } else { stored(self.scale, scale) }
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

/// A scale in a type, to nearest even.
pub fn stored(dtype: DType, scale: f32) -> f32 {
    match dtype {
        DType::F16 => half::f16::from_f32(scale).to_f32(),
        DType::BF16 => half::bf16::from_f32(scale).to_f32(),
        _ => scale,
    }
}

/// The unit of a row of short scales whose largest magnitude is this one: the least power of two of which
/// it is at most [`SHORT_SCALE_MOST`] times as much, and a half.
pub fn unit_of(largest: f32) -> f32 {
    let mut unit = LEAST_UNIT;
    while SHORT_SCALE_MOST * unit < largest {
        unit *= 2.0;
    }
    unit
}

/// The unit of a row that has these short scales: with it [`short_scale`] leaves each as it is.
pub fn unit_of_scales(scales: &[f32]) -> f32 {
    unit_of(scales.iter().fold(0.0, |largest, scale| scale.abs().max(largest)))
}

/// The unit for the short scales of a row of 4 bits, with room for those that are tried.
fn unit_of_row(x: &[f32]) -> f32 {
    let extreme = x.iter().fold(0.0f32, |extreme, x| extreme.max(x.abs()));
    unit_of(extreme / 8.0 * (SHORT_SCALE_MOST / PLAIN_SCALE_MOST))
}

/// The short scale nearest to a number in a row of this unit; infinite where it is beyond halves.
pub fn short_scale(x: f32, unit: f32) -> f32 {
    if !x.is_finite() {
        return x;
    }
    let units = (x / unit).clamp(-SHORT_SCALE_MOST, SHORT_SCALE_MOST);
    let units = if units.abs() < FIVE_BITS { (units + ROUND) - ROUND } else { shortened(units) };
    stored(DType::F16, units * unit)
}

/// The nearest number of [`SHORT_SCALE_BITS`] significant bits, ties to even.
fn shortened(x: f32) -> f32 {
    let bits = x.to_bits();
    let to_even = (bits >> LOST) & 1;
    f32::from_bits((bits + (1 << (LOST - 1)) - 1 + to_even) & !((1 << LOST) - 1))
}

/// Bits that a short scale has less than a float.
const LOST: u32 = f32::MANTISSA_DIGITS - SHORT_SCALE_BITS;

/// The short scales around one of them.
fn around(scale: f32, unit: f32) -> impl Iterator<Item = f32> {
    let rung = rung(scale / unit);
    (rung - SHORT_STEPS..=rung + SHORT_STEPS)
        .map(move |rung| short_scale(units_at(rung) * unit, unit))
}

/// How many short multiples of the unit lie between this one and zero, with its sign: those below
/// [`FIVE_BITS`] are all whole numbers.
fn rung(units: f32) -> i32 {
    let size = units.abs();
    let above = size.to_bits().saturating_sub(FIVE_BITS.to_bits()) >> LOST;
    let rung = if size < FIVE_BITS { size as i32 } else { FIVE_BITS as i32 + above as i32 };
    if units < 0.0 { -rung } else { rung }
}

/// The multiple of the unit on a rung.
fn units_at(rung: i32) -> f32 {
    let above = rung.abs() - FIVE_BITS as i32;
    let size = if above < 0 {
        rung.abs() as f32
    } else {
        f32::from_bits(FIVE_BITS.to_bits() + ((above as u32) << LOST))
    };
    if rung < 0 { -size } else { size }
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
