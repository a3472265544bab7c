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
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::Score;
use crate::interpret::attend::{Mask, four, weigh};
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

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let [batch, heads, rows, width] = four(given[0].sizes())?;
        let [_, kv_heads, keys, value_width] = four(given[2].sizes())?;
        let (query, key, value) = (given[0].f32s()?, given[1].f32s()?, given[2].f32s()?);
        let mask = if self.mask { Some(Mask::new(&given[3], &[batch, heads, rows, keys])?) } else { None };
        let sinks = if self.sinks { Some(given[given.len() - 1].f32s()?) } else { None };
        let score = Score { scale: self.scale, softcap: self.softcap };
        let mut result = vec![0.0f32; batch * heads * rows * value_width];
        let mut scores = vec![0.0f32; keys];
        let group = heads / kv_heads.max(1);
        for b in 0..batch {
            for h in 0..heads {
                let kv = (b * kv_heads + h / group.max(1)) * keys;
                for i in 0..rows {
                    let row = (b * heads + h) * rows + i;
                    let q = &query[row * width..][..width];
                    // Index of the key where the query itself stands; may lie in front of all keys.
                    let place = (i + keys) as i64 - rows as i64;
                    for (j, score_of) in scores.iter_mut().enumerate() {
                        let seen = (!self.causal || j as i64 <= place)
                            && (self.window == 0 || j as i64 > place - i64::from(self.window));
                        *score_of = if seen {
                            score.of(q, &key[(kv + j) * width..][..width])
                        } else {
                            f32::NEG_INFINITY
                        };
                    }
                    if let Some(mask) = &mask {
                        mask.apply(row, &mut scores);
                    }
                    let sink = sinks.as_ref().map(|sinks| sinks[h]);
                    weigh(&mut scores, sink);
                    let out = &mut result[row * value_width..][..value_width];
                    for (j, weight) in scores.iter().enumerate() {
                        // A key that is left out has no part, whatever its value holds.
                        if *weight != 0.0 {
                            let v = &value[(kv + j) * value_width..][..value_width];
                            out.iter_mut().zip(v).for_each(|(sum, v)| *sum += weight * v);
                        }
                    }
                }
            }
        }
        cx.f32(given[0].dtype(), result)
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
