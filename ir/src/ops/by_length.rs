//! One of two tables, chosen by the length of the sequence.
//!
//! Operands: short, long (same type). Result: `short` if past + sequence <= limit, else `long`
//! (LongRoPE; the runtime chooses once a sequence, by the greatest length it may reach).

use super::{CoreOp, Operand};
use super::rules::{Inferred, operands, same_dtype, single};
use crate::attribute::attributes;

attributes!(
    /// One of two tables, chosen by the length of the sequence.
    ByLength {
        /// Greatest length that uses `short`.
        limit: u32,
    }
);

impl CoreOp for ByLength {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [short, long] = operands::<2>(given)?;
        let dtype = same_dtype(short, long)?;
        if short.ty != long.ty {
            return Err(format!("{} and {} differ", short.ty, long.ty));
        }
        single(dtype, short.ty.shape.clone())
    }
}
