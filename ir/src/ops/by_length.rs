//! One of two tables, chosen by the length of the sequence.
//!
//! Operands: short, long (same type). Result: `short` if past + sequence <= limit, else `long`
//! (LongRoPE; the runtime chooses once a sequence, by the greatest length it may reach).

use super::CoreOp;
use crate::attribute::attributes;

attributes!(
    /// One of two tables, chosen by the length of the sequence.
    ByLength {
        /// Greatest length that uses `short`.
        limit: u32,
    }
);

impl CoreOp for ByLength {}
