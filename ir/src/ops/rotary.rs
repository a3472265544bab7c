//! Rotates pairs of the first `width` values of the last dimension by given angles.
//!
//! Operands: x `[..., D]`, cos and sin, broadcastable to `[..., width / 2]`. Pairs are (i, i +
//! width/2), or (2i, 2i+1) if interleaved: (a, b) -> (a cos - b sin, b cos + a sin). Values
//! beyond `width` pass.

use super::{CoreOp, Operand};
use super::rules::{Inferred, broadcasts_to, float, last, operands, single};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use super::rules::{broadcast_strides, strided};
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

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let width = self.width as usize;
        let mut angles = cx.sizes(0);
        angles.pop();
        angles.push(width / 2);
        let table = |tensor: &Tensor| -> Result<Vec<f32>, EvalFault> {
            let strides = broadcast_strides(tensor.sizes(), angles.len());
            Ok(strided(&tensor.f32s()?, 0, &strides, &angles))
        };
        let (cos, sin) = (table(&given[1])?, table(&given[2])?);
        let row_width = cx.sizes(0)[angles.len() - 1];
        let mut values = given[0].f32s()?.to_vec();
        for (row, x) in values.chunks_mut(row_width.max(1)).enumerate() {
            let pairs = row * (width / 2)..(row + 1) * (width / 2);
            rotate(x, &cos[pairs.clone()], &sin[pairs], self.interleaved);
        }
        cx.f32(given[0].dtype(), values)
    }
}

/// Rotates the pairs of a row, one angle a pair.
pub(crate) fn rotate(x: &mut [f32], cos: &[f32], sin: &[f32], interleaved: bool) {
    let half = cos.len();
    for pair in 0..half {
        let (first, second) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
        let (a, b) = (x[first], x[second]);
        x[first] = a * cos[pair] - b * sin[pair];
        x[second] = b * cos[pair] + a * sin[pair];
    }
}

/// Checks that the rotated values are whole pairs of a row.
pub(crate) fn check_width(width: u32, row: &Dim) -> Result<(), String> {
    if !width.is_multiple_of(2) || row.as_size().is_some_and(|size| size < width as usize) {
        return Err(format!("{width} rotated values of {row}"));
    }
    Ok(())
}
