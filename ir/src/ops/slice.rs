//! Takes every `step`-th index of a dimension.
//!
//! Operand: a tensor. Result: indices start, start + step, ... of `axis`, `length` of them. A
//! negative step walks backwards.

use super::CoreOp;
use crate::attribute::attributes;
use crate::dim::Dim;

attributes!(
    /// Takes every `step`-th index of a dimension.
    Slice {
        /// The dimension.
        axis: usize,
        /// First index.
        start: Dim,
        /// Difference of indices, not 0.
        step: i64,
        /// Number of indices.
        length: Dim,
    }
);

impl CoreOp for Slice {}
