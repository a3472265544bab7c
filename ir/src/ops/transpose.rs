//! Permutes dimensions.
//!
//! Operand: a plain tensor. Dimension i of the result is dimension `order[i]` of the operand.

use super::{CoreOp, Operand};
use super::rules::{Inferred, moved, operands, plain, single_known};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::tensor::move_elements;
use super::rules::strided;
use crate::constant::row_major;
use crate::dim::Dim;

attributes!(
    /// Permutes dimensions.
    Transpose {
        /// The permutation.
        order: Vec<usize>,
    }
);

impl CoreOp for Transpose {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        let dtype = plain(operand)?;
        let mut sorted = self.order.clone();
        sorted.sort_unstable();
        if !sorted.into_iter().eq(0..operand.ty.rank()) {
            return Err(format!("{:?} does not permute {}", self.order, operand.ty));
        }
        let from = &operand.ty.shape;
        let shape: Vec<Dim> = self.order.iter().map(|index| from[*index].clone()).collect();
        let known = moved(operand, &shape, &|sizes| Some((0, self.strides(sizes))));
        single_known(dtype, shape, known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let (sizes, strides) = (cx.sizes(0), self.strides(given[0].sizes()));
        Ok(vec![move_elements!(given[0], sizes.clone(), |values| strided(values, 0, &strides, &sizes))])
    }
}

impl Transpose {
    /// Strides of the result in the row-major operand.
    fn strides(&self, sizes: &[usize]) -> Vec<isize> {
        let strides = row_major(sizes);
        self.order.iter().map(|index| strides[*index] as isize).collect()
    }
}
