//! Attention of a row over its ranges of cache rows.
//!
//! `y = Σ softmax(score(q · k))·v` over the keys of a row's ranges, by online softmax (Milakov and
//! Gimelshein, arXiv:1805.02867; in tiles: Dao et al., arXiv:2205.14135): tiles of cache rows one
//! after the other, with a running maximum and sum. Where tiles begin depends on a row's ranges
//! alone, and so does its result: neither the other rows of the step nor the number of threads
//! change a bit of it.
//!
//! | file | job |
//! |---|---|
//! | `cache` | number formats and places of cache rows |
//! | `codes` | rounding a row to codes |
//! | `narrow` | rounding floats to numbers of 16 bits, assembled |
//! | `block` | the immutable block where it has a number format of its own |
//! | `heads` | rows that only some heads have |
//! | `unpack` | tiles of int4 as tiles of int8, `unpack/wide` assembled; those as floats: `unpack/floats` |
//! | `portable` | one row and up to four heads at a time, in 128-bit vectors by Cranelift |
//! | `wide` | tiles of queries against tiles of keys: the frame of the assembled versions |
//! | `wide/split` | one row by a whole team |
//! | `wide/steps` | the assembled steps as functions |
//! | `wide/tiles` | one tile of cache rows for all rows of a unit |
//! | `tile` | their assembled steps |
//! | `vector` | one vocabulary over registers of eight and sixteen floats |
//! | `scratch` | their memory |
//! | `records` | means rounded for the product that reads them |
//!
//! AVX2, AVX-512 and AMX share one order of sums and give the same bits (but for numbers below 2⁻¹²⁶ over
//! a bf16 cache, where there is `vdpbf16ps`); the portable version has its own. On wide levels it serves
//! only heads of which a single row's scratch would not fit a thread's stack (some ten thousand values wide).

mod block;
mod cache;
pub(super) mod codes;
mod heads;
pub(super) mod narrow;
mod portable;
mod records;
mod scratch;
mod tile;
mod unpack;
mod vector;
mod wide;

use std::mem::offset_of;

use weir_abi::{CacheRange, IsaLevel, LayerCall, MAX_RANGES, RowSpans, StepContext};

pub(super) use self::block::{Moves, is_block, ring_start};
pub(super) use self::cache::{BlockOfKeys, KEY_OFFSET, KeyAside, QUAD, TOP_CODE, plane_rows};
pub use self::cache::{CacheShape, CacheType};
pub(super) use self::heads::RowsOfHead;
use self::records::Records;
use self::scratch::Scratch;
use self::unpack::Unpack;
use self::vector::{Instructions, Vectors, Width};
use super::matmul::Activation;
use super::rows::copy_floats;
use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FuncId, INTS, InstBuilder, IntCC, LANES, Lanes, POINTER,
    Value, signature,
};

/// Largest code of a weight: weights have no sign.
const TOP_WEIGHT: f32 = 255.0;
/// Weights times scales of values that are all smaller have codes 0; 255 divided by it is finite.
const LEAST_STEP: f32 = f32::from_bits((127 - 100) << 23);

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
        self.scaled(b, product, scale)
    }

    /// The same with another factor.
    fn scaled(&self, b: &mut Body<'_>, product: Value, scale: Value) -> Value {
        let ty = b.type_of(product);
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

/// Rows of a step from which on each thread has heads of all rows, from the product that gives queries,
/// keys and values to attention. Units that are taken in turn are known early, so that their first cache
/// rows can be asked for; with fewer rows, of as many sequences, that counts for more.
pub const ROWS_BY_HEAD: usize = 32;

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
    /// From row to row of the output, whose heads are dense, where it is floats.
    pub output_row: usize,
    /// What is written instead of floats: rows rounded for a product, which is one that
    /// [`AttendSpec::rounds`].
    pub rounded: Option<Activation>,
    /// Chunks of a row's ranges for which threads have memory to share.
    pub shared_chunks: usize,
    /// Most rows of a call.
    pub max_rows: usize,
}

impl AttendSpec {
    /// Query heads of a key/value head.
    pub(super) fn group(&self) -> usize {
        self.score.heads / self.cache.kv_heads
    }

    /// What the assembled version for a level computes with, and its scratch; nothing where the
    /// portable version serves.
    fn wide(&self, level: IsaLevel) -> Option<(Instructions, Scratch)> {
        let instructions = Instructions::of(level, self.cache.number)?;
        Some((instructions, Scratch::of(self, instructions)?))
    }

    /// Whether it may give rows that are rounded so, which are all heads, each by itself.
    pub fn rounds(&self, rows: Activation) -> bool {
        rows.is_of_parts(self.score.heads, self.cache.value_width)
    }

