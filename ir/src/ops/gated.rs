//! activation(gate) * up, elementwise: the middle of a gated MLP.
//!
//! Operands: gate, up of one type. Result: that type.

use super::{CoreOp, Operand};
use super::rules::{Inferred, float, operands, single};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
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

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let (gate, up) = (given[0].f64s(), given[1].f64s());
        let values = gate.iter().zip(&up).map(|(gate, up)| self.activation.of(*gate) * up).collect();
        Ok(vec![Tensor::from_f64(given[0].dtype(), cx.sizes(0), values)])
    }
}
