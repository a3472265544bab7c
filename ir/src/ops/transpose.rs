//! Permutes dimensions.
//!
//! Operand: a plain tensor. Dimension i of the result is dimension `order[i]` of the operand.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Permutes dimensions.
    Transpose {
        /// The permutation.
        order: Vec<usize>,
    }
);

impl CoreOp for Transpose {}
