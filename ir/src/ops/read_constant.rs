//! Reads a constant of the graph.
//!
//! No operands. Result: the constant, of its type (which may be quantised).

use super::{CoreOp, Operand};
use super::rules::{Inferred, operands};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::entity::Const;

attributes!(
    /// Reads a constant of the graph.
    ReadConstant {
        /// The constant.
        constant: Const,
    }
);

impl CoreOp for ReadConstant {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [] = operands::<0>(given)?;
        Err("its type stands in the table of constants; infer it through the graph".into())
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let _ = (given, cx);
        Err(EvalFault::NeedsGraph)
    }
}
