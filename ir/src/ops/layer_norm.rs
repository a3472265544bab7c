//! Mean-and-variance norm over the last dimension.
//!
//! Operands: x `[..., W]`, weight `[W]`, then bias `[W]` if `bias`. Result: (x - mean) /
//! sqrt(variance + epsilon) * weight + bias.

use super::{CoreOp, Operand};
use super::rules::{Inferred, float, last, single, vector};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};

attributes!(
    /// Mean-and-variance norm over the last dimension.
    LayerNorm {
        /// Added to the variance.
        epsilon: f32,
        /// Whether a bias is an operand.
        bias: bool,
    }
);

impl CoreOp for LayerNorm {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Inferred, String> {
        let given = 2 + usize::from(self.bias);
        if operands.len() != given {
            return Err(format!("takes {given} operands, has {}", operands.len()));
        }
        let dtype = float(operands[0])?;
        let width = last(operands[0])?;
        for operand in &operands[1..] {
            vector("width", *operand, width)?;
        }
        single(dtype, operands[0].ty.shape.clone())
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let width = *given[0].sizes().last().unwrap_or(&1);
        let weight = given[1].f32s()?;
        let bias = if self.bias { Some(given[2].f32s()?) } else { None };
        let mut values = given[0].f32s()?.to_vec();
        for row in values.chunks_mut(width.max(1)) {
            let mean = row.iter().sum::<f32>() / width as f32;
            let variance =
                row.iter().fold(0.0, |sum, x| sum + (x - mean) * (x - mean)) / width as f32;
            let root = (variance + self.epsilon).sqrt();
            for (index, x) in row.iter_mut().enumerate() {
                *x = (*x - mean) / root * weight[index];
                if let Some(bias) = &bias {
                    *x += bias[index];
                }
            }
        }
        cx.f32(given[0].dtype(), values)
    }
}
