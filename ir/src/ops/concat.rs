//! Joins tensors along a dimension.
//!
//! Operands: one or more tensors of one element type. Result: sizes add up along `axis`.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Joins tensors along a dimension.
    Concat {
        /// Dimension that grows.
        axis: usize,
    }
);

impl CoreOp for Concat {}
