//! Elementwise functions of one tensor.
//!
//! Operand: a plain tensor. Result: the same shape and type (`bool` for `is_nan`, `is_inf`, `not`).

use super::CoreOp;
use crate::attribute::{attributes, named_enum};

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

impl CoreOp for Unary {}
