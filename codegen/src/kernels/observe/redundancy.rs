//! How much a candidate's key repeats others, counted against its score where rows are selected anew
//! (section 14 of the method's document; R-KV, Cai et al., arXiv:2505.24133).
//!
//! The likeness of two keys is the cosine between them, as the cache holds them: rotated. A candidate's
//! redundancy is the softmax, over all candidates, of the mean likeness of the others to it; where it is
//! the newest of those that are like another one, that one's does not count, so that of several alike
//! the newest stays. `weir_ir::interpret::select` is the definition.
//!
//! A cosine is symmetric, so the products of a row with all blocks give all that is like it: their sum,
//! and the newest of them. A sum takes candidates of equal places in their blocks in ascending order,
//! then the sixteen sums in pairs, on all levels. A scale of codes does not change a cosine.
//!
//! Phases: lengths of keys; sums of rows, which threads divide like scores; the rest by head.

use weir_abi::KEY_BLOCK;
use weir_ir::interpret::select::{ALIKE, LEAST_LENGTH, shares};

use super::products::Products;
use super::rows::{FOURS, Rows, divided, joined};
use super::runs::Runs;
use super::{Call, QUERIES};
use crate::emit::{Body, FLOAT, FloatCC, INT, INTS, InstBuilder, IntCC, LANES, Value};
use crate::kernels::attention::{BlockOfKeys, plane_rows};

/// Bytes of a number of each row of a block.
const BLOCK: usize = KEY_BLOCK * 4;

/// What is emitted for a layer kind.
#[derive(Clone, Copy)]
pub(super) struct Redundancy {
    /// Percent of a score that it is.
    pub percent: u32,
    /// Products of keys.
    pub products: Products,
}

/// Numbers of every key/value head and row, in memory that scores need no longer: rows of a head fill
/// whole blocks.
struct Memory {
    /// Rows of a head.
    rows: Value,
    /// 1 divided by the length of a key.
    inverses: Value,
    /// Sum of likeness, then its mean, then what softmax makes of it.
    sums: Value,
    /// The newest candidate that is like it; less than 0 for none.
    newest: Value,
    /// How like it that is.
    likeness: Value,
}

impl Memory {
    fn new(b: &mut Body<'_>, call: &Call) -> Memory {
        let rows = b.add_const(call.rows, KEY_BLOCK as i64 - 1);
        let rows = b.ins().band_imm_s(rows, -(KEY_BLOCK as i64));
        let part = b.mul_const(rows, call.spec.cache.kv_heads as i64);
        let [first, second, third] = [1, 2, 3].map(|index| {
            let before = b.mul_const(part, index);
            b.element(call.raw, before, 4)
        });
        Memory { rows, inverses: call.raw, sums: first, newest: second, likeness: third }
    }

    fn place(&self, b: &mut Body<'_>, part: Value, kv_head: Value, row: Value) -> Value {
        let before = b.mul(kv_head, self.rows);
        let at = b.add(before, row);
        b.element(part, at, 4)
    }
}

/// Memory on the stack for rows that are compared together.
struct Compared {
    /// Their keys, `[QUERIES][width]`.
    keys: Value,
    /// Sums of likeness by places in blocks, `[QUERIES][KEY_BLOCK]`, and so are the others.
    sums: Value,
    newest: Value,
    likeness: Value,
}

impl Redundancy {
    /// Counts redundancy against the scores, which all threads have written.
    pub(super) fn all_phases(&self, b: &mut Body<'_>, call: &Call) {
        let memory = Memory::new(b, call);
        let [thread, threads] = call.team;
        let kv_heads = call.spec.cache.kv_heads;
        let [begin, end] = call.candidates;
        let first = b.ins().band_imm_s(begin, -(KEY_BLOCK as i64));
        let runs = Runs::new(b, [first, end], kv_heads, call.team);
        runs.for_starts(b, KEY_BLOCK as i64, |b, kv_head, first| {
            find_inverses(b, call, &memory, kv_head, first);
        });
        b.barrier(call.context, thread);
        let width = call.spec.cache.key_width;
        let compared = Compared {
            keys: b.stack((QUERIES * width * 4) as u32),
            sums: b.stack((QUERIES * BLOCK) as u32),
            newest: b.stack((QUERIES * BLOCK) as u32),
            likeness: b.stack((QUERIES * BLOCK) as u32),
        };
        runs.for_starts(b, QUERIES as i64, |b, kv_head, first| {
            self.compare(b, call, &memory, &compared, [kv_head, first]);
        });
        b.barrier(call.context, thread);
        let heads = b.int(kv_heads as i64);
        let (from, to) = b.partition(heads, thread, threads);
        b.for_range(from, to, 1, |b, kv_head| self.count(b, call, &memory, kv_head));
    }

