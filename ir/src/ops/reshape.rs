//! Same elements, other shape.
//!
//! Operand: a tensor. Result: the elements in row-major order with the sizes `shape`.

use super::CoreOp;
use crate::attribute::attributes;
use crate::dim::Dim;

attributes!(
    /// Same elements, other shape.
    Reshape {
        /// Sizes of the result; their product is that of the operand.
        shape: Vec<Dim>,
    }
);

impl CoreOp for Reshape {}
