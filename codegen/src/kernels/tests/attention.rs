//! Attention over ranges of cache rows, with and without sink logits.

use weir_abi::{CacheRange, HeadRows, IsaLevel, LayerCall, MAX_RANGES, RowSpans};
use weir_ir::interpret::stored;
use weir_runtime::machine::supports;

use super::attention_exact::{exact, places};
use super::attention_planes::{BLOCK_ROWS, CACHE_ROWS, Formats, Planes, SLOTS, format};
use super::*;
use crate::kernels::attention::{AttendSpec, CacheShape, CacheType, ScoreSpec, emit_attend};

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

/// Ranges end where the block does; those for which there is no room are left out.
fn end_at_block(span: &mut RowSpans) {
    let all = span.ranges[..span.range_count as usize].iter().flat_map(|known| {
        let [slot, first, rows] = [known.slot, known.first, known.rows].map(|n| n as usize);
        let in_front = BLOCK_ROWS.saturating_sub(first).min(rows);
        [range(slot, first, in_front), range(slot, first + in_front, rows - in_front)]
    });
    let parts: Vec<CacheRange> = all.filter(|range| range.rows > 0).take(MAX_RANGES).collect();
    span.range_count = parts.len() as u32;
    span.ranges = Default::default();
    span.ranges[..parts.len()].copy_from_slice(&parts);
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

/// Levels that this machine runs and that attend each in a way of its own. AVX-VNNI has the kernels of
/// AVX2 over most caches, and AVX-512 those of its pairs over all but bf16: `attention_interpreted` has
/// the others, and `wide_levels_agree_bit_by_bit`.
pub(super) fn levels() -> Vec<IsaLevel> {
    let runs = |level: &IsaLevel| match level {
        IsaLevel::AvxVnni => false,
        IsaLevel::Avx512 => supports(IsaLevel::Avx512) && !supports(IsaLevel::Avx512Pairs),
        level => supports(*level),
    };
    IsaLevel::ALL.into_iter().filter(runs).collect()
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
        formats: impl Into<Formats>,
        pattern: Pattern,
        (sinks, softcap): (bool, f32),
    ) -> Case {
        let (rows, heads, kv_heads, key_width, value_width) = sizes;
        let Formats { ring: number, block } = formats.into();
        let cache = CacheShape { kv_heads, key_width, value_width, number, block, by_head: false };
        let query_row = heads * key_width + 3;
        let spec = AttendSpec {
            cache,
            score: ScoreSpec { heads, scale: 0.4, softcap },
            sinks,
            query: (query_row, key_width),
            output_row: heads * value_width + 1,
            rounded: None,
            shared_chunks: AttendSpec::chunks(CACHE_ROWS),
            max_rows: rows,
        };
        let mut spans = pattern.spans(random, rows);
        if block.is_some() {
            spans.iter_mut().for_each(end_at_block);
        }
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

    /// The same over latent rows, one for all heads, which scores are made with by this factor: values
    /// are the first numbers of keys.
    pub(super) fn with_values_of_keys(mut self, scale: f32) -> Case {
        self.spec.score.scale = scale;
        let CacheShape { key_width, value_width, .. } = self.spec.cache;
        let Planes { keys, values, .. } = &mut self.planes;
        for (value, key) in values.chunks_mut(value_width).zip(keys.chunks(key_width)) {
            value.copy_from_slice(&key[..value_width]);
        }
        self
    }

    /// The kernel of a level.
    pub(super) fn kernel(&self, level: IsaLevel) -> Kernel {
        Kernel::new(|assembly| emit_attend(assembly, &self.spec, level))
    }

    /// Attention of some rows of the step, by a team of `threads`.
    pub(super) fn run(
        &mut self,
        kernel: &Kernel,
        rows: std::ops::Range<usize>,
        threads: usize,
    ) -> Vec<f32> {
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

    /// Numbers in all rows of the planes.
    pub(super) fn fill(&mut self, random: &mut Random) {
        let CacheShape { kv_heads, key_width, value_width, .. } = self.spec.cache;
        for at in 0..SLOTS * kv_heads * CACHE_ROWS {
            let key: Vec<f32> = random.units(key_width).into_iter().map(|v| v * 2.0).collect();
            self.planes.set(at, &key, &random.units(value_width));
        }
    }

    /// The kernel, and the one for rows by head.
    pub(super) fn kernels(&self, level: IsaLevel) -> [Kernel; 2] {
        [false, true].map(|by_head| {
            let cache = CacheShape { by_head, ..self.spec.cache };
            let spec = AttendSpec { cache, ..self.spec };
            Kernel::new(|assembly| emit_attend(assembly, &spec, level))
        })
    }

    /// Planes as kernels see them.
    pub(super) fn encoded(&self) -> [Vec<u8>; 2] {
        self.planes.encoded()
    }

    /// The whole step by a team of `threads`, over these planes and with rows by head if they are given.
    pub(super) fn run_whole(
        &mut self,
        kernel: &Kernel,
        planes: &[Vec<u8>; 2],
        heads: Option<&[HeadRows]>,
        threads: usize,
    ) -> Vec<f32> {
        let spec = self.spec;
        let call = self.planes.call(planes.clone(), &self.spans, self.side);
        let layer = LayerCall { heads: heads.map_or(null(), <[_]>::as_ptr), ..call };
        let rows = self.spans.len();
        let context =
            StepContext { layer: &layer, rows: rows as u32, barrier: wait_for_team, ..context() };
        let given =
            [Input::Context(&context), Input::floats(&self.query), Input::floats(&self.sink)];
        let shared = spec.shared_bytes() / 4;
        kernel.run_team(&given, rows * spec.output_row, shared, (threads, self.side)).0
    }

    /// Fails if the outputs of a key/value head differ in a bit.
    pub(super) fn check_head(&self, head: usize, got: &[f32], wanted: &[f32], level: IsaLevel) {
        let AttendSpec { output_row, cache, score, .. } = self.spec;
        let width = score.heads / cache.kv_heads * cache.value_width;
        let columns = head * width..(head + 1) * width;
        for (row, (got, wanted)) in
            got.chunks(output_row).zip(wanted.chunks(output_row)).enumerate()
        {
            let [got, wanted] =
                [got, wanted].map(|row| row[columns.clone()].iter().map(|v| v.to_bits()));
            assert!(got.eq(wanted), "{level:?} {:?}: head {head} of row {row}", self.spec);
        }
    }

    /// Makes numbers of some rows and queries so small that they are subnormal, or zeros.
    pub(super) fn with_tiny_numbers(&mut self, random: &mut Random) {
        let ty = format(self.planes.shape.number);
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
                let shows = column % width == 0 || number.is_coded();
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

const SIZES: [Sizes; 10] = [
    (1, 1, 1, 1, 1),
    (1, 6, 2, 6, 6),
    (7, 8, 2, 16, 20),
    (19, 5, 1, 33, 37),
    (3, 6, 6, 64, 18),
    (70, 8, 2, 64, 64),
    (45, 2, 2, 80, 100),
    (9, 71, 1, 12, 30),
    (40, 3, 1, 8, 8),
    // Latent attention: rows that hardly fit the scratch.
    (5, 4, 1, 576, 512),
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
            for formats in Formats::all() {
                let mut case = Case::new(&mut random, sizes, formats, pattern, (sinks, softcap));
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

/// Floats that lost a unit at every step beyond 2²⁴ would be off by ten times the bound. A sink of
/// the score's size shows what a single key has.
#[test]
fn sums_of_wide_heads_of_codes_are_exact() {
    let mut random = Random::new(36);
    for number in [CacheType::Int8, CacheType::Int4] {
        for width in [1041, 6003] {
            let pattern = Pattern::Window(1);
            let mut case =
                Case::new(&mut random, (1, 1, 1, width, 3), number, pattern, (true, 0.0));
            case.query.fill(2.0);
            case.planes.keys.fill(1.0);
            case.planes.values.fill(0.5);
            case.spec.score.scale = 1.0 / width as f32;
            case.sink.fill(2.0);
            for level in levels() {
                case.check(level);
            }
        }
    }
}

/// A row's bits are the same alone, in any part of the step, and for any number of threads.
#[test]
fn company_changes_no_bit_of_attention() {
    let mut random = Random::new(33);
    for sizes in SIZES {
        for pattern in PATTERNS {
            let all = Formats::all();
            let formats = all[random.below(all.len())];
            let mut case = Case::new(&mut random, sizes, formats, pattern, (true, 0.0));
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

/// The assembled versions compute the same sums in the same order.
#[test]
fn wide_levels_agree_bit_by_bit() {
    if !supports(IsaLevel::Avx512) {
        println!("skipped: this machine lacks a level");
        return;
    }
    let mut random = Random::new(34);
    for sizes in SIZES {
        for pattern in PATTERNS {
            for (formats, softcap) in Formats::all().into_iter().zip([0.0, 2.5].into_iter().cycle())
            {
                let mut case = Case::new(&mut random, sizes, formats, pattern, (true, softcap));
                let mut bits = |level: IsaLevel| -> Vec<u32> {
                    case.run_all(level).into_iter().map(f32::to_bits).collect()
                };
                let avx2 = bits(IsaLevel::Avx2);
                for level in [IsaLevel::Avx512, IsaLevel::Avx512Pairs, IsaLevel::Amx] {
                    if supports(level) {
                        let same = avx2 == bits(level);
                        assert!(same, "{level:?}: {sizes:?} {formats:?} {pattern:?}");
                    }
                }
            }
        }
    }
}
