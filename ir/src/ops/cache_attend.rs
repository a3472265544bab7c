//! Attention of rows over the live rows of a cache, their own included.
//!
//! Operands: query `[S, H, Dk]`, then sink logits `[H]` if `sinks`. Result: `[S, H, Dv]`. The
//! cache declares the window. Scores as in `attention`.

use super::{CoreOp, Operand};
use super::rules::{Inferred, float, sizes, vector};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
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
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        self.check(given)?;
        Err("its width stands in the cache's declaration; infer it through the graph".into())
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let _ = (given, cx);
        Err(EvalFault::NeedsGraph)
    }
}

impl CacheAttend {
    /// Checks what the operands alone tell.
    pub(crate) fn check(&self, given: &[Operand<'_>]) -> Result<(), String> {
        let count = 1 + usize::from(self.sinks);
        if given.len() != count {
            return Err(format!("takes {count} operands, has {}", given.len()));
        }
        float(given[0])?;
        let [_, heads, _] = sizes::<3>(given[0])?;
        if self.sinks {
            vector("sinks and heads", given[1], heads)?;
        }
        Ok(())
    }
}
