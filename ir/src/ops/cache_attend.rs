//! Attention of rows over the live rows of a cache, their own included.
//!
//! Operands: query `[S, H, Dk]`, then sink logits `[H]` if `sinks`. Result: `[S, H, Dv]`. The
//! cache declares the window. Scores as in `attention`.

use super::{CoreOp, Operand};
use super::rules::{Inferred, float, sizes, vector};
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

impl CoreOp for CacheAttend {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Inferred, String> {
        let given = 1 + usize::from(self.sinks);
        if operands.len() != given {
            return Err(format!("takes {given} operands, has {}", operands.len()));
        }
        float(operands[0])?;
        let [_, heads, _] = sizes::<3>(operands[0])?;
        if self.sinks {
            vector("sinks and heads", operands[1], heads)?;
        }
        Err("its width stands in the cache's declaration; infer it through the graph".into())
    }
}
