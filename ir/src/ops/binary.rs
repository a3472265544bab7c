//! Elementwise functions of two tensors, broadcast numpy-wise.
//!
//! Operands: two plain tensors of one type. Result: the broadcast shape; `bool` for comparisons.

use super::CoreOp;
use crate::attribute::{attributes, named_enum};

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

impl CoreOp for Binary {}
