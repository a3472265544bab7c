//! Products of queries with a block of keys become weights: assembled where a level has a version, or
//! else written out in 128-bit vectors. Both take the same steps and give the same bits.

use weir_abi::{IsaLevel, KEY_BLOCK};

use super::rows::{Rows, weight_of};
use crate::emit::{Assembly, Body, EmitError, FLOAT, FuncId, LANES, Value};
use crate::kernels::attention::{AttendSpec, BlockOfKeys, ScoreSpec, emit_block_weights};

/// Exponentials of scores relative to the logarithms of sums.
#[derive(Clone, Copy)]
pub(super) struct Exponentials {
    score: ScoreSpec,
    assembled: Option<FuncId>,
}

impl Exponentials {
    /// Those of a layer's scores, for a level.
    pub(super) fn emit(
        assembly: &mut Assembly,
        attend: &AttendSpec,
        level: IsaLevel,
    ) -> Result<Exponentials, EmitError> {
        let assembled = emit_block_weights(assembly, attend, level)?;
        Ok(Exponentials { score: attend.score, assembled })
    }

    /// Makes weights of the products of so many queries, `[query][KEY_BLOCK]`, in place. Logarithms of
    /// their sums are `apart` numbers from each other.
    pub(super) fn write(
        &self,
        b: &mut Body<'_>,
        [products, count, sums]: [Value; 3],
        apart: usize,
        keys: &BlockOfKeys,
    ) {
        let apart = apart as i64 * 4;
        if let Some(weights) = self.assembled {
            let scales = keys.scales.unwrap_or(products);
            let apart = b.int(apart);
            b.call(weights, &[products, count, sums, apart, scales]);
            return;
        }
        let zero = b.int(0);
        b.for_range(zero, count, 1, |b, number| {
            let place = b.element(products, number, KEY_BLOCK as i64 * 4);
            let sum = b.element(sums, number, apart);
            let sum = b.load(FLOAT, sum, 0);
            let sum = b.splat(sum);
            for (four, score) in scores(b, &self.score, place, keys).into_iter().enumerate() {
                let weight = weight_of(b, score, sum);
                b.store(weight, place, four as i32 * 16);
            }
        });
    }
}

/// Scores of a block of keys, of which a query's products lie here.
pub(super) fn scores(
    b: &mut Body<'_>,
    spec: &ScoreSpec,
    products: Value,
    keys: &BlockOfKeys,
) -> Rows {
    std::array::from_fn(|four| {
        let mut product = b.load(LANES, products, four as i32 * 16);
        if let Some(scales) = keys.scales {
            let scales = b.load(LANES, scales, four as i32 * 16);
            product = b.fmul(product, scales);
        }
        spec.of(b, product)
    })
}
