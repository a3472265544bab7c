//! A row of a table for each row by its position (learned positions, for example).
//!
//! Operands: rows i64 `[S]`, table f32 `[P, W]`. Result: f32 `[S, W]`.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// A row of a table for each row by its position (learned positions, for example).
    TableRows {

    }
);

impl CoreOp for TableRows {}
