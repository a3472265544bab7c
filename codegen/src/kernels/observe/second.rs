//! Second queries: rows near what the last queries attend to are asked what they attend to
//! (`weir_ir::interpret::second` is the definition).
//!
//! Queries of the rows that are asked are brought together, one key/value head's behind another's, so
//! that they are multiplied like observed ones: a block of keys at a time, lanes being rows. A row's
//! mean over its heads adds them in ascending order; the largest of the rows' means is the same in any
//! order. Rows that are no more than `NEAR` rows behind a block's first key give it nothing and are left
//! out, which changes no bit.
//!
//! Phases, behind those of the first scores: peaks of the rows; the best of them, by head; their
//! queries; scores of rows; neighbours.

use std::mem::offset_of;

use weir_abi::PromptCall;
use weir_ir::interpret::second::{FOLLOWING, NEAR};

use super::products::Products;
use super::rows::{FOURS, Rows, each, rows_from, rows_of};
use super::runs::Runs;
use super::{Call, QUERIES, prompt_pointer};
use crate::emit::{Body, FLOAT, INT, InstBuilder, IntCC, LANES, POINTER, Value};
use crate::kernels::attention::BlockOfKeys;
use crate::kernels::best::Scores;

/// What is emitted for a layer kind.
#[derive(Clone, Copy)]
pub(super) struct Second {
    /// Products of the queries that are asked.
    pub products: Products,
    /// Pooling width.
    pub pool: usize,
}

/// Scratch, in this order.
struct Memory {
    /// Rows that are asked, of each key/value head.
    asked: Value,
    /// Peaks, then scores, `[kv heads, rows]`.
    scores: Value,
    /// Numbers of the rows that are asked, ascending, `[kv heads, asked]`.
    rows: Value,
    /// Their queries, `[kv heads, asked, group, width]`.
    queries: Value,
    /// Logarithms of their sums, `[kv heads, asked, group]`.
    sums: Value,
}

impl Memory {
    fn new(b: &mut Body<'_>, call: &Call, asked: Value) -> Memory {
        let prompt = prompt_pointer(b, call.context);
        let scores = b.load(POINTER, prompt, offset_of!(PromptCall, second) as i32);
        let (heads, cache) = (call.spec.score.heads as i64, call.spec.cache);
        let kv_heads = cache.kv_heads as i64;
        let rows = b.element(scores, call.rows, kv_heads * 4);
        let queries = b.element(rows, asked, kv_heads * 4);
        let sums = b.element(queries, asked, heads * cache.key_width as i64 * 4);
        Memory { asked, scores, rows, queries, sums }
    }

    /// One head's part.
    fn of_head(&self, b: &mut Body<'_>, call: &Call, kv_head: Value) -> OfHead {
        let first = b.mul(kv_head, self.asked);
        let group = call.group() as i64;
        OfHead {
            rows: b.element(self.rows, first, 4),
            queries: b.element(self.queries, first, group * call.spec.cache.key_width as i64 * 4),
            sums: b.element(self.sums, first, group * 4),
        }
    }
}

/// What [`Memory`] holds of the rows that one key/value head asks.
struct OfHead {
    rows: Value,
    queries: Value,
    sums: Value,
}

impl OfHead {
    /// Query and logarithm of the head of this number in the group, of a row that is asked.
    fn query(&self, b: &mut Body<'_>, call: &Call, [row, member]: [Value; 2]) -> [Value; 2] {
        let number = b.mul_const(row, call.group() as i64);
        let number = b.add(number, member);
        let width = call.spec.cache.key_width as i64;
        [b.element(self.queries, number, width * 4), b.element(self.sums, number, 4)]
    }
}

impl Second {
    /// Writes second scores of the candidates, of which all threads have written the first ones.
    pub(super) fn all_phases(&self, b: &mut Body<'_>, call: &Call, asked: Value) {
        let memory = Memory::new(b, call, asked);
        let [thread, threads] = call.team;
        let kv_heads = call.spec.cache.kv_heads;
        let [sinks, _] = call.candidates;
        let end = b.sub(call.rows, call.observed);
        let begin = b.max(sinks, call.observed_from);
        let runs = Runs::new(b, [begin, end], kv_heads, call.team);
        runs.for_rows(b, |b, kv_head, row| {
            let peak = peak(b, call, kv_head, row);
            let to = call.place(b, memory.scores, kv_head, row);
            b.store(peak, to, 0);
        });
        b.barrier(call.context, thread);
        let heads = b.int(kv_heads as i64);
        let (from, to) = b.partition(heads, thread, threads);
        b.for_range(from, to, 1, |b, kv_head| {
            let before = b.mul(kv_head, call.rows);
            let scores = Scores { scores: b.element(memory.scores, before, 4), begin, end };
            let rows = memory.of_head(b, call, kv_head).rows;
            scores.for_best(b, asked, |b, row, taken| {
                let to = b.element(rows, taken, 4);
                let row = b.ins().ireduce(INT, row);
                b.store(row, to, 0);
            });
        });
        b.barrier(call.context, thread);
        let items = b.mul_const(asked, kv_heads as i64);
        let (from, to) = b.partition(items, thread, threads);
        b.for_range(from, to, 1, |b, item| {
            let kv_head = b.ins().udiv(item, asked);
            let before = b.mul(kv_head, asked);
            let number = b.sub(item, before);
            bring(b, call, &memory, [kv_head, number]);
        });
        b.barrier(call.context, thread);
        let scored = call.scored(b);
        call.score_blocks(b, scored, |b, kv_head, keys, first| {
            let head = memory.of_head(b, call, kv_head);
            self.score(b, call, (&head, asked), keys, first)
        });
        b.barrier(call.context, thread);
        call.pool_all(b, self.pool, memory.scores);
    }

