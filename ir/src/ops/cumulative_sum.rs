//! Running sums along a dimension.
//!
//! Operand: a tensor. Result: the same type.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Running sums along a dimension.
    CumulativeSum {
        /// The dimension.
        axis: usize,
        /// Leaves out the element itself.
        exclusive: bool,
        /// Runs from the end.
        reverse: bool,
    }
);

impl CoreOp for CumulativeSum {}
