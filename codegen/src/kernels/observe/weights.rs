//! What queries give the keys of a block, and what heads make of it.

use weir_abi::KEY_BLOCK;
use weir_ir::graph::Aggregate;

use super::exponentials::scores;
use super::products::Products;
use super::rows::{FOURS, Rows, divided, each, joined, rows_from, rows_of, weight_of};
use super::{Call, QUERIES};
use crate::emit::{Body, FLOAT, INT, InstBuilder, IntCC, LANES, Value};
use crate::kernels::attention::BlockOfKeys;

impl Call {
    pub(super) fn group(&self) -> usize {
        self.spec.score.heads / self.spec.cache.kv_heads
    }

    /// A query of a head, and the logarithm of its sum.
    pub(super) fn query(&self, b: &mut Body<'_>, head: Value, query: Value) -> [Value; 2] {
        let (heads, width) = (self.spec.score.heads, self.spec.cache.key_width);
        let number = b.mul_const(query, heads as i64);
        let number = b.add(number, head);
        [b.element(self.queries, number, width as i64 * 4), b.element(self.sums, number, 4)]
    }

    /// What a block gives the query of this number among those that were multiplied.
    pub(super) fn of_query(&self, b: &mut Body<'_>, number: Value) -> Rows {
        let from = b.element(self.dense, number, KEY_BLOCK as i64 * 4);
        std::array::from_fn(|four| b.load(LANES, from, four as i32 * 16))
    }

    /// Weights of a block for so many queries, which [`of_query`](Self::of_query) reads: their products
    /// with it, relative to `sums`, which are `apart` numbers from each other.
    pub(super) fn weigh(
        &self,
        b: &mut Body<'_>,
        products: &Products,
        [queries, count, sums]: [Value; 3],
        apart: usize,
        keys: &BlockOfKeys,
    ) {
        products.multiply(b, [queries, count, self.dense], keys);
        self.exponentials.write(b, [self.dense, count, sums], apart, keys);
    }

    /// Scores of a block for one query.
    pub(super) fn scores_of(&self, b: &mut Body<'_>, query: Value, keys: &BlockOfKeys) -> Rows {
        let one = b.int(1);
        self.products.multiply(b, [query, one, self.dense], keys);
        scores(b, &self.spec.score, self.dense, keys)
    }

    /// What is left of a block's numbers where only candidates count.
    pub(super) fn of_candidates(
        &self,
        b: &mut Body<'_>,
        first: Value,
        numbers: Rows,
        other: f32,
    ) -> Rows {
        let other = b.constant(LANES, other);
        let (_, are_candidates) = self.candidates_of(b, first);
        each(are_candidates, numbers, |is_candidate, number| b.select(is_candidate, number, other))
    }

    /// The rows of the block that begins with this one, and masks of those that are candidates.
    pub(super) fn candidates_of(&self, b: &mut Body<'_>, first: Value) -> (Rows, Rows) {
        let rows = rows_from(b, first);
        let [begin, end] = self.candidates.map(|bound| {
            let bound = b.ins().ireduce(INT, bound);
            b.splat(bound)
        });
        let masks = rows.map(|rows| {
            let is_behind = b.compare(IntCC::SignedGreaterThanOrEqual, rows, begin);
            let is_before = b.compare(IntCC::SignedLessThan, rows, end);
            b.ins().band(is_behind, is_before)
        });
        (rows, masks)
    }

