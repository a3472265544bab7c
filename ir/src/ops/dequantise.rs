//! Floats of a quantised weight.
//!
//! Operand: a quantised tensor `[N, K]`. Result: `to[N, K]`, (code - zero) * scale.

use super::CoreOp;
use crate::attribute::attributes;
use crate::types::DType;

attributes!(
    /// Floats of a quantised weight.
    Dequantise {
        /// Element type of the result.
        to: DType,
    }
);

impl CoreOp for Dequantise {}