    /// Whether its operations are products of bf16 with bf16.
    pub fn is_all_bf16(&self) -> bool {
        self.cache.number == CacheType::Bf16
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
        let is_coded = self.cache.number.is_coded();
        let version = match self.wide(level).map(|(instructions, _)| instructions) {
            None => "portable",
            Some(Instructions { width: Width::Eight, .. }) => match level {
                IsaLevel::AvxVnni if is_coded => "avxvnni",
                _ => "avx2",
            },
            Some(Instructions { width: Width::Sixteen, is_paired, .. }) => match level {
                IsaLevel::Amx if is_coded => "amx",
                _ if is_paired => "avx512pairs",
                _ => "avx512",
            },
        };
        let output = match self.rounded {
            Some(rows) => rows.at(level).symbol(),
            None => format!("y{}", self.output_row),
        };
        format!(
            "attend-{}of{}-s{:08x}-c{:08x}{}-x{}.{}-{}-p{}-r{}-{}",
            self.score.heads,
            self.cache.symbol(),
            self.score.scale.to_bits(),
            self.score.softcap.to_bits(),
            if self.sinks { "-sinks" } else { "" },
            self.query.0,
            self.query.1,
            output,
            self.shared_chunks,
            self.max_rows,
            version,
        )
    }
}

/// Emits (context, query, sinks or null, output, shared memory, thread, threads, number of the work):
/// attention of all rows of the step. Every thread of the team calls it, and it deals out the work by
/// a fixed rule or, on wide levels and with many rows, as threads come to it. It may wait for the
/// team in between.
pub fn emit_attend(
    assembly: &mut Assembly,
    spec: &AttendSpec,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    let symbol = spec.symbol(level);
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 8], &[]))?;
    match spec.wide(level) {
        Some((instructions, scratch)) => {
            let records = Records::emit(assembly, spec, level, scratch.heads)?;
            wide::define(assembly, id, spec, instructions, &scratch, records)?;
        }
        None => {
            let records = Records::emit(assembly, spec, level, portable::item_heads(spec))?;
            portable::define(assembly, id, spec, records)?;
        }
    }
    Ok(id)
}

/// Emits (queries, block of keys, products, number of queries): products of queries, `query_row` floats
/// from each other, with the keys of a block, f32 `[query][KEY_BLOCK]`, every one summed by fused steps
/// in ascending order. The keys are as the cache holds them, or in single precision
/// ([`CacheShape::widen_block`]) where it holds codes. Nothing where there is no version for a level.
pub(super) fn emit_block_products(
    assembly: &mut Assembly,
    cache: &CacheShape,
    query_row: usize,
    level: IsaLevel,
) -> Result<Option<FuncId>, EmitError> {
    let Some(width) = Width::of(level) else { return Ok(None) };
    let number = cache.number.aside().name();
    let symbol = format!("products-{}x{query_row}-{number}-{}", cache.key_width, width.lanes());
    if let Some(known) = assembly.find(&symbol) {
        return Ok(Some(known));
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 4], &[]))?;
    assembly.assemble(id, |code| {
        tile::float::block_products(&mut Vectors { code, width }, cache, query_row * 4)
    })?;
    Ok(Some(id))
}

/// Emits (products, queries, logarithms, bytes from one to the next, scales of the keys or null):
/// products of [`emit_block_products`] become `exp(score - logarithm)` in place, bit for bit what
/// [`Body::exp`] gives. Nothing where there is no version for a level, or scores have a cap.
pub(super) fn emit_block_weights(
    assembly: &mut Assembly,
    spec: &AttendSpec,
    level: IsaLevel,
) -> Result<Option<FuncId>, EmitError> {
    let Some(width) = Width::of(level).filter(|_| spec.score.softcap == 0.0) else {
        return Ok(None);
    };
    let is_coded = spec.cache.number.is_coded();
    let coded = if is_coded { "-coded" } else { "" };
    let scale = spec.score.scale;
    let symbol = format!("weights-s{:08x}{coded}-{}", scale.to_bits(), width.lanes());
    if let Some(known) = assembly.find(&symbol) {
        return Ok(Some(known));
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 5], &[]))?;
    assembly.assemble(id, |code| {
        tile::exponentials::block_weights(&mut Vectors { code, width }, scale, is_coded)
    })?;
    Ok(Some(id))
}

