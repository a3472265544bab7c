//! Repeats along dimensions of size 1 and new leading dimensions.
//!
//! Operand: a tensor. Result: sizes `shape` (already broadcast with the operand).

use super::{CoreOp, Operand};
use super::rules::{Inferred, broadcast_strides, broadcasts_to, moved, operands, plain, single_known};
use crate::attribute::attributes;
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
}
