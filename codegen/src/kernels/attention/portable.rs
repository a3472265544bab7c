//! Attention in 128-bit vectors: the version that every level can fall back to.
//!
//! An item is one row and up to four query heads that share a key/value head. It walks the row's
//! ranges in tiles of cache rows that begin at multiples of [`KEY_TILE`]: scores, their maximum,
//! exponentials, then the weighted values. Other cache rows are never touched.
//!
//! Over a bf16 cache queries are rounded to bf16, and weights in front of values, as on other levels.
//!
//! A dot product sums in four lanes, then the lanes, then the rest of the width one by one. Codes
//! are floats here, whose sums are exact below 2²⁴: of keys of up to 1,040 numbers, and
//! of the values of any tile. Sums of wider keys go on as integers from part to part.

use std::mem::offset_of;

use weir_abi::{KEY_TILE, LayerCall, RowSpans, StepContext};

use super::block::Part;
use super::cache::{CacheType, QUAD, RowPlace};
use super::heads::range_of_head;
use super::unpack::Memory;
use super::{
    AttendSpec, CacheShape, Finished, LEAST_STEP, RangeOfRow, Records, TOP_WEIGHT, Unpack, codes,
    layer_field, observed, products, unpack,
};
use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FuncId, InstBuilder, IntCC, LANES, Lanes, POINTER, Value,
};

/// Cache rows of a tile.
const TILE: usize = KEY_TILE;
const TILE_BYTES: i64 = TILE as i64 * 4;

/// Query heads of an item: a divisor of the group, at most four.
pub(super) fn item_heads(spec: &AttendSpec) -> usize {
    (1..=4).rev().find(|heads| spec.group().is_multiple_of(*heads)).unwrap_or(1)
}

/// Memory of an item on the stack.
struct Item {
    /// Queries as they are.
    plain: Value,
    /// What keys are multiplied with, floats from one head to the next, and where the scores' factors
    /// lie if each head has its own.
    queries: Value,
    query_stride: usize,
    scales: Value,
    /// The key whose scores are computed.
    key: Value,
    scores: Value,
    sums: Value,
    maxima: Value,
    totals: Value,
    factors: Value,
    /// Scales of the tile's values, and what sums of their codes are multiplied by, per head.
    value_scales: Value,
    steps: Value,
}

