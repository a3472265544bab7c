//! Elementwise functions of one tensor.
//!
//! Operand: a plain tensor. Result: the same shape and type (`bool` for `is_nan`, `is_inf`, `not`).

use super::{CoreOp, Operand};
use super::rules::{Inferred, elementwise, exceeds, operands, plain, single_known};
use crate::attribute::{attributes, named_enum};
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
