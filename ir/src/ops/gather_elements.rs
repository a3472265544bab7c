//! Takes single elements along a dimension.
//!
//! Operands: data, integer indices of the same rank. Result: indices.shape.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, axis_in, integer, operands, plain, single_known, uniform};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::tensor::move_elements;
use crate::constant::row_major;
use super::gather::wrapped;

attributes!(
    /// Takes single elements along a dimension.
    GatherElements {
        /// The dimension of data.
        axis: usize,
    }
);

impl CoreOp for GatherElements {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [data, indices] = operands::<2>(given)?;
        let dtype = plain(data)?;
        integer(indices)?;
        axis_in(self.axis, &data.ty.shape)?;
        if data.ty.rank() != indices.ty.rank() {
            return Err(format!("ranks of {} and {} differ", data.ty, indices.ty));
        }
        let known = uniform(data).cloned().map(Known::Fill);
        single_known(dtype, indices.ty.shape.clone(), known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let (from, sizes) = (given[0].sizes(), cx.sizes(0));
        let strides = row_major(from);
        let result_strides = row_major(&sizes);
        let mut places = Vec::with_capacity(given[1].count());
        for (flat, index) in given[1].i64s()?.iter().enumerate() {
            let mut place = 0;
            for axis in 0..sizes.len() {
                let step = if axis == self.axis {
                    wrapped(*index, from[axis])
                } else {
                    Some(flat / result_strides[axis] % sizes[axis]).filter(|at| *at < from[axis])
                };
                let size = from[axis];
                place += step.ok_or(EvalFault::OutOfRange { index: *index, size })? * strides[axis];
            }
            places.push(place);
        }
        Ok(vec![move_elements!(given[0], sizes, |values| {
            places.iter().map(|place| values[*place]).collect()
        })])
    }
}
