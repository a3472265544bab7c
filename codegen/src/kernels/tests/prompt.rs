//! Scores of a prompt's candidates against double precision, and the selection that follows from
//! them against sorting.

use weir_abi::{KEY_TILE, LayerCall, PromptCall, redundancy_scratch, second_scratch};
use weir_ir::graph::{Aggregate, Normalise, Pooling, Scoring};
use weir_ir::interpret::second::{FOLLOWING, NEAR, share_of};
use weir_ir::interpret::select::lot;
use weir_ir::interpret::stored;

use super::attention::levels;
use super::attention_planes::{
    Formats, encoded_parts, encoded_planes, format, head_bytes, rounded, value_rows,
};
use super::redundancy::counted;
use super::*;
use crate::kernels::attention::{AttendSpec, CacheShape, CacheType, ScoreSpec};
use crate::kernels::compact::emit_compact;
use crate::kernels::observe::{ObserveSpec, ScoreSource, emit_observe};

/// A prompt whose rows lie in slot 0, and where its selection goes.
struct Prompt {
    spec: AttendSpec,
    source: ScoreSource,
    call: PromptCall,
    /// Rows of a head in the destination, whose slot 1 is written.
    kept: usize,
    /// Those of them that are the block.
    block_rows: usize,
    keys: Vec<f32>,
    values: Vec<f32>,
    /// Last rows whose queries are there: those that score, or more, of which some may be asked.
    queried: usize,
    queries: Vec<f32>,
    lse: Vec<f32>,
}

impl Prompt {
    /// Any heads, formats and way to score.
    fn random(random: &mut Random) -> Prompt {
        let kv_heads = 1 + random.below(3);
        let heads = kv_heads * (1 + random.below(4));
        let all = Formats::all();
        let formats = all[random.below(all.len())];
        // Of less than eight numbers all may be levels by chance, which is another way to round.
        let least = if formats.block.is_some() { 8 } else { 1 };
        let [key_width, value_width] = [(); 2].map(|()| least + random.below(40));
        let source = match random.below(8) {
            0 => ScoreSource::Lots { seed: random.below(1000) as u32 },
            _ => ScoreSource::Queries {
                pool: 1 + 2 * random.below(4),
                scoring: Scoring {
                    aggregate: Aggregate::ALL[random.below(3)],
                    normalise: Normalise::ALL[random.below(2)],
                    pooling: Pooling::ALL[random.below(3)],
                },
                redundancy: [0, 0, 90, 100, 1 + random.below(99) as u32][random.below(5)],
                second: random.below(2) == 0,
            },
        };
        Prompt::new(random, [heads, kv_heads, key_width, value_width], formats, (source, 0.4))
    }

