//! Cache writes, and attention of a row over its ranges of cache rows.
//!
//! `y = Σ softmax(score(q · k))·v` over the keys of a row's ranges, by online softmax (Milakov and
//! Gimelshein, arXiv:1805.02867; in tiles: Dao et al., arXiv:2205.14135): tiles of cache rows one
//! after the other, with a running maximum and sum. Where tiles begin depends on a row's ranges
//! alone, and so does its result: neither the other rows of the step nor the number of threads
//! change a bit of it.
//!
//! | file | job |
//! |---|---|
//! | `portable` | one row and up to four heads at a time, in 128-bit vectors by Cranelift |
//! | `wide` | tiles of queries against tiles of keys: the frame of the assembled versions |
//! | `wide/split` | one row by a whole team |
//! | `tile` | their assembled steps |
//! | `vector` | one vocabulary over registers of eight and sixteen floats |
//! | `scratch` | their memory |
//!
//! AVX2 and AVX-512 share one order of sums and give the same bits; the portable version has its
//! own. Scores with a cap, and groups whose scratch would not fit a thread's stack, are served by the
//! portable version on all levels.

mod portable;
mod scratch;
mod tile;
mod vector;
mod wide;

use std::mem::offset_of;

use weir_abi::{CacheRange, IsaLevel, LayerCall, MAX_RANGES, RowSpans, StepContext};

use self::scratch::Scratch;
use self::vector::Width;
use super::rows::copy_floats;
use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FuncId, IntCC, LANES, POINTER, Value, signature,
};

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
    /// Chunks of a row's ranges for which threads have memory to share.
    pub shared_chunks: usize,
}

impl AttendSpec {
    /// Query heads of a key/value head.
    fn group(&self) -> usize {
        self.score.heads / self.cache.kv_heads
    }

    /// The width of the assembled version for a level, with its scratch; nothing where the portable
    /// version serves.
    fn wide(&self, level: IsaLevel) -> Option<(Width, Scratch)> {
        let width = Width::of(level)?;
        if self.score.softcap != 0.0 {
            return None;
        }
        Some((width, Scratch::of(self, width)?))
    }

    /// Chunks of a row that reads at most this many cache rows.
    pub fn chunks(cache_rows: usize) -> usize {
        // Every range may begin and end within a chunk.
        cache_rows / wide::CHUNK as usize + 2 * MAX_RANGES
    }

    /// Bytes of the memory that threads share.
    pub fn shared_bytes(&self) -> usize {
        wide::shared_bytes(self, self.shared_chunks)
    }

    /// Symbol of the kernel: equal exactly for equal kernels.
    pub fn symbol(&self, level: IsaLevel) -> String {
        let version = match self.wide(level) {
            None => "portable",
            Some((Width::Eight, _)) => "avx2",
            Some((Width::Sixteen, _)) => "avx512",
        };
        format!(
            "attend-{}of{}x{}.{}-s{:08x}-c{:08x}{}-x{}.{}-y{}-p{}-{}",
            self.score.heads,
            self.cache.kv_heads,
            self.cache.key_width,
            self.cache.value_width,
            self.score.scale.to_bits(),
            self.score.softcap.to_bits(),
            if self.sinks { "-sinks" } else { "" },
            self.query.0,
            self.query.1,
            self.output_row,
            self.shared_chunks,
            version,
        )
    }
}

/// Emits (context, query, sinks or null, output, shared memory, thread, threads): attention of all
/// rows of the step. Every thread of the team calls it, and it deals out the work by a fixed rule.
/// It may wait for the team in between.
pub fn emit_attend(
    assembly: &mut Assembly,
    spec: &AttendSpec,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    let symbol = spec.symbol(level);
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 7], &[]))?;
    match spec.wide(level) {
        Some((width, scratch)) => wide::define(assembly, id, spec, width, &scratch)?,
        None => portable::define(assembly, id, spec)?,
    }
    Ok(id)
}

/// A cache range of a row, each number an `i64`.
struct RangeOfRow {
    slot: Value,
    first: Value,
    rows: Value,
}

/// Range number `range` of a row.
fn range_of_row(b: &mut Body<'_>, span: Value, range: Value) -> RangeOfRow {
    let range = b.element(span, range, size_of::<CacheRange>() as i64);
    let [slot, first, rows] =
        [offset_of!(CacheRange, slot), offset_of!(CacheRange, first), offset_of!(CacheRange, rows)]
            .map(|field| b.load_count(range, (offset_of!(RowSpans, ranges) + field) as i32));
    RangeOfRow { slot, first, rows }
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

/// Some heads of a row when all its keys are read.
struct Finished {
    heads: usize,
    /// Queries, and bytes from one head to the next.
    queries: (Value, usize),
    /// Weighted sums of values, and bytes from one head to the next.
    sums: (Value, usize),
    /// Largest score of each head.
    maxima: Value,
    /// Sum of the weights of each head.
    totals: Value,
}

impl Finished {
    /// Writes the means.
    fn write(&self, b: &mut Body<'_>, spec: &AttendSpec, output: Value) {
        let width = spec.cache.value_width;
        b.for_count(self.heads as i64, 1, |b, head| {
            let total = b.element(self.totals, head, 4);
            let total = b.load(FLOAT, total, 0);
            let sums = b.element(self.sums.0, head, self.sums.1 as i64);
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

    /// Keeps query and log-sum-exp of observed rows. `head` is the first of the heads.
    fn observe(
        &self,
        b: &mut Body<'_>,
        spec: &AttendSpec,
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
                b.for_count(self.heads as i64, 1, |b, head| {
                    let from = b.element(self.queries.0, head, self.queries.1 as i64);
                    let to = b.element(queries, head, spec.cache.key_width as i64 * 4);
                    copy_floats(b, from, to, spec.cache.key_width);
                    let maximum = b.element(self.maxima, head, 4);
                    let maximum = b.load(FLOAT, maximum, 0);
                    let total = b.element(self.totals, head, 4);
                    let total = b.load(FLOAT, total, 0);
                    let log = b.ln(total);
                    let sum = b.fadd(maximum, log);
                    let lse = b.element(lse, head, 4);
                    b.store(sum, lse, 0);
                });
            });
        });
    }
}
