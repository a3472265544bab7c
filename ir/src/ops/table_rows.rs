//! A row of a table for each row by its position (learned positions, for example).
//!
//! Operands: rows i64 `[S]`, table f32 `[P, W]`. Result: f32 `[S, W]`.

use super::{CoreOp, Operand};
use super::rules::{Inferred, float, integer, operands, single, sizes};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};

attributes!(
    /// A row of a table for each row by its position (learned positions, for example).
    TableRows {

    }
);

impl CoreOp for TableRows {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [rows, table] = operands::<2>(given)?;
        integer(rows)?;
        let [count] = sizes::<1>(rows)?;
        let [_, width] = sizes::<2>(table)?;
        single(float(table)?, vec![count.clone(), width.clone()])
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let table = given[1].f32s()?;
        let [size, width] = *given[1].sizes() else {
            return Err(EvalFault::Operand("the table is no matrix".into()));
        };
        let mut rows = Vec::with_capacity(given[0].count() * width);
        for index in given[0].i64s()?.iter() {
            let row = usize::try_from(*index).ok().filter(|row| *row < size);
            let row = row.ok_or(EvalFault::OutOfRange { index: *index, size })?;
            rows.extend_from_slice(&table[row * width..][..width]);
        }
        cx.f32(given[1].dtype(), rows)
    }
}
