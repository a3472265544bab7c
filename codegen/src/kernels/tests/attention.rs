//! Attention over ranges of cache rows, with and without sink logits, and the cache writes.

use weir_abi::{CacheRange, LayerCall, RowSpans};

use super::*;
use crate::kernels::attention::{AttendSpec, CacheShape, ScoreSpec, emit_append, emit_attend};

const SLOTS: usize = 3;
const CACHE_ROWS: usize = 90;

/// Planes of a layer; rows that no range names hold poison.
struct Planes {
    shape: CacheShape,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Planes {
    fn new(shape: CacheShape) -> Planes {
        let rows = SLOTS * shape.kv_heads * CACHE_ROWS;
        Planes {
            shape,
            keys: vec![POISON; rows * shape.key_width],
            values: vec![POISON; rows * shape.value_width],
        }
    }

    fn row(&self, slot: usize, head: usize, row: usize) -> usize {
        (slot * self.shape.kv_heads + head) * CACHE_ROWS + row
    }

    fn key(&self, slot: usize, head: usize, row: usize) -> &[f32] {
        let width = self.shape.key_width;
        &self.keys[self.row(slot, head, row) * width..][..width]
    }

    fn value(&self, slot: usize, head: usize, row: usize) -> &[f32] {
        let width = self.shape.value_width;
        &self.values[self.row(slot, head, row) * width..][..width]
    }

    fn call(&mut self, spans: &[RowSpans]) -> LayerCall {
        let key_head = (CACHE_ROWS * self.shape.key_width * 4) as u64;
        let value_head = (CACHE_ROWS * self.shape.value_width * 4) as u64;
        LayerCall {
            keys: self.keys.as_mut_ptr().cast(),
            values: self.values.as_mut_ptr().cast(),
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

/// One to four ranges over different slots, some empty, none of them all.
fn random_span(random: &mut Random) -> RowSpans {
    let mut span = RowSpans { range_count: 1 + random.below(4) as u32, ..Default::default() };
    for index in 0..span.range_count as usize {
        let first = random.below(CACHE_ROWS);
        let rows = if index == 0 { 1 } else { 0 } + random.below(CACHE_ROWS - first);
        let rows = rows.min(CACHE_ROWS - first);
        span.ranges[index] =
            CacheRange { slot: random.below(SLOTS) as u32, first: first as u32, rows: rows as u32 };
    }
    span
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

/// A score sums `width` products by fused steps in four lanes, at most width / 4 + 6 roundings of
/// Σ|q·k|, and is scaled by one; a cap divides, takes tanh (4 ulp, so 8u, of at most the cap) and
/// multiplies. Its shift by the running maximum rounds once, of at most the span of all scores; exp
/// adds 2 ulp, 4u. Each of the T tiles may rescale what came before: a shift, an exp, a product, 5u
/// and one u of the span. That makes the relative error E of a weight. Total and weighted sum add a
/// rounding per row, the division one; total and sum carry the same E, which gives
/// |Δy| ≤ (2·E + (2·rows + 2)·u) · Σ weight·|value|.
fn exact(
    planes: &Planes,
    spec: &AttendSpec,
    query: &[f32],
    span: &RowSpans,
    kv_head: usize,
    sink: Option<f32>,
) -> Exact {
    let scale = f64::from(spec.score.scale);
    let cap = f64::from(spec.score.softcap);
    let query = double(query);
    let (mut scores, mut score_error) = (Vec::new(), 0f64);
    for (slot, row) in places(span) {
        let key = double(planes.key(slot, kv_head, row));
        let product: f64 = query.iter().zip(&key).map(|(q, k)| q * k).sum();
        let size: f64 = query.iter().zip(&key).map(|(q, k)| (q * k).abs()).sum();
        let score = product * scale;
        let roundings = (query.len() / 4) as f64 + 7.0;
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
    let tiles = span.ranges[..span.range_count as usize]
        .iter()
        .map(|range| range.rows.div_ceil(32))
        .sum::<u32>();
    let reach = largest - least;
    let weight_error = score_error + (4.0 + reach) * U + f64::from(tiles) * (5.0 + reach) * U;
    let factor = 2.0 * weight_error + (2.0 * scores.len() as f64 + 2.0) * U;
    let mut output = vec![0.0; spec.cache.value_width];
    let mut sizes = output.clone();
    for ((slot, row), score) in places(span).zip(&scores) {
        let weight = (score - largest).exp() / total;
        for (k, value) in planes.value(slot, kv_head, row).iter().enumerate() {
            output[k] += weight * f64::from(*value);
            sizes[k] += weight * f64::from(value.abs());
        }
    }
    Exact { output, bounds: sizes.iter().map(|size| size * factor).collect() }
}

fn check(sinks: bool, softcap: f32) {
    let mut random = Random::new(31);
    // Rows, query heads, key/value heads, widths of key and value.
    for (rows, heads, kv_heads, key_width, value_width) in
        [(1, 1, 1, 1, 1), (1, 6, 2, 6, 6), (7, 8, 2, 16, 20), (19, 5, 1, 33, 37), (3, 6, 6, 64, 18)]
    {
        let cache = CacheShape { kv_heads, key_width, value_width };
        let output_row = heads * value_width + 1;
        let query_row = heads * key_width + 3;
        let spec = AttendSpec {
            cache,
            score: ScoreSpec { heads, scale: 0.4, softcap },
            sinks,
            query: (query_row, key_width),
            output_row,
        };
        let kernel = Kernel::new(|assembly| emit_attend(assembly, &spec));
        let spans: Vec<RowSpans> = (0..rows).map(|_| random_span(&mut random)).collect();
        let mut planes = Planes::new(cache);
        for span in &spans {
            for (slot, row) in places(span) {
                for head in 0..kv_heads {
                    let at = planes.row(slot, head, row);
                    let key: Vec<f32> = random.units(key_width).iter().map(|v| v * 2.0).collect();
                    planes.keys[at * key_width..][..key_width].copy_from_slice(&key);
                    let value = random.units(value_width);
                    planes.values[at * value_width..][..value_width].copy_from_slice(&value);
                }
            }
        }
        let query: Vec<f32> = random.units(rows * query_row).iter().map(|v| v * 2.0).collect();
        // Far below all scores, among them, and far above, where hardly anything is left for values.
        let sink: Vec<f32> =
            (0..heads).map(|head| [-60.0, 0.5, 3.0, 12.0][head % 4] + random.unit()).collect();
        let layer = planes.call(&spans);
        let context = StepContext { layer: &layer, ..context() };
        let given = [
            Input::Context(&context),
            Input::floats(&query),
            if sinks { Input::floats(&sink) } else { Input::Nothing },
        ];
        let got = kernel.run(&given, rows * output_row, rows * spec.items_per_row());
        for (row, got) in got.chunks(output_row).enumerate() {
            assert_eq!(got[output_row - 1], POISON);
            for head in 0..heads {
                let query = &query[row * query_row + head * key_width..][..key_width];
                let kv_head = head / (heads / kv_heads);
                let sink = sinks.then(|| sink[head]);
                let exact = exact(&planes, &spec, query, &spans[row], kv_head, sink);
                for (k, value) in exact.output.iter().enumerate() {
                    let got = got[head * value_width + k];
                    within(&(sinks, softcap, rows, row, head, k), got, *value, exact.bounds[k]);
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

/// A row's key and value go where its span says; nothing else of the planes is written.
#[test]
fn rows_are_written_where_spans_say() {
    let mut random = Random::new(32);
    for (rows, kv_heads, key_width, value_width) in
        [(1, 1, 1, 1), (1, 2, 6, 9), (8, 3, 16, 17), (21, 1, 37, 33)]
    {
        let cache = CacheShape { kv_heads, key_width, value_width };
        let (key_row, value_row) = (kv_heads * key_width + 2, kv_heads * (value_width + 1));
        let kernel = Kernel::new(|assembly| {
            emit_append(assembly, &cache, (key_row, key_width), (value_row, value_width + 1))
        });
        let spans: Vec<RowSpans> = (0..rows)
            .map(|row| RowSpans {
                write_slot: random.below(SLOTS) as u32,
                write_row: ((row * 4 + random.below(4)) % CACHE_ROWS) as u32,
                ..Default::default()
            })
            .collect();
        let key = random.units(rows * key_row);
        let value = random.units(rows * value_row);
        let mut planes = Planes::new(cache);
        let mut expected = Planes::new(cache);
        for (row, span) in spans.iter().enumerate() {
            for head in 0..kv_heads {
                let at = expected.row(span.write_slot as usize, head, span.write_row as usize);
                expected.keys[at * key_width..][..key_width]
                    .copy_from_slice(&key[row * key_row + head * key_width..][..key_width]);
                expected.values[at * value_width..][..value_width].copy_from_slice(
                    &value[row * value_row + head * (value_width + 1)..][..value_width],
                );
            }
        }
        let layer = planes.call(&spans);
        let context = StepContext { layer: &layer, ..context() };
        let address = std::ptr::from_ref(&context) as u64;
        kernel.code.call_kernel(
            &kernel.name,
            &mut [
                Argument::Count(address),
                Argument::Read(&bytes(&key)),
                Argument::Read(&bytes(&value)),
                Argument::Count(0),
                Argument::Count(rows as u64),
            ],
        );
        assert_eq!(planes.keys, expected.keys);
        assert_eq!(planes.values, expected.values);
    }
}
