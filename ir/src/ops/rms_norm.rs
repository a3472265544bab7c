//! Root-mean-square norm over the last dimension.
//!
//! Operands: x `[..., W]`, weight `[W]`. Result: x / sqrt(mean(x^2) + epsilon) * weight, in f32,
//! rounded to the type of x.

use super::{CoreOp, Operand};
use super::rules::{Inferred, float, last, operands, single, vector};
use crate::attribute::attributes;

attributes!(
    /// Root-mean-square norm over the last dimension.
    RmsNorm {
        /// Added to the mean.
        epsilon: f32,
    }
);

impl CoreOp for RmsNorm {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [x, weight] = operands::<2>(given)?;
        let dtype = float(x)?;
        vector("width", weight, last(x)?)?;
        single(dtype, x.ty.shape.clone())
    }
}
