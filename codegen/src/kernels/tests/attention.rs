//! Attention over ranges of cache rows, with and without sink logits.

use weir_abi::{CacheRange, IsaLevel, KEY_BLOCK, KEY_TILE, LayerCall, RowSpans};
use weir_ir::DType;
use weir_ir::interpret::stored;

use super::*;
use crate::kernels::attention::{AttendSpec, CacheShape, CacheType, ScoreSpec, emit_attend};

pub(super) const SLOTS: usize = 3;
pub(super) const CACHE_ROWS: usize = 1300;

/// Planes of a layer; rows that no range names hold poison. Numbers are as they are stored, so that
/// the bytes hold them exactly; those of int8 are as they were before.
pub(super) struct Planes {
    shape: CacheShape,
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    /// Keys and values as kernels see them, between pages without access.
    pub(super) guarded: Option<[Guarded; 2]>,
}

fn dtype(number: CacheType) -> DType {
    match number {
        CacheType::F32 => DType::F32,
        CacheType::F16 => DType::F16,
        CacheType::Bf16 => DType::BF16,
        CacheType::Int8 => DType::I8,
    }
}

/// Codes of a row and head, and their scale, by the definition (`kernels::attention`'s `cache`).
fn codes(row: &[f32]) -> (Vec<i8>, f32) {
    let largest = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let is_finite = row.iter().all(|x| x.is_finite());
    let scale = if is_finite { largest / 127.0 } else { f32::NAN };
    let inverse = if is_finite && largest > 1e-30 { 127.0 / largest } else { 0.0 };
    (row.iter().map(|x| (x * inverse).round_ties_even() as i8).collect(), scale)
}

/// Numbers as an int8 cache holds them.
fn rounded(row: &[f32]) -> Vec<f64> {
    let (codes, scale) = codes(row);
    codes.into_iter().map(|code| f64::from(code) * f64::from(scale)).collect()
}

