//! Scores of rows in memory, and what neighbours come to.

use weir_abi::KEY_BLOCK;
use weir_ir::graph::Pooling;

use super::Call;
use super::rows::{Rows, divided};
use crate::emit::{Body, FLOAT, Value};

impl Call {
    /// Writes the scores of the rows of a block that lie within bounds.
    pub(super) fn write_block(
        &self,
        b: &mut Body<'_>,
        kv_head: Value,
        first: Value,
        [begin, end]: [Value; 2],
        scores: Rows,
    ) {
        for (four, scores) in scores.into_iter().enumerate() {
            b.store(scores, self.sixteen, four as i32 * 16);
        }
        let low = b.max(first, begin);
        let behind = b.add_const(first, KEY_BLOCK as i64);
        let high = b.min(behind, end);
        let to = self.place(b, self.raw, kv_head, low);
        let within = b.sub(low, first);
        let from = b.element(self.sixteen, within, 4);
        let zero = b.int(0);
        let count = b.sub(high, low);
        b.for_lanes(zero, count, |b, index, lanes| {
            let [from, to] = [from, to].map(|at| b.element(at, index, 4));
            let score = b.load(lanes.float(), from, 0);
            b.store(score, to, 0);
        });
    }

    /// What a candidate and its neighbours among the scored rows come to.
    pub(super) fn pool(
        &self,
        b: &mut Body<'_>,
        pool: usize,
        scored: [Value; 2],
        kv_head: Value,
        place: Value,
    ) -> Value {
        let is_max = self.scoring.pooling == Pooling::Max;
        let raw = b.mul(kv_head, self.rows);
        let raw = b.element(self.raw, raw, 4);
        let reach = pool as i64 / 2;
        let low = b.add_const(place, -reach);
        let low = b.max(low, scored[0]);
        let high = b.add_const(place, reach + 1);
        let high = b.min(high, scored[1]);
        let zero = b.float(0.0);
        let sum = b.fold_range(low, high, 1, &[zero], |b, neighbour, sum| {
            let from = b.element(raw, neighbour, 4);
            let score = b.load(FLOAT, from, 0);
            vec![if is_max { b.fmax(sum[0], score) } else { b.fadd(sum[0], score) }]
        })[0];
        let count = match self.scoring.pooling {
            Pooling::Max => return sum,
            Pooling::Average => b.sub(high, low),
            Pooling::Reference => b.int(2 * reach + 1),
        };
        divided(b, sum, count)
    }
}
