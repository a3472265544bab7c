//! Elementwise functions of two tensors, broadcast numpy-wise.
//!
//! Operands: two plain tensors of one type. Result: the broadcast shape; `bool` for comparisons.

use super::{CoreOp, Operand};
use super::rules::{Inferred, broadcast, elementwise, exceeds, operands, same_dtype, single_known};
use crate::attribute::{attributes, named_enum};
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::tensor::move_elements;
use crate::interpret::Data;
use super::rules::{broadcast_strides, strided};
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

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let sizes = cx.sizes(0);
        let stretch = |tensor: &Tensor| -> Tensor {
            if tensor.sizes() == sizes {
                return tensor.clone();
            }
            let strides = broadcast_strides(tensor.sizes(), sizes.len());
            move_elements!(tensor, sizes.clone(), |values| strided(values, 0, &strides, &sizes))
        };
        let (a, b) = (stretch(&given[0]), stretch(&given[1]));
        let dtype = a.dtype();
        let op = self.op;
        let tensor = match (a.data(), b.data()) {
            (Data::Bool(a), Data::Bool(b)) => {
                let values = a.iter().zip(b.iter()).map(|(a, b)| op.of_bools(*a, *b)).collect();
                Tensor::from_bool(sizes, values)
            }
            (Data::I64(a), Data::I64(b)) if op.is_comparison() => {
                // Flipping the top bit maps the order of u64 to that of i64.
                let flip = if dtype == DType::U64 { i64::MIN } else { 0 };
                let pairs = a.iter().zip(b.iter());
                let values = pairs.map(|(a, b)| op.compare(a ^ flip, b ^ flip)).collect();
                Tensor::from_bool(sizes, values)
            }
            (Data::I64(a), Data::I64(b)) => {
                let unsigned = dtype == DType::U64;
                let pairs = a.iter().zip(b.iter());
                let values: Option<Vec<i64>> =
                    pairs.map(|(a, b)| op.of_integers(*a, *b, unsigned)).collect();
                let values =
                    values.ok_or_else(|| EvalFault::Operand(format!("{} by zero", op.name())))?;
                Tensor::from_i64(dtype, sizes, values)
            }
            _ => {
                // Single-precision results of double-precision arithmetic round as if computed
                // once (53 >= 2 * 24 + 2 bits).
                let (a, b) = (a.f64s(), b.f64s());
                let pairs = a.iter().zip(&b);
                if op.is_comparison() {
                    let values = pairs.map(|(a, b)| op.compare(*a, *b)).collect();
                    Tensor::from_bool(sizes, values)
                } else {
                    let values = pairs.map(|(a, b)| op.of_floats(*a, *b)).collect();
                    Tensor::from_f64(dtype, sizes, values)
                }
            }
        };
        Ok(vec![tensor])
    }
}

impl BinaryOp {
    fn of_bools(self, a: bool, b: bool) -> bool {
        match self {
            BinaryOp::And => a & b,
            BinaryOp::Or => a | b,
            BinaryOp::Xor => a ^ b,
            _ => a == b,
        }
    }

    fn compare<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            BinaryOp::Less => a < b,
            BinaryOp::LessOrEqual => a <= b,
            BinaryOp::Greater => a > b,
            BinaryOp::GreaterOrEqual => a >= b,
            _ => a == b,
        }
    }

    /// `None` for a division by zero.
    fn of_integers(self, a: i64, b: i64, unsigned: bool) -> Option<i64> {
        let (wide_a, wide_b) = (a as u64, b as u64);
        Some(match self {
            BinaryOp::Sub => a.wrapping_sub(b),
            BinaryOp::Mul => a.wrapping_mul(b),
            BinaryOp::Div if unsigned => wide_a.checked_div(wide_b)? as i64,
            BinaryOp::Mod | BinaryOp::Fmod if unsigned => wide_a.checked_rem(wide_b)? as i64,
            BinaryOp::Min if unsigned => wide_a.min(wide_b) as i64,
            BinaryOp::Max if unsigned => wide_a.max(wide_b) as i64,
            BinaryOp::Div | BinaryOp::Mod | BinaryOp::Fmod if b == 0 => return None,
            BinaryOp::Div => a.wrapping_div(b),
            BinaryOp::Fmod => a.wrapping_rem(b),
            BinaryOp::Mod => {
                let remainder = a.wrapping_rem(b);
                let other_side = remainder != 0 && (remainder < 0) != (b < 0);
                if other_side { remainder + b } else { remainder }
            }
            BinaryOp::Min => a.min(b),
            BinaryOp::Max => a.max(b),
            BinaryOp::Pow => integer_power(a, b)?,
            _ => a.wrapping_add(b),
        })
    }

    fn of_floats(self, a: f64, b: f64) -> f64 {
        match self {
            BinaryOp::Sub => a - b,
            BinaryOp::Mul => a * b,
            BinaryOp::Div => a / b,
            BinaryOp::Pow => a.powf(b),
            BinaryOp::Fmod => a % b,
            BinaryOp::Mod => a - b * (a / b).floor(),
            // A NaN on either side is the result.
            BinaryOp::Min | BinaryOp::Max if a.is_nan() || b.is_nan() => f64::NAN,
            BinaryOp::Min => a.min(b),
            BinaryOp::Max => a.max(b),
            _ => a + b,
        }
    }
}

fn integer_power(base: i64, exponent: i64) -> Option<i64> {
    let Ok(mut left) = u64::try_from(exponent) else {
        // 1 / base^n truncates to zero but for the bases 1 and -1.
        return match base {
            0 => None,
            1 => Some(1),
            -1 => Some(if exponent % 2 == 0 { 1 } else { -1 }),
            _ => Some(0),
        };
    };
    let (mut power, mut square) = (1i64, base);
    while left > 0 {
        if left % 2 == 1 {
            power = power.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left /= 2;
    }
    Some(power)
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
