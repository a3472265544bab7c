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
use crate::interpret::attend::weigh;
use crate::interpret::{Context, EvalFault, Score, Tensor};
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

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let [rows, heads, value_width] = <[usize; 3]>::try_from(cx.sizes(0))
            .map_err(|_| EvalFault::Operand("attention needs three dimensions".into()))?;
        let [kv_heads, total, width] = <[usize; 3]>::try_from(cx.sizes(1))
            .map_err(|_| EvalFault::Operand("keys need three dimensions".into()))?;
        let past = total - rows;
        let query = given[0].f32s()?;
        let present = |new: &Tensor, old: &Tensor, width: usize| -> Result<Vec<f32>, EvalFault> {
            let (new, old) = (new.f32s()?, old.f32s()?);
            let mut joined = Vec::with_capacity(kv_heads * total * width);
            for head in 0..kv_heads {
                joined.extend_from_slice(&old[head * past * width..][..past * width]);
                for row in 0..rows {
                    joined.extend_from_slice(&new[(row * kv_heads + head) * width..][..width]);
                }
            }
            Ok(joined)
        };
        let keys = present(&given[1], &given[3], width)?;
        let values = present(&given[2], &given[4], value_width)?;
        let sinks = if self.sinks { Some(given[5].f32s()?) } else { None };
        let score = Score { scale: self.scale, softcap: self.softcap };
        let group = (heads / kv_heads.max(1)).max(1);
        let mut result = vec![0.0f32; rows * heads * value_width];
        for row in 0..rows {
            let place = past + row;
            let first = if self.window == 0 {
                0
            } else {
                (place + 1).saturating_sub(self.window as usize)
            };
            for head in 0..heads {
                let kv = head / group * total;
                let at = row * heads + head;
                let q = &query[at * width..][..width];
                let mut weights: Vec<f32> = (first..=place)
                    .map(|key| score.of(q, &keys[(kv + key) * width..][..width]))
                    .collect();
                weigh(&mut weights, sinks.as_ref().map(|sinks| sinks[head]));
                let out = &mut result[at * value_width..][..value_width];
                for (key, weight) in (first..=place).zip(&weights) {
                    let value = &values[(kv + key) * value_width..][..value_width];
                    out.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value);
                }
            }
        }
        Ok(vec![
            Tensor::from_f32(DType::F32, cx.sizes(0), result),
            Tensor::from_f32(DType::F32, cx.sizes(1), keys),
            Tensor::from_f32(DType::F32, cx.sizes(2), values),
        ])
    }
}
