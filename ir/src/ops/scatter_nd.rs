//! Writes slices at coordinates.
//!
//! Operands: data, integer indices `[.., k]`, update `indices.shape[..-1] ++ data.shape[k..]`.
//! Result: data with the slices of `update` at the coordinates. See ONNX ScatterND.

use super::gather::wrapped;
use super::rules::{Inferred, agree, integer, last, operands, same_dtype, single};
use super::{CoreOp, Operand};
use crate::attribute::attributes;
use crate::constant::row_major;
use crate::interpret::tensor::move_two;
use crate::interpret::{Context, EvalFault, Tensor};

attributes!(
    /// Writes slices at coordinates.
    ScatterNd {

    }
);

impl CoreOp for ScatterNd {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [data, indices, update] = operands::<3>(given)?;
        let dtype = same_dtype(data, update)?;
        integer(indices)?;
        let coordinates =
            last(indices)?.as_size().ok_or("the number of coordinates is symbolic")?;
        let rest = data
            .ty
            .shape
            .get(coordinates..)
            .ok_or_else(|| format!("{coordinates} coordinates do not fit {}", data.ty))?;
        let tuples = &indices.ty.shape[..indices.ty.rank() - 1];
        if update.ty.rank() != tuples.len() + rest.len() {
            return Err(format!("{} does not fit {} at {}", update.ty, data.ty, indices.ty));
        }
        for (expected, own) in tuples.iter().chain(rest).zip(&update.ty.shape) {
            agree("sizes of the update", expected, own)?;
        }
        single(dtype, data.ty.shape.clone())
    }

    fn eval(&self, given: &[Tensor], _: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let sizes = given[0].sizes().to_vec();
        let strides = row_major(&sizes);
        let indices = given[1].i64s()?;
        let coordinates = given[1].sizes().last().copied().unwrap_or(0);
        let tuples: usize = given[1].sizes().iter().rev().skip(1).product();
        let block: usize = sizes[coordinates..].iter().product();
        let mut starts = Vec::with_capacity(tuples);
        for tuple in 0..tuples {
            let mut start = 0;
            for axis in 0..coordinates {
                let (index, size) = (indices[tuple * coordinates + axis], sizes[axis]);
                let place = wrapped(index, size).ok_or(EvalFault::OutOfRange { index, size })?;
                start += place * strides[axis];
            }
            starts.push(start);
        }
        Ok(vec![move_two!(given[0], given[2], sizes, |values, update| {
            let mut values = values.to_vec();
            for (tuple, start) in starts.iter().enumerate() {
                values[*start..*start + block].clone_from_slice(&update[tuple * block..][..block]);
            }
            values
        })])
    }
}
