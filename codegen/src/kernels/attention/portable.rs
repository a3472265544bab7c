//! Attention in 128-bit vectors: the version that every level can fall back to.
//!
//! An item is one row and up to four query heads that share a key/value head. It walks the row's
//! ranges in tiles of 32 cache rows from the range's start: scores, their maximum, exponentials,
//! then the weighted values. Other cache rows are never touched.
//!
//! A dot product sums in four lanes, then the lanes, then the rest of the width one by one.

use std::mem::offset_of;

use weir_abi::{LayerCall, RowSpans, StepContext};

use super::{
    AttendSpec, CacheShape, Finished, RangeOfRow, layer_field, plane_rows, products, range_of_row,
};
use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FuncId, InstBuilder, IntCC, LANES, Lanes, POINTER, Value,
};

/// Cache rows of a tile.
const TILE: usize = 32;
const TILE_BYTES: i64 = TILE as i64 * 4;

/// Query heads of an item: a divisor of the group, at most four.
fn item_heads(spec: &AttendSpec) -> usize {
    (1..=4).rev().find(|heads| spec.group().is_multiple_of(*heads)).unwrap_or(1)
}

/// Memory of an item on the stack.
struct Item {
    queries: Value,
    /// The key whose scores are computed.
    key: Value,
    scores: Value,
    sums: Value,
    maxima: Value,
    totals: Value,
    factors: Value,
}

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    spec: &AttendSpec,
) -> Result<(), EmitError> {
    let CacheShape { kv_heads, value_width, .. } = spec.cache;
    let value_bytes = spec.cache.value_bytes() as i64;
    let heads = item_heads(spec);
    let blocks = spec.score.heads / heads;
    assembly.define(id, |b| {
        let [context, query, sinks, output, _, thread, threads] = b.params();
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let spans = layer_field(b, layer, offset_of!(LayerCall, spans));
        let key = b.stack(spec.cache.key_bytes() as u32);
        let scores = b.stack((heads * TILE * 4) as u32);
        let sums = b.stack((heads * value_width.next_multiple_of(4) * 4) as u32);
        let [maxima, totals, factors] = [(); 3].map(|()| b.stack(heads as u32 * 4));
        let per_row = b.int(blocks as i64);
        let blocks_per_kv = b.int((blocks / kv_heads) as i64);
        let rows = b.load_count(context, offset_of!(StepContext, rows) as i32);
        let items = b.mul(rows, per_row);
        let (begin, end) = b.partition(items, thread, threads);
        b.for_range(begin, end, 1, |b, index| {
            let row = b.ins().udiv(index, per_row);
            let before = b.mul(row, per_row);
            let block = b.sub(index, before);
            let kv_head = b.ins().udiv(block, blocks_per_kv);
            let head = b.mul_const(block, heads as i64);
            let queries = b.element(query, row, spec.query.0 as i64 * 4);
            let queries = b.element(queries, head, spec.query.1 as i64 * 4);
            let item = Item { queries, key, scores, sums, maxima, totals, factors };
            start_item(b, spec, &item, sinks, head);
            let span = b.element(spans, row, size_of::<RowSpans>() as i64);
            let ranges = b.load_count(span, offset_of!(RowSpans, range_count) as i32);
            let zero = b.int(0);
            b.for_range(zero, ranges, 1, |b, range| {
                let RangeOfRow { slot, first, rows } = range_of_row(b, span, range);
                let keys = plane_rows(b, layer, false, slot, kv_head);
                let values = plane_rows(b, layer, true, slot, kv_head);
                let values = b.element(values, first, value_bytes);
                let zero = b.int(0);
                b.for_range(zero, rows, TILE as i64, |b, start| {
                    let left = b.sub(rows, start);
                    let tile = b.int(TILE as i64);
                    let count = b.min(left, tile);
                    let values = b.element(values, start, value_bytes);
                    let place = b.add(first, start);
                    score_tile(b, spec, &item, [keys, place], count);
                    weigh_tile(b, spec, &item, count);
                    add_values(b, spec, &item, values, count);
                });
            });
            let output = b.element(output, row, spec.output_row as i64 * 4);
            let output = b.element(output, head, value_width as i64 * 4);
            let finished = Finished {
                heads,
                queries: (item.queries, spec.query.1 * 4),
                sums: (item.sums, value_width.next_multiple_of(4) * 4),
                maxima: item.maxima,
                totals: item.totals,
            };
            finished.write(b, spec, output);
            finished.observe(b, spec, context, layer, row, head);
        });
        b.ret(&[]);
    })
}

fn start_item(b: &mut Body<'_>, spec: &AttendSpec, item: &Item, sinks: Value, head: Value) {
    for index in 0..item_heads(spec) {
        let at = index as i32 * 4;
        let (maximum, total) = if spec.sinks {
            let sink = b.element(sinks, head, 4);
            (b.load(FLOAT, sink, at), b.float(1.0))
        } else {
            (b.float(f32::NEG_INFINITY), b.float(0.0))
        };
        b.store(maximum, item.maxima, at);
        b.store(total, item.totals, at);
    }
    let floats = item_heads(spec) * spec.cache.value_width.next_multiple_of(4);
    b.for_count(floats as i64, 4, |b, index| {
        let zero = b.constant(LANES, 0.0);
        let at = b.element(item.sums, index, 4);
        b.store(zero, at, 0);
    });
}

