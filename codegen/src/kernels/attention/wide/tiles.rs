//! One tile of cache rows for all rows of a unit: scores, weights, values.

use weir_abi::KEY_BLOCK;

use super::{RowsOfTile, TILE, Unit, Walk};
use crate::emit::{Body, InstBuilder, IntCC, POINTER, Value};
use crate::kernels::attention::scratch::SCORE_ROW;
use crate::kernels::attention::unpack::Memory;

/// Value rows of a tile, and how far from them those lie that are asked for.
struct TileValues {
    values: Value,
    ahead: Value,
}

impl Unit<'_> {
    /// The tile of cache rows that begins at `place`.
    pub(super) fn tile(&self, b: &mut Body<'_>, rows: &RowsOfTile, walk: &Walk, place: Value) {
        let zero = b.int(0);
        let all = self.tile_bounds(b, rows, walk, place);
        let [latest_first, least_last, last] = [all[0], all[1], all[2]];
        let any = b.compare(IntCC::SignedLessThan, zero, last);
        b.if_then(any, |b| {
            let ahead = walk.ahead.place(b, walk, place);
            let [keys, values] = [walk.part.keys, walk.part.values].map(|rows| rows.row(b, place));
            let [keys, values] = self.unpacked(b, walk, [keys, values], last);
            self.score(b, rows, [keys, ahead.keys, values], last);
            if self.spec.cache.number.is_coded() {
                return self.coded_values(b, rows, [values, ahead.values], last);
            }
            let values = TileValues { values, ahead: b.sub(ahead.values, values) };
            // All rows read the same keys, or each block of rows is looked at by itself.
            let spread = b.sub(last, least_last);
            let spread = b.ins().bor(spread, latest_first);
            let is_whole = b.compare_const(IntCC::Equal, spread, 0);
            b.if_else(
                is_whole,
                |b| {
                    self.values(b, &values, [zero, rows.count], [zero, last], self.scratch.factors);
                    Vec::new()
                },
                |b| {
                    self.values_by_blocks(b, rows, &values);
                    Vec::new()
                },
            );
        });
    }

    /// What rows read of the tile at `place` goes to the scratch; the latest first key, the earliest
    /// end and the last end of them.
    fn tile_bounds(
        &self,
        b: &mut Body<'_>,
        rows: &RowsOfTile,
        walk: &Walk,
        place: Value,
    ) -> Vec<Value> {
        let zero = b.int(0);
        let whole = b.int(TILE);
        let behind = b.add_const(place, TILE);
        let begins = b.compare(IntCC::SignedGreaterThanOrEqual, place, walk.common[0]);
        let goes_on = b.compare(IntCC::SignedLessThanOrEqual, behind, walk.common[1]);
        let is_inside = b.ins().band(begins, goes_on);
        b.if_else(
            is_inside,
            |b| {
                // Most tiles of a long prompt follow another one that all rows read.
                let said = b.load(POINTER, walk.says_whole, 0);
                let is_new = b.compare_const(IntCC::Equal, said, 0);
                b.if_then(is_new, |b| {
                    b.for_range(zero, rows.count, 1, |b, row| {
                        let bounds = b.element(self.memory, row, 8);
                        // Both 32-bit numbers at once.
                        let all = b.int(TILE << 32);
                        b.store(all, bounds, self.scratch.bounds as i32);
                    });
                    let one = b.int(1);
                    b.store(one, walk.says_whole, 0);
                });
                vec![zero, whole, whole]
            },
            |b| {
                b.store(zero, walk.says_whole, 0);
                b.fold_range(zero, rows.count, 1, &[zero, whole, zero], |b, row, all| {
                    let [first, last] = self.bounds(b, rows, row, walk.range).map(|bound| {
                        let bound = b.sub(bound, place);
                        let bound = b.max(bound, zero);
                        b.min(bound, whole)
                    });
                    // A row without keys here reads from 0 to 0.
                    let any = b.compare(IntCC::SignedLessThan, first, last);
                    let first = b.select(any, first, zero);
                    let last = b.select(any, last, zero);
                    let bounds = b.element(self.memory, row, 8);
                    for (at, bound) in [(0, first), (4, last)] {
                        let bound = b.ins().ireduce(crate::emit::INT, bound);
                        b.store(bound, bounds, (self.scratch.bounds + at) as i32);
                    }
                    vec![b.max(all[0], first), b.min(all[1], last), b.max(all[2], last)]
                })
            },
        )
    }

    /// The first `last` rows of a tile as the steps read them: where they lie, or unpacked.
    fn unpacked(&self, b: &mut Body<'_>, walk: &Walk, tile: [Value; 2], last: Value) -> [Value; 2] {
        let Some(unpack) = self.unpack else { return tile };
        let [unpacked, between] = [self.scratch.unpacked, self.scratch.between]
            .map(|places| places.map(|place| self.at(b, place)));
        let to = Memory { tile: unpacked, between };
        let Some(is_block) = walk.part.is_block else {
            unpack.tile(b, tile, to, last);
            return unpacked;
        };
        b.if_then(is_block, |b| unpack.tile(b, tile, to, last));
        [0, 1].map(|plane| b.select(is_block, unpacked[plane], tile[plane]))
    }

    /// Scores of all queries with the first `last` keys of a tile, made weights.
    fn score(
        &self,
        b: &mut Body<'_>,
        rows: &RowsOfTile,
        [keys, ahead, values]: [Value; 3],
        last: Value,
    ) {
        let queries = match self.steps.round {
            Some(_) => self.scratch.rounded_queries,
            None => self.scratch.queries,
        };
        let [queries, scores] = [queries, self.scratch.scores].map(|at| self.at(b, at));
        let count = self.count(b, rows);
        b.call(self.steps.scores, &[queries, keys, scores, last, count, ahead]);
        b.call(self.steps.weigh, &[self.memory, rows.count, values]);
    }

    /// Adds the values of the first `last` keys of a tile, whose weights are codes, to the sums of all
    /// rows: those that a row does not read have code 0.
    fn coded_values(
        &self,
        b: &mut Body<'_>,
        rows: &RowsOfTile,
        [values, ahead]: [Value; 2],
        last: Value,
    ) {
        let count = self.count(b, rows);
        let [codes, sums, factors] =
            [self.weight_codes, self.scratch.sums, self.scratch.factors].map(|at| self.at(b, at));
        let blocks = b.add_const(last, KEY_BLOCK as i64 - 1);
        let bits = i64::from(KEY_BLOCK.trailing_zeros());
        let blocks = b.ins().ushr_imm_u(blocks, bits);
        b.call(self.steps.values, &[codes, values, sums, factors, count, blocks, ahead]);
    }

    /// Adds the values of keys `first .. last` of a tile to the sums of rows `row .. end`, times
    /// their factors (those of the tile, or ones).
    fn values(
        &self,
        b: &mut Body<'_>,
        values: &TileValues,
        [row, end]: [Value; 2],
        [first, last]: [Value; 2],
        factors: usize,
    ) {
        let group = self.heads();
        let [before, behind] = [row, end].map(|row| b.mul_const(row, group));
        let count = b.sub(behind, before);
        let weights = self.at(b, self.scratch.scores);
        let weights = b.element(weights, before, SCORE_ROW as i64);
        // Pairs are read from their first key on.
        let skipped = self.is_paired.then(|| b.ins().band_imm_s(first, 1));
        let first = match skipped {
            Some(skipped) => b.sub(first, skipped),
            None => first,
        };
        let weights = b.element(weights, first, if self.is_paired { 2 } else { 4 });
        let from = b.element(values.values, first, self.spec.cache.value_bytes() as i64);
        let ahead = b.add(from, values.ahead);
        let sums = self.at(b, self.scratch.sums);
        let sums = b.element(sums, before, self.scratch.sum_row as i64);
        let factors = self.at(b, factors);
        let factors = b.element(factors, before, 4);
        let keys = b.sub(last, first);
        let mut given = vec![weights, from, sums, factors, count, keys, ahead];
        given.extend(skipped);
        b.call(self.steps.values, &given);
    }

    /// Values where rows read different keys: what a block of rows has in common first, then the
    /// rest row by row.
    fn values_by_blocks(&self, b: &mut Body<'_>, rows: &RowsOfTile, values: &TileValues) {
        let zero = b.int(0);
        let block = (16 / self.scratch.heads).max(1) as i64;
        let bounds = |b: &mut Body<'_>, row: Value| {
            let place = b.element(self.memory, row, 8);
            [0, 4].map(|at| b.load_count(place, (self.scratch.bounds + at) as i32))
        };
        b.for_range(zero, rows.count, block, |b, start| {
            let end = b.add_const(start, block);
            let end = b.min(end, rows.count);
            let whole = b.int(TILE);
            let both = b.fold_range(start, end, 1, &[zero, whole], |b, row, both| {
                let [first, last] = bounds(b, row);
                vec![b.max(both[0], first), b.min(both[1], last)]
            });
            let latest_first = both[0];
            // A pair that is divided adds a zero to each sum, which must not depend on the company.
            let common = match self.is_paired {
                true => b.ins().band_imm_s(both[1], -2),
                false => both[1],
            };
            let from_zero = b.compare_const(IntCC::Equal, latest_first, 0);
            b.if_else(
                from_zero,
                |b| {
                    self.values(b, values, [start, end], [zero, common], self.scratch.factors);
                    b.for_range(start, end, 1, |b, row| {
                        let [_, last] = bounds(b, row);
                        let more = b.compare(IntCC::SignedLessThan, common, last);
                        b.if_then(more, |b| {
                            let next = b.add_const(row, 1);
                            self.values(b, values, [row, next], [common, last], self.scratch.ones);
                        });
                    });
                    Vec::new()
                },
                |b| {
                    b.for_range(start, end, 1, |b, row| {
                        let next = b.add_const(row, 1);
                        let keys = bounds(b, row);
                        self.values(b, values, [row, next], keys, self.scratch.factors);
                    });
                    Vec::new()
                },
            );
        });
    }
}
