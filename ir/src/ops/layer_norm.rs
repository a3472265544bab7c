//! Mean-and-variance norm over the last dimension.
//!
//! Operands: x `[..., W]`, weight `[W]`, then bias `[W]` if `bias`. Result: (x - mean) /
//! sqrt(variance + epsilon) * weight + bias.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Mean-and-variance norm over the last dimension.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
        /// Whether a bias is an operand.
        bias: bool,
    }
);

impl CoreOp for LayerNorm {}