/// Rows `[head][row][width]` of `rows` rows a head as codes: blocks of 16 rows of keys, four numbers
/// of a row side by side, or of values, a number of four rows side by side; scales behind each block.
/// Blocks are filled up to whole tiles with codes and scales that mean nothing.
fn code_blocks(plane: &[f32], rows: usize, width: usize, is_key: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let wide = if is_key { width.next_multiple_of(4) } else { width };
    for head in plane.chunks(rows * width) {
        for block in (0..rows.next_multiple_of(KEY_TILE)).step_by(KEY_BLOCK) {
            let start = bytes.len();
            bytes.resize(start + KEY_BLOCK * (wide + 4), 0xb5);
            let bytes = &mut bytes[start..];
            for lane in 0..KEY_BLOCK.min(rows.saturating_sub(block)) {
                let row = &head[(block + lane) * width..][..width];
                let is_there = row[0] != POISON;
                let (codes, scale) = codes(row);
                for (d, code) in codes.into_iter().enumerate().filter(|_| is_there) {
                    if is_key {
                        bytes[d / 4 * 64 + lane * 4 + d % 4] = (code as u8).wrapping_add(128);
                    } else {
                        bytes[lane / 4 * 4 * width + d * 4 + lane % 4] = code as u8;
                    }
                }
                let scale = if is_there { scale } else { f32::NAN };
                bytes[KEY_BLOCK * wide + lane * 4..][..4].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }
    bytes
}

pub(super) fn encoded(number: CacheType, values: &[f32]) -> Vec<u8> {
    match number {
        CacheType::F32 | CacheType::Int8 => bytes(values),
        CacheType::F16 => {
            values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect()
        }
        CacheType::Bf16 => {
            values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect()
        }
    }
}

/// Keys `[head][row][width]` of `rows` rows a head as kernels see them: in blocks of one number of all
/// rows after another, filled up with poison to whole tiles.
pub(super) fn key_blocks(keys: &[f32], rows: usize, width: usize) -> Vec<f32> {
    let mut blocks = Vec::new();
    for head in keys.chunks(rows * width) {
        for block in (0..rows.next_multiple_of(KEY_TILE)).step_by(KEY_BLOCK) {
            for d in 0..width {
                let rows = block..block + KEY_BLOCK;
                blocks.extend(rows.map(|row| head.get(row * width + d).copied().unwrap_or(POISON)));
            }
        }
    }
    blocks
}

impl Planes {
    pub(super) fn new(shape: CacheShape) -> Planes {
        let rows = SLOTS * shape.kv_heads * CACHE_ROWS;
        Planes {
            shape,
            keys: vec![POISON; rows * shape.key_width],
            values: vec![POISON; rows * shape.value_width],
            guarded: None,
        }
    }

    /// Sets a row; its numbers are rounded to what the cache holds.
    pub(super) fn set(&mut self, at: usize, key: &[f32], value: &[f32]) {
        let ty = dtype(self.shape.number);
        for (plane, row) in [(&mut self.keys, key), (&mut self.values, value)] {
            let place = &mut plane[at * row.len()..][..row.len()];
            place.iter_mut().zip(row).for_each(|(to, from)| *to = stored(*from, ty));
        }
    }

    pub(super) fn row(&self, slot: usize, head: usize, row: usize) -> usize {
        (slot * self.shape.kv_heads + head) * CACHE_ROWS + row
    }

    /// Numbers as the cache holds them.
    fn held(&self, row: &[f32]) -> Vec<f64> {
        match self.shape.number {
            CacheType::Int8 => rounded(row),
            _ => double(row),
        }
    }

    fn key(&self, slot: usize, head: usize, row: usize) -> Vec<f64> {
        let width = self.shape.key_width;
        self.held(&self.keys[self.row(slot, head, row) * width..][..width])
    }

    fn value(&self, slot: usize, head: usize, row: usize) -> &[f32] {
        let width = self.shape.value_width;
        &self.values[self.row(slot, head, row) * width..][..width]
    }

    /// Keys in blocks, and values, as kernels see them.
    pub(super) fn encoded(&self) -> [Vec<u8>; 2] {
        let (key_width, value_width) = (self.shape.key_width, self.shape.value_width);
        if self.shape.number == CacheType::Int8 {
            return [(&self.keys, key_width, true), (&self.values, value_width, false)]
                .map(|(plane, width, is_key)| code_blocks(plane, CACHE_ROWS, width, is_key));
        }
        let keys = key_blocks(&self.keys, CACHE_ROWS, self.shape.key_width);
        [&keys, &self.values].map(|plane| encoded(self.shape.number, plane))
    }

    /// The same up to the last row that is read, keys and codes to the end of its tile.
    fn encoded_to_last(&self, spans: &[RowSpans]) -> [Vec<u8>; 2] {
        let heads = self.shape.kv_heads;
        let last = spans.iter().flat_map(places).max();
        let (slot, row) = last.expect("a row reads something");
        let head = slot * heads + heads - 1;
        let [mut keys, mut values] = self.encoded();
        let tiles = head * CACHE_ROWS.next_multiple_of(KEY_TILE) + row / KEY_TILE * KEY_TILE;
        keys.truncate((tiles + KEY_TILE) * self.shape.key_bytes());
        let values_end = match self.shape.number {
            CacheType::Int8 => tiles + KEY_TILE,
            _ => head * CACHE_ROWS + row + 1,
        };
        values.truncate(values_end * self.shape.value_bytes());
        [keys, values]
    }

    /// The call of a layer with these planes.
    pub(super) fn call(
        &mut self,
        planes: [Vec<u8>; 2],
        spans: &[RowSpans],
        side: Side,
    ) -> LayerCall {
        let [keys, values] = self.guarded.insert(planes.map(|plane| Guarded::new(&plane, side)));
        let [keys, values] = [keys, values].map(|plane| plane.bytes().as_mut_ptr());
        self.call_at(keys, values, spans)
    }

    fn call_at(&self, keys: *mut u8, values: *mut u8, spans: &[RowSpans]) -> LayerCall {
        let key_head = (CACHE_ROWS.next_multiple_of(KEY_TILE) * self.shape.key_bytes()) as u64;
        let value_rows = match self.shape.number {
            CacheType::Int8 => CACHE_ROWS.next_multiple_of(KEY_TILE),
            _ => CACHE_ROWS,
        };
        let value_head = (value_rows * self.shape.value_bytes()) as u64;
        LayerCall {
            keys,
            values,
            key_slot_stride: key_head * self.shape.kv_heads as u64,
            key_head_stride: key_head,
            value_slot_stride: value_head * self.shape.kv_heads as u64,
            value_head_stride: value_head,
            spans: spans.as_ptr(),
            observed_queries: null_mut(),
            observed_lse: null_mut(),
            observed_from: 0,
            reserved: 0,
        }
    }
}

fn range(slot: usize, first: usize, rows: usize) -> CacheRange {
    CacheRange { slot: slot as u32, first: first as u32, rows: rows as u32 }
}

/// One to four ranges over different slots, some empty, none of them all.
fn random_span(random: &mut Random) -> RowSpans {
    let mut span = RowSpans { range_count: 1 + random.below(4) as u32, ..Default::default() };
    for index in 0..span.range_count as usize {
        let first = random.below(CACHE_ROWS);
        let rows = random.below((CACHE_ROWS - first).min(90)) + usize::from(index == 0);
        span.ranges[index] = range(random.below(SLOTS), first, rows.min(CACHE_ROWS - first));
    }
    span
}

/// How the rows of a step read the cache.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pattern {
    /// Nothing in common.
    Random,
    /// Rows of sequences, each one key further than the one before.
    Causal,
    /// The same, of a window of this many rows.
    Window(usize),
    /// The first rows, then a window behind them.
    SinksAndWindow(usize),
}

impl Pattern {
    fn spans(self, random: &mut Random, rows: usize) -> Vec<RowSpans> {
        let mut spans = Vec::new();
        // Around the end of a tile, of a chunk, and anywhere.
        let starts = [40, 500, 0, 1020, random.below(1100)];
        let mut start = starts[random.below(starts.len())];
        let mut slot = 0;
        for row in 0..rows {
            if random.below(40) == 0 {
                (slot, start) = ((slot + 1) % SLOTS, random.below(1100));
            }
            let end = (start + row % 200 + 1).min(CACHE_ROWS);
            let ranges = match self {
                Pattern::Random => {
                    spans.push(random_span(random));
                    continue;
                }
                Pattern::Causal => vec![range(slot, 0, end)],
                Pattern::Window(width) => {
                    let rows = end.min(width);
                    vec![range(slot, end - rows, rows)]
                }
                Pattern::SinksAndWindow(width) => {
                    let sinks = end.min(4);
                    let rows = (end - sinks).min(width);
                    vec![range(slot, 0, sinks), range(slot, end - rows, rows)]
                }
            };
            let mut span = RowSpans { range_count: ranges.len() as u32, ..Default::default() };
            span.ranges[..ranges.len()].copy_from_slice(&ranges);
            spans.push(span);
        }
        spans
    }
}

/// Levels that this machine runs and that attend each in a way of its own.
pub(super) fn levels() -> Vec<IsaLevel> {
    let runs = |level: &IsaLevel| match level {
        IsaLevel::Portable | IsaLevel::Avx2 => is_x86_feature_detected!("fma"),
        IsaLevel::Avx512 => is_x86_feature_detected!("avx512dq"),
        // The kernels of AVX2 and of AVX-512.
        IsaLevel::AvxVnni | IsaLevel::Amx => false,
    };
    IsaLevel::ALL.into_iter().filter(runs).collect()
}

fn places(span: &RowSpans) -> impl Iterator<Item = (usize, usize)> + '_ {
    span.ranges[..span.range_count as usize].iter().flat_map(|range| {
        (range.first..range.first + range.rows).map(|row| (range.slot as usize, row as usize))
    })
}

