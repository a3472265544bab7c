//! Takes single elements along a dimension.
//!
//! Operands: data, integer indices of the same rank. Result: indices.shape.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Takes single elements along a dimension.
    GatherElements {
        /// The dimension of data.
        axis: usize,
    }
);

impl CoreOp for GatherElements {}
