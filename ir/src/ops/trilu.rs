//! Keeps a triangle of the last two dimensions, zero elsewhere.
//!
//! Operand: a tensor of rank >= 2. Keeps column - row >= diagonal (upper) or <= diagonal
//! (lower).

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, listed, operands, plain, single_known};
use crate::attribute::attributes;
use crate::interpret::{Bindings, Context, EvalFault, Tensor};
use crate::interpret::tensor::move_two;
use crate::dim::Dim;

attributes!(
    /// Keeps a triangle of the last two dimensions, zero elsewhere.
    Trilu {
        /// Which triangle.
        upper: bool,
        /// Which diagonal bounds it.
        diagonal: Dim,
    }
);

impl CoreOp for Trilu {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        let dtype = plain(operand)?;
        if operand.ty.rank() < 2 {
            return Err(format!("{} is no matrix", operand.ty));
        }
        let known = listed(operand).and_then(|mut elements| {
            let diagonal = self.diagonal.as_number()?;
            self.clear(&mut elements, &operand.ty.sizes()?, diagonal, &Dim::number(0));
            Some(Known::Elements(elements))
        });
        single_known(dtype, operand.ty.shape.clone(), known)
    }

    fn eval(&self, given: &[Tensor], _: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let diagonal =
            self.diagonal.as_number().ok_or(EvalFault::Unbound(self.diagonal.to_string()))?;
        let sizes = given[0].sizes().to_vec();
        let zero = Tensor::filled(given[0].dtype(), Vec::new(), 0)?;
        Ok(vec![move_two!(given[0], zero, sizes.clone(), |values, zero| {
            let mut values = values.to_vec();
            self.clear(&mut values, &sizes, diagonal, &zero[0]);
            values
        })])
    }

    fn bound(&self, bindings: &Bindings) -> Result<Self, EvalFault> {
        Ok(Trilu { upper: self.upper, diagonal: bindings.dim(&self.diagonal)? })
    }
}

impl Trilu {
    /// Writes zero outside the triangle.
    fn clear<T: Clone>(&self, elements: &mut [T], sizes: &[usize], diagonal: i64, zero: &T) {
        let (rows, columns) = (sizes[sizes.len() - 2], sizes[sizes.len() - 1]);
        for (index, element) in elements.iter_mut().enumerate() {
            let (row, column) = (index / columns % rows, index % columns);
            let distance = column as i64 - row as i64;
            let keep = if self.upper { distance >= diagonal } else { distance <= diagonal };
            if !keep {
                *element = zero.clone();
            }
        }
    }
}