/// One head by the definition: softmax over all scores and the sink, weighted values.
struct Exact {
    output: Vec<f64>,
    bounds: Vec<f64>,
}

/// A score sums `width` products by fused steps, on the portable level in four lanes, at most
/// width / 4 + 6 roundings of Σ|q·k|, on the others in one chain, at most width; it is scaled by
/// one more. A cap divides, takes tanh (4 ulp, so 8u, of at most the cap) and multiplies. Its shift
/// by the running maximum rounds once, of at most the span of all scores; exp adds 2 ulp, 4u. Each
/// of the T tiles, and on wide levels of the combinations of chunks, may rescale what came before:
/// a shift, an exp, a product, 5u and one u of the span. That makes the relative error E of a
/// weight. Total and weighted sum add a rounding per row, the division one; total and sum carry the
/// same E, which gives |Δy| ≤ (2·E + (2·rows + 2)·u) · Σ weight·|value|.
///
/// Over an int8 cache sums of codes are exact, and three products make a score. Codes of weights are
/// those of the definition, but where E moves one to its neighbour: with the relative error E of a
/// weight (and 2u of a tile's factor) that is within 255·2·(E + 2u) of the middle of two codes, and
/// such a key may add its value times one step of its tile.
#[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
fn exact(
    planes: &Planes,
    spec: &AttendSpec,
    level: IsaLevel,
    query: &[f32],
    span: &RowSpans,
    kv_head: usize,
    sink: Option<f32>,
) -> Exact {
    let scale = f64::from(spec.score.scale);
    let cap = f64::from(spec.score.softcap);
    let is_int8 = spec.cache.number == CacheType::Int8;
    let query = if is_int8 { rounded(query) } else { double(query) };
    let (mut scores, mut score_error) = (Vec::new(), 0f64);
    for (slot, row) in places(span) {
        let key = planes.key(slot, kv_head, row);
        let product: f64 = query.iter().zip(&key).map(|(q, k)| q * k).sum();
        let size: f64 = query.iter().zip(&key).map(|(q, k)| (q * k).abs()).sum();
        let score = product * scale;
        let roundings = match level {
            _ if is_int8 => 3.0,
            IsaLevel::Portable => (query.len() / 4) as f64 + 7.0,
            _ => query.len() as f64 + 1.0,
        };
        let mut error = roundings * U * size * scale;
        scores.push(if cap == 0.0 {
            score
        } else {
            error += (score.abs() + 9.0 * cap) * U;
            cap * (score / cap).tanh()
        });
        score_error = score_error.max(error);
    }
    let sink = sink.map(f64::from);
    let all = || scores.iter().copied().chain(sink);
    let (largest, least) = (all().fold(f64::MIN, f64::max), all().fold(f64::MAX, f64::min));
    let total: f64 = all().map(|score| (score - largest).exp()).sum();
    // Tiles, and chunks of wide levels, begin at multiples of their lengths.
    let parts = |range: &CacheRange, rows: u32| {
        (range.first + range.rows).div_ceil(rows) - range.first / rows
    };
    let tiles = span.ranges[..span.range_count as usize]
        .iter()
        .map(|range| match level {
            IsaLevel::Portable => parts(range, 64),
            _ => parts(range, 64) + parts(range, 512),
        })
        .sum::<u32>();
    let reach = largest - least;
    let weight_error = score_error + (4.0 + reach) * U + f64::from(tiles) * (5.0 + reach) * U;
    let factor = 2.0 * weight_error + (2.0 * scores.len() as f64 + 2.0) * U;
    let weights = scores.iter().map(|score| (score - largest).exp() / total);
    let mut exact = Exact {
        output: vec![0.0; spec.cache.value_width],
        bounds: vec![0.0; spec.cache.value_width],
    };
    let mut rest: Vec<(usize, usize, f64)> =
        places(span).zip(weights).map(|((slot, row), weight)| (slot, row, weight)).collect();
    let ranges = &span.ranges[..span.range_count as usize];
    for range in ranges {
        let behind = rest.split_off(range.rows as usize);
        for tile in rest.chunk_by(|a, b| a.1 / KEY_TILE == b.1 / KEY_TILE) {
            if is_int8 {
                exact.add_rounded(planes, kv_head, tile, [weight_error, factor]);
            } else {
                exact.add(planes, kv_head, tile, factor);
            }
        }
        rest = behind;
    }
    exact
}

