//! Causal attention of new rows over past and new keys.
//!
//! Operands: query f32 `[S, H, Dk]`, key `[S, KV, Dk]`, value `[S, KV, Dv]`, past key `[KV, P,
//! Dk]`, past value `[KV, P, Dv]`, then sink logits `[H]` if `sinks`. Results: `[S, H, Dv]`,
//! present key `[KV, P + S, Dk]`, present value. Scores as in `attention`.

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// Causal attention of new rows over past and new keys.
    CausalAttention {
        /// Factor of the scores.
        scale: f32,
        /// c; 0 for none.
        softcap: f32,
        /// Sliding window; 0 for none.
        window: u32,
        /// Whether sink logits are an operand.
        sinks: bool,
    }
);

impl CoreOp for CausalAttention {}