    /// A prompt for query heads, key/value heads, and widths of key and value, whose scores come from
    /// there with this factor.
    fn new(
        random: &mut Random,
        [heads, kv_heads, key_width, value_width]: [usize; 4],
        formats: Formats,
        (source, scale): (ScoreSource, f32),
    ) -> Prompt {
        let Formats { ring: number, block } = formats;
        let cache = CacheShape { kv_heads, key_width, value_width, number, block, by_head: false };
        let softcap = [0.0, 2.5][random.below(2)];
        let spec = AttendSpec {
            cache,
            score: ScoreSpec { heads, scale, softcap },
            sinks: false,
            query: (heads * key_width, key_width),
            output_row: heads * value_width,
            rounded: None,
            shared_chunks: AttendSpec::chunks(1),
            max_rows: 1,
        };
        let (sinks, recent) = (random.below(5), 1 + random.below(20));
        let candidates = 1 + random.below(200);
        let rows = sinks + candidates + recent;
        let selected = random.below(candidates + 1);
        let ring_rows = recent + random.below(9);
        let ring_base = sinks + selected + random.below(3);
        let observed = 1 + random.below(recent.min(11));
        let before = rows - sinks - observed;
        let (queried, asked) = match source {
            ScoreSource::Queries { second: true, .. } => {
                let among = random.below(before + 1);
                let beyond = random.below(2) * random.below(sinks + 1);
                let queried = observed + among + if among == before { beyond } else { 0 };
                (queried, random.below(among + 1).min(1 + random.below(80)))
            }
            _ => (observed, 0),
        };
        let queries = random.units(queried * heads * key_width);
        let keys = match source {
            ScoreSource::Queries { redundancy: 1.., .. } => {
                alike(random, kv_heads * rows, key_width)
            }
            _ => random.units(kv_heads * rows * key_width).iter().map(|v| v * 2.0).collect(),
        };
        let held = |numbers: &mut dyn Iterator<Item = f32>| -> Vec<f32> {
            numbers.map(|value| stored(value, format(number))).collect()
        };
        let mut prompt = Prompt {
            call: PromptCall {
                rows: rows as u32,
                sinks: sinks as u32,
                selected: selected as u32,
                further: 0,
                recent: recent as u32,
                observed: observed as u32,
                ring_base: ring_base as u32,
                ring_anchor: random.below(rows - recent + 1) as u32,
                ring_rows: ring_rows as u32,
                slot: 1,
                layer: random.below(40) as u32,
                keys: null_mut(),
                values: null_mut(),
                key_slot_stride: 0,
                key_head_stride: 0,
                value_slot_stride: 0,
                value_head_stride: 0,
                scores: null_mut(),
                scratch: null_mut(),
                floors: null_mut(),
                selected_positions: null_mut(),
                positions_stride: (selected + random.below(2)) as u64,
                key_ring: 0,
                value_ring: 0,
                block_rows: 0,
                heads: null(),
                anew: u32::from(random.below(4) > 0),
                asked: asked as u32,
                second_share: 1 + random.below(100) as u32,
                second: null_mut(),
            },
            source,
            kept: ring_base + ring_rows,
            // Rows of the ring may lie in the block.
            block_rows: (sinks + selected + random.below(ring_base + ring_rows - sinks - selected))
                .max(1),
            keys: held(&mut keys.into_iter()),
            values: held(&mut random.units(kv_heads * rows * value_width).into_iter()),
            queried,
            lse: vec![0.0; queried * heads],
            queries: queries.iter().map(|v| v * 2.0).collect(),
            spec,
        };
        for query in 0..queried {
            for head in 0..heads {
                let sum: f64 = (0..rows).map(|row| prompt.score(query, head, row).0.exp()).sum();
                prompt.lse[query * heads + head] = sum.ln() as f32;
            }
        }
        prompt
    }

    /// The same with latent rows, one for all heads: values are the first numbers of keys.
    fn with_values_of_keys(mut self) -> Prompt {
        let CacheShape { key_width, value_width, .. } = self.spec.cache;
        let rows = self.keys.chunks(key_width);
        self.values = rows.flat_map(|key| key[..value_width].iter().copied()).collect();
        self
    }

    fn count(&self, number: u32) -> usize {
        number as usize
    }

    /// Positions that may be selected.
    fn candidates(&self) -> std::ops::Range<usize> {
        self.count(self.call.sinks)..self.count(self.call.rows - self.call.recent)
    }

    /// A key as the cache holds it.
    fn key(&self, kv_head: usize, row: usize) -> Vec<f64> {
        let CacheShape { key_width, number, .. } = self.spec.cache;
        let at = kv_head * self.count(self.call.rows) + row;
        let key = &self.keys[at * key_width..][..key_width];
        if number.is_coded() { rounded(number, key) } else { double(key) }
    }

    /// Score of a key for a query, and its error: each element is added with one rounding, the scale of
    /// codes and the factor are another each, 1 to spare.
    fn score(&self, query: usize, head: usize, row: usize) -> (f64, f64) {
        let ScoreSpec { heads, scale, softcap } = self.spec.score;
        let width = self.spec.cache.key_width;
        let (scale, cap) = (f64::from(scale), f64::from(softcap));
        let kv_head = head / (heads / self.spec.cache.kv_heads);
        let q = double(&self.queries[(query * heads + head) * width..][..width]);
        let k = self.key(kv_head, row);
        let product: f64 = q.iter().zip(&k).map(|(q, k)| q * k).sum();
        let size: f64 = q.iter().zip(&k).map(|(q, k)| (q * k).abs()).sum();
        let (score, error) = (product * scale, (width as f64 + 3.0) * U * size * scale);
        if cap == 0.0 {
            return (score, error);
        }
        (cap * (score / cap).tanh(), error + (score.abs() + 9.0 * cap) * U)
    }

