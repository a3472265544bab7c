//! Takes every `step`-th index of a dimension.
//!
//! Operand: a tensor. Result: indices start, start + step, ... of `axis`, `length` of them. A
//! negative step walks backwards.

use super::{CoreOp, Operand};
use super::rules::{Inferred, axis_in, moved, operands, plain, single_known};
use crate::attribute::attributes;
use super::rules::strided;
use crate::interpret::{Bindings, Context, EvalFault, Tensor};
use crate::interpret::tensor::move_elements;
use crate::constant::row_major;
use crate::dim::Dim;

attributes!(
    /// Takes every `step`-th index of a dimension.
    Slice {
        /// The dimension.
        axis: usize,
        /// First index.
        start: Dim,
        /// Difference of indices, not 0.
        step: i64,
        /// Number of indices.
        length: Dim,
    }
);

impl CoreOp for Slice {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        let dtype = plain(operand)?;
        let mut shape = operand.ty.shape.clone();
        axis_in(self.axis, &shape)?;
        if self.step == 0 {
            return Err("step 0".into());
        }
        let size = std::mem::replace(&mut shape[self.axis], self.length.clone());
        if let (Some(size), Some(start), Some(length)) =
            (size.as_number(), self.start.as_number(), self.length.as_number())
        {
            check_range(size, start, self.step, length)?;
        }
        if self.start.as_number().is_some_and(|start| start < 0) && self.length.is_at_least(1) {
            return Err(format!("start {} is negative", self.start));
        }
        let known = moved(operand, &shape, &|sizes| {
            let start = usize::try_from(self.start.as_number()?).ok()?;
            let mut strides: Vec<isize> =
                row_major(sizes).into_iter().map(|stride| stride as isize).collect();
            let first = start.checked_mul(strides[self.axis] as usize)?;
            strides[self.axis] =
                strides[self.axis].saturating_mul(isize::try_from(self.step).ok()?);
            Some((first, strides))
        });
        single_known(dtype, shape, known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let sizes = cx.sizes(0);
        let start = self.start.as_size().ok_or_else(|| EvalFault::Unbound(self.start.to_string()))?;
        let mut strides: Vec<isize> =
            row_major(given[0].sizes()).into_iter().map(|stride| stride as isize).collect();
        let first = start.saturating_mul(strides[self.axis] as usize);
        // The type rule has checked that every index is in range, so no step leaves `isize`.
        strides[self.axis] = strides[self.axis].saturating_mul(self.step as isize);
        Ok(vec![move_elements!(given[0], sizes.clone(), |values| {
            strided(values, first, &strides, &sizes)
        })])
    }

    fn bound(&self, bindings: &Bindings) -> Result<Self, EvalFault> {
        Ok(Slice {
            axis: self.axis,
            start: bindings.dim(&self.start)?,
            step: self.step,
            length: bindings.dim(&self.length)?,
        })
    }
}

/// Checks that `length` indices from `start` in steps lie below `size`.
pub(crate) fn check_range(size: i64, start: i64, step: i64, length: i64) -> Result<(), String> {
    if length <= 0 {
        return Ok(());
    }
    let last = (length - 1).checked_mul(step).and_then(|way| start.checked_add(way));
    if (0..size).contains(&start) && last.is_some_and(|last| (0..size).contains(&last)) {
        Ok(())
    } else {
        Err(format!("{length} indices from {start} in steps of {step} are not below {size}"))
    }
}
