//! Rotates pairs of the first `width` values of the last dimension by given angles.
//!
//! Operands: x `[..., D]`, cos and sin, broadcastable to `[..., width / 2]`. Pairs are (i, i +
//! width/2), or (2i, 2i+1) if interleaved: (a, b) -> (a cos - b sin, b cos + a sin). Values
//! beyond `width` pass.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Rotates pairs of the first `width` values of the last dimension by given angles.
    Rotary {
        /// Rotated values, even.
        width: u32,
        /// Which values form pairs.
        interleaved: bool,
    }
);

impl CoreOp for Rotary {}
