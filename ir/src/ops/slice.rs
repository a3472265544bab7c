//! Takes every `step`-th index of a dimension.
//!
//! Operand: a tensor. Result: indices start, start + step, ... of `axis`, `length` of them. A
//! negative step walks backwards.

use super::{CoreOp, Operand};
use super::rules::{Inferred, axis_in, moved, operands, plain, single_known};
use crate::attribute::attributes;
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
        let known = moved(operand, &shape, &|sizes| {
            let start = usize::try_from(self.start.as_number()?).ok()?;
            let mut strides: Vec<isize> =
                row_major(sizes).into_iter().map(|stride| stride as isize).collect();
            let first = start * strides[self.axis] as usize;
            strides[self.axis] *= isize::try_from(self.step).ok()?;
            Some((first, strides))
        });
        single_known(dtype, shape, known)
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
