//! Takes single elements along a dimension.
//!
//! Operands: data, integer indices of the same rank. Result: indices.shape.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, axis_in, integer, operands, plain, single_known, uniform};
use crate::attribute::attributes;

attributes!(
    /// Takes single elements along a dimension.
    GatherElements {
        /// The dimension of data.
        axis: usize,
    }
);

impl CoreOp for GatherElements {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [data, indices] = operands::<2>(given)?;
        let dtype = plain(data)?;
        integer(indices)?;
        axis_in(self.axis, &data.ty.shape)?;
        if data.ty.rank() != indices.ty.rank() {
            return Err(format!("ranks of {} and {} differ", data.ty, indices.ty));
        }
        let known = uniform(data).cloned().map(Known::Fill);
        single_known(dtype, indices.ty.shape.clone(), known)
    }
}
