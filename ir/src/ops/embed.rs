//! Rows of an embedding table.
//!
//! Operands: ids (integer, any shape), table `[V, W]`, plain or quantised. Result:
//! `to[ids.shape, W]`.

use super::CoreOp;
use crate::attribute::attributes;
use crate::types::DType;

attributes!(
    /// Rows of an embedding table.
    Embed {
        /// Element type of the result.
        to: DType,
    }
);

impl CoreOp for Embed {}
