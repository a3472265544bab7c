//! x Wt, the product with a weight stored by output channel.
//!
//! Operands: x `[..., K]`, weight `[N, K]` (plain or quantised), then bias `[N]` if `bias`, then
//! residual `[..., N]` if `residual`. Result: x.dtype `[..., N]` = x Wt + bias + residual. Sums
//! run over k ascending in f32 from zero by fused multiply-add; bias, then residual are added
//! last.

use super::{CoreOp, Operand};
use super::rules::{Inferred, agree, float, last, single, sizes, vector};
use crate::attribute::attributes;

attributes!(
    /// x Wt, the product with a weight stored by output channel.
    Linear {
        /// Whether a bias is an operand.
        bias: bool,
        /// Whether a residual is an operand.
        residual: bool,
    }
);

impl CoreOp for Linear {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Inferred, String> {
        let given = 2 + usize::from(self.bias) + usize::from(self.residual);
        if operands.len() != given {
            return Err(format!("takes {given} operands, has {}", operands.len()));
        }
        let (x, weight) = (operands[0], operands[1]);
        let dtype = float(x)?;
        if weight.ty.dtype().is_some() {
            float(weight)?;
        }
        let [outputs, inputs] = sizes::<2>(weight)?;
        agree("inputs of x and weight", last(x)?, inputs)?;
        let mut shape = x.ty.shape.clone();
        shape.pop();
        shape.push(outputs.clone());
        if self.bias {
            vector("bias and outputs", operands[2], outputs)?;
        }
        if self.residual {
            let residual = operands[given - 1];
            if float(residual)? != dtype || residual.ty.shape != shape {
                return Err(format!("residual {} does not fit {shape:?}", residual.ty));
            }
        }
        single(dtype, shape)
    }
}
