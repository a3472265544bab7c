//! Takes entries along a dimension.
//!
//! Operands: data, integer indices (negative ones count from the end). Result: data.shape with
//! `axis` replaced by indices.shape.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Takes entries along a dimension.
    Gather {
        /// The dimension of data.
        axis: usize,
    }
);

impl CoreOp for Gather {}
