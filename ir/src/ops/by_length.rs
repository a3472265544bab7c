//! One of two tables, chosen by the length of the sequence.
//!
//! Operands: short, long (same type). Result: `short` if past + sequence <= limit, else `long`
//! (LongRoPE; the runtime chooses once a sequence, by the greatest length it may reach).

use super::{CoreOp, Operand};
use super::rules::{Inferred, operands, same_dtype, single};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};

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

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let total = cx.longest.ok_or(EvalFault::Unbound("the length of the sequence".into()))?;
        let chosen = if total <= i64::from(self.limit) { 0 } else { 1 };
        Ok(vec![given[chosen].clone()])
    }
}
