//! Joins tensors along a dimension.
//!
//! Operands: one or more tensors of one element type. Result: sizes add up along `axis`.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, agree, axis_in, listed, plain, same_dtype, short_sizes, single_known, uniform};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use std::sync::Arc;
use crate::interpret::Data;
use crate::dim::Dim;

attributes!(
    /// Joins tensors along a dimension.
    Concat {
        /// Dimension that grows.
        axis: usize,
    }
);

impl CoreOp for Concat {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Inferred, String> {
        let first = *operands.first().ok_or("takes at least one operand")?;
        let mut shape = first.ty.shape.clone();
        axis_in(self.axis, &shape)?;
        let mut dtype = plain(first)?;
        for operand in &operands[1..] {
            dtype = same_dtype(first, *operand)?;
            if operand.ty.rank() != shape.len() {
                return Err(format!("ranks of {} and {} differ", first.ty, operand.ty));
            }
            for (index, size) in operand.ty.shape.iter().enumerate() {
                if index == self.axis {
                    shape[index] = shape[index].plus(size).ok_or("the sum of sizes overflows")?;
                } else {
                    agree("sizes beside the axis", &shape[index], size)?;
                }
            }
        }
        let known = self.known(operands, &shape);
        single_known(dtype, shape, known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let sizes = cx.sizes(0);
        macro_rules! join {
            ($variant:ident) => {{
                let mut parts = Vec::with_capacity(given.len());
                for tensor in given {
                    match tensor.data() {
                        Data::$variant(values) => parts.push((values.as_slice(), tensor.sizes())),
                        _ => return Err(EvalFault::Operand("element types differ".into())),
                    }
                }
                Data::$variant(Arc::new(joined(&parts, self.axis, &sizes)))
            }};
        }
        let data = match given[0].data() {
            Data::F32(_) => join!(F32),
            Data::F64(_) => join!(F64),
            Data::I64(_) => join!(I64),
            Data::Bool(_) => join!(Bool),
        };
        Ok(vec![given[0].with(sizes, data)])
    }
}

impl Concat {
    fn known(&self, operands: &[Operand<'_>], shape: &[Dim]) -> Option<Known> {
        if let Some(sizes) = short_sizes(shape) {
            let parts: Vec<(Vec<Dim>, Vec<usize>)> = operands
                .iter()
                .map(|operand| Some((listed(*operand)?, operand.ty.sizes()?)))
                .collect::<Option<_>>()?;
            let parts: Vec<(&[Dim], &[usize])> =
                parts.iter().map(|(list, sizes)| (list.as_slice(), sizes.as_slice())).collect();
            return Some(Known::Elements(joined(&parts, self.axis, &sizes)));
        }
        let value = uniform(*operands.first()?)?;
        let equal = operands.iter().all(|operand| uniform(*operand) == Some(value));
        equal.then(|| Known::Fill(value.clone()))
    }
}

/// Parts (elements and sizes) joined along an axis to the given sizes.
pub(crate) fn joined<T: Clone>(parts: &[(&[T], &[usize])], axis: usize, sizes: &[usize]) -> Vec<T> {
    let outer: usize = sizes[..axis].iter().product();
    let mut elements = Vec::with_capacity(sizes.iter().product());
    for row in 0..outer {
        for (part, part_sizes) in parts {
            let block: usize = part_sizes[axis..].iter().product();
            elements.extend_from_slice(&part[row * block..(row + 1) * block]);
        }
    }
    elements
}
