//! Chooses elementwise.
//!
//! Operands: condition (bool), a, b, broadcast numpy-wise. Result: a where the condition holds,
//! else b.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Chooses elementwise.
    Select {

    }
);

impl CoreOp for Select {}
