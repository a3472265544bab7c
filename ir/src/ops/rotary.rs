//! Rotates pairs of the first `width` values of the last dimension by given angles.
//!
//! Operands: x `[..., D]`, cos and sin, broadcastable to `[..., width / 2]`. Pairs are (i, i +
//! width/2), or (2i, 2i+1) if interleaved: (a, b) -> (a cos - b sin, b cos + a sin). Values
//! beyond `width` pass.

use super::{CoreOp, Operand};
use super::rules::{Inferred, broadcasts_to, float, last, operands, single};
use crate::attribute::attributes;
use crate::dim::Dim;

attributes!(
    /// Rotates pairs of the first `width` values of the last dimension by given angles.
    Rotary {
        /// Rotated values, even.
        width: u32,
        /// Which values form pairs.
        interleaved: bool,
    }
);

impl CoreOp for Rotary {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [x, cos, sin] = operands::<3>(given)?;
        let dtype = float(x)?;
        check_width(self.width, last(x)?)?;
        let mut angles = x.ty.shape.clone();
        angles.pop();
        angles.push(Dim::number(i64::from(self.width / 2)));
        for table in [cos, sin] {
            float(table)?;
            broadcasts_to(&table.ty.shape, &angles)?;
        }
        single(dtype, x.ty.shape.clone())
    }
}

/// Checks that the rotated values are whole pairs of a row.
pub(crate) fn check_width(width: u32, row: &Dim) -> Result<(), String> {
    if !width.is_multiple_of(2) || row.as_size().is_some_and(|size| size < width as usize) {
        return Err(format!("{width} rotated values of {row}"));
    }
    Ok(())
}