    /// Scores of the candidates of a key/value head, and the bounds of their errors.
    fn scores(&self, kv_head: usize) -> Vec<(f64, f64)> {
        let candidates = self.candidates();
        let (pool, scoring, redundancy) = match self.source {
            ScoreSource::Lots { seed } => {
                let lot = |row| lot(seed, self.call.layer, kv_head as u32, row as u32);
                return candidates.map(|row| (f64::from(lot(row)), 0.0)).collect();
            }
            ScoreSource::Queries { pool, scoring, redundancy, .. } => (pool, scoring, redundancy),
        };
        let scored = self.scored(scoring);
        let raw = self.attention(kv_head, scored.clone(), scoring);
        let scores = self.pooled(&raw, scored, (pool, scoring));
        if redundancy == 0 || self.call.anew == 0 {
            return scores;
        }
        let keys: Vec<Vec<f64>> = candidates.map(|row| self.key(kv_head, row)).collect();
        counted(&keys, &scores, redundancy)
    }

    /// Rows whose scores are pooled.
    fn scored(&self, scoring: Scoring) -> std::ops::Range<usize> {
        match scoring.pooling {
            Pooling::Reference => 0..self.count(self.call.rows - self.call.observed),
            _ => self.candidates(),
        }
    }

    /// What candidates and their neighbours come to.
    fn pooled(
        &self,
        raw: &[(f64, f64)],
        scored: std::ops::Range<usize>,
        (pool, scoring): (usize, Scoring),
    ) -> Vec<(f64, f64)> {
        let reach = pool / 2;
        let pooled = |row: usize| {
            let at = row - scored.start;
            let near = &raw[at.saturating_sub(reach)..(at + reach + 1).min(raw.len())];
            let count = match scoring.pooling {
                Pooling::Max => return largest(near.iter().copied()),
                Pooling::Average => near.len() as f64,
                Pooling::Reference => pool as f64,
            };
            mean(near.iter().copied(), count)
        };
        self.candidates().map(pooled).collect()
    }

    /// The first queries are those of this row.
    fn queried_from(&self) -> usize {
        self.count(self.call.rows) - self.queried
    }

    /// Whether these are the rows that a key/value head asks: as many as there are to ask, ascending, and
    /// no other one is better by more than the errors of both. Rows whose best is the same one are equal.
    fn check_asked(&self, kv_head: usize, asked: &[usize], scoring: Scoring) {
        assert!(asked.is_sorted_by(|a, b| a < b), "{asked:?}");
        let sinks = self.count(self.call.sinks);
        let end = self.count(self.call.rows - self.call.observed);
        let raw = self.attention(kv_head, sinks..end, scoring);
        let begin = sinks.max(self.queried_from());
        let peak = |row: usize| {
            let near = &raw[(row + 1 - sinks).saturating_sub(FOLLOWING)..=row - sinks];
            largest(near.iter().copied())
        };
        let others = (begin..end).filter(|row| !asked.contains(row));
        let others: Vec<(usize, (f64, f64))> = others.map(|row| (row, peak(row))).collect();
        assert_eq!(asked.len() + others.len(), end - begin, "{asked:?}");
        for row in asked {
            let (best, error) = peak(*row);
            for (other, (score, other_error)) in &others {
                assert!(*score <= best + error + other_error, "{other} in place of {row}");
                assert!(*score != best || other > row, "{other} is equal to {row} and earlier");
            }
        }
    }