/// A tile: a plane of keys, one of values, the first row, and how many.
struct Rows {
    keys: Value,
    values: Value,
    first: Value,
    count: Value,
}

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    spec: &AttendSpec,
    records: Option<Records>,
) -> Result<(), EmitError> {
    let packed = spec.cache;
    let unpack = Unpack::of(assembly, &packed, false)?;
    let spec = &AttendSpec { cache: packed.unpacked(), ..*spec };
    let CacheShape { kv_heads, key_width, value_width, number, .. } = spec.cache;
    let heads = item_heads(spec);
    let blocks = spec.score.heads / heads;
    assembly.define(id, |b| {
        let [context, query, sinks, output, _, thread, threads, _] = b.params();
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let spans = layer_field(b, layer, offset_of!(LayerCall, spans));
        let key = b.stack(spec.cache.key_bytes_aside() as u32);
        let scores = b.stack((heads * TILE * 4) as u32);
        let sums = b.stack((heads * value_width.next_multiple_of(4) * 4) as u32);
        let [maxima, totals, factors, scales, steps] = [(); 5].map(|()| b.stack(heads as u32 * 4));
        let mut room_if = |is_needed: bool, bytes: usize| match is_needed {
            true => b.stack(bytes as u32),
            false => b.int(0),
        };
        let is_rounded = matches!(number, CacheType::Int8 | CacheType::Bf16);
        let rounded = room_if(is_rounded, heads * key_width * 4);
        let value_scales = room_if(number == CacheType::Int8, TILE * 4);
        let room = |b: &mut Body<'_>, bytes: fn(&CacheShape, bool) -> usize| {
            [true, false].map(|is_key| match bytes(&packed, is_key) {
                0 => b.int(0),
                bytes => b.stack(bytes as u32),
            })
        };
        let unpacked =
            Memory { tile: room(b, unpack::bytes), between: room(b, unpack::bytes_between) };
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
            let plain = b.element(query, row, spec.query.0 as i64 * 4);
            let plain = b.element(plain, head, spec.query.1 as i64 * 4);
            let (queries, query_stride) = match is_rounded {
                true => (rounded, key_width),
                false => (plain, spec.query.1),
            };
            let item = Item {
                plain,
                queries,
                query_stride,
                scales,
                key,
                scores,
                sums,
                maxima,
                totals,
                factors,
                value_scales,
                steps,
            };
            start_item(b, spec, &item, sinks, head);
            let span = b.element(spans, row, size_of::<RowSpans>() as i64);
            let ranges = b.load_count(span, offset_of!(RowSpans, range_count) as i32);
            let zero = b.int(0);
            b.for_range(zero, ranges, 1, |b, range| {
                let RangeOfRow { slot, first, rows } =
                    range_of_head(b, &spec.cache, layer, [span, range], kv_head);
                let part = Part::of(b, &packed, layer, first, [slot, kv_head]);
                let end = b.add(first, rows);
                let start = b.ins().band_imm_s(first, -(TILE as i64));
                b.for_range(start, end, TILE as i64, |b, start| {
                    let behind = b.add_const(start, TILE as i64);
                    let behind = b.min(behind, end);
                    let first = b.max(first, start);
                    let count = b.sub(behind, first);
                    let as_it_is = [part.keys.start, part.values.start, first];
                    let [keys, values, first] = match unpack {
                        None => as_it_is,
                        Some(unpack) => {
                            let in_tile = b.sub(behind, start);
                            let to_unpacked = |b: &mut Body<'_>| {
                                let tile = [part.keys, part.values].map(|rows| rows.row(b, start));
                                unpack.tile(b, tile, unpacked, in_tile);
                                let [keys, values] = unpacked.tile;
                                vec![keys, values, b.sub(first, start)]
                            };
                            let rows = match part.is_block {
                                None => to_unpacked(b),
                                Some(is_block) => {
                                    b.if_else(is_block, to_unpacked, |_| as_it_is.to_vec())
                                }
                            };
                            [rows[0], rows[1], rows[2]]
                        }
                    };
                    let rows = Rows { keys, values, first, count };
                    score_tile(b, spec, &item, &rows);
                    weigh_tile(b, spec, &item, &rows);
                    add_values(b, spec, &item, &rows);
                });
            });
            match records {
                // Whole items of records leave no gap between the sums of heads.
                Some(records) => {
                    write_means(b, spec, &item, heads, item.sums);
                    let one = b.int(1);
                    records.write(b, item.sums, output, [row, one], head);
                }
                None => {
                    let output = b.element(output, row, spec.output_row as i64 * 4);
                    let output = b.element(output, head, value_width as i64 * 4);
                    write_means(b, spec, &item, heads, output);
                }
            }
            let finished = Finished {
                heads,
                queries: (item.plain, spec.query.1 * 4),
                maxima: item.maxima,
                totals: item.totals,
                unit: 1.0,
            };
            observed(b, layer, |b| finished.observe(b, spec, context, layer, row, head));
        });
        b.ret(&[]);
    })
}

/// Sums over totals.
fn write_means(b: &mut Body<'_>, spec: &AttendSpec, item: &Item, heads: usize, output: Value) {
    let width = spec.cache.value_width;
    b.for_count(heads as i64, 1, |b, head| {
        let total = b.element(item.totals, head, 4);
        let total = b.load(FLOAT, total, 0);
        let sums = b.element(item.sums, head, width.next_multiple_of(4) as i64 * 4);
        let output = b.element(output, head, width as i64 * 4);
        b.for_count_lanes(width as i64, |b, index, lanes| {
            let from = b.element(sums, index, 4);
            let to = b.element(output, index, 4);
            let sum = b.load(lanes.float(), from, 0);
            let total = b.spread(lanes, total);
            let mean = b.fdiv(sum, total);
            b.store(mean, to, 0);
        });
    });
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
    match spec.cache.number {
        CacheType::Int8 => encode_queries(b, spec, item),
        CacheType::Bf16 => round_queries(b, spec, item),
        _ => {}
    }
    let floats = item_heads(spec) * spec.cache.value_width.next_multiple_of(4);
    b.for_count(floats as i64, 4, |b, index| {
        let zero = b.constant(LANES, 0.0);
        let at = b.element(item.sums, index, 4);
        b.store(zero, at, 0);
    });
}

