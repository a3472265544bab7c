//! An integer or boolean tensor whose content is written down in the symbols.
//!
//! No operands. Result: `dtype[shape]` with the elements in row-major order (one element fills
//! any shape).

use super::CoreOp;
use crate::attribute::attributes;
use crate::dim::Dim;
use crate::types::DType;

attributes!(
    /// An integer or boolean tensor whose content is written down in the symbols.
    KnownValue {
        /// Element type.
        dtype: DType,
        /// Sizes.
        shape: Vec<Dim>,
        /// Elements.
        elements: Vec<Dim>,
    }
);

impl CoreOp for KnownValue {}
