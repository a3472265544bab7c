//! An integer or boolean tensor whose content is written down in the symbols.
//!
//! No operands. Result: `dtype[shape]` with the elements in row-major order (one element fills
//! any shape).

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, operands, product, single_known};
use crate::attribute::attributes;
use crate::interpret::{Bindings, Context, EvalFault, Tensor};
use crate::dim::Dim;
use crate::types::DType;

attributes!(
    /// An integer or boolean tensor whose content is written down in the symbols.
    KnownValue {
        /// Element type.
        dtype: DType,
        /// Sizes.
        shape: Vec<Dim>,
        /// Elements.
        elements: Vec<Dim>,
    }
);

impl CoreOp for KnownValue {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [] = operands::<0>(given)?;
        if self.dtype.is_float() {
            return Err(format!("known content of {} is not possible", self.dtype));
        }
        let known = if let [value] = self.elements.as_slice() {
            Known::Fill(value.clone())
        } else {
            let count = i64::try_from(self.elements.len()).unwrap_or(i64::MAX);
            if product(&self.shape) != Some(Dim::number(count)) {
                return Err(format!("{count} elements do not fill {:?}", self.shape));
            }
            Known::Elements(self.elements.clone())
        };
        match single_known(self.dtype, self.shape.clone(), Some(known))? {
            results if results[0].1.is_some() => Ok(results),
            _ => Err(format!("an element does not fit {}", self.dtype)),
        }
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let _ = given;
        let number = |dim: &Dim| dim.as_number().ok_or(EvalFault::Unbound(dim.to_string()));
        if let [value] = self.elements.as_slice() {
            return Ok(vec![Tensor::filled(self.dtype, cx.sizes(0), number(value)?)?]);
        }
        let values: Vec<i64> = self.elements.iter().map(number).collect::<Result<_, _>>()?;
        Ok(vec![if self.dtype == DType::Bool {
            Tensor::from_bool(cx.sizes(0), values.iter().map(|value| *value != 0).collect())
        } else {
            Tensor::from_i64(self.dtype, cx.sizes(0), values)
        }])
    }

    fn bound(&self, bindings: &Bindings) -> Result<Self, EvalFault> {
        Ok(KnownValue {
            dtype: self.dtype,
            shape: bindings.dims(&self.shape)?,
            elements: bindings.dims(&self.elements)?,
        })
    }
}