    /// Folds the candidates of a head: `body` gets a block, its first row, and the numbers so far, by
    /// rows of a block.
    pub(super) fn fold_candidates(
        &self,
        b: &mut Body<'_>,
        kv_head: Value,
        initial: f32,
        body: impl FnOnce(&mut Body<'_>, &BlockOfKeys, Value, Rows) -> Rows,
    ) -> Rows {
        let [begin, end] = self.candidates;
        let begin = b.ins().band_imm_s(begin, -(KEY_BLOCK as i64));
        let initial = [b.constant(LANES, initial); FOURS];
        let folded = b.fold_range(begin, end, KEY_BLOCK as i64, &initial, |b, first, so_far| {
            let keys = self.block(b, kv_head, first);
            body(b, &keys, first, rows_of(so_far)).to_vec()
        });
        rows_of(&folded)
    }

    /// Replaces the logarithm of a query's sum over all keys by that over the candidates. Items are
    /// queries times heads.
    pub(super) fn sum_over_candidates(&self, b: &mut Body<'_>, item: Value) {
        let heads = b.int(self.spec.score.heads as i64);
        let query = b.ins().udiv(item, heads);
        let before = b.mul(query, heads);
        let head = b.sub(item, before);
        let kv_head = self.kv_head(b, head);
        let [query, sum_at] = self.query(b, head, query);
        let most = self.fold_candidates(b, kv_head, f32::NEG_INFINITY, |b, keys, first, most| {
            let scores = self.scores_of(b, query, keys);
            let scores = self.of_candidates(b, first, scores, f32::NEG_INFINITY);
            each(most, scores, |most, score| b.fmax(most, score))
        });
        let most = joined(b, most, Body::fmax);
        let most = b.max_lanes(most);
        let most_lanes = b.splat(most);
        let sum = self.fold_candidates(b, kv_head, 0.0, |b, keys, first, sum| {
            let scores = self.scores_of(b, query, keys);
            let weights = scores.map(|score| weight_of(b, score, most_lanes));
            let weights = self.of_candidates(b, first, weights, 0.0);
            each(sum, weights, |sum, weight| b.fadd(sum, weight))
        });
        let sum = joined(b, sum, Body::fadd);
        let sum = b.sum_lanes(sum);
        let sum = b.ln(sum);
        let sum = b.fadd(most, sum);
        b.store(sum, sum_at, 0);
    }

    /// The mean of a head's weights over the candidates.
    pub(super) fn find_floor(&self, b: &mut Body<'_>, head: Value) {
        let kv_head = self.kv_head(b, head);
        let sum = self.fold_candidates(b, kv_head, 0.0, |b, keys, first, sum| {
            let weights = self.of_head(b, keys, head);
            let weights = self.of_candidates(b, first, weights, 0.0);
            each(sum, weights, |sum, weight| b.fadd(sum, weight))
        });
        let sum = joined(b, sum, Body::fadd);
        let sum = b.sum_lanes(sum);
        let [begin, end] = self.candidates;
        let count = b.sub(end, begin);
        let mean = divided(b, sum, count);
        let to = b.element(self.floors, head, 4);
        b.store(mean, to, 0);
    }

    pub(super) fn kv_head(&self, b: &mut Body<'_>, head: Value) -> Value {
        let group = b.int(self.group() as i64);
        b.ins().udiv(head, group)
    }

    /// What the queries of a head give the keys of a block: their mean or their largest.
    pub(super) fn of_head(&self, b: &mut Body<'_>, keys: &BlockOfKeys, head: Value) -> Rows {
        let is_mean = self.scoring.aggregate == Aggregate::Mean;
        let [zero, most] = [0, QUERIES as i64].map(|count| b.int(count));
        let nothing = [b.constant(LANES, 0.0); FOURS];
        let step = QUERIES as i64;
        let mass = b.fold_range(zero, self.observed, step, &nothing, |b, first, mass| {
            let [queries, sums] = self.query(b, head, first);
            let rest = b.sub(self.observed, first);
            let count = b.min(rest, most);
            self.weigh(b, &self.products, [queries, count, sums], self.spec.score.heads, keys);
            b.fold_range(zero, count, 1, mass, |b, number, mass| {
                let weights = self.of_query(b, number);
                let mass = each(rows_of(mass), weights, |mass, weight| {
                    if is_mean { b.fadd(mass, weight) } else { b.fmax(mass, weight) }
                });
                mass.to_vec()
            })
        });
        let mass = rows_of(&mass);
        if !is_mean {
            return mass;
        }
        let count = b.ins().ireduce(INT, self.observed);
        let count = b.to_float(count);
        let count = b.splat(count);
        mass.map(|mass| b.fdiv(mass, count))
    }

    /// What the heads of a group give the rows of a block.
    pub(super) fn score(&self, b: &mut Body<'_>, kv_head: Value, keys: &BlockOfKeys) -> Rows {
        let group = self.group();
        let nothing = [b.constant(LANES, 0.0); FOURS];
        let total = b.fold_count(group as i64, 1, &nothing, |b, member, total| {
            let head = b.mul_const(kv_head, group as i64);
            let head = b.add(head, member);
            let mut weights = self.of_head(b, keys, head);
            if self.scoring.aggregate == Aggregate::Defensive {
                let floor = b.element(self.floors, head, 4);
                let floor = b.load(FLOAT, floor, 0);
                let floor = b.splat(floor);
                weights = weights.map(|weight| b.fmax(weight, floor));
            }
            let joined =
                each(rows_of(total), weights, |total, weight| match self.scoring.aggregate {
                    Aggregate::Mean => b.fadd(total, weight),
                    Aggregate::Max | Aggregate::Defensive => b.fmax(total, weight),
                });
            joined.to_vec()
        });
        let total = rows_of(&total);
        if self.scoring.aggregate != Aggregate::Mean {
            return total;
        }
        let group = b.constant(LANES, group as f32);
        total.map(|total| b.fdiv(total, group))
    }
}
