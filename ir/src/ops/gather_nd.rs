//! Takes slices at coordinates.
//!
//! Operands: data, integer indices `[..., m]`. Result: see ONNX GatherND.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Takes slices at coordinates.
    GatherNd {
        /// Leading dimensions that both share.
        batch_dims: usize,
    }
);

impl CoreOp for GatherNd {}
