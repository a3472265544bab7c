//! Elementwise functions of two tensors, broadcast numpy-wise.
//!
//! Operands: two plain tensors of one type. Result: the broadcast shape; `bool` for comparisons.

use super::{CoreOp, Operand};
use super::rules::{Inferred, broadcast, elementwise, exceeds, operands, same_dtype, single_known};
use crate::attribute::{attributes, named_enum};
use crate::types::DType;
use crate::dim::Dim;

named_enum!(
    /// A function of two elements.
    BinaryOp {
        /// a + b
        Add = "add",
        /// a - b
        Sub = "sub",
        /// a b
        Mul = "mul",
        /// a / b; integers truncate
        Div = "div",
        /// a^b
        Pow = "pow",
        /// the smaller
        Min = "min",
        /// the larger
        Max = "max",
        /// remainder with the sign of b
        Mod = "mod",
        /// remainder with the sign of a
        Fmod = "fmod",
        /// logical and
        And = "and",
        /// logical or
        Or = "or",
        /// logical exclusive or
        Xor = "xor",
        /// a = b
        Equal = "equal",
        /// a < b
        Less = "less",
        /// a <= b
        LessOrEqual = "less_or_equal",
        /// a > b
        Greater = "greater",
        /// a >= b
        GreaterOrEqual = "greater_or_equal",
    }
);

attributes!(
    /// Combines elements of two tensors.
    Binary {
        /// The function.
        op: BinaryOp,
    }
);

impl CoreOp for Binary {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [a, b] = operands::<2>(given)?;
        let dtype = same_dtype(a, b)?;
        let logical = matches!(self.op, BinaryOp::And | BinaryOp::Or | BinaryOp::Xor);
        if logical && dtype != DType::Bool {
            return Err(format!("{} of {}", self.op.name(), a.ty));
        }
        if dtype == DType::Bool && !logical && self.op != BinaryOp::Equal {
            return Err(format!("{} of booleans", self.op.name()));
        }
        let shape = broadcast(&a.ty.shape, &b.ty.shape)?;
        let known =
            elementwise(&[a, b], &shape, &|values| self.op.of_sizes(values[0], values[1]));
        let result = if self.op.is_comparison() { DType::Bool } else { dtype };
        single_known(result, shape, known)
    }
}

impl BinaryOp {
    /// Whether the result is boolean whatever the operands are.
    pub fn is_comparison(self) -> bool {
        use BinaryOp::*;
        matches!(self, Equal | Less | LessOrEqual | Greater | GreaterOrEqual)
    }

    /// The function of two sizes, where its value is certain.
    fn of_sizes(self, a: &Dim, b: &Dim) -> Option<Dim> {
        let decide = |yes: bool, no: bool| (yes || no).then(|| Dim::number(i64::from(yes)));
        let both = a.as_number().zip(b.as_number());
        match self {
            BinaryOp::Add => a.plus(b),
            BinaryOp::Sub => a.minus(b),
            BinaryOp::Mul => a.times(b),
            BinaryOp::Div => match both {
                Some((a, b)) => a.checked_div(b).map(Dim::number),
                None => a.divided_exactly(b),
            },
            BinaryOp::Pow => {
                let (a, b) = both?;
                a.checked_pow(u32::try_from(b).ok()?).map(Dim::number)
            }
            BinaryOp::Min if exceeds(b, a, 0) => Some(a.clone()),
            BinaryOp::Min => exceeds(a, b, 0).then(|| b.clone()),
            BinaryOp::Max if exceeds(a, b, 0) => Some(a.clone()),
            BinaryOp::Max => exceeds(b, a, 0).then(|| b.clone()),
            BinaryOp::Mod => match both {
                Some((a, b)) => floor_remainder(a, b).map(Dim::number),
                None => a.divided_exactly(b).map(|_| Dim::number(0)),
            },
            BinaryOp::Fmod => {
                let (a, b) = both?;
                a.checked_rem(b).map(Dim::number)
            }
            BinaryOp::And => both.map(|(a, b)| Dim::number(a & b)),
            BinaryOp::Or => both.map(|(a, b)| Dim::number(a | b)),
            BinaryOp::Xor => both.map(|(a, b)| Dim::number(a ^ b)),
            BinaryOp::Equal => decide(a == b, exceeds(a, b, 1) || exceeds(b, a, 1)),
            BinaryOp::Less => decide(exceeds(b, a, 1), exceeds(a, b, 0)),
            BinaryOp::LessOrEqual => decide(exceeds(b, a, 0), exceeds(a, b, 1)),
            BinaryOp::Greater => decide(exceeds(a, b, 1), exceeds(b, a, 0)),
            BinaryOp::GreaterOrEqual => decide(exceeds(a, b, 0), exceeds(b, a, 1)),
        }
    }
}

/// Remainder with the sign of the divisor.
fn floor_remainder(a: i64, b: i64) -> Option<i64> {
    let remainder = a.checked_rem(b)?;
    Some(if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder })
}
