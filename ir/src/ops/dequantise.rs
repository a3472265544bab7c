//! Floats of a quantised weight.
//!
//! Operand: a quantised tensor `[N, K]`. Result: `to[N, K]`, (code - zero) * scale.

use super::{CoreOp, Operand};
use super::rules::{Inferred, operands, single, sizes};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
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

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        cx.f32(self.to, given[0].f32s()?.to_vec())
    }
}
