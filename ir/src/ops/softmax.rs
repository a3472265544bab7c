//! Exponentials that sum to 1 along a dimension.
//!
//! Operand: a float tensor. Result: the same type; a row of -inf gives NaN as in ONNX.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Exponentials that sum to 1 along a dimension.
    Softmax {
        /// The dimension.
        axis: usize,
    }
);

impl CoreOp for Softmax {}
