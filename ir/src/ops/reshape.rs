//! Same elements, other shape.
//!
//! Operand: a tensor. Result: the elements in row-major order with the sizes `shape`.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, listed, operands, plain, product, short_sizes, single_known, uniform};
use crate::attribute::attributes;
use crate::interpret::{Bindings, Context, EvalFault, Tensor};
use crate::dim::Dim;

attributes!(
    /// Same elements, other shape.
    Reshape {
        /// Sizes of the result; their product is that of the operand.
        shape: Vec<Dim>,
    }
);

impl CoreOp for Reshape {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        let dtype = plain(operand)?;
        let from = product(&operand.ty.shape).ok_or("the number of elements overflows")?;
        let to = product(&self.shape).ok_or("the number of elements overflows")?;
        if from != to {
            return Err(format!("{} has not the elements of {:?}", operand.ty, self.shape));
        }
        let known = match (operand.known, listed(operand)) {
            (Some(Known::Fill(value)), _) => Some(Known::Fill(value.clone())),
            (_, Some(elements)) if short_sizes(&self.shape).is_some() => {
                Some(Known::Elements(elements))
            }
            _ => uniform(operand).cloned().map(Known::Fill),
        };
        single_known(dtype, self.shape.clone(), known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        Ok(vec![given[0].reshaped(cx.sizes(0))])
    }

    fn bound(&self, bindings: &Bindings) -> Result<Self, EvalFault> {
        Ok(Reshape { shape: bindings.dims(&self.shape)? })
    }
}
