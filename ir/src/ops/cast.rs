//! Changes the element type.
//!
//! Operand: a plain tensor. Result: the same shape; floats round to nearest even, floats to
//! integers truncate, to bool: not zero.

use super::{CoreOp, Operand};
use super::rules::{Inferred, elementwise, exceeds, operands, plain, single_known};
use crate::attribute::attributes;
use crate::dim::Dim;
use crate::types::DType;

attributes!(
    /// Changes the element type.
    Cast {
        /// Element type of the result.
        to: DType,
    }
);

impl CoreOp for Cast {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        let from = plain(operand)?;
        let known = if self.to == DType::Bool {
            elementwise(&[operand], &operand.ty.shape, &|values| not_zero(values[0]))
        } else if from.is_float() {
            None
        } else {
            operand.known.cloned()
        };
        single_known(self.to, operand.ty.shape.clone(), known)
    }
}

/// Whether a size is not zero, where that is certain.
fn not_zero(value: &Dim) -> Option<Dim> {
    let zero = Dim::number(0);
    if *value == zero {
        Some(zero)
    } else if exceeds(value, &zero, 1) || exceeds(&zero, value, 1) {
        Some(Dim::number(1))
    } else {
        None
    }
}
