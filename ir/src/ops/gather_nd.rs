//! Takes slices at coordinates.
//!
//! Operands: data, integer indices `[..., m]`. Result: see ONNX GatherND.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, agree, integer, last, operands, plain, single_known, uniform};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::tensor::move_elements;
use crate::constant::row_major;
use super::gather::wrapped;

attributes!(
    /// Takes slices at coordinates.
    GatherNd {
        /// Leading dimensions that both share.
        batch_dims: usize,
    }
);

impl CoreOp for GatherNd {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [data, indices] = operands::<2>(given)?;
        let dtype = plain(data)?;
        integer(indices)?;
        let coordinates = last(indices)?.as_size().ok_or("the number of coordinates is symbolic")?;
        let rank = data.ty.rank();
        let batch = self.batch_dims;
        let used = batch.checked_add(coordinates).filter(|used| *used <= rank);
        let Some(used) = used.filter(|_| batch < indices.ty.rank()) else {
            return Err(format!(
                "{batch} batch dimensions and {coordinates} coordinates do not fit {} and {}",
                data.ty, indices.ty
            ));
        };
        for (a, b) in data.ty.shape.iter().zip(&indices.ty.shape).take(batch) {
            agree("batch dimensions", a, b)?;
        }
        let mut shape = indices.ty.shape[..indices.ty.rank() - 1].to_vec();
        shape.extend_from_slice(&data.ty.shape[used..]);
        let known = uniform(data).cloned().map(Known::Fill);
        single_known(dtype, shape, known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let from = given[0].sizes();
        let strides = row_major(from);
        let indices = given[1].i64s()?;
        let coordinates = given[1].sizes()[given[1].sizes().len() - 1];
        let used = self.batch_dims + coordinates;
        let block: usize = from[used..].iter().product();
        // Tuples of coordinates per index of the shared leading dimensions.
        let shared: usize = from[..self.batch_dims].iter().product();
        let tuples = given[1].sizes()[..given[1].sizes().len() - 1].iter().product::<usize>();
        let each = tuples.checked_div(shared).unwrap_or(0);
        let batch_stride: usize = from[self.batch_dims..].iter().product();
        let mut starts = Vec::with_capacity(tuples);
        for tuple in 0..tuples {
            let mut start = tuple / each.max(1) * batch_stride;
            for axis in 0..coordinates {
                let index = indices[tuple * coordinates + axis];
                let size = from[self.batch_dims + axis];
                let place = wrapped(index, size).ok_or(EvalFault::OutOfRange { index, size })?;
                start += place * strides[self.batch_dims + axis];
            }
            starts.push(start);
        }
        Ok(vec![move_elements!(given[0], cx.sizes(0), |values| {
            starts.iter().flat_map(|start| values[*start..*start + block].iter().cloned()).collect()
        })])
    }
}
