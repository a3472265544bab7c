//! Writes the rows' keys and values into a cache.
//!
//! Operands: key `[S, KV, Dk]`, value `[S, KV, Dv]`. No results. Must precede the `cache_attend`
//! of the same cache.

use super::CoreOp;
use crate::attribute::attributes;
use crate::entity::CacheId;

attributes!(
    /// Writes the rows' keys and values into a cache.
    CacheAppend {
        /// The cache.
        cache: CacheId,
    }
);

impl CoreOp for CacheAppend {}
