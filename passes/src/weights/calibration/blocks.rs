//! Scale and zero point of a block whose values do not count alike.
//!
//! The search of `weir_ir::quantise`, wider, with a weight for every value: candidates around the
//! plain scale (of both signs where the codes are not symmetric about zero, with the zero points
//! beside the plain one), each followed by the least-squares scale of its codes as it is stored.

use weir_ir::quantise::{short_scale, unit_of};
use weir_ir::{DType, QuantFormat, ZeroPoints};

/// Candidates are the plain scale times `8 / (8 + step / 10)` for these steps.
const STEPS: std::ops::RangeInclusive<i32> = -15..=15;

/// Width of a step.
const STEP: f64 = 0.2;

/// Scales below this count as 0, as in `weir_ir::quantise`.
const TINY: f64 = 1e-30;

/// Adding and subtracting it rounds to the nearest even integer.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// The integers that a block's values become, and what stores their scale.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// Bits of a code.
    pub bits: u8,
    /// Values of a block.
    pub block: usize,
    scale: DType,
    short: bool,
    has_zeros: bool,
}

/// A block's scale and zero point; a value stands for an integer times the scale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// The scale as it is stored; 0 if all values are.
    pub scale: f64,
    /// The code of 0.
    pub zero: f64,
}

impl Grid {
    /// The grid of a format that weights are rounded to.
    pub fn new(format: &QuantFormat) -> Grid {
        let QuantFormat { bits, block, scale, short, zero } = *format;
        let has_zeros = zero == ZeroPoints::Codes;
        Grid { bits, block: block as usize, scale, short, has_zeros }
    }

    /// The greatest code.
    fn top(&self) -> f64 {
        f64::from((1u32 << self.bits) - 1)
    }

    /// Least and greatest integer of a block.
    pub fn bounds(&self, zero: f64) -> (f64, f64) {
        // Code 0 of eight symmetric bits is not used.
        let low = if self.bits == 8 && !self.has_zeros { 1.0 } else { 0.0 };
        (low - zero, self.top() - zero)
    }

    /// The unit of a row of short scales whose largest magnitude is this one; other scales have none.
    pub fn unit(&self, largest: f64) -> f32 {
        if self.short { unit_of(largest as f32) } else { 1.0 }
    }

    /// A scale as it is stored, in a row of this unit.
    pub fn stored(&self, scale: f64, unit: f32) -> f64 {
        match self.scale {
            _ if self.short => f64::from(short_scale(scale as f32, unit)),
            DType::F16 => half::f16::from_f64(scale).to_f64(),
            DType::BF16 => half::bf16::from_f64(scale).to_f64(),
            _ => f64::from(scale as f32),
        }
    }

    /// The integer nearest to a value.
    pub fn nearest(&self, x: f64, scale: &Scale) -> f64 {
        if scale.scale.abs() < TINY {
            return 0.0;
        }
        let (low, high) = self.bounds(scale.zero);
        nearest(x / scale.scale, low, high)
    }

    /// The scale of a block with the least weighted squared error among the candidates, in a row of this
    /// unit. Where none can be stored it is 0, or infinite for symmetric codes of 8 bits: the row is then
    /// worse than rounded to nearest, which weights that come here can be.
    pub fn choose(&self, x: &[f64], weights: &[f64], unit: f32) -> Scale {
        let least = x.iter().copied().fold(0.0, f64::min);
        let greatest = x.iter().copied().fold(0.0, f64::max);
        let extreme = greatest.max(-least);
        let middle = f64::from(1u32 << (self.bits - 1));
        if !self.has_zeros && self.bits == 8 {
            return Scale { scale: self.stored(extreme / 127.0, unit), zero: middle };
        }
        let (plain, zero) = if self.has_zeros {
            let plain = (greatest - least) / self.top();
            (plain, if plain < TINY { 0.0 } else { nearest(-least / plain, 0.0, self.top()) })
        } else {
            (extreme / middle, middle)
        };
        let mut best = Scale { scale: 0.0, zero };
        if plain < TINY {
            return best;
        }
        let mut error = f64::INFINITY;
        let squares: f64 = x.iter().zip(weights).map(|(x, w)| w * x * x).sum();
        let signs: &[f64] = if self.has_zeros { &[1.0] } else { &[1.0, -1.0] };
        let moves: &[f64] = if self.has_zeros { &[0.0, -1.0, 1.0] } else { &[0.0] };
        for sign in signs {
            for zero in moves.iter().map(|by| (zero + by).clamp(0.0, self.top())) {
                let (low, high) = self.bounds(zero);
                for step in STEPS {
                    let inverse = sign * (8.0 + STEP * f64::from(step)) / (8.0 * plain);
                    let (mut product, mut square) = (0.0, 0.0);
                    for (x, weight) in x.iter().zip(weights) {
                        let q = nearest(x * inverse, low, high);
                        product += weight * x * q;
                        square += weight * q * q;
                    }
                    if square <= 0.0 {
                        continue;
                    }
                    let scale = self.stored(product / square, unit);
                    let found = squares - 2.0 * scale * product + scale * scale * square;
                    if found < error && scale.abs() >= TINY && scale.is_finite() {
                        (best, error) = (Scale { scale, zero }, found);
                    }
                }
            }
        }
        best
    }
}

/// The integer nearest to x within bounds that are integers; ties to even.
fn nearest(x: f64, low: f64, high: f64) -> f64 {
    let x = if x < low { low } else { x };
    let x = if x > high { high } else { x };
    (x + ROUND) - ROUND
}
