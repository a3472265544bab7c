//! Root-mean-square norm over the last dimension.
//!
//! Operands: x `[..., W]`, weight `[W]`. Result: x / sqrt(mean(x^2) + epsilon) * weight, in f32,
//! rounded to the type of x.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Root-mean-square norm over the last dimension.
    RmsNorm {
        /// Added to the mean.
        epsilon: f32,
    }
);

impl CoreOp for RmsNorm {}
