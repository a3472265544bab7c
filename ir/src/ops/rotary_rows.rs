//! Rotates each row by the angles of its position.
//!
//! Operands: x `[S, H, D]`, rows i64 `[S]` (row of the tables for each row), cos and sin f32
//! `[P, width / 2]`. Pairs as in `rotary`. With several sets the tables are stacked: row = set *
//! positions + position.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Rotates each row by the angles of its position.
    RotaryRows {
        /// Rotated values, even.
        width: u32,
        /// Which values form pairs.
        interleaved: bool,
    }
);

impl CoreOp for RotaryRows {}
