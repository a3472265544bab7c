//! Sizes of a tensor as integers.
//!
//! Operand: any tensor. Result: i64 `[end - start]`, content known.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, operands, single_known};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::types::DType;

attributes!(
    /// Sizes of a tensor as integers.
    ShapeOf {
        /// First dimension.
        start: usize,
        /// Behind the last dimension.
        end: usize,
    }
);

impl CoreOp for ShapeOf {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        let Some(range) = operand.ty.shape.get(self.start..self.end) else {
            return Err(format!("{} has no sizes {}..{}", operand.ty, self.start, self.end));
        };
        single_known(DType::I64, vec![range.len().into()], Some(Known::Elements(range.to_vec())))
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let sizes = given[0].sizes()[self.start..self.end].iter().map(|size| *size as i64);
        Ok(vec![Tensor::from_i64(DType::I64, cx.sizes(0), sizes.collect())])
    }
}
