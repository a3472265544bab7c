//! Cache writes, and attention of a row over its ranges of cache rows.
//!
//! An item is one row and up to four query heads that share a key/value head. It walks the row's
//! ranges in tiles of 32 cache rows from the range's start: scores, their maximum, exponentials,
//! then the weighted values, with the running maximum and sum of online softmax (Milakov and
//! Gimelshein, arXiv:1805.02867). Tiles depend on the ranges alone, so a row's result depends on
//! nothing but its query and the rows that it reads; other cache rows are never touched.
//!
//! A dot product sums in four lanes, then the lanes, then the rest of the width one by one.

use std::mem::offset_of;

use weir_abi::{CacheRange, LayerCall, RowSpans, StepContext};

use super::rows::copy_floats;
use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FuncId, InstBuilder, IntCC, LANES, Lanes, POINTER, Value,
    signature,
};

/// Cache rows of a tile.
const TILE: usize = 32;
const TILE_BYTES: i64 = TILE as i64 * 4;

/// Shapes of a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheShape {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Values of a key row.
    pub key_width: usize,
    /// Values of a value row.
    pub value_width: usize,
}

/// How scores are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreSpec {
    /// Query heads.
    pub heads: usize,
    /// Factor of the products.
    pub scale: f32,
    /// c of c·tanh(s / c); 0 for none.
    pub softcap: f32,
}

impl ScoreSpec {
    /// Scores of products (scalars or lanes).
    pub(super) fn of(&self, b: &mut Body<'_>, product: Value) -> Value {
        let ty = b.type_of(product);
        let scale = b.constant(ty, self.scale);
        let score = b.fmul(product, scale);
        if self.softcap == 0.0 {
            return score;
        }
        let cap = b.constant(ty, self.softcap);
        let ratio = b.fdiv(score, cap);
        let tanh = b.tanh(ratio);
        b.fmul(tanh, cap)
    }
}

/// Attention; strides count floats.
#[derive(Clone, Copy, Debug)]
pub struct AttendSpec {
    /// The cache.
    pub cache: CacheShape,
    /// Scores.
    pub score: ScoreSpec,
    /// Whether sink logits take part in the sum.
    pub sinks: bool,
    /// From row to row of the query, from head to head.
    pub query: (usize, usize),
    /// From row to row of the output, whose heads are dense.
    pub output_row: usize,
}

impl AttendSpec {
    /// Query heads of an item: a divisor of the group, at most four.
    fn item_heads(&self) -> usize {
        let group = self.score.heads / self.cache.kv_heads;
        (1..=4).rev().find(|heads| group.is_multiple_of(*heads)).unwrap_or(1)
    }

    /// Items of a row: threads divide rows times this.
    pub fn items_per_row(&self) -> usize {
        self.score.heads / self.item_heads()
    }
}

fn layer_field(b: &mut Body<'_>, layer: Value, offset: usize) -> Value {
    b.load(POINTER, layer, offset as i32)
}

/// Start of the rows of a slot and head in a plane of the layer.
pub(super) fn plane_rows(
    b: &mut Body<'_>,
    layer: Value,
    values: bool,
    slot: Value,
    head: Value,
) -> Value {
    let (plane, slot_stride, head_stride) = if values {
        (
            offset_of!(LayerCall, values),
            offset_of!(LayerCall, value_slot_stride),
            offset_of!(LayerCall, value_head_stride),
        )
    } else {
        (
            offset_of!(LayerCall, keys),
            offset_of!(LayerCall, key_slot_stride),
            offset_of!(LayerCall, key_head_stride),
        )
    };
    let plane = layer_field(b, layer, plane);
    let slot_stride = layer_field(b, layer, slot_stride);
    let head_stride = layer_field(b, layer, head_stride);
    let slot = b.mul(slot, slot_stride);
    let head = b.mul(head, head_stride);
    let at = b.add(plane, slot);
    b.add(at, head)
}

