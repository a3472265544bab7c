//! Reads a constant of the graph.
//!
//! No operands. Result: the constant, of its type (which may be quantised).

use super::CoreOp;
use crate::attribute::attributes;
use crate::entity::Const;

attributes!(
    /// Reads a constant of the graph.
    ReadConstant {
        /// The constant.
        constant: Const,
    }
);

impl CoreOp for ReadConstant {}