impl Exact {
    /// Adds weighted values.
    fn add(&mut self, planes: &Planes, kv_head: usize, tile: &[(usize, usize, f64)], factor: f64) {
        for (slot, row, weight) in tile {
            for (k, value) in planes.value(*slot, kv_head, *row).iter().enumerate() {
                self.output[k] += weight * f64::from(*value);
                self.bounds[k] += weight * f64::from(value.abs()) * factor;
            }
        }
    }

    /// The same over an int8 cache; `error` is that of a weight.
    fn add_rounded(
        &mut self,
        planes: &Planes,
        kv_head: usize,
        tile: &[(usize, usize, f64)],
        [error, factor]: [f64; 2],
    ) {
        let rows: Vec<(Vec<i8>, f64)> = tile
            .iter()
            .map(|(slot, row, weight)| {
                let (codes, scale) = codes(planes.value(*slot, kv_head, *row));
                (codes, weight * f64::from(scale))
            })
            .collect();
        // Weights are divided by their total here, which is at least e⁰ and at most their number.
        let least = 2f64.powi(-100);
        let largest = rows.iter().fold(0.0, |most, (_, product)| product.max(most));
        let step = largest.max(least) / 255.0;
        for (codes, product) in rows {
            let exact = product / step;
            let code = exact.round_ties_even();
            let slack = 255.0 * 2.0 * (error + 2.0 * U);
            let is_near = 0.5 - (exact - code).abs() < slack;
            for (k, value) in codes.into_iter().enumerate() {
                let value = f64::from(value);
                self.output[k] += step * code * value;
                // Of a tile of nothing but negligible weights any code will do.
                let moved = if largest <= least { 255.0 } else { f64::from(is_near) };
                self.bounds[k] += step * (code * factor + moved) * value.abs();
            }
        }
    }
}

