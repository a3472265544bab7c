//! Reduces dimensions to one value each.
//!
//! Operand: a plain tensor. Result: the dimensions in `axes` have size 1, or are gone.

use super::CoreOp;
use crate::attribute::{attributes, named_enum};

named_enum!(
    /// How elements are joined, in index order.
    ReduceOp {
        /// sum
        Sum = "sum",
        /// sum divided by the count
        Mean = "mean",
        /// largest
        Max = "max",
        /// smallest
        Min = "min",
        /// product
        Product = "product",
        /// sum of squares
        SumSquare = "sum_square",
    }
);

attributes!(
    /// Joins elements along dimensions.
    Reduce {
        /// How.
        op: ReduceOp,
        /// The dimensions, ascending.
        axes: Vec<usize>,
        /// Whether they stay with size 1.
        keep: bool,
    }
);

impl CoreOp for Reduce {}
