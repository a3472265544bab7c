//! Changes the element type.
//!
//! Operand: a plain tensor. Result: the same shape; floats round to nearest even, floats to
//! integers truncate, to bool: not zero.

use super::{CoreOp, Operand};
use super::rules::{Inferred, elementwise, exceeds, operands, plain, single_known};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::Data;
use crate::dim::Dim;
use crate::types::DType;

attributes!(
    /// Changes the element type.
    Cast {
        /// Element type of the result.
        to: DType,
    }
);

impl CoreOp for Cast {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        let from = plain(operand)?;
        let known = if self.to == DType::Bool {
            elementwise(&[operand], &operand.ty.shape, &|values| not_zero(values[0]))
        } else if from.is_float() {
            None
        } else {
            operand.known.cloned()
        };
        single_known(self.to, operand.ty.shape.clone(), known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let operand = &given[0];
        Ok(vec![match operand.data() {
            _ if operand.dtype() == self.to => operand.clone(),
            Data::F32(_) | Data::F64(_) if self.to == DType::Bool => {
                let values = operand.f64s().iter().map(|value| *value != 0.0).collect();
                Tensor::from_bool(cx.sizes(0), values)
            }
            Data::F32(_) | Data::F64(_) if self.to.is_integer() => {
                // Out of range is undefined in the formats we read; saturating is a definition.
                let values = operand
                    .f64s()
                    .iter()
                    .map(|value| if self.to == DType::U64 { *value as u64 as i64 } else { *value as i64 })
                    .collect();
                Tensor::from_i64(self.to, cx.sizes(0), values)
            }
            _ if self.to.is_float() => Tensor::from_f64(self.to, cx.sizes(0), operand.f64s()),
            _ => {
                let values = operand.i64s()?;
                if self.to == DType::Bool {
                    let values = values.iter().map(|value| *value != 0).collect();
                    Tensor::from_bool(cx.sizes(0), values)
                } else {
                    Tensor::from_i64(self.to, cx.sizes(0), values.to_vec())
                }
            }
        }])
    }
}

/// Whether a size is not zero, where that is certain.
fn not_zero(value: &Dim) -> Option<Dim> {
    let zero = Dim::number(0);
    if *value == zero {
        Some(zero)
    } else if exceeds(value, &zero, 1) || exceeds(&zero, value, 1) {
        Some(Dim::number(1))
    } else {
        None
    }
}
