//! x Wt, the product with a weight stored by output channel.
//!
//! Operands: x `[..., K]`, weight `[N, K]` (plain or quantised), then bias `[N]` if `bias`, then
//! residual `[..., N]` if `residual`. Result: x.dtype `[..., N]` = x Wt + bias + residual. Sums
//! run over k ascending in f32 from zero by fused multiply-add; bias, then residual are added
//! last.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// x Wt, the product with a weight stored by output channel.
    Linear {
        /// Whether a bias is an operand.
        bias: bool,
        /// Whether a residual is an operand.
        residual: bool,
    }
);

impl CoreOp for Linear {}
