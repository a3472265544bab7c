//! Rotates each row by the angles of its position.
//!
//! Operands: x `[S, H, D]`, rows i64 `[S]` (row of the tables for each row), cos and sin f32
//! `[P, width / 2]`. Pairs as in `rotary`. With several sets the tables are stacked: row = set *
//! positions + position.

use super::{CoreOp, Operand};
use super::rotary::check_width;
use super::rules::{Inferred, agree, float, integer, last, operands, single, sizes};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use super::rotary::rotate;
use crate::dim::Dim;

attributes!(
    /// Rotates each row by the angles of its position.
    RotaryRows {
        /// Rotated values, even.
        width: u32,
        /// Which values form pairs.
        interleaved: bool,
    }
);

impl CoreOp for RotaryRows {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [x, rows, cos, sin] = operands::<4>(given)?;
        let dtype = float(x)?;
        integer(rows)?;
        let [count, _, width] = sizes::<3>(x)?;
        let [positions] = sizes::<1>(rows)?;
        agree("rows and positions", count, positions)?;
        check_width(self.width, width)?;
        let half = Dim::number(i64::from(self.width / 2));
        for table in [cos, sin] {
            float(table)?;
            sizes::<2>(table)?;
            agree("half of the rotated values and the tables", &half, last(table)?)?;
        }
        agree("rows of the tables", &cos.ty.shape[0], &sin.ty.shape[0])?;
        single(dtype, x.ty.shape.clone())
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let half = self.width as usize / 2;
        let (cos, sin) = (given[2].f32s()?, given[3].f32s()?);
        let [_, heads, row_width] = *given[0].sizes() else {
            return Err(EvalFault::Operand("x has not three dimensions".into()));
        };
        // With several sets the tables are stacked, and the sequence has chosen its set.
        let positions = given[2].sizes()[0] / cx.rotary_sets.max(1);
        let mut values = given[0].f32s()?.to_vec();
        let rows = given[1].i64s()?;
        for (x, position) in values.chunks_mut((heads * row_width).max(1)).zip(rows.iter()) {
            let row = usize::try_from(*position).ok().filter(|row| *row < positions);
            let row = row.ok_or(EvalFault::OutOfRange { index: *position, size: positions })?;
            let place = (cx.rotary_set * positions + row) * half;
            for head in x.chunks_mut(row_width.max(1)) {
                rotate(head, &cos[place..][..half], &sin[place..][..half], self.interleaved);
            }
        }
        cx.f32(given[0].dtype(), values)
    }
}