    /// Scores of the candidates by what the rows attend to that are asked.
    fn second_scores(
        &self,
        kv_head: usize,
        asked: &[usize],
        (pool, scoring): (usize, Scoring),
    ) -> Vec<(f64, f64)> {
        let ScoreSpec { heads, .. } = self.spec.score;
        let group = heads / self.spec.cache.kv_heads;
        let members = kv_head * group..(kv_head + 1) * group;
        let of_row = |key: usize| {
            let far = asked.iter().filter(|row| **row > key + NEAR);
            largest(far.map(|row| {
                let query = row - self.queried_from();
                let weights = members.clone().map(|head| {
                    let sum = f64::from(self.lse[query * heads + head]);
                    weight(self.score(query, head, key), (sum, 0.0))
                });
                mean(weights, group as f64)
            }))
        };
        let scored = self.scored(scoring);
        let raw: Vec<(f64, f64)> = scored.clone().map(of_row).collect();
        self.pooled(&raw, scored, (pool, scoring))
    }

    /// What rows of a key/value head get before pooling, and the bounds of its errors.
    fn attention(
        &self,
        kv_head: usize,
        rows: std::ops::Range<usize>,
        scoring: Scoring,
    ) -> Vec<(f64, f64)> {
        let group = self.spec.score.heads / self.spec.cache.kv_heads;
        let observed = self.queried - self.count(self.call.observed)..self.queried;
        let is_mean = scoring.aggregate == Aggregate::Mean;
        let by_head: Vec<Vec<(f64, f64)>> = (kv_head * group..(kv_head + 1) * group)
            .map(|head| {
                let sums: Vec<(f64, f64)> =
                    observed.clone().map(|query| self.sum(query, head, scoring)).collect();
                let of_row = |row: usize| {
                    let weights = observed
                        .clone()
                        .zip(&sums)
                        .map(|(query, sum)| weight(self.score(query, head, row), *sum));
                    match is_mean {
                        true => mean(weights, observed.len() as f64),
                        false => largest(weights),
                    }
                };
                let rows: Vec<(f64, f64)> = rows.clone().map(of_row).collect();
                if scoring.aggregate != Aggregate::Defensive {
                    return rows;
                }
                let candidates = self.candidates();
                let floor = mean(candidates.clone().map(of_row), candidates.len() as f64);
                rows.into_iter().map(|weight| largest([weight, floor].into_iter())).collect()
            })
            .collect();
        let of_row = |at: usize| {
            let heads = by_head.iter().map(|rows| rows[at]);
            if is_mean { mean(heads, group as f64) } else { largest(heads) }
        };
        (0..rows.len()).map(of_row).collect()
    }

    /// The logarithm of what a query's weights are relative to, and the bound of its error: that of a
    /// sum over the candidates m + ln sum exp(s - m) is off by as much as a score, its difference and
    /// exp (4u), the additions, ln (4u of it or 1e-7) and the last addition are.
    fn sum(&self, query: usize, head: usize, scoring: Scoring) -> (f64, f64) {
        if scoring.normalise == Normalise::All {
            return (f64::from(self.lse[query * self.spec.score.heads + head]), 0.0);
        }
        let scores: Vec<(f64, f64)> =
            self.candidates().map(|row| self.score(query, head, row)).collect();
        let most = scores.iter().map(|score| score.0).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| (score.0 - most).exp()).sum();
        let of_weight = |(score, error): &(f64, f64)| error + ((most - score) + 4.0) * U;
        let of_weights = scores.iter().map(of_weight).fold(0.0, f64::max);
        let logarithm = sum.ln();
        let rounded = (scores.len() as f64 * U) + (4.0 * U * logarithm).max(1e-7);
        let sum = most + logarithm;
        (sum, of_weights + rounded + sum.abs() * U)
    }

    /// Positions with the best scores, ascending; among equals the first.
    fn best(&self, scores: &[f32], count: usize) -> Vec<u32> {
        let mut order: Vec<usize> = self.candidates().collect();
        // Stable, and the two zeros are equal.
        order.sort_by(|a, b| scores[*b].partial_cmp(&scores[*a]).unwrap());
        order.truncate(count);
        order.sort_unstable();
        order.into_iter().map(|position| position as u32).collect()
    }

    /// Positions that a head selects, ascending.
    fn selected(&self, scores: &[f32], second: &[f32]) -> Vec<u32> {
        let count = self.count(self.call.selected);
        if self.call.asked == 0 {
            return self.best(scores, count);
        }
        let share = share_of(count, self.call.second_share);
        let mut second = second.to_vec();
        for row in self.best(scores, count - share) {
            second[row as usize] = f32::INFINITY;
        }
        self.best(&second, count)
    }

    /// Positions of the rows that a head keeps, with their places in the destination.
    fn moves(&self, best: &[u32]) -> Vec<(usize, usize)> {
        let call = &self.call;
        let sinks = self.count(call.sinks);
        let mut moves: Vec<(usize, usize)> = (0..sinks).map(|row| (row, row)).collect();
        moves.extend(best.iter().enumerate().map(|(at, row)| (*row as usize, sinks + at)));
        moves.extend((call.rows - call.recent..call.rows).map(|row| {
            let turn = (row - call.ring_anchor) % call.ring_rows;
            (row as usize, self.count(call.ring_base + turn))
        }));
        moves
    }
}

