//! Integers in steps.
//!
//! No operands. Result: `dtype[length]`, element i is `start + i * step`.

use super::{CoreOp, Known, MAX_KNOWN, Operand};
use super::rules::{Inferred, operands, single_known};
use crate::attribute::attributes;
use crate::interpret::{Bindings, Context, EvalFault, Tensor};
use crate::dim::Dim;
use crate::types::DType;

attributes!(
    /// Integers in steps.
    Range {
        /// Element type.
        dtype: DType,
        /// First element.
        start: Dim,
        /// Difference of neighbours.
        step: i64,
        /// Number of elements.
        length: Dim,
    }
);

impl CoreOp for Range {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [] = operands::<0>(given)?;
        if self.dtype == DType::Bool {
            return Err("booleans have no range".into());
        }
        let length = self.length.as_size().filter(|length| *length <= MAX_KNOWN);
        let known = match length {
            _ if self.step == 0 => Some(Known::Fill(self.start.clone())),
            None => None,
            Some(length) => (0..length as i64)
                .map(|index| self.start.plus(&Dim::number(index.checked_mul(self.step)?)))
                .collect::<Option<Vec<_>>>()
                .map(Known::Elements),
        };
        single_known(self.dtype, vec![self.length.clone()], known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let _ = given;
        let start = self.start.as_number().ok_or(EvalFault::Unbound(self.start.to_string()))?;
        let length = cx.sizes(0)[0] as i64;
        let values = (0..length).map(|i| start.wrapping_add(i.wrapping_mul(self.step)));
        Ok(vec![if self.dtype.is_float() {
            Tensor::from_f64(self.dtype, cx.sizes(0), values.map(|value| value as f64).collect())
        } else {
            Tensor::from_i64(self.dtype, cx.sizes(0), values.collect())
        }])
    }

    fn bound(&self, bindings: &Bindings) -> Result<Self, EvalFault> {
        Ok(Range {
            start: bindings.dim(&self.start)?,
            length: bindings.dim(&self.length)?,
            ..self.clone()
        })
    }
}
