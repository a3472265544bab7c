//! x Wt, the product with a weight stored by output channel.
//!
//! Operands: x `[..., K]`, weight `[N, K]` (plain or quantised), then bias `[N]` if `bias`, then
//! residual `[..., N]` if `residual`. Result: x.dtype `[..., N]` = x Wt + bias + residual. Sums
//! run over k ascending in f32 from zero by fused multiply-add; bias, then residual are added
//! last.

use super::{CoreOp, Operand};
use super::rules::{Inferred, agree, float, last, single, sizes, vector};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};

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

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let (x, weight) = (given[0].f32s()?, given[1].f32s()?);
        let [outputs, inputs] = *given[1].sizes() else {
            return Err(EvalFault::Operand("the weight is no matrix".into()));
        };
        let bias = if self.bias { Some(given[2].f32s()?) } else { None };
        let residual = if self.residual { Some(given[given.len() - 1].f32s()?) } else { None };
        let count = cx.sizes(0).iter().product::<usize>();
        let mut result = vec![0.0f32; count];
        for n in 0..outputs {
            let w = &weight[n * inputs..][..inputs];
            for row in 0..count / outputs {
                let x = &x[row * inputs..][..inputs];
                let mut sum = x.iter().zip(w).fold(0.0f32, |sum, (x, w)| x.mul_add(*w, sum));
                if let Some(bias) = &bias {
                    sum += bias[n];
                }
                if let Some(residual) = &residual {
                    sum += residual[row * outputs + n];
                }
                result[row * outputs + n] = sum;
            }
        }
        cx.f32(given[0].dtype(), result)
    }
}
