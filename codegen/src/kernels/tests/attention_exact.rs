//! Attention of one head in double precision, and how far a kernel may be from it.

use weir_abi::{CacheRange, IsaLevel, KEY_TILE, RowSpans};

use super::attention_planes::{Planes, rounded};
use super::*;
use crate::kernels::attention::{AttendSpec, CacheType};

/// Slots and rows that a row reads, in order.
pub(super) fn places(span: &RowSpans) -> impl Iterator<Item = (usize, usize)> + '_ {
    span.ranges[..span.range_count as usize].iter().flat_map(|range| {
        (range.first..range.first + range.rows).map(|row| (range.slot as usize, row as usize))
    })
}

/// One head by the definition: softmax over all scores and the sink, weighted values.
pub(super) struct Exact {
    pub(super) output: Vec<f64>,
    pub(super) bounds: Vec<f64>,
}

/// A score sums `width` products by fused steps, on the portable level in four lanes, at most
/// width / 4 + 6 roundings of Σ|q·k|, on the others in one chain, at most width; it is scaled by
/// one more. A cap divides, takes tanh (4 ulp, so 8u, of at most the cap) and multiplies. The wide
/// levels have scores, and sinks, in base 2: log₂ e and its product with a factor, or with a capped
/// score or a sink, are rounded, 2u. Its shift by the running maximum rounds once, of at most the span
/// of all scores; exp adds 2 ulp, 4u. Each
/// of the T tiles, and on wide levels of the combinations of chunks, may rescale what came before:
/// a shift, an exp, a product, 5u and one u of the span. That makes the relative error E of a
/// weight. Total and weighted sum add a rounding per row, the division one; total and sum carry the
/// same E, which gives |Δy| ≤ (2·E + (2·rows + 2)·u) · Σ weight·|value|.
///
/// Over a bf16 cache queries are those rounded to bf16, and each weight's own rounding in front of its
/// value adds 2⁻⁸ of itself. `vdpbf16ps` takes numbers below 2⁻¹²⁶ for zero: a product of a query and a key
/// loses at most 2⁻¹²⁶ times the larger, a step of a weighted sum 2⁻¹²⁶ times its value or 1, and
/// 2⁻¹²⁶ where it ends; none of it grows later, and totals are at least 1.
///
/// Over a cache of codes sums of codes are exact, and three products make a score. Codes of weights are
/// those of the definition, but where E moves one to its neighbour: with the relative error E of a
/// weight (and 2u of a tile's factor) that is within 255·2·(E + 2u) of the middle of two codes, and
/// such a key may add its value times one step of its tile.
#[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
pub(super) fn exact(
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
    let is_coded = spec.cache.number.is_coded();
    let query = match spec.cache.number {
        CacheType::Int8 | CacheType::Int4 => rounded(CacheType::Int8, query),
        CacheType::Bf16 => query.iter().map(|q| half::bf16::from_f32(*q).to_f64()).collect(),
        CacheType::F32 | CacheType::F16 => double(query),
    };
    let is_bf16 = spec.cache.number == CacheType::Bf16;
    let negligible = if is_bf16 { f64::from(f32::MIN_POSITIVE) } else { 0.0 };
    let (mut scores, mut score_error) = (Vec::new(), 0f64);
    let in_base_2 = if level == IsaLevel::Portable { 0.0 } else { 2.0 * U };
    for (slot, row) in places(span) {
        let key = planes.key(slot, kv_head, row);
        let product: f64 = query.iter().zip(&key).map(|(q, k)| q * k).sum();
        let size: f64 = query.iter().zip(&key).map(|(q, k)| (q * k).abs()).sum();
        let score = product * scale;
        let roundings = match level {
            _ if is_coded => 3.0,
            IsaLevel::Portable => (query.len() / 4) as f64 + 7.0,
            _ => query.len() as f64 + 1.0,
        };
        let mut error = roundings * U * size * scale;
        if is_bf16 {
            let largest = query.iter().chain(&key).fold(1f64, |most, x| most.max(x.abs()));
            error += 2.0 * query.len() as f64 * negligible * largest * scale;
        }
        scores.push(if cap == 0.0 {
            score
        } else {
            error += (score.abs() + 9.0 * cap) * U;
            cap * (score / cap).tanh()
        });
        score_error = score_error.max(error + in_base_2 * score.abs());
    }
    let sink = sink.map(f64::from);
    score_error = score_error.max(sink.map_or(0.0, |sink| in_base_2 * sink.abs()));
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
            if is_coded {
                exact.add_rounded(planes, kv_head, tile, [weight_error, factor]);
            } else {
                let of_rounding = if is_bf16 { 2f64.powi(-8) * (1.0 + factor) } else { 0.0 };
                exact.add(planes, kv_head, tile, [factor + of_rounding, negligible]);
            }
        }
        rest = behind;
    }
    exact
}

impl Exact {
    /// Adds weighted values; each may be off by a part of itself, and by what is negligible.
    fn add(
        &mut self,
        planes: &Planes,
        kv_head: usize,
        tile: &[(usize, usize, f64)],
        [factor, negligible]: [f64; 2],
    ) {
        for (slot, row, weight) in tile {
            for (k, value) in planes.value(*slot, kv_head, *row).into_iter().enumerate() {
                self.output[k] += weight * value;
                self.bounds[k] += weight * value.abs() * factor;
                self.bounds[k] += 2.0 * negligible * value.abs().max(1.0);
            }
        }
    }

    /// The same over a cache of codes; `error` is that of a weight.
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
                let (codes, scale) = planes.coded_value(*slot, kv_head, *row);
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
