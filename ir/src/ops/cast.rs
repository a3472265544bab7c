//! Changes the element type.
//!
//! Operand: a plain tensor. Result: the same shape; floats round to nearest even, floats to
//! integers truncate, to bool: not zero.

use super::CoreOp;
use crate::attribute::attributes;
use crate::types::DType;

attributes!(
    /// Changes the element type.
    Cast {
        /// Element type of the result.
        to: DType,
    }
);

impl CoreOp for Cast {}
