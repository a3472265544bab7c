//! Floats of a quantised weight.
//!
//! Operand: a quantised tensor `[N, K]`. Result: `to[N, K]`, (code - zero) * scale.

use super::{CoreOp, Operand};
use super::rules::{Inferred, operands, single, sizes};
use crate::attribute::attributes;
use crate::types::DType;

attributes!(
    /// Floats of a quantised weight.
    Dequantise {
        /// Element type of the result.
        to: DType,
    }
);

impl CoreOp for Dequantise {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        sizes::<2>(operand)?;
        if operand.ty.dtype().is_some() {
            return Err(format!("{} is not quantised", operand.ty));
        }
        if !self.to.is_float() {
            return Err(format!("{} is not a float type", self.to));
        }
        single(self.to, operand.ty.shape.clone())
    }
}