    /// The largest of what the rows give the keys of the block that begins with this one.
    fn score(
        &self,
        b: &mut Body<'_>,
        call: &Call,
        (head, asked): (&OfHead, Value),
        keys: &BlockOfKeys,
        first: Value,
    ) -> Rows {
        let numbers = rows_from(b, first);
        let group = call.group();
        let nothing = [b.constant(LANES, 0.0); FOURS];
        let zero = b.int(0);
        // They ascend, so those that are too near come first.
        let near = b.fold_range(zero, asked, 1, &[zero], |b, number, near| {
            let row = b.element(head.rows, number, 4);
            let row = b.load_count(row, 0);
            let row = b.add_const(row, -(NEAR as i64));
            let is_near = b.compare(IntCC::SignedLessThanOrEqual, row, first);
            let is_near = b.ins().uextend(POINTER, is_near);
            vec![b.add(near[0], is_near)]
        })[0];
        let together = (QUERIES / group).max(1);
        let most = b.fold_range(near, asked, together as i64, &nothing, |b, from, most| {
            let rest = b.sub(asked, from);
            let count = b.int(together as i64);
            let count = b.min(count, rest);
            if group <= QUERIES {
                let [queries, sums] = head.query(b, call, [from, zero]);
                let queries_of_rows = b.mul_const(count, group as i64);
                call.weigh(b, &self.products, [queries, queries_of_rows, sums], 1, keys);
            }
            b.fold_range(zero, count, 1, most, |b, number, most| {
                let row = b.add(from, number);
                let mean = self.mean(b, call, head, keys, [row, number]);
                let at = b.element(head.rows, row, 4);
                let row = b.load(INT, at, 0);
                let near = b.int32(-(NEAR as i32));
                let limit = b.add(row, near);
                let limit = b.splat(limit);
                let zero = b.constant(LANES, 0.0);
                let mean: Rows = std::array::from_fn(|four| {
                    let is_far = b.compare(IntCC::SignedLessThan, numbers[four], limit);
                    b.select(is_far, mean[four], zero)
                });
                each(rows_of(most), mean, |most, mean| b.fmax(most, mean)).to_vec()
            })
        });
        rows_of(&most)
    }

    /// The mean over the heads of the group of what a row gives the keys of a block. It is the `number`th
    /// of those that have been weighed with it, if there is room for the queries of all heads.
    fn mean(
        &self,
        b: &mut Body<'_>,
        call: &Call,
        head: &OfHead,
        keys: &BlockOfKeys,
        [row, number]: [Value; 2],
    ) -> Rows {
        let group = call.group();
        let nothing = [b.constant(LANES, 0.0); FOURS];
        let zero = b.int(0);
        let all = b.int(group as i64);
        let sum = |b: &mut Body<'_>, from: Value, to: Value, total: &[Value]| {
            b.fold_range(from, to, 1, total, |b, number, total| {
                let weights = call.of_query(b, number);
                each(rows_of(total), weights, |total, weight| b.fadd(total, weight)).to_vec()
            })
        };
        let total = if group <= QUERIES {
            let first = b.mul_const(number, group as i64);
            let behind = b.add(first, all);
            sum(b, first, behind, &nothing)
        } else {
            b.fold_range(zero, all, QUERIES as i64, &nothing, |b, first, total| {
                let [queries, sums] = head.query(b, call, [row, first]);
                let rest = b.sub(all, first);
                let count = b.int(QUERIES as i64);
                let count = b.min(count, rest);
                call.weigh(b, &self.products, [queries, count, sums], 1, keys);
                sum(b, zero, count, total)
            })
        };
        let group = b.constant(LANES, group as f32);
        rows_of(&total).map(|total| b.fdiv(total, group))
    }
}

/// The largest score of a row and of those in front of it that one looks back to.
fn peak(b: &mut Body<'_>, call: &Call, kv_head: Value, row: Value) -> Value {
    let before = b.mul(kv_head, call.rows);
    let scores = b.element(call.raw, before, 4);
    let [sinks, _] = call.candidates;
    let begin = b.add_const(row, 1 - FOLLOWING as i64);
    let begin = b.max(begin, sinks);
    let end = b.add_const(row, 1);
    let zero = b.float(0.0);
    b.fold_range(begin, end, 1, &[zero], |b, row, most| {
        let at = b.element(scores, row, 4);
        let score = b.load(FLOAT, at, 0);
        vec![b.fmax(most[0], score)]
    })[0]
}

/// Copies the queries of a row that a head asks, and their logarithms, to where they lie together.
fn bring(b: &mut Body<'_>, call: &Call, memory: &Memory, [kv_head, number]: [Value; 2]) {
    let (group, width) = (call.group() as i64, call.spec.cache.key_width as i64);
    let head = memory.of_head(b, call, kv_head);
    let row = b.element(head.rows, number, 4);
    let row = b.load_count(row, 0);
    let row = b.sub(row, call.observed_from);
    let from = b.mul_const(row, call.spec.score.heads as i64);
    let first = b.mul_const(kv_head, group);
    let from = b.add(from, first);
    let zero = b.int(0);
    let to = head.query(b, call, [number, zero]);
    for ((from_all, to), count) in call.observing.into_iter().zip(to).zip([width, 1]) {
        let from = b.element(from_all, from, count * 4);
        b.for_count_lanes(group * count, |b, index, lanes| {
            let [from, to] = [from, to].map(|at| b.element(at, index, 4));
            let number = b.load(lanes.float(), from, 0);
            b.store(number, to, 0);
        });
    }
}
