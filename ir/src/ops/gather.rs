//! Takes entries along a dimension.
//!
//! Operands: data, integer indices (negative ones count from the end). Result: data.shape with
//! `axis` replaced by indices.shape.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, axis_in, integer, listed, operands, plain, short_sizes, single_known, uniform};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::tensor::move_elements;
use crate::dim::Dim;

attributes!(
    /// Takes entries along a dimension.
    Gather {
        /// The dimension of data.
        axis: usize,
    }
);

impl CoreOp for Gather {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [data, indices] = operands::<2>(given)?;
        let dtype = plain(data)?;
        integer(indices)?;
        axis_in(self.axis, &data.ty.shape)?;
        let mut shape = data.ty.shape[..self.axis].to_vec();
        shape.extend_from_slice(&indices.ty.shape);
        shape.extend_from_slice(&data.ty.shape[self.axis + 1..]);
        let known = self.known(data, indices, &shape);
        single_known(dtype, shape, known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let sizes = given[0].sizes();
        let size = sizes[self.axis];
        let places: Vec<usize> = given[1]
            .i64s()?
            .iter()
            .map(|index| wrapped(*index, size).ok_or(EvalFault::OutOfRange { index: *index, size }))
            .collect::<Result<_, _>>()?;
        Ok(vec![move_elements!(given[0], cx.sizes(0), |values| {
            taken(values, sizes, self.axis, &places)
        })])
    }
}

impl Gather {
    fn known(&self, data: Operand<'_>, indices: Operand<'_>, shape: &[Dim]) -> Option<Known> {
        if let Some(value) = uniform(data) {
            return Some(Known::Fill(value.clone()));
        }
        short_sizes(shape)?;
        let elements = listed(data)?;
        let sizes = data.ty.sizes()?;
        let places: Vec<usize> = listed(indices)?
            .iter()
            .map(|index| wrapped(index.as_number()?, sizes[self.axis]))
            .collect::<Option<_>>()?;
        Some(Known::Elements(taken(&elements, &sizes, self.axis, &places)))
    }
}

/// The index, counted from the end if negative; `None` out of range.
pub(crate) fn wrapped(index: i64, size: usize) -> Option<usize> {
    let size_signed = i64::try_from(size).ok()?;
    let index = if index < 0 { index.checked_add(size_signed)? } else { index };
    usize::try_from(index).ok().filter(|index| *index < size)
}

/// The entries at `places` of an axis of row-major elements.
pub(crate) fn taken<T: Clone>(
    data: &[T],
    sizes: &[usize],
    axis: usize,
    places: &[usize],
) -> Vec<T> {
    let outer: usize = sizes[..axis].iter().product();
    let inner: usize = sizes[axis + 1..].iter().product();
    let mut elements = Vec::with_capacity(outer * places.len() * inner);
    for row in 0..outer {
        for place in places {
            let start = (row * sizes[axis] + place) * inner;
            elements.extend_from_slice(&data[start..start + inner]);
        }
    }
    elements
}