/// Keys of which many are alike: near one of a few, four in five of them so near that their cosine is
/// above a half.
fn alike(random: &mut Random, rows: usize, width: usize) -> Vec<f32> {
    let centres = random.units(5 * width);
    let mut keys = Vec::new();
    for _ in 0..rows {
        let centre = random.below(5) * width;
        let far = if random.below(5) == 0 { 3.0 } else { 0.7 };
        let away = random.units(width).into_iter().map(|away| away * far);
        keys.extend(centres[centre..][..width].iter().zip(away).map(|(key, away)| key + away));
    }
    keys
}

/// The exponential of a score relative to a logarithm: its exponent has the errors of both and a
/// rounding, exp adds 2 ulp, 4u.
fn weight((score, error): (f64, f64), (sum, sum_error): (f64, f64)) -> (f64, f64) {
    let exponent = score - sum;
    let weight = exponent.exp();
    (weight, weight * (error + sum_error + (exponent.abs() + 4.0) * U))
}

/// A mean of numbers that are not negative: each addition and the division are off by u of the result
/// at most, two additions join lanes.
fn mean(numbers: impl ExactSizeIterator<Item = (f64, f64)>, count: f64) -> (f64, f64) {
    let steps = numbers.len() as f64 + 3.0;
    let (sum, error) =
        numbers.fold((0.0, 0.0), |(sum, error), number| (sum + number.0, error + number.1));
    (sum / count, (error + steps * U * sum) / count)
}

/// The largest of numbers: off by as much as the worst of them.
fn largest(numbers: impl Iterator<Item = (f64, f64)>) -> (f64, f64) {
    numbers.fold((0.0, 0.0), |most, number| (most.0.max(number.0), most.1.max(number.1)))
}

/// Observes and compacts one random prompt. `has_ties` puts few different scores, zeros of both signs
/// among them, in the place of those observed.
pub(super) fn check_prompt(random: &mut Random, has_ties: bool, threads: usize, side: Side) {
    let prompt = Prompt::random(random);
    check(random, &prompt, has_ties, threads, side);
}

/// The same of a prompt with these heads and widths (see [`Prompt::new`]), whose values are the first
/// numbers of keys if a row is latent.
pub(super) fn check_heads(
    random: &mut Random,
    heads: [usize; 4],
    formats: Formats,
    source: (ScoreSource, f32),
    is_latent: bool,
) {
    let prompt = Prompt::new(random, heads, formats, source);
    let prompt = if is_latent { prompt.with_values_of_keys() } else { prompt };
    let (threads, side) = (1 + random.below(3), [Side::Begin, Side::End][random.below(2)]);
    check(random, &prompt, false, threads, side);
}

