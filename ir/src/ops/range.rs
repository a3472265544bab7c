//! Integers in steps.
//!
//! No operands. Result: `dtype[length]`, element i is `start + i * step`.

use super::CoreOp;
use crate::attribute::attributes;
use crate::dim::Dim;
use crate::types::DType;

attributes!(
    /// Integers in steps.
    Range {
        /// Element type.
        dtype: DType,
        /// First element.
        start: Dim,
        /// Difference of neighbours.
        step: i64,
        /// Number of elements.
        length: Dim,
    }
);

impl CoreOp for Range {}