/// Emits (context, key, value, first row, row behind the last): writes rows into the cache. Strides
/// of key and value: from row to row, from head to head.
pub fn emit_append(
    assembly: &mut Assembly,
    cache: &CacheShape,
    key: (usize, usize),
    value: (usize, usize),
) -> Result<FuncId, EmitError> {
    let symbol = format!(
        "append-{}x{}.{}-k{}.{}-v{}.{}",
        cache.kv_heads, cache.key_width, cache.value_width, key.0, key.1, value.0, value.1
    );
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 5], &[]))?;
    assembly.define(id, |b| {
        let [context, keys, values, begin, end] = b.params();
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let spans = layer_field(b, layer, offset_of!(LayerCall, spans));
        b.for_range(begin, end, 1, |b, row| {
            let span = b.element(spans, row, size_of::<RowSpans>() as i64);
            let slot = b.load_count(span, offset_of!(RowSpans, write_slot) as i32);
            let place = b.load_count(span, offset_of!(RowSpans, write_row) as i32);
            for (from, stride, width, is_value) in
                [(keys, key, cache.key_width, false), (values, value, cache.value_width, true)]
            {
                let from = b.element(from, row, stride.0 as i64 * 4);
                b.for_count(cache.kv_heads as i64, 1, |b, head| {
                    let from = b.element(from, head, stride.1 as i64 * 4);
                    let to = plane_rows(b, layer, is_value, slot, head);
                    let to = b.element(to, place, width as i64 * 4);
                    copy_floats(b, from, to, width);
                });
            }
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

/// Memory of an item on the stack.
struct Item {
    queries: Value,
    scores: Value,
    sums: Value,
    maxima: Value,
    totals: Value,
    factors: Value,
}

/// Emits (context, query, sinks or null, output, first item, item behind the last).
pub fn emit_attend(assembly: &mut Assembly, spec: &AttendSpec) -> Result<FuncId, EmitError> {
    let CacheShape { kv_heads, key_width, value_width } = spec.cache;
    let symbol = format!(
        "attend-{}of{}x{}.{}-s{:08x}-c{:08x}{}-x{}.{}-y{}",
        spec.score.heads,
        kv_heads,
        key_width,
        value_width,
        spec.score.scale.to_bits(),
        spec.score.softcap.to_bits(),
        if spec.sinks { "-sinks" } else { "" },
        spec.query.0,
        spec.query.1,
        spec.output_row
    );
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 6], &[]))?;
    let heads = spec.item_heads();
    let blocks = spec.items_per_row();
    assembly.define(id, |b| {
        let [context, query, sinks, output, begin, end] = b.params();
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let spans = layer_field(b, layer, offset_of!(LayerCall, spans));
        let scores = b.stack((heads * TILE * 4) as u32);
        let sums = b.stack((heads * value_width.next_multiple_of(4) * 4) as u32);
        let [maxima, totals, factors] = [(); 3].map(|()| b.stack(heads as u32 * 4));
        let per_row = b.int(blocks as i64);
        let blocks_per_kv = b.int((blocks / kv_heads) as i64);
        b.for_range(begin, end, 1, |b, index| {
            let row = b.ins().udiv(index, per_row);
            let before = b.mul(row, per_row);
            let block = b.sub(index, before);
            let kv_head = b.ins().udiv(block, blocks_per_kv);
            let head = b.mul_const(block, heads as i64);
            let queries = b.element(query, row, spec.query.0 as i64 * 4);
            let queries = b.element(queries, head, spec.query.1 as i64 * 4);
            let item = Item { queries, scores, sums, maxima, totals, factors };
            start_item(b, spec, &item, sinks, head);
            let span = b.element(spans, row, size_of::<RowSpans>() as i64);
            let ranges = b.load_count(span, offset_of!(RowSpans, range_count) as i32);
            let zero = b.int(0);
            b.for_range(zero, ranges, 1, |b, range| {
                let range = b.element(span, range, size_of::<CacheRange>() as i64);
                let field = |b: &mut Body<'_>, offset: usize| {
                    b.load_count(range, (offset_of!(RowSpans, ranges) + offset) as i32)
                };
                let slot = field(b, offset_of!(CacheRange, slot));
                let first = field(b, offset_of!(CacheRange, first));
                let rows = field(b, offset_of!(CacheRange, rows));
                let keys = plane_rows(b, layer, false, slot, kv_head);
                let keys = b.element(keys, first, key_width as i64 * 4);
                let values = plane_rows(b, layer, true, slot, kv_head);
                let values = b.element(values, first, value_width as i64 * 4);
                let zero = b.int(0);
                b.for_range(zero, rows, TILE as i64, |b, start| {
                    let left = b.sub(rows, start);
                    let tile = b.int(TILE as i64);
                    let count = b.min(left, tile);
                    let keys = b.element(keys, start, key_width as i64 * 4);
                    let values = b.element(values, start, value_width as i64 * 4);
                    score_tile(b, spec, &item, keys, count);
                    weigh_tile(b, spec, &item, count);
                    add_values(b, spec, &item, values, count);
                });
            });
            let output = b.element(output, row, spec.output_row as i64 * 4);
            let output = b.element(output, head, value_width as i64 * 4);
            finish_item(b, spec, &item, output);
            observe_item(b, spec, &item, context, layer, row, head);
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

fn start_item(b: &mut Body<'_>, spec: &AttendSpec, item: &Item, sinks: Value, head: Value) {
    for index in 0..spec.item_heads() {
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
    let floats = spec.item_heads() * spec.cache.value_width.next_multiple_of(4);
    b.for_count(floats as i64, 4, |b, index| {
        let zero = b.constant(LANES, 0.0);
        let at = b.element(item.sums, index, 4);
        b.store(zero, at, 0);
    });
}

/// Products of `heads` queries (at `stride` floats from each other) with one key.
pub(super) fn products(
    b: &mut Body<'_>,
    queries: Value,
    stride: usize,
    heads: usize,
    key: Value,
    width: usize,
) -> Vec<Value> {
    let whole = width & !3;
    let zero = b.constant(LANES, 0.0);
    let lanes = b.fold_count(whole as i64, 4, &vec![zero; heads], |b, index, sums| {
        let key = b.element(key, index, 4);
        let key = b.load(LANES, key, 0);
        let query = b.element(queries, index, 4);
        sums.iter()
            .enumerate()
            .map(|(head, sum)| {
                let query = b.load(LANES, query, (head * stride * 4) as i32);
                b.fma(query, key, *sum)
            })
            .collect()
    });
    lanes
        .into_iter()
        .enumerate()
        .map(|(head, lanes)| {
            let mut sum = b.sum_lanes(lanes);
            for rest in whole..width {
                let query = b.load(FLOAT, queries, ((head * stride + rest) * 4) as i32);
                let key = b.load(FLOAT, key, rest as i32 * 4);
                sum = b.fma(query, key, sum);
            }
            sum
        })
        .collect()
}

fn score_tile(b: &mut Body<'_>, spec: &AttendSpec, item: &Item, keys: Value, count: Value) {
    let heads = spec.item_heads();
    let zero = b.int(0);
    b.for_range(zero, count, 1, |b, row| {
        let key = b.element(keys, row, spec.cache.key_width as i64 * 4);
        let sums = products(b, item.queries, spec.query.1, heads, key, spec.cache.key_width);
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
    for head in 0..spec.item_heads() {
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
    let heads = spec.item_heads();
    let width = spec.cache.value_width;
    let sum_stride = width.next_multiple_of(4);
    let factors: Vec<Value> =
        (0..heads).map(|head| b.load(FLOAT, item.factors, head as i32 * 4)).collect();
    let column = |b: &mut Body<'_>, index: Value, lanes: Lanes, vectors: usize| {
        let place = b.element(item.sums, index, 4);
        let values = b.element(values, index, 4);
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
            let value = b.element(values, row, width as i64 * 4);
            let weight = b.element(item.scores, row, 4);
            let loaded: Vec<Value> = (0..vectors)
                .map(|vector| b.load(lanes.float(), value, vector as i32 * 16))
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

fn finish_item(b: &mut Body<'_>, spec: &AttendSpec, item: &Item, output: Value) {
    let width = spec.cache.value_width;
    for head in 0..spec.item_heads() {
        let total = b.load(FLOAT, item.totals, head as i32 * 4);
        let sums = b.add_const(item.sums, (head * width.next_multiple_of(4) * 4) as i64);
        let output = b.add_const(output, (head * width * 4) as i64);
        b.for_count_lanes(width as i64, |b, index, lanes| {
            let from = b.element(sums, index, 4);
            let to = b.element(output, index, 4);
            let sum = b.load(lanes.float(), from, 0);
            let total = b.spread(lanes, total);
            let mean = b.fdiv(sum, total);
            b.store(mean, to, 0);
        });
    }
}

/// Keeps query and log-sum-exp of observed rows.
fn observe_item(
    b: &mut Body<'_>,
    spec: &AttendSpec,
    item: &Item,
    context: Value,
    layer: Value,
    row: Value,
    head: Value,
) {
    let kept = layer_field(b, layer, offset_of!(LayerCall, observed_queries));
    let wanted = b.compare_const(IntCC::NotEqual, kept, 0);
    b.if_then(wanted, |b| {
        let positions = b.load(POINTER, context, offset_of!(StepContext, positions) as i32);
        let position = b.element(positions, row, 4);
        let position = b.load_count(position, 0);
        let from = b.load_count(layer, offset_of!(LayerCall, observed_from) as i32);
        let late = b.compare(IntCC::SignedGreaterThanOrEqual, position, from);
        b.if_then(late, |b| {
            let index = b.sub(position, from);
            let place = b.mul_const(index, spec.score.heads as i64);
            let place = b.add(place, head);
            let queries = b.element(kept, place, spec.cache.key_width as i64 * 4);
            let lse = layer_field(b, layer, offset_of!(LayerCall, observed_lse));
            let lse = b.element(lse, place, 4);
            for head in 0..spec.item_heads() {
                let from = b.add_const(item.queries, (head * spec.query.1 * 4) as i64);
                let to = b.add_const(queries, (head * spec.cache.key_width * 4) as i64);
                copy_floats(b, from, to, spec.cache.key_width);
                let maximum = b.load(FLOAT, item.maxima, head as i32 * 4);
                let total = b.load(FLOAT, item.totals, head as i32 * 4);
                let log = b.ln(total);
                let sum = b.fadd(maximum, log);
                b.store(sum, lse, head as i32 * 4);
            }
        });
    });
}
