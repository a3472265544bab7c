//! Writes a block of rows into a tensor.
//!
//! Operands: data, update (same rank; equal sizes but along `axis`). Result: data with indices
//! `start .. start + update.shape[axis]` of `axis` replaced.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, agree, axis_in, operands, same_dtype, single_known, uniform};
use crate::attribute::attributes;
use crate::interpret::{Bindings, Context, EvalFault, Tensor};
use crate::interpret::tensor::move_two;
use crate::dim::Dim;

attributes!(
    /// Writes a block of rows into a tensor.
    UpdateSlice {
        /// The dimension.
        axis: usize,
        /// First index written.
        start: Dim,
    }
);

impl CoreOp for UpdateSlice {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [data, update] = operands::<2>(given)?;
        let dtype = same_dtype(data, update)?;
        axis_in(self.axis, &data.ty.shape)?;
        if data.ty.rank() != update.ty.rank() {
            return Err(format!("ranks of {} and {} differ", data.ty, update.ty));
        }
        for (index, (a, b)) in data.ty.shape.iter().zip(&update.ty.shape).enumerate() {
            if index != self.axis {
                agree("sizes beside the axis", a, b)?;
            }
        }
        let written = &update.ty.shape[self.axis];
        let end = self.start.plus(written).ok_or("the end overflows")?;
        let room = data.ty.shape[self.axis].minus(&end).and_then(|room| room.as_number());
        if room.is_some_and(|room| room < 0) || self.start.as_number().is_some_and(|s| s < 0) {
            return Err(format!("{} .. {end} is not in {}", self.start, data.ty));
        }
        let known = uniform(data)
            .filter(|value| uniform(update) == Some(*value))
            .cloned()
            .map(Known::Fill);
        single_known(dtype, data.ty.shape.clone(), known)
    }

    fn eval(&self, given: &[Tensor], _: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let start = self.start.as_size().ok_or_else(|| EvalFault::Unbound(self.start.to_string()))?;
        let (sizes, update) = (given[0].sizes().to_vec(), given[1].sizes());
        let outer: usize = sizes[..self.axis].iter().product();
        let block: usize = update[self.axis..].iter().product();
        let inner: usize = sizes[self.axis + 1..].iter().product();
        Ok(vec![move_two!(given[0], given[1], sizes.clone(), |values, update| {
            let mut values = values.to_vec();
            for row in 0..outer {
                let place = (row * sizes[self.axis] + start) * inner;
                values[place..place + block].clone_from_slice(&update[row * block..][..block]);
            }
            values
        })])
    }

    fn bound(&self, bindings: &Bindings) -> Result<Self, EvalFault> {
        Ok(UpdateSlice { axis: self.axis, start: bindings.dim(&self.start)? })
    }
}
