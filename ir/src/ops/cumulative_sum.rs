//! Running sums along a dimension.
//!
//! Operand: a tensor. Result: the same type.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, axis_in, listed, operands, plain, single_known};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::Data;
use crate::types::DType;
use crate::dim::Dim;

attributes!(
    /// Running sums along a dimension.
    CumulativeSum {
        /// The dimension.
        axis: usize,
        /// Leaves out the element itself.
        exclusive: bool,
        /// Runs from the end.
        reverse: bool,
    }
);

impl CoreOp for CumulativeSum {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        let dtype = plain(operand)?;
        if dtype == DType::Bool {
            return Err(format!("{} has no sums", operand.ty));
        }
        axis_in(self.axis, &operand.ty.shape)?;
        let known = listed(operand).zip(operand.ty.sizes()).and_then(|(elements, sizes)| {
            let mut fits = true;
            let sums = self.run(&elements, &sizes, Dim::number(0), |a, b| match a.plus(b) {
                Some(sum) => sum,
                None => {
                    fits = false;
                    Dim::number(0)
                }
            });
            fits.then_some(Known::Elements(sums))
        });
        single_known(dtype, operand.ty.shape.clone(), known)
    }

    fn eval(&self, given: &[Tensor], _: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let sizes = given[0].sizes();
        Ok(vec![match given[0].data() {
            Data::I64(values) => {
                let sums = self.run(values, sizes, 0, |a, b| a.wrapping_add(*b));
                Tensor::from_i64(given[0].dtype(), sizes.to_vec(), sums)
            }
            Data::F64(values) => {
                let sums = self.run(values, sizes, 0.0, |a, b| a + b);
                Tensor::from_f64(DType::F64, sizes.to_vec(), sums)
            }
            _ => {
                let sums = self.run(&given[0].f32s()?, sizes, 0.0, |a, b| a + b);
                Tensor::from_f32(given[0].dtype(), sizes.to_vec(), sums)
            }
        }])
    }
}

impl CumulativeSum {
    /// Running sums of row-major elements.
    fn run<T: Clone>(
        &self,
        elements: &[T],
        sizes: &[usize],
        zero: T,
        mut add: impl FnMut(&T, &T) -> T,
    ) -> Vec<T> {
        let length = sizes[self.axis];
        let inner: usize = sizes[self.axis + 1..].iter().product();
        let mut sums = elements.to_vec();
        for start in (0..elements.len()).step_by((length * inner).max(1)) {
            for lane in 0..inner {
                let mut sum = zero.clone();
                for step in 0..length {
                    let step = if self.reverse { length - 1 - step } else { step };
                    let place = start + step * inner + lane;
                    let next = add(&sum, &elements[place]);
                    sums[place] = if self.exclusive { sum } else { next.clone() };
                    sum = next;
                }
            }
        }
        sums
    }
}
