//! Rows of an embedding table.
//!
//! Operands: ids (integer, any shape), table `[V, W]`, plain or quantised. Result:
//! `to[ids.shape, W]`.

use super::{CoreOp, Operand};
use super::rules::{Inferred, integer, operands, single, sizes};
use crate::attribute::attributes;
use crate::types::DType;

attributes!(
    /// Rows of an embedding table.
    Embed {
        /// Element type of the result.
        to: DType,
    }
);

impl CoreOp for Embed {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [ids, table] = operands::<2>(given)?;
        integer(ids)?;
        if table.ty.dtype().is_some_and(|dtype| !dtype.is_float()) || !self.to.is_float() {
            return Err(format!("table {} to {}: not floats", table.ty, self.to));
        }
        let [_, width] = sizes::<2>(table)?;
        let mut shape = ids.ty.shape.clone();
        shape.push(width.clone());
        single(self.to, shape)
    }
}
