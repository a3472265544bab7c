//! Elementwise functions of one tensor.
//!
//! Operand: a plain tensor. Result: the same shape and type (`bool` for `is_nan`, `is_inf`, `not`).

use super::{CoreOp, Operand};
use super::rules::{Inferred, elementwise, exceeds, operands, plain, single_known};
use crate::attribute::{attributes, named_enum};
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::Data;
use crate::types::DType;
use crate::dim::Dim;

named_enum!(
    /// A function of one element.
    UnaryOp {
        /// -x
        Neg = "neg",
        /// |x|
        Abs = "abs",
        /// e^x
        Exp = "exp",
        /// natural logarithm
        Log = "log",
        /// square root
        Sqrt = "sqrt",
        /// 1 / sqrt(x)
        Rsqrt = "rsqrt",
        /// 1 / x
        Reciprocal = "reciprocal",
        /// sine
        Sin = "sin",
        /// cosine
        Cos = "cos",
        /// hyperbolic tangent
        Tanh = "tanh",
        /// error function
        Erf = "erf",
        /// 1 / (1 + e^-x)
        Sigmoid = "sigmoid",
        /// max(x, 0)
        Relu = "relu",
        /// x sigmoid(x)
        Silu = "silu",
        /// x (1 + erf(x / sqrt 2)) / 2
        Gelu = "gelu",
        /// x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
        GeluTanh = "gelu_tanh",
        /// x sigmoid(1.702 x)
        GeluQuick = "gelu_quick",
        /// largest integer not above x
        Floor = "floor",
        /// smallest integer not below x
        Ceil = "ceil",
        /// nearest integer, ties to even
        Round = "round",
        /// -1, 0 or 1
        Sign = "sign",
        /// logical not
        Not = "not",
        /// whether x is not a number
        IsNan = "is_nan",
        /// whether x is infinite
        IsInf = "is_inf",
    }
);

attributes!(
    /// Applies a function to every element.
    Unary {
        /// The function.
        op: UnaryOp,
    }
);

impl CoreOp for Unary {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [operand] = operands::<1>(given)?;
        let dtype = plain(operand)?;
        let fits = match self.op {
            UnaryOp::Not => dtype == DType::Bool,
            UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Sign | UnaryOp::Relu => dtype != DType::Bool,
            _ => dtype.is_float(),
        };
        if !fits {
            return Err(format!("{} of {}", self.op.name(), operand.ty));
        }
        let known = elementwise(&[operand], &operand.ty.shape, &|values| self.op.of_size(values[0]));
        let test = matches!(self.op, UnaryOp::IsNan | UnaryOp::IsInf);
        let result = if test { DType::Bool } else { dtype };
        single_known(result, operand.ty.shape.clone(), known)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let operand = &given[0];
        let sizes = cx.sizes(0);
        Ok(vec![match operand.data() {
            Data::Bool(values) => Tensor::from_bool(sizes, values.iter().map(|v| !v).collect()),
            Data::I64(values) => {
                let unsigned = matches!(
                    operand.dtype(),
                    DType::U8 | DType::U16 | DType::U32 | DType::U64
                );
                let function = |value: &i64| match self.op {
                    UnaryOp::Neg => value.wrapping_neg(),
                    UnaryOp::Sign if unsigned => i64::from(*value != 0),
                    UnaryOp::Sign => value.signum(),
                    _ if unsigned => *value,
                    UnaryOp::Abs => value.wrapping_abs(),
                    _ => (*value).max(0),
                };
                Tensor::from_i64(operand.dtype(), sizes, values.iter().map(function).collect())
            }
            _ if self.op == UnaryOp::IsNan => {
                Tensor::from_bool(sizes, operand.f64s().iter().map(|v| v.is_nan()).collect())
            }
            _ if self.op == UnaryOp::IsInf => {
                Tensor::from_bool(sizes, operand.f64s().iter().map(|v| v.is_infinite()).collect())
            }
            _ => {
                let values = operand.f64s().iter().map(|value| self.op.of(*value)).collect();
                Tensor::from_f64(operand.dtype(), sizes, values)
            }
        }])
    }
}

impl UnaryOp {
    /// The function of a float, in double precision; tests and `not` are no floats and give NaN.
    pub fn of(self, x: f64) -> f64 {
        match self {
            UnaryOp::Neg => -x,
            UnaryOp::Abs => x.abs(),
            UnaryOp::Exp => x.exp(),
            UnaryOp::Log => x.ln(),
            UnaryOp::Sqrt => x.sqrt(),
            UnaryOp::Rsqrt => 1.0 / x.sqrt(),
            UnaryOp::Reciprocal => 1.0 / x,
            UnaryOp::Sin => x.sin(),
            UnaryOp::Cos => x.cos(),
            UnaryOp::Tanh => x.tanh(),
            UnaryOp::Erf => erf(x),
            UnaryOp::Sigmoid => sigmoid(x),
            UnaryOp::Relu if x.is_nan() => x,
            UnaryOp::Relu => x.max(0.0),
            UnaryOp::Silu => x * sigmoid(x),
            UnaryOp::Gelu => x * (1.0 + erf(x / std::f64::consts::SQRT_2)) / 2.0,
            UnaryOp::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                x * (1.0 + inner.tanh()) / 2.0
            }
            UnaryOp::GeluQuick => x * sigmoid(1.702 * x),
            UnaryOp::Floor => x.floor(),
            UnaryOp::Ceil => x.ceil(),
            UnaryOp::Round => x.round_ties_even(),
            UnaryOp::Sign if x == 0.0 || x.is_nan() => x,
            UnaryOp::Sign => x.signum(),
            UnaryOp::Not | UnaryOp::IsNan | UnaryOp::IsInf => f64::NAN,
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function to about 1e-15: its series of positive terms below 3, the continued fraction
/// of the complement above (Abramowitz and Stegun 7.1.6 and 7.1.14).
fn erf(x: f64) -> f64 {
    let size = x.abs();
    let positive = if size.is_nan() {
        return x;
    } else if size > 6.0 {
        1.0
    } else if size < 3.0 {
        let (mut term, mut sum, mut odd) = (size, size, 1.0);
        while term > sum * 1e-17 {
            odd += 2.0;
            term *= 2.0 * size * size / odd;
            sum += term;
        }
        2.0 / std::f64::consts::PI.sqrt() * (-size * size).exp() * sum
    } else {
        let fraction = (1..=60).rev().fold(0.0, |tail, n| f64::from(n) / 2.0 / (size + tail));
        1.0 - (-size * size).exp() / std::f64::consts::PI.sqrt() / (size + fraction)
    };
    positive.copysign(x)
}

impl UnaryOp {
    /// The function of a size, where its value is certain.
    fn of_size(self, value: &Dim) -> Option<Dim> {
        let zero = Dim::number(0);
        match self {
            UnaryOp::Neg => value.scaled(-1),
            UnaryOp::Abs if exceeds(value, &zero, 0) => Some(value.clone()),
            UnaryOp::Abs => exceeds(&zero, value, 0).then(|| value.scaled(-1)).flatten(),
            UnaryOp::Relu if exceeds(value, &zero, 0) => Some(value.clone()),
            UnaryOp::Relu => exceeds(&zero, value, 0).then_some(zero),
            UnaryOp::Not => value.as_number().map(|value| Dim::number(i64::from(value == 0))),
            UnaryOp::Sign if *value == zero => Some(zero),
            UnaryOp::Sign if exceeds(value, &zero, 1) => Some(Dim::number(1)),
            UnaryOp::Sign => exceeds(&zero, value, 1).then(|| Dim::number(-1)),
            _ => None,
        }
    }
}