/// A step to compute: queries over a filled cache.
pub(super) struct Case {
    pub(super) spec: AttendSpec,
    planes: Planes,
    pub(super) query: Vec<f32>,
    pub(super) sink: Vec<f32>,
    pub(super) spans: Vec<RowSpans>,
    /// Where buffers lie against a page without access.
    pub(super) side: Side,
}

/// Rows, query heads, key/value heads, widths of key and value.
pub(super) type Sizes = (usize, usize, usize, usize, usize);

impl Case {
    pub(super) fn new(
        random: &mut Random,
        sizes: Sizes,
        number: CacheType,
        pattern: Pattern,
        (sinks, softcap): (bool, f32),
    ) -> Case {
        let (rows, heads, kv_heads, key_width, value_width) = sizes;
        let cache = CacheShape { kv_heads, key_width, value_width, number };
        let query_row = heads * key_width + 3;
        let spec = AttendSpec {
            cache,
            score: ScoreSpec { heads, scale: 0.4, softcap },
            sinks,
            query: (query_row, key_width),
            output_row: heads * value_width + 1,
            shared_chunks: AttendSpec::chunks(CACHE_ROWS),
        };
        let spans = pattern.spans(random, rows);
        let mut planes = Planes::new(cache);
        let mut filled = std::collections::HashSet::new();
        for place in spans.iter().flat_map(places) {
            for head in 0..kv_heads {
                let at = planes.row(place.0, head, place.1);
                if filled.insert(at) {
                    let key = random.units(key_width).into_iter().map(|v| v * 2.0);
                    let key: Vec<f32> = key.collect();
                    planes.set(at, &key, &random.units(value_width));
                }
            }
        }
        let query = random.units(rows * query_row).into_iter().map(|v| v * 2.0).collect();
        // Far below all scores, among them, and far above, where hardly anything is left for values.
        let sink = (0..heads).map(|head| [-60.0, 0.5, 3.0, 12.0][head % 4] + random.unit());
        Case { spec, planes, query, sink: sink.collect(), spans, side: Side::End }
    }

    fn kernel(&self, level: IsaLevel) -> Kernel {
        Kernel::new(|assembly| emit_attend(assembly, &self.spec, level))
    }

    fn run(&mut self, kernel: &Kernel, rows: std::ops::Range<usize>, threads: usize) -> Vec<f32> {
        self.run_and_share(kernel, rows, threads).0
    }

    /// Attention of some rows of the step, by a team of `threads`; and what they shared.
    fn run_and_share(
        &mut self,
        kernel: &Kernel,
        rows: std::ops::Range<usize>,
        threads: usize,
    ) -> (Vec<f32>, Vec<f32>) {
        let spans = &self.spans[rows.clone()];
        let planes = self.planes.encoded_to_last(spans);
        let layer = self.planes.call(planes, spans, self.side);
        let count = rows.len();
        let query = &self.query[rows.start * self.spec.query.0..][..count * self.spec.query.0];
        let mut query = Guarded::new(&bytes(query), self.side);
        let context =
            StepContext { layer: &layer, rows: count as u32, barrier: wait_for_team, ..context() };
        let given = [
            Input::Context(&context),
            Input::Guarded(query.bytes().as_ptr()),
            if self.spec.sinks { Input::floats(&self.sink) } else { Input::Nothing },
        ];
        let shared = self.spec.shared_bytes() / 4;
        kernel.run_team(&given, count * self.spec.output_row, shared, (threads, self.side))
    }

    /// Makes numbers of some rows and queries so small that they are subnormal, or zeros.
    pub(super) fn with_tiny_numbers(&mut self, random: &mut Random) {
        let ty = dtype(self.planes.shape.number);
        let numbers = [&mut self.planes.keys, &mut self.planes.values, &mut self.query];
        for number in numbers.into_iter().flatten().filter(|number| **number != stored(POISON, ty))
        {
            let tiny = [1e-40, -3e-42, 0.0, -0.0, 6e-8, -1e-7][random.below(6)];
            if *number != POISON && random.below(4) == 0 {
                *number = stored(tiny, ty);
            }
        }
    }

