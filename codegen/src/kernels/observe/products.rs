//! Products of rows with a block of keys: assembled where a level has a version, or else written out in
//! 128-bit vectors. Both sum in ascending order by fused steps and give the same bits.

use weir_abi::{IsaLevel, KEY_BLOCK};

use super::QUERIES;
use super::rows::{FOURS, Rows};
use crate::emit::{Assembly, Body, EmitError, FLOAT, FuncId, InstBuilder, LANES, Value};
use crate::kernels::attention::{BlockOfKeys, CacheShape, emit_block_products};

/// Rows that portable code multiplies together: their sums fill half of the vector registers.
const TOGETHER: usize = 2;

/// Products of rows that lie at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Products {
    width: usize,
    /// Numbers from row to row.
    stride: usize,
    assembled: Option<FuncId>,
}

impl Products {
    /// Products with keys of a cache, for a level.
    pub(super) fn emit(
        assembly: &mut Assembly,
        cache: &CacheShape,
        stride: usize,
        level: IsaLevel,
    ) -> Result<Products, EmitError> {
        let assembled = emit_block_products(assembly, cache, stride, level)?;
        Ok(Products { width: cache.key_width, stride, assembled })
    }

    /// The assembled version.
    pub(super) fn assembled(&self) -> Option<FuncId> {
        self.assembled
    }

    /// A block of keys that products can be made with; `wide` is memory of
    /// [`CacheShape::wide_block_bytes`].
    pub(super) fn block(
        &self,
        b: &mut Body<'_>,
        cache: &CacheShape,
        [keys, first, wide]: [Value; 3],
    ) -> BlockOfKeys {
        match self.assembled {
            Some(_) if !cache.number.is_coded() => cache.block_of_keys(b, keys, first),
            _ => cache.widen_block(b, keys, first, wide),
        }
    }

    /// Products of so many rows, at most [`QUERIES`], with a block: `[row][KEY_BLOCK]`.
    pub(super) fn multiply(
        &self,
        b: &mut Body<'_>,
        [rows, count, to]: [Value; 3],
        keys: &BlockOfKeys,
    ) {
        debug_assert!(QUERIES.is_multiple_of(TOGETHER));
        if let Some(products) = self.assembled {
            b.call(products, &[rows, keys.numbers, to, count]);
            return;
        }
        let together = |b: &mut Body<'_>, first: Value, count: usize| {
            let rows = b.element(rows, first, self.stride as i64 * 4);
            let to = b.element(to, first, KEY_BLOCK as i64 * 4);
            let products = self.portable(b, rows, count, keys);
            for (number, product) in products.into_iter().enumerate() {
                b.store(product, to, number as i32 * 16);
            }
        };
        let whole = b.ins().band_imm_s(count, -(TOGETHER as i64));
        let zero = b.int(0);
        b.for_range(zero, whole, TOGETHER as i64, |b, first| together(b, first, TOGETHER));
        b.for_range(whole, count, 1, |b, first| together(b, first, 1));
    }

    /// Products of rows with a block, four keys after another.
    fn portable(
        &self,
        b: &mut Body<'_>,
        rows: Value,
        count: usize,
        keys: &BlockOfKeys,
    ) -> Vec<Value> {
        let Products { width, stride, .. } = *self;
        let zero = b.constant(LANES, 0.0);
        let step = if width.is_multiple_of(4) { 4 } else { 1 };
        b.fold_count(width as i64, step, &vec![zero; count * FOURS], |b, index, sums| {
            let mut sums = sums.to_vec();
            let key = b.element(keys.numbers, index, KEY_BLOCK as i64 * 4);
            let row = b.element(rows, index, 4);
            for element in 0..step as usize {
                let keys: Rows = std::array::from_fn(|four| {
                    b.load(LANES, key, ((element * FOURS + four) * 16) as i32)
                });
                for (number, sums) in sums.chunks_exact_mut(FOURS).enumerate() {
                    let row = b.load(FLOAT, row, ((number * stride + element) * 4) as i32);
                    let row = b.splat(row);
                    for (key, sum) in keys.iter().zip(sums) {
                        *sum = b.fma(row, *key, *sum);
                    }
                }
            }
            sums
        })
    }
}
