//! Mean-and-variance norm over the last dimension.
//!
//! Operands: x `[..., W]`, weight `[W]`, then bias `[W]` if `bias`. Result: (x - mean) /
//! sqrt(variance + epsilon) * weight + bias.

use super::{CoreOp, Operand};
use super::rules::{Inferred, float, last, single, vector};
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

impl CoreOp for LayerNorm {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Inferred, String> {
        let given = 2 + usize::from(self.bias);
        if operands.len() != given {
            return Err(format!("takes {given} operands, has {}", operands.len()));
        }
        let dtype = float(operands[0])?;
        let width = last(operands[0])?;
        for operand in &operands[1..] {
            vector("width", *operand, width)?;
        }
        single(dtype, operands[0].ty.shape.clone())
    }
}