    /// Rows that read an infinite number show it; the bits of others stay.
    pub(super) fn check_infinity(&mut self, random: &mut Random, level: IsaLevel) {
        let kernel = self.kernel(level);
        let rows = self.spans.len();
        let before = self.run(&kernel, 0..rows, 2);
        let seen: Vec<(usize, usize)> = self.spans.iter().flat_map(places).collect();
        let (slot, row) = seen[random.below(seen.len())];
        let at = self.planes.row(slot, 0, row);
        let width = self.spec.cache.value_width;
        let old = std::mem::replace(&mut self.planes.values[at * width], f32::INFINITY);
        self.planes.guarded = None;
        let after = self.run(&kernel, 0..rows, 2);
        self.planes.values[at * width] = old;
        self.planes.guarded = None;
        let row_of = self.spec.output_row;
        let group = self.spec.score.heads / self.spec.cache.kv_heads;
        for (index, (before, after)) in before.chunks(row_of).zip(after.chunks(row_of)).enumerate()
        {
            let reads = places(&self.spans[index]).any(|place| place == (slot, row));
            let number = self.spec.cache.number;
            for (column, (before, after)) in before.iter().zip(after).enumerate() {
                // Numbers with a common scale go together.
                let shows = column % width == 0 || number == CacheType::Int8;
                let is_touched = reads && shows && column < group * width;
                let what = (level, self.spec.cache, index, column);
                if is_touched {
                    assert!(!after.is_finite(), "{what:?}: {after}");
                } else {
                    assert_eq!(before.to_bits(), after.to_bits(), "{what:?}");
                }
            }
        }
    }

    /// Planes as kernels see them, and the layer's call of all rows with other addresses for the
    /// planes.
    pub(super) fn layer(&self, [keys, values]: [u64; 2]) -> ([Vec<u8>; 2], LayerCall) {
        let [keys, values] = [keys, values].map(|at| std::ptr::without_provenance_mut(at as usize));
        let planes = self.planes.encoded_to_last(&self.spans);
        (planes, self.planes.call_at(keys, values, &self.spans))
    }

    /// The whole step on a level, by two threads.
    pub(super) fn run_all(&mut self, level: IsaLevel) -> Vec<f32> {
        let kernel = self.kernel(level);
        self.run(&kernel, 0..self.spans.len(), 2)
    }

    pub(super) fn check(&mut self, level: IsaLevel) {
        let got = self.run_all(level);
        self.check_output(level, &got);
    }

    /// Fails if an output of the whole step breaks the bound.
    pub(super) fn check_output(&self, level: IsaLevel, got: &[f32]) {
        let spec = self.spec;
        let CacheShape { kv_heads, key_width, value_width, .. } = spec.cache;
        for (row, got) in got.chunks(spec.output_row).enumerate() {
            assert_eq!(got[spec.output_row - 1], POISON);
            for head in 0..spec.score.heads {
                let query = &self.query[row * spec.query.0 + head * key_width..][..key_width];
                let kv_head = head / (spec.score.heads / kv_heads);
                let sink = spec.sinks.then(|| self.sink[head]);
                let span = &self.spans[row];
                let exact = exact(&self.planes, &spec, level, query, span, kv_head, sink);
                for (k, value) in exact.output.iter().enumerate() {
                    let got = got[head * value_width + k];
                    within(&(level, spec, row, head, k, span), got, *value, exact.bounds[k]);
                }
            }
        }
    }
}

const SIZES: [Sizes; 9] = [
    (1, 1, 1, 1, 1),
    (1, 6, 2, 6, 6),
    (7, 8, 2, 16, 20),
    (19, 5, 1, 33, 37),
    (3, 6, 6, 64, 18),
    (70, 8, 2, 64, 64),
    (45, 2, 2, 80, 100),
    (9, 71, 1, 12, 30),
    (40, 3, 1, 8, 8),
];

pub(super) const PATTERNS: [Pattern; 5] = [
    Pattern::Random,
    Pattern::Causal,
    Pattern::Window(30),
    Pattern::Window(150),
    Pattern::SinksAndWindow(90),
];

