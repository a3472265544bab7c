//! Scaled dot-product attention over given keys.
//!
//! Operands: query `[B, H, S, Dk]`, key `[B, KV, T, Dk]`, value `[B, KV, T, Dv]`, then mask if
//! `mask` (bool: true keeps; float: added; broadcastable to `[B, H, S, T]`), then sink logits
//! `[H]` if `sinks` (one more score per head in the denominator, no value). Result: `[B, H, S,
//! Dv]`. Query head h reads key head h / (H / KV). Query i stands at key index i + T - S. Scores
//! are scaled, soft-capped (c tanh(s / c)), masked.

use super::{CoreOp, Operand};
use super::rules::{Inferred, agree, broadcasts_to, float, plain, same_dtype, single, sizes, vector};
use crate::attribute::attributes;
use crate::dim::Dim;

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

impl CoreOp for Attention {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Inferred, String> {
        let given = 3 + usize::from(self.mask) + usize::from(self.sinks);
        if operands.len() != given {
            return Err(format!("takes {given} operands, has {}", operands.len()));
        }
        let (query, key, value) = (operands[0], operands[1], operands[2]);
        let dtype = float(query)?;
        same_dtype(query, key)?;
        same_dtype(query, value)?;
        let [batch, heads, rows, width] = sizes::<4>(query)?;
        let [key_batch, kv_heads, keys, key_width] = sizes::<4>(key)?;
        let [value_batch, value_heads, values, value_width] = sizes::<4>(value)?;
        agree("batches of query and key", batch, key_batch)?;
        agree("batches of query and value", batch, value_batch)?;
        agree("heads of key and value", kv_heads, value_heads)?;
        agree("rows of key and value", keys, values)?;
        agree("widths of query and key", width, key_width)?;
        check_groups(heads, kv_heads)?;
        if self.mask {
            let mask = operands[3];
            if plain(mask)?.is_integer() {
                return Err(format!("mask {} is neither bool nor float", mask.ty));
            }
            let scores = [batch, heads, rows, keys].map(Clone::clone);
            broadcasts_to(&mask.ty.shape, &scores)?;
        }
        if self.sinks {
            vector("sinks and heads", operands[given - 1], heads)?;
        }
        single(dtype, vec![batch.clone(), heads.clone(), rows.clone(), value_width.clone()])
    }
}

/// Checks that query heads divide evenly among key/value heads.
pub(crate) fn check_groups(heads: &Dim, kv_heads: &Dim) -> Result<(), String> {
    match (heads.as_size(), kv_heads.as_size()) {
        (Some(heads), Some(kv)) if kv == 0 || !heads.is_multiple_of(kv) => {
            Err(format!("{heads} query heads do not divide among {kv} key heads"))
        }
        _ => Ok(()),
    }
}