/// Queries are rounded to bf16.
fn round_queries(b: &mut Body<'_>, spec: &AttendSpec, item: &Item) {
    let width = spec.cache.key_width;
    b.for_count(item_heads(spec) as i64, 1, |b, head| {
        let from = b.element(item.plain, head, spec.query.1 as i64 * 4);
        let to = b.element(item.queries, head, width as i64 * 4);
        b.for_count_lanes(width as i64, |b, index, lanes| {
            let [from, to] = [from, to].map(|row| b.element(row, index, 4));
            let query = b.load(lanes.float(), from, 0);
            let rounded = b.round_to_bf16(query);
            b.store(rounded, to, 0);
        });
    });
}

/// Queries become codes, as floats, and factors of scores.
fn encode_queries(b: &mut Body<'_>, spec: &AttendSpec, item: &Item) {
    let width = spec.cache.key_width;
    b.for_count(item_heads(spec) as i64, 1, |b, head| {
        let from = b.element(item.plain, head, spec.query.1 as i64 * 4);
        let to = b.element(item.queries, head, width as i64 * 4);
        let [scale, inverse] = codes::scale_of(b, from, width);
        let factor = b.float(spec.score.scale);
        let factor = b.fmul(scale, factor);
        let place = b.element(item.scales, head, 4);
        b.store(factor, place, 0);
        b.for_count_lanes(width as i64, |b, index, lanes| {
            let [from, to] = [from, to].map(|row| b.element(row, index, 4));
            let x = b.load(lanes.float(), from, 0);
            let inverse = b.spread(lanes, inverse);
            let code = codes::code(b, x, inverse);
            b.store(code, to, 0);
        });
    });
}

/// Products with the keys of a tile.
fn score_tile(b: &mut Body<'_>, spec: &AttendSpec, item: &Item, rows: &Rows) {
    let heads = item_heads(spec);
    let zero = b.int(0);
    b.for_range(zero, rows.count, 1, |b, row| {
        let place = b.add(rows.first, row);
        let key = spec.cache.gather_key(b, rows.keys, place, item.key);
        let sums = products(b, item.queries, item.query_stride, heads, &key, &spec.cache);
        let to = b.element(item.scores, row, 4);
        for (head, sum) in sums.into_iter().enumerate() {
            b.store(sum, to, head as i32 * TILE_BYTES as i32);
        }
    });
}

/// Scores of the tile become exponentials; running maxima and totals move on.
fn weigh_tile(b: &mut Body<'_>, spec: &AttendSpec, item: &Item, rows: &Rows) {
    let count = rows.count;
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
            lanes = if spec.cache.number == CacheType::Int8 {
                let scale = b.load(FLOAT, item.scales, at);
                let scale = b.splat(scale);
                spec.score.scaled(b, lanes, scale)
            } else {
                spec.score.of(b, lanes)
            };
            let left = b.sub(count, index);
            lanes = keep_first(b, lanes, left, f32::NEG_INFINITY);
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
            let stored = match spec.cache.number {
                CacheType::Bf16 => b.round_to_bf16(weights),
                _ => weights,
            };
            b.store(stored, place, 0);
            vec![b.fadd(sum[0], weights)]
        })[0];
        let sum = b.sum_lanes(sum);
        let total = b.load(FLOAT, item.totals, at);
        let total = b.fma(total, factor, sum);
        b.store(maximum, item.maxima, at);
        b.store(total, item.totals, at);
        b.store(factor, item.factors, at);
    }
    if spec.cache.number == CacheType::Int8 {
        encode_weights(b, spec, item, rows, padded);
    }
}

/// Weights of a tile, each times its value's scale, become codes, as floats.
fn encode_weights(b: &mut Body<'_>, spec: &AttendSpec, item: &Item, rows: &Rows, padded: Value) {
    let zero = b.int(0);
    b.for_range(zero, rows.count, 1, |b, row| {
        let place = b.add(rows.first, row);
        if let Some(from) = spec.cache.place(b, false, rows.values, place).scale {
            let scale = b.load(FLOAT, from, 0);
            let to = b.element(item.value_scales, row, 4);
            b.store(scale, to, 0);
        }
    });
    for head in 0..item_heads(spec) {
        let weights = b.add_const(item.scores, head as i64 * TILE_BYTES);
        let least = b.constant(LANES, LEAST_STEP);
        let largest = b.fold_range(zero, padded, 4, &[least], |b, index, largest| {
            let place = b.element(weights, index, 4);
            let weight = b.load(LANES, place, 0);
            let scale = b.element(item.value_scales, index, 4);
            let scale = b.load(LANES, scale, 0);
            let product = b.fmul(weight, scale);
            // Scales beyond the tile are an older one's, or nothing at all.
            let left = b.sub(rows.count, index);
            let product = keep_first(b, product, left, 0.0);
            b.store(product, place, 0);
            vec![b.fmax(largest[0], product)]
        })[0];
        let largest = b.max_lanes(largest);
        let top = b.float(TOP_WEIGHT);
        let inverse = b.fdiv(top, largest);
        let step = b.fdiv(largest, top);
        b.store(step, item.steps, head as i32 * 4);
        let inverse = b.splat(inverse);
        b.for_range(zero, padded, 4, |b, index| {
            let place = b.element(weights, index, 4);
            let product = b.load(LANES, place, 0);
            let code = codes::code(b, product, inverse);
            b.store(code, place, 0);
        });
    }
}