fn check(random: &mut Random, prompt: &Prompt, has_ties: bool, threads: usize, side: Side) {
    let cache = prompt.spec.cache;
    let rows = prompt.count(prompt.call.rows);
    let guard = |floats: &[f32]| Guarded::new(&bytes(floats), side);
    let poison = |count: usize| guard(&vec![POISON; count]);
    let [mut keys, mut values] = encoded_planes(&cache, [&prompt.keys, &prompt.values], rows)
        .map(|plane| Guarded::new(&plane, side));
    let [mut queries, mut lse] = [&prompt.queries, &prompt.lse].map(|floats| guard(floats));
    let mut scores = poison(cache.kv_heads * rows);
    let compared = redundancy_scratch(cache.kv_heads as u64, rows as u64) as usize;
    let mut scratch = poison(compared.max(cache.kv_heads * rows));
    let mut floors = poison(prompt.spec.score.heads);
    let sizes = [prompt.spec.score.heads, cache.kv_heads, cache.key_width].map(|size| size as u64);
    let asked = prompt.count(prompt.call.asked);
    let mut second = poison(second_scratch(sizes, rows as u64, asked as u64) as usize);
    let stride = prompt.call.positions_stride as usize;
    let mut positions = poison(cache.kv_heads * stride);
    let widths = [cache.key_width, cache.value_width];
    let plane_rows = rows.next_multiple_of(KEY_TILE);
    let rows_of_parts = [prompt.kept, prompt.block_rows];
    let kept_planes =
        |floats: &[Vec<f32>; 2]| encoded_parts(&cache, [&floats[0], &floats[1]], rows_of_parts);
    let mut expected = widths.map(|width| vec![POISON; 2 * cache.kv_heads * prompt.kept * width]);
    let [mut to_keys, mut to_values] =
        kept_planes(&expected).map(|plane| Guarded::new(&plane, side));
    let [key_head, key_ring] = head_bytes(&cache, true, rows_of_parts);
    let [value_head, value_ring] = head_bytes(&cache, false, rows_of_parts);
    let kv_heads = cache.kv_heads as u64;
    let from_rows = value_rows(cache.number, rows);
    let layer = LayerCall {
        keys: keys.bytes().as_mut_ptr(),
        values: values.bytes().as_mut_ptr(),
        key_slot_stride: (cache.kv_heads * plane_rows * cache.key_bytes()) as u64,
        key_head_stride: (plane_rows * cache.key_bytes()) as u64,
        value_slot_stride: (cache.kv_heads * from_rows * cache.value_bytes()) as u64,
        value_head_stride: (from_rows * cache.value_bytes()) as u64,
        spans: null(),
        observed_queries: queries.bytes().as_mut_ptr().cast(),
        observed_lse: lse.bytes().as_mut_ptr().cast(),
        observed_from: prompt.queried_from() as u32,
        layer: 0,
        key_ring: 0,
        value_ring: 0,
        block_rows: 0,
        heads: null(),
    };
    let call = PromptCall {
        keys: to_keys.bytes().as_mut_ptr(),
        values: to_values.bytes().as_mut_ptr(),
        key_slot_stride: key_head * kv_heads,
        key_head_stride: key_head,
        value_slot_stride: value_head * kv_heads,
        value_head_stride: value_head,
        scores: scores.bytes().as_mut_ptr().cast(),
        scratch: scratch.bytes().as_mut_ptr().cast(),
        floors: floors.bytes().as_mut_ptr().cast(),
        second: second.bytes().as_mut_ptr().cast(),
        selected_positions: positions.bytes().as_mut_ptr().cast(),
        key_ring,
        value_ring,
        block_rows: if cache.block.is_some() { prompt.block_rows as u32 } else { 0 },
        ..prompt.call
    };
    let context = StepContext { layer: &layer, prompt: &call, barrier: wait_for_team, ..context() };
    let words = [std::ptr::from_ref(&context) as u64];

    let spec = ObserveSpec { attend: prompt.spec, source: prompt.source };
    let levels = levels();
    let level = levels[random.below(levels.len())];
    let observe = |assembly: &mut Assembly| emit_observe(assembly, "observe", &spec, level);
    Kernel::new(observe).call_team(&words, threads, &[]);
    let candidates = prompt.candidates();
    let (observed, second_observed) = (floats(scores.bytes()), floats(second.bytes()));
    let level = levels[random.below(levels.len())];
    let observe = |assembly: &mut Assembly| emit_observe(assembly, "observe", &spec, level);
    Kernel::new(observe).call_team(&words, threads % 3 + 1, &[]);
    for (before, now) in [(&observed, &mut scores), (&second_observed, &mut second)] {
        assert!(bytes(before) == now.bytes(), "scores depend on threads or the level");
    }
    for kv_head in 0..cache.kv_heads {
        let scores = prompt.scores(kv_head);
        let head = &observed[kv_head * rows..][..rows];
        for (row, got) in head.iter().enumerate() {
            if !candidates.contains(&row) {
                assert_eq!(*got, POISON, "a score of no candidate");
                continue;
            }
            let (exact, bound) = scores[row - candidates.start];
            within(&(prompt.spec, prompt.source, level, kv_head, row), *got, exact, bound);
        }
    }
    check_second(prompt, &second_observed);

    let (mut chosen, mut chosen_second) = (observed, second_observed);
    if has_ties {
        let scored = cache.kv_heads * rows;
        let all = chosen.iter_mut().chain(&mut chosen_second[..scored]);
        for score in all.filter(|score| **score != POISON) {
            *score = [0.0, -0.0, 1.5, -2.0, 1e-42, 3e38][random.below(6)];
        }
        scores.bytes().copy_from_slice(&bytes(&chosen));
        second.bytes().copy_from_slice(&bytes(&chosen_second));
    }
    let asks = prompt.source.asks();
    let compact = |assembly: &mut Assembly| emit_compact(assembly, "compact", &cache, asks);
    Kernel::new(compact).call_team(&words, threads, &[]);
    let positions = positions.finish();
    let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| positions[at * 4 + byte]));
    for kv_head in 0..cache.kv_heads {
        let of_head = kv_head * rows..(kv_head + 1) * rows;
        let best = prompt.selected(&chosen[of_head.clone()], &chosen_second[of_head]);
        let got: Vec<u32> = (0..best.len()).map(|at| word(kv_head * stride + at)).collect();
        assert_eq!(got, best, "head {kv_head}");
        let rest = best.len()..stride;
        assert!(rest.into_iter().all(|at| word(kv_head * stride + at) == POISON.to_bits()));
        for (from, to) in prompt.moves(&best) {
            let from = kv_head * rows + from;
            let to = (cache.kv_heads + kv_head) * prompt.kept + to;
            let planes = [&prompt.keys, &prompt.values].into_iter().zip(&mut expected);
            for (width, (plane, expected)) in widths.into_iter().zip(planes) {
                let row = &plane[from * width..][..width];
                let is_block = cache.block.is_some() && to % prompt.kept < prompt.block_rows;
                // The block's rows are made from codes, where the ring has codes.
                let row = match is_block && cache.number == CacheType::Int8 {
                    true => rounded(cache.number, row).into_iter().map(|x| x as f32).collect(),
                    false => row.to_vec(),
                };
                expected[to * width..][..width].copy_from_slice(&row);
            }
        }
    }
    let [keys_expected, values_expected] = kept_planes(&expected);
    assert!(to_keys.finish() == keys_expected, "keys in the destination");
    assert!(to_values.finish() == values_expected, "values in the destination");
    for buffer in [keys, values, queries, lse, scores, scratch, floors, second] {
        buffer.finish();
    }
}

/// Rows that were asked, and scores by what they attend to, as observe has left them.
fn check_second(prompt: &Prompt, found: &[f32]) {
    let (rows, asked) = (prompt.count(prompt.call.rows), prompt.count(prompt.call.asked));
    let ScoreSource::Queries { pool, scoring, .. } = prompt.source else { return };
    let kv_heads = prompt.spec.cache.kv_heads;
    if asked == 0 {
        assert!(found.iter().all(|number| *number == POISON), "nobody was asked");
        return;
    }
    let candidates = prompt.candidates();
    for kv_head in 0..kv_heads {
        let numbers = &found[kv_heads * rows + kv_head * asked..][..asked];
        let numbers: Vec<usize> = numbers.iter().map(|row| row.to_bits() as usize).collect();
        prompt.check_asked(kv_head, &numbers, scoring);
        let exact = prompt.second_scores(kv_head, &numbers, (pool, scoring));
        let got = &found[kv_head * rows..][candidates.clone()];
        for (place, (got, (exact, bound))) in got.iter().zip(exact).enumerate() {
            within(&(prompt.spec, prompt.source, kv_head, place), *got, exact, bound);
        }
    }
}
