//! Matrix product of the last two dimensions, numpy-wise (rank 1 allowed), f32 accumulation in
//! index order.
//!
//! Operands: a, b. Result: batch dimensions broadcast.

use super::{CoreOp, Operand};
use super::rules::{Inferred, agree, broadcast, operands, same_dtype, single};
use crate::attribute::attributes;
use crate::types::DType;

attributes!(
    /// Matrix product of the last two dimensions, numpy-wise (rank 1 allowed), f32 accumulation in index order.
    MatMul {

    }
);

impl CoreOp for MatMul {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [a, b] = operands::<2>(given)?;
        let dtype = same_dtype(a, b)?;
        if dtype == DType::Bool {
            return Err(format!("{} has no product", a.ty));
        }
        let (a, b) = (&a.ty.shape, &b.ty.shape);
        let (a_batch, rows, inner) = match a.as_slice() {
            [] => return Err("a scalar has no matrix product".into()),
            [inner] => (&[][..], None, inner),
            [batch @ .., rows, inner] => (batch, Some(rows), inner),
        };
        let (b_batch, b_inner, columns) = match b.as_slice() {
            [] => return Err("a scalar has no matrix product".into()),
            [inner] => (&[][..], inner, None),
            [batch @ .., inner, columns] => (batch, inner, Some(columns)),
        };
        agree("summed sizes", inner, b_inner)?;
        let mut shape = broadcast(a_batch, b_batch)?;
        shape.extend(rows.into_iter().chain(columns).cloned());
        single(dtype, shape)
    }
}
