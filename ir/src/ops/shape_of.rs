//! Sizes of a tensor as integers.
//!
//! Operand: any tensor. Result: i64 `[end - start]`, content known.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Sizes of a tensor as integers.
    ShapeOf {
        /// First dimension.
        start: usize,
        /// Behind the last dimension.
        end: usize,
    }
);

impl CoreOp for ShapeOf {}
