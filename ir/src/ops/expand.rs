//! Repeats along dimensions of size 1 and new leading dimensions.
//!
//! Operand: a tensor. Result: sizes `shape` (already broadcast with the operand).

use super::CoreOp;
use crate::attribute::attributes;
use crate::dim::Dim;

attributes!(
    /// Repeats along dimensions of size 1 and new leading dimensions.
    Expand {
        /// Sizes of the result.
        shape: Vec<Dim>,
    }
);

impl CoreOp for Expand {}
