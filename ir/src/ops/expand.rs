//! Repeats along dimensions of size 1 and new leading dimensions.
//!
//! Operand: a tensor. Result: sizes `shape` (already broadcast with the operand).

use super::{CoreOp, Operand};
use super::rules::{Inferred, broadcast_strides, broadcasts_to, moved, operands, plain, single_known};
use crate::attribute::attributes;
use super::rules::strided;
use crate::interpret::{Bindings, Context, EvalFault, Tensor};
use crate::interpret::tensor::move_elements;
use crate::dim::Dim;

attributes!(
    /// Repeats along dimensions of size 1 and new leading dimensions.
    Expand {
        /// Sizes of the result.
        shape: Vec<Dim>,
    }
);

impl CoreOp for Expand {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        let dtype = plain(operand)?;
        broadcasts_to(&operand.ty.shape, &self.shape)?;
        let rank = self.shape.len();
        let known =
            moved(operand, &self.shape, &|from| Some((0, broadcast_strides(from, rank))));
        single_known(dtype, self.shape.clone(), known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let sizes = cx.sizes(0);
        let strides = broadcast_strides(given[0].sizes(), sizes.len());
        Ok(vec![move_elements!(given[0], sizes.clone(), |values| strided(values, 0, &strides, &sizes))])
    }

    fn bound(&self, bindings: &Bindings) -> Result<Self, EvalFault> {
        Ok(Expand { shape: bindings.dims(&self.shape)? })
    }
}
