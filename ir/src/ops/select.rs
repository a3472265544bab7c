//! Chooses elementwise.
//!
//! Operands: condition (bool), a, b, broadcast numpy-wise. Result: a where the condition holds,
//! else b.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, broadcast, elementwise, operands, plain, same_dtype, single_known, uniform};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::tensor::{move_elements, move_two};
use super::rules::{broadcast_strides, strided};
use crate::types::DType;
use crate::dim::Dim;

attributes!(
    /// Chooses elementwise.
    Select {

    }
);

impl CoreOp for Select {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [condition, a, b] = operands::<3>(given)?;
        if plain(condition)? != DType::Bool {
            return Err(format!("condition {} is not bool", condition.ty));
        }
        let dtype = same_dtype(a, b)?;
        let shape = broadcast(&condition.ty.shape, &broadcast(&a.ty.shape, &b.ty.shape)?)?;
        let decided = uniform(condition).and_then(Dim::as_number);
        let known = match decided {
            Some(0) => elementwise(&[b], &shape, &|values| Some(values[0].clone())),
            Some(_) => elementwise(&[a], &shape, &|values| Some(values[0].clone())),
            None => elementwise(&[condition, a, b], &shape, &|values| {
                let chosen = if values[0].as_number()? == 0 { values[2] } else { values[1] };
                Some(chosen.clone())
            })
            .or_else(|| {
                // Both sides alike: the condition does not matter.
                let value = uniform(a)?;
                (uniform(b)? == value).then(|| Known::Fill(value.clone()))
            }),
        };
        single_known(dtype, shape, known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let sizes = cx.sizes(0);
        let stretch = |tensor: &Tensor| -> Tensor {
            if tensor.sizes() == sizes {
                return tensor.clone();
            }
            let strides = broadcast_strides(tensor.sizes(), sizes.len());
            move_elements!(tensor, sizes.clone(), |values| strided(values, 0, &strides, &sizes))
        };
        let condition = stretch(&given[0]).bools()?;
        let (a, b) = (stretch(&given[1]), stretch(&given[2]));
        Ok(vec![move_two!(a, b, sizes, |a, b| {
            let pairs = condition.iter().zip(a.iter().zip(b.iter()));
            pairs.map(|(yes, (a, b))| if *yes { *a } else { *b }).collect()
        })])
    }
}