    /// Compares rows from this one on, at most [`QUERIES`], with all candidates.
    fn compare(
        &self,
        b: &mut Body<'_>,
        call: &Call,
        memory: &Memory,
        compared: &Compared,
        [kv_head, first]: [Value; 2],
    ) {
        let [begin, end] = call.candidates;
        let most = b.int(QUERIES as i64);
        let count = b.sub(end, first);
        let count = b.min(count, most);
        let zero = b.int(0);
        b.for_range(zero, count, KEY_BLOCK as i64, |b, number| {
            let row = b.add(first, number);
            let keys = widened(b, call, kv_head, row);
            let to = b.element(compared.keys, number, call.spec.cache.key_width as i64 * 4);
            turn_around(b, &keys, call.spec.cache.key_width, to);
        });
        b.for_range(zero, count, 1, |b, number| compared.clear(b, number));
        let blocks = b.ins().band_imm_s(begin, -(KEY_BLOCK as i64));
        b.for_range(blocks, end, KEY_BLOCK as i64, |b, others| {
            let slot = b.int(0);
            let keys = plane_rows(b, call.layer, false, slot, kv_head);
            let keys = self.products.block(b, &call.spec.cache, [keys, others, call.wide_keys]);
            self.products.multiply(b, [compared.keys, count, call.dense], &keys);
            let at = memory.place(b, memory.inverses, kv_head, others);
            let inverses: Rows = std::array::from_fn(|four| b.load(LANES, at, four as i32 * 16));
            b.for_range(zero, count, 1, |b, number| {
                let row = b.add(first, number);
                let at = memory.place(b, memory.inverses, kv_head, row);
                let inverse = b.load(FLOAT, at, 0);
                let place = b.element(call.dense, number, BLOCK as i64);
                let likeness = scaled(b, place, inverse, inverses);
                compared.add(b, call, [number, row, others], likeness);
            });
        });
        b.for_range(zero, count, 1, |b, number| {
            let row = b.add(first, number);
            let [sum, newest, likeness] = compared.folded(b, number);
            for (part, value) in
                [(memory.sums, sum), (memory.newest, newest), (memory.likeness, likeness)]
            {
                let to = memory.place(b, part, kv_head, row);
                b.store(value, to, 0);
            }
        });
    }

    /// Means of the sums, their softmax, and the scores of a head.
    fn count(&self, b: &mut Body<'_>, call: &Call, memory: &Memory, kv_head: Value) {
        let [begin, end] = call.candidates;
        b.for_range(begin, end, 1, |b, row| {
            let at = memory.place(b, memory.newest, kv_head, row);
            let newest = b.load_count(at, 0);
            let newest = b.ins().ireduce(INT, newest);
            let is_there = b.compare_const(IntCC::SignedGreaterThanOrEqual, newest, 0);
            b.if_then(is_there, |b| {
                let newest = b.load_count(at, 0);
                let likeness = memory.place(b, memory.likeness, kv_head, row);
                let likeness = b.load(FLOAT, likeness, 0);
                let to = memory.place(b, memory.sums, kv_head, newest);
                let sum = b.load(FLOAT, to, 0);
                let sum = b.fsub(sum, likeness);
                b.store(sum, to, 0);
            });
        });
        let candidates = b.sub(end, begin);
        let lowest = b.float(f32::NEG_INFINITY);
        let most = b.fold_range(begin, end, 1, &[lowest], |b, row, most| {
            let at = memory.place(b, memory.sums, kv_head, row);
            let sum = b.load(FLOAT, at, 0);
            let mean = divided(b, sum, candidates);
            b.store(mean, at, 0);
            vec![b.fmax(most[0], mean)]
        })[0];
        let nothing = b.float(0.0);
        let total = b.fold_range(begin, end, 1, &[nothing], |b, row, total| {
            let at = memory.place(b, memory.sums, kv_head, row);
            let mean = b.load(FLOAT, at, 0);
            let weight = b.fsub(mean, most);
            let weight = b.exp(weight);
            b.store(weight, at, 0);
            vec![b.fadd(total[0], weight)]
        })[0];
        let [of_score, of_redundancy] = shares(self.percent).map(|share| b.float(share));
        b.for_range(begin, end, 1, |b, row| {
            let weight = memory.place(b, memory.sums, kv_head, row);
            let weight = b.load(FLOAT, weight, 0);
            let redundancy = b.fdiv(weight, total);
            let redundancy = b.fmul(redundancy, of_redundancy);
            let to = call.place(b, call.pooled, kv_head, row);
            let score = b.load(FLOAT, to, 0);
            let score = b.fmul(score, of_score);
            let score = b.fsub(score, redundancy);
            b.store(score, to, 0);
        });
    }
}

/// The keys of a block in single precision.
fn widened(b: &mut Body<'_>, call: &Call, kv_head: Value, first: Value) -> BlockOfKeys {
    let slot = b.int(0);
    let keys = plane_rows(b, call.layer, false, slot, kv_head);
    call.spec.cache.widen_block(b, keys, first, call.wide_keys)
}

