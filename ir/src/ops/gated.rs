//! activation(gate) * up, elementwise: the middle of a gated MLP.
//!
//! Operands: gate, up of one type. Result: that type.

use super::CoreOp;
use crate::attribute::attributes;
use super::unary::UnaryOp;

attributes!(
    /// activation(gate) * up, elementwise: the middle of a gated MLP.
    Gated {
        /// The activation.
        activation: UnaryOp,
    }
);

impl CoreOp for Gated {}
