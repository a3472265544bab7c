//! Rows of an embedding table.
//!
//! Operands: ids (integer, any shape), table `[V, W]`, plain or quantised. Result:
//! `to[ids.shape, W]`.

use super::{CoreOp, Operand};
use super::rules::{Inferred, integer, operands, single, sizes};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
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

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let (ids, table) = (given[0].i64s()?, given[1].f32s()?);
        let sizes = given[1].sizes();
        let width = sizes[1];
        let mut rows = Vec::with_capacity(ids.len() * width);
        for id in ids.iter() {
            let row = usize::try_from(*id).ok().filter(|row| *row < sizes[0]);
            let row = row.ok_or(EvalFault::OutOfRange { index: *id, size: sizes[0] })?;
            rows.extend_from_slice(&table[row * width..][..width]);
        }
        cx.f32(self.to, rows)
    }
}