fn check(sinks: bool, softcap: f32) {
    let mut random = Random::new(31);
    for sizes in SIZES {
        for pattern in PATTERNS {
            for number in CacheType::ALL {
                let mut case = Case::new(&mut random, sizes, number, pattern, (sinks, softcap));
                for level in levels() {
                    case.check(level);
                }
            }
        }
    }
}

#[test]
fn attention_keeps_its_bound() {
    check(false, 0.0);
    check(false, 2.5);
}

#[test]
fn sink_logits_take_part_in_the_sum_only() {
    check(true, 0.0);
    check(true, 2.5);
}

/// A row's bits are the same alone, in any part of the step, and for any number of threads.
#[test]
fn company_changes_no_bit_of_attention() {
    let mut random = Random::new(33);
    for sizes in SIZES {
        for pattern in PATTERNS {
            let number = CacheType::ALL[random.below(4)];
            let mut case = Case::new(&mut random, sizes, number, pattern, (true, 0.0));
            for level in levels() {
                let kernel = case.kernel(level);
                let rows = case.spans.len();
                let rows_of_step = rows;
                let together = case.run(&kernel, 0..rows, 1);
                let same = |rows: std::ops::Range<usize>, got: Vec<f32>| {
                    let stride = together.len() / rows_of_step;
                    let expected = &together[rows.start * stride..rows.end * stride];
                    for (at, (got, expected)) in got.iter().zip(expected).enumerate() {
                        let what = (level, sizes, pattern, &rows, at);
                        assert_eq!(got.to_bits(), expected.to_bits(), "{what:?}");
                    }
                };
                let mut parts = vec![(0..rows, 3), (0..rows.div_ceil(2), 2), (rows / 3..rows, 1)];
                // Single rows of several chunks are divided where heads leave threads idle.
                parts.extend((0..rows).step_by(5).map(|row| (row..row + 1, 1 + row % 4)));
                let got: Vec<Vec<f32>> = parts
                    .iter()
                    .map(|(rows, threads)| case.run(&kernel, rows.clone(), *threads))
                    .collect();
                for ((rows, _), got) in parts.into_iter().zip(got) {
                    same(rows, got);
                }
            }
        }
    }
}

/// A long row whose heads would leave threads idle is divided by chunks, and by chunks only then.
#[test]
fn threads_share_a_long_row() {
    let mut random = Random::new(35);
    for level in levels().into_iter().filter(|level| *level != IsaLevel::Portable) {
        for (rows, kv_heads, threads, shares) in
            [(1, 1, 2, true), (1, 3, 2, true), (1, 2, 2, false), (2, 1, 2, false), (1, 1, 1, false)]
        {
            let sizes = (rows, 6, kv_heads, 16, 16);
            let mut case =
                Case::new(&mut random, sizes, CacheType::F32, Pattern::Causal, (false, 0.0));
            for span in &mut case.spans {
                span.ranges[0] = range(0, 0, 1200);
            }
            case.planes.keys.fill(0.25);
            case.planes.values.fill(0.5);
            let kernel = case.kernel(level);
            let (got, shared) = case.run_and_share(&kernel, 0..rows, threads);
            let what = (level, rows, kv_heads, threads);
            assert_eq!(shared.iter().any(|float| *float != POISON), shares, "{what:?}");
            within(&what, got[0], 0.5, 2.0 * 1200.0 * U);
        }
    }
}

/// The two assembled versions compute the same sums in the same order.
#[test]
fn wide_levels_agree_bit_by_bit() {
    if !levels().contains(&IsaLevel::Avx512) {
        println!("skipped: this machine lacks a level");
        return;
    }
    let mut random = Random::new(34);
    for sizes in SIZES {
        for pattern in PATTERNS {
            for (number, softcap) in CacheType::ALL.into_iter().zip([0.0, 2.5, 0.0, 2.5]) {
                let mut case = Case::new(&mut random, sizes, number, pattern, (true, softcap));
                let [avx2, avx512] = [IsaLevel::Avx2, IsaLevel::Avx512].map(|level| {
                    let kernel = case.kernel(level);
                    case.run(&kernel, 0..case.spans.len(), 2)
                });
                let bits = |floats: &[f32]| floats.iter().map(|f| f.to_bits()).collect::<Vec<_>>();
                assert!(bits(&avx2) == bits(&avx512), "{sizes:?} {number:?} {pattern:?}");
            }
        }
    }
}
