//! Keeps a triangle of the last two dimensions, zero elsewhere.
//!
//! Operand: a tensor of rank >= 2. Keeps column - row >= diagonal (upper) or <= diagonal
//! (lower).

use super::CoreOp;
use crate::attribute::attributes;
use crate::dim::Dim;

attributes!(
    /// Keeps a triangle of the last two dimensions, zero elsewhere.
    Trilu {
        /// Which triangle.
        upper: bool,
        /// Which diagonal bounds it.
        diagonal: Dim,
    }
);

impl CoreOp for Trilu {}
