//! Writes a block of rows into a tensor.
//!
//! Operands: data, update (same rank; equal sizes but along `axis`). Result: data with indices
//! start .. start + update.shape[axis] of `axis` replaced.

use super::CoreOp;
use crate::attribute::attributes;
use crate::dim::Dim;

attributes!(
    /// Writes a block of rows into a tensor.
    UpdateSlice {
        /// The dimension.
        axis: usize,
        /// First index written.
        start: Dim,
    }
);

impl CoreOp for UpdateSlice {}