/// The rows of a block of so many numbers each, one after the other.
fn turn_around(b: &mut Body<'_>, keys: &BlockOfKeys, width: usize, to: Value) {
    b.for_count(width as i64, 1, |b, index| {
        let from = b.element(keys.numbers, index, BLOCK as i64);
        let to = b.element(to, index, 4);
        for row in 0..KEY_BLOCK {
            let number = b.load(FLOAT, from, row as i32 * 4);
            b.store(number, to, (row * width * 4) as i32);
        }
    });
}

/// Writes what products with the keys of a block are multiplied by: nothing is like a key of zeros.
fn find_inverses(b: &mut Body<'_>, call: &Call, memory: &Memory, kv_head: Value, first: Value) {
    let keys = widened(b, call, kv_head, first);
    let zero = b.constant(LANES, 0.0);
    let width = call.spec.cache.key_width as i64;
    let squares = b.fold_count(width, 1, &[zero; FOURS], |b, index, sums| {
        let from = b.element(keys.numbers, index, BLOCK as i64);
        let sums = sums.iter().enumerate().map(|(four, sum)| {
            let key = b.load(LANES, from, four as i32 * 16);
            b.fma(key, key, *sum)
        });
        sums.collect()
    });
    let to = memory.place(b, memory.inverses, kv_head, first);
    let [one, least] = [1.0, LEAST_LENGTH].map(|number| b.constant(LANES, number));
    for (four, squares) in squares.into_iter().enumerate() {
        let length = b.sqrt(squares);
        let length = b.fmax(length, least);
        let mut inverse = b.fdiv(one, length);
        if let Some(scales) = keys.scales {
            let scale = b.load(LANES, scales, four as i32 * 16);
            let is_there = b.fcompare(FloatCC::GreaterThan, scale, zero);
            inverse = b.select(is_there, inverse, zero);
        }
        b.store(inverse, to, four as i32 * 16);
    }
}

/// Products of a row with a block, divided by the lengths of both.
fn scaled(b: &mut Body<'_>, products: Value, inverse: Value, inverses: Rows) -> Rows {
    let inverse = b.splat(inverse);
    std::array::from_fn(|four| {
        let product = b.load(LANES, products, four as i32 * 16);
        let product = b.fmul(product, inverse);
        b.fmul(product, inverses[four])
    })
}

impl Compared {
    /// Row `number` is like nothing yet.
    fn clear(&self, b: &mut Body<'_>, number: Value) {
        let zero = b.constant(LANES, 0.0);
        let none = b.constant_int(INTS, -1);
        for (part, value) in [(self.sums, zero), (self.newest, none), (self.likeness, zero)] {
            let to = b.element(part, number, BLOCK as i64);
            (0..FOURS).for_each(|four| b.store(value, to, four as i32 * 16));
        }
    }

    /// Adds the likeness of the candidates of a block to one of the rows.
    fn add(&self, b: &mut Body<'_>, call: &Call, [number, row, first]: [Value; 3], likeness: Rows) {
        let [sums, newest, like] = [self.sums, self.newest, self.likeness]
            .map(|part| b.element(part, number, BLOCK as i64));
        let [alike, zero] = [ALIKE, 0.0].map(|number| b.constant(LANES, number));
        let row = b.ins().ireduce(INT, row);
        let row = b.splat(row);
        let (others, are_candidates) = call.candidates_of(b, first);
        for (four, likeness) in likeness.into_iter().enumerate() {
            let offset = four as i32 * 16;
            let is_other = b.compare(IntCC::NotEqual, others[four], row);
            let counts = b.ins().band(are_candidates[four], is_other);
            let likeness = b.select(counts, likeness, zero);
            let sum = b.load(LANES, sums, offset);
            let sum = b.fadd(sum, likeness);
            b.store(sum, sums, offset);
            let is_alike = b.fcompare(FloatCC::GreaterThan, likeness, alike);
            for (part, ty, value) in [(newest, INTS, others[four]), (like, LANES, likeness)] {
                let before = b.load(ty, part, offset);
                let after = b.select(is_alike, value, before);
                b.store(after, part, offset);
            }
        }
    }

    /// A row's sum, the newest candidate that is like it, and how much.
    fn folded(&self, b: &mut Body<'_>, number: Value) -> [Value; 3] {
        let [sums, newest, like] = [self.sums, self.newest, self.likeness]
            .map(|part| b.element(part, number, BLOCK as i64));
        let parts: Rows = std::array::from_fn(|four| b.load(LANES, sums, four as i32 * 16));
        let sum = joined(b, parts, Body::fadd);
        let sum = b.sum_lanes(sum);
        let nothing = [b.int32(-1), b.float(0.0)];
        let found = b.fold_count(KEY_BLOCK as i64, 1, &nothing, |b, lane, found| {
            let [newest, like] = [newest, like].map(|part| b.element(part, lane, 4));
            let newest = b.load(INT, newest, 0);
            let like = b.load(FLOAT, like, 0);
            let is_newer = b.compare(IntCC::SignedGreaterThan, newest, found[0]);
            let newest = b.select(is_newer, newest, found[0]);
            vec![newest, b.select(is_newer, like, found[1])]
        });
        [sum, found[0], found[1]]
    }
}