/// A cache range of a row, each number an `i64`.
struct RangeOfRow {
    slot: Value,
    /// As the row's spans have it: [`weir_abi::FURTHER`] where it differs from head to head.
    first: Value,
    /// That of the head with the most.
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

/// Numbers of a key of codes whose products with codes of a query are summed exactly by floats: each
/// product is at most 127², and the sum is to stay below 2²⁴.
const EXACT_WIDTH: usize = ((1 << 24) / (127 * 127)) & !3;

/// Products of `heads` queries (at `stride` floats from each other) with one key. Those of codes are exact
/// and rounded once.
pub(super) fn products(
    b: &mut Body<'_>,
    queries: Value,
    stride: usize,
    heads: usize,
    key: &KeyAside,
    cache: &CacheShape,
) -> Vec<Value> {
    let (width, number) = (cache.key_width, cache.number.aside());
    let size = number.bytes();
    if let Some(scale) = key.scale
        && width > EXACT_WIDTH
    {
        let sums = sums_of_codes(b, [queries, key.numbers], stride, heads, width);
        return sums.into_iter().map(|sum| b.fmul(sum, scale)).collect();
    }
    let whole = width & !3;
    let lanes = lanes_of_products(b, [queries, key.numbers], stride, heads, number, whole);
    lanes
        .into_iter()
        .enumerate()
        .map(|(head, lanes)| {
            let mut sum = b.sum_lanes(lanes);
            for rest in whole..width {
                let query = b.load(FLOAT, queries, ((head * stride + rest) * 4) as i32);
                let key = number.load(b, Lanes::One, key.numbers, (rest * size) as i32);
                sum = b.fma(query, key, sum);
            }
            match key.scale {
                Some(scale) => b.fmul(sum, scale),
                None => sum,
            }
        })
        .collect()
}

/// Products of the first `count` numbers, whole lanes of them, summed lane by lane.
fn lanes_of_products(
    b: &mut Body<'_>,
    [queries, key]: [Value; 2],
    stride: usize,
    heads: usize,
    number: CacheType,
    count: usize,
) -> Vec<Value> {
    let zero = b.constant(LANES, 0.0);
    b.fold_count(count as i64, 4, &vec![zero; heads], |b, index, sums| {
        let key = b.element(key, index, number.bytes() as i64);
        let key = number.load(b, Lanes::Four, key, 0);
        let query = b.element(queries, index, 4);
        sums.iter()
            .enumerate()
            .map(|(head, sum)| {
                let query = b.load(LANES, query, (head * stride * 4) as i32);
                b.fma(query, key, *sum)
            })
            .collect()
    })
}

/// Sums of products of codes that lie as floats, where floats alone would not sum them exactly: parts of
/// a row become integers. Lanes are exact for half a million numbers, which no thread's stack has room for.
fn sums_of_codes(
    b: &mut Body<'_>,
    [queries, key]: [Value; 2],
    stride: usize,
    heads: usize,
    width: usize,
) -> Vec<Value> {
    let whole = width & !3;
    let mut sums = vec![b.constant_int(INTS, 0); heads];
    for start in (0..whole).step_by(EXACT_WIDTH) {
        let count = EXACT_WIDTH.min(whole - start);
        let from = [queries, key].map(|numbers| b.add_const(numbers, start as i64 * 4));
        let lanes = lanes_of_products(b, from, stride, heads, CacheType::F32, count);
        for (sum, lanes) in sums.iter_mut().zip(lanes) {
            let lanes = b.to_int(lanes);
            *sum = b.ins().iadd(*sum, lanes);
        }
    }
    let in_all = |b: &mut Body<'_>, (head, lanes): (usize, Value)| {
        let mut sum = b.int(0);
        let mut add = |b: &mut Body<'_>, part: Value| {
            let part = b.ins().sextend(POINTER, part);
            sum = b.add(sum, part);
        };
        for lane in 0..4 {
            let part = b.lane(lanes, lane);
            add(b, part);
        }
        for rest in whole..width {
            let query = b.load(FLOAT, queries, ((head * stride + rest) * 4) as i32);
            let key = b.load(FLOAT, key, rest as i32 * 4);
            let product = b.fmul(query, key);
            let product = b.to_int(product);
            add(b, product);
        }
        b.ins().fcvt_from_sint(FLOAT, sum)
    };
    sums.into_iter().enumerate().map(|head| in_all(b, head)).collect()
}

/// Some heads of a row when all its keys are read.
struct Finished {
    heads: usize,
    /// Queries, and bytes from one head to the next.
    queries: (Value, usize),
    /// Largest score of each head.
    maxima: Value,
    /// Sum of the weights of each head.
    totals: Value,
    /// Unit of the scores: ln 2 where they are in base 2.
    unit: f32,
}

impl Finished {
    /// Keeps query and log-sum-exp of rows that are [`observed`]. `head` is the first of the heads.
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
                let unit = b.float(self.unit);
                let sum = b.fma(maximum, unit, log);
                let lse = b.element(lse, head, 4);
                b.store(sum, lse, 0);
            });
        });
    }
}

/// What is done where rows of this call may be observed: memory for them is there.
fn observed(b: &mut Body<'_>, layer: Value, body: impl FnOnce(&mut Body<'_>)) {
    let kept = layer_field(b, layer, offset_of!(LayerCall, observed_queries));
    let wanted = b.compare_const(IntCC::NotEqual, kept, 0);
    b.if_then(wanted, body);
}
