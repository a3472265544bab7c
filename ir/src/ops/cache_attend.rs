//! Attention of rows over the live rows of a cache, their own included.
//!
//! Operands: query `[S, H, Dk]`, then sink logits `[H]` if `sinks`. Result: `[S, H, Dv]`. The
//! cache declares the window. Scores as in `attention`.

use super::CoreOp;
use crate::attribute::attributes;
use crate::entity::CacheId;

attributes!(
    /// Attention of rows over the live rows of a cache, their own included.
    CacheAttend {
        /// The cache.
        cache: CacheId,
        /// Factor of the scores.
        scale: f32,
        /// c; 0 for none.
        softcap: f32,
        /// Whether sink logits are an operand.
        sinks: bool,
    }
);

impl CoreOp for CacheAttend {}
