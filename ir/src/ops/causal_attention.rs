//! Causal attention of new rows over past and new keys.
//!
//! Operands: query f32 `[S, H, Dk]`, key `[S, KV, Dk]`, value `[S, KV, Dv]`, past key `[KV, P,
//! Dk]`, past value `[KV, P, Dv]`, then sink logits `[H]` if `sinks`. Results: `[S, H, Dv]`,
//! present key `[KV, P + S, Dk]`, present value. Scores as in `attention`.

use super::{CoreOp, Operand};
use super::attention::check_groups;
use super::rules;
use super::rules::{Inferred, agree, plain, sizes, vector};
use crate::attribute::attributes;
use crate::types::{DType, TensorType};
use crate::dim::Dim;

attributes!(
    /// Causal attention of new rows over past and new keys.
    CausalAttention {
        /// Factor of the scores.
        scale: f32,
        /// c; 0 for none.
        softcap: f32,
        /// Sliding window; 0 for none.
        window: u32,
        /// Whether sink logits are an operand.
        sinks: bool,
    }
);

impl CoreOp for CausalAttention {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Inferred, String> {
        let given = 5 + usize::from(self.sinks);
        if operands.len() != given {
            return Err(format!("takes {given} operands, has {}", operands.len()));
        }
        for operand in operands {
            if plain(*operand)? != DType::F32 {
                return Err(format!("{} is not f32", operand.ty));
            }
        }
        let [query, key, value, past_key, past_value] = rules::operands::<5>(&operands[..5])?;
        let [rows, heads, width] = sizes::<3>(query)?;
        let [key_rows, kv_heads, key_width] = sizes::<3>(key)?;
        let [value_rows, value_heads, value_width] = sizes::<3>(value)?;
        let [past_heads, past, past_width] = sizes::<3>(past_key)?;
        let [past_value_heads, past_values, past_value_width] = sizes::<3>(past_value)?;
        agree("rows of query and key", rows, key_rows)?;
        agree("rows of query and value", rows, value_rows)?;
        agree("widths of query and key", width, key_width)?;
        agree("heads of key and value", kv_heads, value_heads)?;
        agree("heads of key and past key", kv_heads, past_heads)?;
        agree("heads of key and past value", kv_heads, past_value_heads)?;
        agree("widths of key and past key", key_width, past_width)?;
        agree("widths of value and past value", value_width, past_value_width)?;
        agree("rows of past key and past value", past, past_values)?;
        check_groups(heads, kv_heads)?;
        if self.sinks {
            vector("sinks and heads", operands[5], heads)?;
        }
        let total = past.plus(rows).ok_or("past + rows overflows")?;
        let result = |shape: [&Dim; 3]| {
            (TensorType::new(DType::F32, shape.map(Clone::clone).to_vec()), None)
        };
        Ok(vec![
            result([rows, heads, value_width]),
            result([kv_heads, &total, key_width]),
            result([kv_heads, &total, value_width]),
        ])
    }
}
