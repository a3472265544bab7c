//! A row of a table for each row by its position (learned positions, for example).
//!
//! Operands: rows i64 `[S]`, table f32 `[P, W]`. Result: f32 `[S, W]`.

use super::{CoreOp, Operand};
use super::rules::{Inferred, float, integer, operands, single, sizes};
use crate::attribute::attributes;

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
}
