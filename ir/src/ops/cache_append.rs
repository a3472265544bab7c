//! Writes the rows' keys and values into a cache.
//!
//! Operands: key `[S, KV, Dk]`, value `[S, KV, Dv]`. No results. Must precede the `cache_attend`
//! of the same cache.

use super::{CoreOp, Operand};
use super::rules::{Inferred, agree, float, operands, sizes};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::entity::CacheId;

attributes!(
    /// Writes the rows' keys and values into a cache.
    CacheAppend {
        /// The cache.
        cache: CacheId,
    }
);

impl CoreOp for CacheAppend {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        // Heads and widths against the cache's declaration: the verifier, which has the table.
        let [key, value] = operands::<2>(given)?;
        float(key)?;
        float(value)?;
        let [rows, heads, _] = sizes::<3>(key)?;
        let [value_rows, value_heads, _] = sizes::<3>(value)?;
        agree("rows of key and value", rows, value_rows)?;
        agree("heads of key and value", heads, value_heads)?;
        Ok(Vec::new())
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let _ = (given, cx);
        Err(EvalFault::NeedsGraph)
    }
}
