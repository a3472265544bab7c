//! Exponentials that sum to 1 along a dimension.
//!
//! Operand: a float tensor. Result: the same type; a row of -inf gives NaN as in ONNX.

use super::{CoreOp, Operand};
use super::rules::{Inferred, axis_in, float, operands, single};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};

attributes!(
    /// Exponentials that sum to 1 along a dimension.
    Softmax {
        /// The dimension.
        axis: usize,
    }
);

impl CoreOp for Softmax {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        axis_in(self.axis, &operand.ty.shape)?;
        single(float(operand)?, operand.ty.shape.clone())
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let sizes = given[0].sizes();
        let length = sizes[self.axis];
        let inner: usize = sizes[self.axis + 1..].iter().product();
        let mut values = given[0].f32s()?.to_vec();
        let mut lane = vec![0.0f32; length];
        for start in (0..values.len()).step_by((length * inner).max(1)) {
            for offset in start..start + inner {
                for (index, value) in lane.iter_mut().enumerate() {
                    *value = values[offset + index * inner];
                }
                let greatest = lane.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let mut sum = 0.0;
                for value in &mut lane {
                    *value = (*value - greatest).exp();
                    sum += *value;
                }
                for (index, value) in lane.iter().enumerate() {
                    values[offset + index * inner] = value / sum;
                }
            }
        }
        cx.f32(given[0].dtype(), values)
    }
}
