//! activation(gate) * up, elementwise: the middle of a gated MLP.
//!
//! Operands: gate, up of one type. Result: that type.

use super::{CoreOp, Operand};
use super::rules::{Inferred, float, operands, single};
use crate::attribute::attributes;
use super::unary::UnaryOp;

attributes!(
    /// activation(gate) * up, elementwise: the middle of a gated MLP.
    Gated {
        /// The activation.
        activation: UnaryOp,
    }
);

impl CoreOp for Gated {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [gate, up] = operands::<2>(given)?;
        let dtype = float(gate)?;
        if gate.ty != up.ty {
            return Err(format!("{} and {} differ", gate.ty, up.ty));
        }
        single(dtype, gate.ty.shape.clone())
    }
}
