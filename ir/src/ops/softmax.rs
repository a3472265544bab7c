//! Exponentials that sum to 1 along a dimension.
//!
//! Operand: a float tensor. Result: the same type; a row of -inf gives NaN as in ONNX.

use super::{CoreOp, Operand};
use super::rules::{Inferred, axis_in, float, operands, single};
use crate::attribute::attributes;

attributes!(
    /// Exponentials that sum to 1 along a dimension.
    Softmax {
        /// The dimension.
        axis: usize,
    }
);

impl CoreOp for Softmax {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        axis_in(self.axis, &operand.ty.shape)?;
        single(float(operand)?, operand.ty.shape.clone())
    }
}
