//! Matrix product of the last two dimensions, numpy-wise (rank 1 allowed), f32 accumulation in
//! index order.
//!
//! Operands: a, b. Result: batch dimensions broadcast.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Matrix product of the last two dimensions, numpy-wise (rank 1 allowed), f32 accumulation in index order.
    MatMul {

    }
);

impl CoreOp for MatMul {}
