//! Keeps a triangle of the last two dimensions, zero elsewhere.
//!
//! Operand: a tensor of rank >= 2. Keeps column - row >= diagonal (upper) or <= diagonal
//! (lower).

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, listed, operands, plain, single_known};
use crate::attribute::attributes;
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
