//! Root-mean-square norm over the last dimension.
//!
//! Operands: x `[..., W]`, weight `[W]`. Result: x / sqrt(mean(x^2) + epsilon) * weight, in f32,
//! rounded to the type of x.

use super::{CoreOp, Operand};
use super::rules::{Inferred, float, last, operands, single, vector};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};

attributes!(
    /// Root-mean-square norm over the last dimension.
    RmsNorm {
        /// Added to the mean.
        epsilon: f32,
    }
);

impl CoreOp for RmsNorm {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [x, weight] = operands::<2>(given)?;
        let dtype = float(x)?;
        vector("width", weight, last(x)?)?;
        single(dtype, x.ty.shape.clone())
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let width = *given[0].sizes().last().unwrap_or(&1);
        let weight = given[1].f32s()?;
        let mut values = given[0].f32s()?.to_vec();
        for row in values.chunks_mut(width.max(1)) {
            let square = row.iter().fold(0.0, |sum, x| sum + x * x) / width as f32;
            let root = (square + self.epsilon).sqrt();
            row.iter_mut().zip(weight.iter()).for_each(|(x, w)| *x = *x / root * w);
        }
        cx.f32(given[0].dtype(), values)
    }
}
