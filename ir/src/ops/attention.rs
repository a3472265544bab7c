//! Scaled dot-product attention over given keys.
//!
//! Operands: query `[B, H, S, Dk]`, key `[B, KV, T, Dk]`, value `[B, KV, T, Dv]`, then mask if
//! `mask` (bool: true keeps; float: added; broadcastable to `[B, H, S, T]`), then sink logits
//! `[H]` if `sinks` (one more score per head in the denominator, no value). Result: `[B, H, S,
//! Dv]`. Query head h reads key head h / (H / KV). Query i stands at key index i + T - S. Scores
//! are scaled, soft-capped (c tanh(s / c)), masked.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Scaled dot-product attention over given keys.
    Attention {
        /// Factor of the scores.
        scale: f32,
        /// c; 0 for none.
        softcap: f32,
        /// Keys behind the query are left out.
        causal: bool,
        /// Keys at or before query - window are left out; 0 for none.
        window: u32,
        /// Whether a mask is an operand.
        mask: bool,
        /// Whether sink logits are an operand.
        sinks: bool,
    }
);

impl CoreOp for Attention {}