/// Products with `count` keys of a plane from row `place` on.
fn score_tile(
    b: &mut Body<'_>,
    spec: &AttendSpec,
    item: &Item,
    [keys, place]: [Value; 2],
    count: Value,
) {
    let heads = item_heads(spec);
    let zero = b.int(0);
    b.for_range(zero, count, 1, |b, row| {
        let place = b.add(place, row);
        spec.cache.gather_key(b, keys, place, item.key);
        let sums = products(b, item.queries, spec.query.1, heads, item.key, &spec.cache);
        let to = b.element(item.scores, row, 4);
        for (head, sum) in sums.into_iter().enumerate() {
            b.store(sum, to, head as i32 * TILE_BYTES as i32);
        }
    });
}

/// Scores of the tile become exponentials; running maxima and totals move on.
fn weigh_tile(b: &mut Body<'_>, spec: &AttendSpec, item: &Item, count: Value) {
    let padded = b.add_const(count, 3);
    let padded = b.ins().band_imm_s(padded, -4);
    for head in 0..item_heads(spec) {
        let scores = b.add_const(item.scores, head as i64 * TILE_BYTES);
        let at = head as i32 * 4;
        let zero = b.int(0);
        let none = b.constant(LANES, f32::NEG_INFINITY);
        let largest = b.fold_range(zero, padded, 4, &[none], |b, index, largest| {
            let place = b.element(scores, index, 4);
            // Lanes beyond the tile hold an older tile's numbers: they are replaced here.
            let mut lanes = b.load(LANES, place, 0);
            lanes = spec.score.of(b, lanes);
            let left = b.sub(count, index);
            lanes = keep_first(b, lanes, left);
            b.store(lanes, place, 0);
            vec![b.fmax(largest[0], lanes)]
        })[0];
        let largest = b.max_lanes(largest);
        let before = b.load(FLOAT, item.maxima, at);
        let maximum = b.fmax(before, largest);
        let change = b.fsub(before, maximum);
        let factor = b.exp(change);
        let spread = b.splat(maximum);
        let nothing = b.constant(LANES, 0.0);
        let zero = b.int(0);
        let sum = b.fold_range(zero, padded, 4, &[nothing], |b, index, sum| {
            let place = b.element(scores, index, 4);
            let lanes = b.load(LANES, place, 0);
            let shifted = b.fsub(lanes, spread);
            let weights = b.exp(shifted);
            b.store(weights, place, 0);
            vec![b.fadd(sum[0], weights)]
        })[0];
        let sum = b.sum_lanes(sum);
        let total = b.load(FLOAT, item.totals, at);
        let total = b.fma(total, factor, sum);
        b.store(maximum, item.maxima, at);
        b.store(total, item.totals, at);
        b.store(factor, item.factors, at);
    }
}

/// Lanes below `left`; minus infinity in the others.
fn keep_first(b: &mut Body<'_>, lanes: Value, left: Value) -> Value {
    let left = b.ins().ireduce(crate::emit::INT, left);
    let left = b.splat(left);
    let mut numbers = b.constant_int(crate::emit::INTS, 0);
    for lane in 1..4u8 {
        let number = b.int32(i32::from(lane));
        numbers = b.ins().insertlane(numbers, number, lane);
    }
    let inside = b.compare(IntCC::SignedLessThan, numbers, left);
    let none = b.constant(LANES, f32::NEG_INFINITY);
    b.select(inside, lanes, none)
}

fn add_values(b: &mut Body<'_>, spec: &AttendSpec, item: &Item, values: Value, count: Value) {
    let heads = item_heads(spec);
    let (width, number) = (spec.cache.value_width, spec.cache.number);
    let sum_stride = width.next_multiple_of(4);
    let factors: Vec<Value> =
        (0..heads).map(|head| b.load(FLOAT, item.factors, head as i32 * 4)).collect();
    let column = |b: &mut Body<'_>, index: Value, lanes: Lanes, vectors: usize| {
        let place = b.element(item.sums, index, 4);
        let values = b.element(values, index, number.bytes() as i64);
        let offset = |head: usize, vector: usize| ((head * sum_stride + vector * 4) * 4) as i32;
        let mut sums = Vec::new();
        for (head, factor) in factors.iter().enumerate() {
            for vector in 0..vectors {
                let sum = b.load(lanes.float(), place, offset(head, vector));
                let factor = b.spread(lanes, *factor);
                sums.push(b.fmul(sum, factor));
            }
        }
        let zero = b.int(0);
        let sums = b.fold_range(zero, count, 1, &sums, |b, row, sums| {
            let value = b.element(values, row, spec.cache.value_bytes() as i64);
            let weight = b.element(item.scores, row, 4);
            let loaded: Vec<Value> = (0..vectors)
                .map(|vector| number.load(b, lanes, value, (vector * 4 * number.bytes()) as i32))
                .collect();
            let mut next = Vec::new();
            for head in 0..heads {
                let weight = b.load(FLOAT, weight, head as i32 * TILE_BYTES as i32);
                let weight = b.spread(lanes, weight);
                for (vector, value) in loaded.iter().enumerate() {
                    next.push(b.fma(weight, *value, sums[head * vectors + vector]));
                }
            }
            next
        });
        for (index, sum) in sums.iter().enumerate() {
            b.store(*sum, place, offset(index / vectors, index % vectors));
        }
    };
    // As many columns a turn as registers hold sums of.
    let vectors = if heads > 2 { 2 } else { 4 };
    let wide = width / (4 * vectors) * 4 * vectors;
    b.for_count(wide as i64, 4 * vectors as i64, |b, index| {
        column(b, index, Lanes::Four, vectors);
    });
    let whole = width & !3;
    for start in (wide..whole).step_by(4) {
        let index = b.int(start as i64);
        column(b, index, Lanes::Four, 1);
    }
    for start in whole..width {
        let index = b.int(start as i64);
        column(b, index, Lanes::One, 1);
    }
}