/// Lanes below `left`; `other` in the others.
fn keep_first(b: &mut Body<'_>, lanes: Value, left: Value, other: f32) -> Value {
    let left = b.ins().ireduce(crate::emit::INT, left);
    let left = b.splat(left);
    let mut numbers = b.constant_int(crate::emit::INTS, 0);
    for lane in 1..4u8 {
        let number = b.int32(i32::from(lane));
        numbers = b.ins().insertlane(numbers, number, lane);
    }
    let inside = b.compare(IntCC::SignedLessThan, numbers, left);
    let none = b.constant(LANES, other);
    b.select(inside, lanes, none)
}

/// `lanes` numbers of a value row from `column` on.
fn load_values(
    b: &mut Body<'_>,
    spec: &AttendSpec,
    row: &RowPlace,
    column: Value,
    lanes: Lanes,
) -> Value {
    let from = b.element(row.start, column, row.runs.step as i64);
    if row.scale.is_none() {
        return spec.cache.number.load(b, lanes, from, 0);
    }
    // Codes of neighbouring columns lie in the same byte of neighbouring words. Words begin at
    // multiples of their size from the plane on, and so in memory.
    let within = b.ins().band_imm_s(from, QUAD as i64 - 1);
    let words = b.sub(from, within);
    let words = b.load(lanes.int(), words, 0);
    let bits = b.mul_const(within, -8);
    let bits = b.add_const(bits, 24);
    let bits = b.ins().ireduce(crate::emit::INT, bits);
    let words = b.ins().ishl(words, bits);
    let down = b.int32(24);
    let codes = b.ins().sshr(words, down);
    b.to_float(codes)
}

fn add_values(b: &mut Body<'_>, spec: &AttendSpec, item: &Item, rows: &Rows) {
    let heads = item_heads(spec);
    let width = spec.cache.value_width;
    let is_rounded = spec.cache.number == CacheType::Int8;
    let sum_stride = width.next_multiple_of(4);
    let of_heads = |b: &mut Body<'_>, from: Value| -> Vec<Value> {
        (0..heads).map(|head| b.load(FLOAT, from, head as i32 * 4)).collect()
    };
    let factors = of_heads(b, item.factors);
    let steps = if is_rounded { of_heads(b, item.steps) } else { Vec::new() };
    let column = |b: &mut Body<'_>, index: Value, lanes: Lanes, vectors: usize| {
        let place = b.element(item.sums, index, 4);
        let offset = |head: usize, vector: usize| ((head * sum_stride + vector * 4) * 4) as i32;
        let mut before = Vec::new();
        for (head, factor) in factors.iter().enumerate() {
            for vector in 0..vectors {
                let sum = b.load(lanes.float(), place, offset(head, vector));
                let factor = b.spread(lanes, *factor);
                before.push(b.fmul(sum, factor));
            }
        }
        let nothing = b.constant(lanes.float(), 0.0);
        let begin = if is_rounded { vec![nothing; before.len()] } else { before.clone() };
        let zero = b.int(0);
        let mut sums = b.fold_range(zero, rows.count, 1, &begin, |b, row, sums| {
            let absolute = b.add(rows.first, row);
            let value = spec.cache.place(b, false, rows.values, absolute);
            let weight = b.element(item.scores, row, 4);
            let loaded: Vec<Value> = (0..vectors)
                .map(|vector| {
                    let column = b.add_const(index, vector as i64 * 4);
                    load_values(b, spec, &value, column, lanes)
                })
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
        for (head, step) in steps.iter().enumerate() {
            let step = b.spread(lanes, *step);
            for vector in head * vectors..(head + 1) * vectors {
                sums[vector] = b.fma(sums[vector], step, before[vector]);
            }
        }
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
