//! Segment `observe`: scores of a prompt's candidates (sections 4.2 and 4.3 of the method's
//! document).
//!
//! A row's score is the mean over the heads of the group of the mean over the observed queries of
//! exp(score - log-sum-exp), then the average of its neighbours among the candidates. [`Scoring`]
//! names what may stand in place of each of the three.
//!
//! Sixteen keys that lie in one block are scored together: lanes are rows, so that no product is
//! summed across lanes, and a block is read once for all queries of its group. A product adds
//! its elements in ascending order by fused steps, on all levels, a mean its queries and heads
//! likewise. Threads divide runs of 64
//! rows; a score depends on its own key and the queries alone, and what is relative to all candidates
//! sums those of equal places in their blocks in ascending order, then the sixteen sums in pairs.
//!
//! Phases: sums over the candidates, where attention is relative to these; means of heads, where
//! weights have a floor; rows; neighbours; `redundancy`, where rows are selected anew and it counts.
//! Where lots are drawn there is one, without queries.

mod products;
mod redundancy;

use std::mem::offset_of;

use weir_abi::{IsaLevel, KEY_BLOCK, LayerCall, PromptCall, StepContext};
use weir_ir::graph::{Aggregate, Normalise, Pooling, Scoring};

use self::products::Products;
use self::redundancy::Redundancy;
use super::attention::{AttendSpec, BlockOfKeys, plane_rows};
use super::lots;
use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FuncId, INT, INTS, InstBuilder, IntCC, LANES, POINTER, Value,
    segment_signature,
};

/// Rows of an item: whole blocks.
const RUN: i64 = 64;
/// Vectors of a number of each row of a block.
const FOURS: usize = KEY_BLOCK / 4;
/// Queries whose products with a block lie in memory together.
const QUERIES: usize = 32;

/// What a layer kind's candidates are scored by.
#[derive(Clone, Copy, Debug)]
pub struct ObserveSpec {
    /// Attention of the layer.
    pub attend: AttendSpec,
    /// Where scores come from.
    pub source: ScoreSource,
}

/// Where scores come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScoreSource {
    /// The attention of the last queries.
    Queries {
        /// Pooling width.
        pool: usize,
        /// What becomes of it.
        scoring: Scoring,
        /// Percent of a score that redundancy is where rows are selected anew.
        redundancy: u32,
    },
    /// A hash of seed, layer, head and position ([`weir_ir::interpret::select::lot`]).
    Lots {
        /// Seed.
        seed: u32,
    },
}

/// Emits the segment for a level: levels with the same products share it.
pub fn emit_observe(
    assembly: &mut Assembly,
    name: &str,
    spec: &ObserveSpec,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    let (pool, scoring, redundancy) = match spec.source {
        ScoreSource::Queries { pool, scoring, redundancy } => (pool, scoring, redundancy),
        ScoreSource::Lots { seed } => return emit_lots(assembly, name, &spec.attend, seed),
    };
    let cache = &spec.attend.cache;
    let query_row = spec.attend.score.heads * cache.key_width;
    let products = Products::emit(assembly, cache, query_row, level)?;
    let redundancy = match redundancy {
        0 => None,
        percent => {
            let products = Products::emit(assembly, cache, cache.key_width, level)?;
            Some(Redundancy { percent, products })
        }
    };
    let name = match products.assembled() {
        Some(products) => format!("{name}-{}", assembly.name(products)),
        None => name.to_owned(),
    };
    if let Some(known) = assembly.find(&name) {
        return Ok(known);
    }
    let id = assembly.declare(&name, segment_signature())?;
    assembly.define(id, |b| {
        let (context, thread, threads) = b.segment_params();
        let call = Call::new(b, spec.attend, (scoring, products), context, [thread, threads]);
        call.all_phases(b, pool);
        if let Some(redundancy) = &redundancy {
            let prompt = prompt_pointer(b, context);
            let anew = b.load_count(prompt, offset_of!(PromptCall, anew) as i32);
            let anew = b.compare_const(IntCC::NotEqual, anew, 0);
            b.if_then(anew, |b| {
                b.barrier(context, thread);
                redundancy.all_phases(b, &call);
            });
        }
        b.barrier(context, thread);
        b.ret(&[]);
    })?;
    Ok(id)
}

/// The segment where scores are drawn by lot: one for all levels.
fn emit_lots(
    assembly: &mut Assembly,
    name: &str,
    spec: &AttendSpec,
    seed: u32,
) -> Result<FuncId, EmitError> {
    if let Some(known) = assembly.find(name) {
        return Ok(known);
    }
    let id = assembly.declare(name, segment_signature())?;
    assembly.define(id, |b| {
        let (context, thread, threads) = b.segment_params();
        draw_lots(b, spec, seed, context, [thread, threads]);
        b.barrier(context, thread);
        b.ret(&[]);
    })?;
    Ok(id)
}

fn prompt_pointer(b: &mut Body<'_>, context: Value) -> Value {
    b.load(POINTER, context, offset_of!(StepContext, prompt) as i32)
}

/// Rows of a prompt, of every key/value head: runs that threads divide.
struct Runs {
    begin: Value,
    end: Value,
    /// Runs of a head.
    runs: Value,
    /// Runs of this thread.
    share: (Value, Value),
}

impl Runs {
    fn new(
        b: &mut Body<'_>,
        [begin, end]: [Value; 2],
        kv_heads: usize,
        [thread, threads]: [Value; 2],
    ) -> Runs {
        let count = b.sub(end, begin);
        let zero = b.int(0);
        let count = b.max(count, zero);
        let count = b.add_const(count, RUN - 1);
        let run = b.int(RUN);
        let runs = b.ins().udiv(count, run);
        let items = b.mul_const(runs, kv_heads as i64);
        Runs { begin, end, runs, share: b.partition(items, thread, threads) }
    }

    /// For each row of this thread's: its head and its position.
    fn for_rows(&self, b: &mut Body<'_>, body: impl FnOnce(&mut Body<'_>, Value, Value)) {
        self.for_starts(b, 1, body);
    }

    /// For every `step`th row of this thread's runs, from each run's first on.
    fn for_starts(
        &self,
        b: &mut Body<'_>,
        step: i64,
        body: impl FnOnce(&mut Body<'_>, Value, Value),
    ) {
        b.for_range(self.share.0, self.share.1, 1, |b, item| {
            let head = b.ins().udiv(item, self.runs);
            let before = b.mul(head, self.runs);
            let run = b.sub(item, before);
            let start = b.mul_const(run, RUN);
            let begin = b.add(self.begin, start);
            let end = b.add_const(begin, RUN);
            let end = b.min(end, self.end);
            b.for_range(begin, end, step, |b, place| body(b, head, place));
        });
    }
}

/// The candidates of a prompt: from the end of the sinks to the recent rows.
fn candidates(b: &mut Body<'_>, prompt: Value, rows: Value) -> [Value; 2] {
    let begin = b.load_count(prompt, offset_of!(PromptCall, sinks) as i32);
    let recent = b.load_count(prompt, offset_of!(PromptCall, recent) as i32);
    [begin, b.sub(rows, recent)]
}

/// Scores by lot.
fn draw_lots(b: &mut Body<'_>, spec: &AttendSpec, seed: u32, context: Value, team: [Value; 2]) {
    let prompt = prompt_pointer(b, context);
    let scores = b.load(POINTER, prompt, offset_of!(PromptCall, scores) as i32);
    let rows = b.load_count(prompt, offset_of!(PromptCall, rows) as i32);
    let layer = b.load(INT, prompt, offset_of!(PromptCall, layer) as i32);
    let bounds = candidates(b, prompt, rows);
    let runs = Runs::new(b, bounds, spec.cache.kv_heads, team);
    runs.for_rows(b, |b, head, place| {
        let hash = lots::hash(b, seed, layer, head, place);
        let low = b.int32(8);
        let number = b.ins().ushr(hash, low);
        let number = b.to_float(number);
        let most = b.float((1 << 24) as f32);
        let lot = b.fdiv(number, most);
        let to = b.mul(head, rows);
        let to = b.add(to, place);
        let to = b.element(scores, to, 4);
        b.store(lot, to, 0);
    });
}

/// The operands of the formula, and how rows are divided.
struct Call {
    spec: AttendSpec,
    scoring: Scoring,
    /// Products of queries with a block of keys.
    products: Products,
    context: Value,
    team: [Value; 2],
    rows: Value,
    /// w.
    observed: Value,
    /// Observed queries, `[w, heads, width]`.
    queries: Value,
    /// Logarithms of their sums, `[w, heads]`.
    sums: Value,
    /// Dense rows.
    layer: Value,
    /// Scores before pooling, `[kv heads, rows]`.
    raw: Value,
    /// Scores, `[kv heads, rows]`.
    pooled: Value,
    /// Least weights, `[heads]`.
    floors: Value,
    candidates: [Value; 2],
    /// A block of keys in single precision, on the stack.
    wide_keys: Value,
    /// Products of queries with a block, `[QUERIES][KEY_BLOCK]`, on the stack.
    dense: Value,
    /// Scores of its rows.
    sixteen: Value,
}

impl Call {
    fn new(
        b: &mut Body<'_>,
        spec: AttendSpec,
        (scoring, products): (Scoring, Products),
        context: Value,
        team: [Value; 2],
    ) -> Call {
        let prompt = prompt_pointer(b, context);
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let rows = b.load_count(prompt, offset_of!(PromptCall, rows) as i32);
        let mut pointer = |from: Value, offset: usize| b.load(POINTER, from, offset as i32);
        Call {
            spec,
            scoring,
            products,
            context,
            team,
            rows,
            queries: pointer(layer, offset_of!(LayerCall, observed_queries)),
            sums: pointer(layer, offset_of!(LayerCall, observed_lse)),
            raw: pointer(prompt, offset_of!(PromptCall, scratch)),
            pooled: pointer(prompt, offset_of!(PromptCall, scores)),
            floors: pointer(prompt, offset_of!(PromptCall, floors)),
            observed: b.load_count(prompt, offset_of!(PromptCall, observed) as i32),
            candidates: candidates(b, prompt, rows),
            wide_keys: b.stack(spec.cache.wide_block_bytes() as u32),
            dense: b.stack((QUERIES * KEY_BLOCK * 4) as u32),
            sixteen: b.stack(KEY_BLOCK as u32 * 4),
            layer,
        }
    }

    fn all_phases(&self, b: &mut Body<'_>, pool: usize) {
        let kv_heads = self.spec.cache.kv_heads;
        let heads = b.int(self.spec.score.heads as i64);
        let [thread, threads] = self.team;
        if self.scoring.normalise == Normalise::Candidates {
            let items = b.mul(heads, self.observed);
            let (first, last) = b.partition(items, thread, threads);
            b.for_range(first, last, 1, |b, item| self.sum_over_candidates(b, item));
            b.barrier(self.context, thread);
        }
        if self.scoring.aggregate == Aggregate::Defensive {
            let (first, last) = b.partition(heads, thread, threads);
            b.for_range(first, last, 1, |b, head| self.find_floor(b, head));
            b.barrier(self.context, thread);
        }
        // Neighbours beyond the candidates count in SnapKV's pooling alone.
        let scored = match self.scoring.pooling {
            Pooling::Reference => [b.int(0), b.sub(self.rows, self.observed)],
            Pooling::Average | Pooling::Max => self.candidates,
        };
        // Whole blocks of keys, which lie by their rows' numbers.
        let first = b.ins().band_imm_s(scored[0], -(KEY_BLOCK as i64));
        let runs = Runs::new(b, [first, scored[1]], kv_heads, self.team);
        runs.for_starts(b, KEY_BLOCK as i64, |b, kv_head, first| {
            let keys = self.block(b, kv_head, first);
            let scores = self.score(b, kv_head, &keys);
            self.write_block(b, kv_head, first, scored, scores);
        });
        b.barrier(self.context, thread);
        let runs = Runs::new(b, self.candidates, kv_heads, self.team);
        runs.for_rows(b, |b, kv_head, place| {
            let score = self.pool(b, pool, scored, kv_head, place);
            let to = self.place(b, self.pooled, kv_head, place);
            b.store(score, to, 0);
        });
    }

    /// A row's number of a head in `[kv heads, rows]`.
    fn place(&self, b: &mut Body<'_>, plane: Value, kv_head: Value, place: Value) -> Value {
        let before = b.mul(kv_head, self.rows);
        let at = b.add(before, place);
        b.element(plane, at, 4)
    }

    /// A block of keys: what products are made with.
    fn block(&self, b: &mut Body<'_>, kv_head: Value, first: Value) -> BlockOfKeys {
        let slot = b.int(0);
        let keys = plane_rows(b, self.layer, false, slot, kv_head);
        self.products.block(b, &self.spec.cache, [keys, first, self.wide_keys])
    }

    fn group(&self) -> usize {
        self.spec.score.heads / self.spec.cache.kv_heads
    }

    /// A query of a head, and the logarithm of its sum.
    fn query(&self, b: &mut Body<'_>, head: Value, query: Value) -> [Value; 2] {
        let (heads, width) = (self.spec.score.heads, self.spec.cache.key_width);
        let number = b.mul_const(query, heads as i64);
        let number = b.add(number, head);
        [b.element(self.queries, number, width as i64 * 4), b.element(self.sums, number, 4)]
    }

    /// Scores of a block for the query of this number among those that were multiplied.
    fn scores(&self, b: &mut Body<'_>, number: Value, keys: &BlockOfKeys) -> Rows {
        let from = b.element(self.dense, number, KEY_BLOCK as i64 * 4);
        std::array::from_fn(|four| {
            let mut product = b.load(LANES, from, four as i32 * 16);
            if let Some(scales) = keys.scales {
                let scales = b.load(LANES, scales, four as i32 * 16);
                product = b.fmul(product, scales);
            }
            self.spec.score.of(b, product)
        })
    }

    /// Scores of a block for one query.
    fn scores_of(&self, b: &mut Body<'_>, query: Value, keys: &BlockOfKeys) -> Rows {
        let [zero, one] = [0, 1].map(|count| b.int(count));
        self.products.multiply(b, [query, one, self.dense], keys);
        self.scores(b, zero, keys)
    }

    /// What is left of a block's numbers where only candidates count.
    fn of_candidates(&self, b: &mut Body<'_>, first: Value, numbers: Rows, other: f32) -> Rows {
        let other = b.constant(LANES, other);
        let (_, are_candidates) = self.candidates_of(b, first);
        each(are_candidates, numbers, |is_candidate, number| b.select(is_candidate, number, other))
    }

    /// The rows of the block that begins with this one, and masks of those that are candidates.
    fn candidates_of(&self, b: &mut Body<'_>, first: Value) -> (Rows, Rows) {
        let [begin, end] = self.candidates.map(|bound| {
            let bound = b.ins().ireduce(INT, bound);
            b.splat(bound)
        });
        let lanes = b.int32(0);
        let mut lanes = b.splat(lanes);
        for lane in 1..4 {
            let number = b.int32(i32::from(lane));
            lanes = b.ins().insertlane(lanes, number, lane);
        }
        let first = b.ins().ireduce(INT, first);
        let first = b.splat(first);
        let mut next = b.add(first, lanes);
        let four = b.constant_int(INTS, 4);
        let rows: Rows = std::array::from_fn(|_| {
            let rows = next;
            next = b.add(next, four);
            rows
        });
        let masks = rows.map(|rows| {
            let is_behind = b.compare(IntCC::SignedGreaterThanOrEqual, rows, begin);
            let is_before = b.compare(IntCC::SignedLessThan, rows, end);
            b.ins().band(is_behind, is_before)
        });
        (rows, masks)
    }

    /// Folds the candidates of a head: `body` gets a block, its first row, and the numbers so far, by
    /// rows of a block.
    fn fold_candidates(
        &self,
        b: &mut Body<'_>,
        kv_head: Value,
        initial: f32,
        body: impl FnOnce(&mut Body<'_>, &BlockOfKeys, Value, Rows) -> Rows,
    ) -> Rows {
        let [begin, end] = self.candidates;
        let begin = b.ins().band_imm_s(begin, -(KEY_BLOCK as i64));
        let initial = [b.constant(LANES, initial); FOURS];
        let folded = b.fold_range(begin, end, KEY_BLOCK as i64, &initial, |b, first, so_far| {
            let keys = self.block(b, kv_head, first);
            body(b, &keys, first, rows_of(so_far)).to_vec()
        });
        rows_of(&folded)
    }

    /// Replaces the logarithm of a query's sum over all keys by that over the candidates. Items are
    /// queries times heads.
    fn sum_over_candidates(&self, b: &mut Body<'_>, item: Value) {
        let heads = b.int(self.spec.score.heads as i64);
        let query = b.ins().udiv(item, heads);
        let before = b.mul(query, heads);
        let head = b.sub(item, before);
        let kv_head = self.kv_head(b, head);
        let [query, sum_at] = self.query(b, head, query);
        let most = self.fold_candidates(b, kv_head, f32::NEG_INFINITY, |b, keys, first, most| {
            let scores = self.scores_of(b, query, keys);
            let scores = self.of_candidates(b, first, scores, f32::NEG_INFINITY);
            each(most, scores, |most, score| b.fmax(most, score))
        });
        let most = joined(b, most, Body::fmax);
        let most = b.max_lanes(most);
        let most_lanes = b.splat(most);
        let sum = self.fold_candidates(b, kv_head, 0.0, |b, keys, first, sum| {
            let scores = self.scores_of(b, query, keys);
            let weights = scores.map(|score| weight_of(b, score, most_lanes));
            let weights = self.of_candidates(b, first, weights, 0.0);
            each(sum, weights, |sum, weight| b.fadd(sum, weight))
        });
        let sum = joined(b, sum, Body::fadd);
        let sum = b.sum_lanes(sum);
        let sum = b.ln(sum);
        let sum = b.fadd(most, sum);
        b.store(sum, sum_at, 0);
    }

    /// The mean of a head's weights over the candidates.
    fn find_floor(&self, b: &mut Body<'_>, head: Value) {
        let kv_head = self.kv_head(b, head);
        let sum = self.fold_candidates(b, kv_head, 0.0, |b, keys, first, sum| {
            let weights = self.of_head(b, keys, head);
            let weights = self.of_candidates(b, first, weights, 0.0);
            each(sum, weights, |sum, weight| b.fadd(sum, weight))
        });
        let sum = joined(b, sum, Body::fadd);
        let sum = b.sum_lanes(sum);
        let [begin, end] = self.candidates;
        let count = b.sub(end, begin);
        let mean = divided(b, sum, count);
        let to = b.element(self.floors, head, 4);
        b.store(mean, to, 0);
    }

    fn kv_head(&self, b: &mut Body<'_>, head: Value) -> Value {
        let group = b.int(self.group() as i64);
        b.ins().udiv(head, group)
    }

    /// What the queries of a head give the keys of a block: their mean or their largest.
    fn of_head(&self, b: &mut Body<'_>, keys: &BlockOfKeys, head: Value) -> Rows {
        let is_mean = self.scoring.aggregate == Aggregate::Mean;
        let [zero, most] = [0, QUERIES as i64].map(|count| b.int(count));
        let nothing = [b.constant(LANES, 0.0); FOURS];
        let step = QUERIES as i64;
        let mass = b.fold_range(zero, self.observed, step, &nothing, |b, first, mass| {
            let [queries, sums] = self.query(b, head, first);
            let rest = b.sub(self.observed, first);
            let count = b.min(rest, most);
            self.products.multiply(b, [queries, count, self.dense], keys);
            b.fold_range(zero, count, 1, mass, |b, number, mass| {
                let scores = self.scores(b, number, keys);
                let sum = b.element(sums, number, self.spec.score.heads as i64 * 4);
                let sum = b.load(FLOAT, sum, 0);
                let sum = b.splat(sum);
                let mass = each(rows_of(mass), scores, |mass, score| {
                    let weight = weight_of(b, score, sum);
                    if is_mean { b.fadd(mass, weight) } else { b.fmax(mass, weight) }
                });
                mass.to_vec()
            })
        });
        let mass = rows_of(&mass);
        if !is_mean {
            return mass;
        }
        let count = b.ins().ireduce(INT, self.observed);
        let count = b.to_float(count);
        let count = b.splat(count);
        mass.map(|mass| b.fdiv(mass, count))
    }

    /// What the heads of a group give the rows of a block.
    fn score(&self, b: &mut Body<'_>, kv_head: Value, keys: &BlockOfKeys) -> Rows {
        let group = self.group();
        let nothing = [b.constant(LANES, 0.0); FOURS];
        let total = b.fold_count(group as i64, 1, &nothing, |b, member, total| {
            let head = b.mul_const(kv_head, group as i64);
            let head = b.add(head, member);
            let mut weights = self.of_head(b, keys, head);
            if self.scoring.aggregate == Aggregate::Defensive {
                let floor = b.element(self.floors, head, 4);
                let floor = b.load(FLOAT, floor, 0);
                let floor = b.splat(floor);
                weights = weights.map(|weight| b.fmax(weight, floor));
            }
            let joined =
                each(rows_of(total), weights, |total, weight| match self.scoring.aggregate {
                    Aggregate::Mean => b.fadd(total, weight),
                    Aggregate::Max | Aggregate::Defensive => b.fmax(total, weight),
                });
            joined.to_vec()
        });
        let total = rows_of(&total);
        if self.scoring.aggregate != Aggregate::Mean {
            return total;
        }
        let group = b.constant(LANES, group as f32);
        total.map(|total| b.fdiv(total, group))
    }

    /// Writes the scores of the rows of a block that lie within bounds.
    fn write_block(
        &self,
        b: &mut Body<'_>,
        kv_head: Value,
        first: Value,
        [begin, end]: [Value; 2],
        scores: Rows,
    ) {
        for (four, scores) in scores.into_iter().enumerate() {
            b.store(scores, self.sixteen, four as i32 * 16);
        }
        let low = b.max(first, begin);
        let behind = b.add_const(first, KEY_BLOCK as i64);
        let high = b.min(behind, end);
        let to = self.place(b, self.raw, kv_head, low);
        let within = b.sub(low, first);
        let from = b.element(self.sixteen, within, 4);
        let zero = b.int(0);
        let count = b.sub(high, low);
        b.for_lanes(zero, count, |b, index, lanes| {
            let [from, to] = [from, to].map(|at| b.element(at, index, 4));
            let score = b.load(lanes.float(), from, 0);
            b.store(score, to, 0);
        });
    }

    /// What a candidate and its neighbours among the scored rows come to.
    fn pool(
        &self,
        b: &mut Body<'_>,
        pool: usize,
        scored: [Value; 2],
        kv_head: Value,
        place: Value,
    ) -> Value {
        let is_max = self.scoring.pooling == Pooling::Max;
        let raw = b.mul(kv_head, self.rows);
        let raw = b.element(self.raw, raw, 4);
        let reach = pool as i64 / 2;
        let low = b.add_const(place, -reach);
        let low = b.max(low, scored[0]);
        let high = b.add_const(place, reach + 1);
        let high = b.min(high, scored[1]);
        let zero = b.float(0.0);
        let sum = b.fold_range(low, high, 1, &[zero], |b, neighbour, sum| {
            let from = b.element(raw, neighbour, 4);
            let score = b.load(FLOAT, from, 0);
            vec![if is_max { b.fmax(sum[0], score) } else { b.fadd(sum[0], score) }]
        })[0];
        let count = match self.scoring.pooling {
            Pooling::Max => return sum,
            Pooling::Average => b.sub(high, low),
            Pooling::Reference => b.int(2 * reach + 1),
        };
        divided(b, sum, count)
    }
}

/// A number of each row of a block: four vectors of four.
type Rows = [Value; FOURS];

fn rows_of(values: &[Value]) -> Rows {
    std::array::from_fn(|four| values[four])
}

fn each(left: Rows, right: Rows, mut join: impl FnMut(Value, Value) -> Value) -> Rows {
    std::array::from_fn(|four| join(left[four], right[four]))
}

/// (0 + 2) + (1 + 3) of the vectors, always in this order.
fn joined<'b>(
    b: &mut Body<'b>,
    [v0, v1, v2, v3]: Rows,
    join: fn(&mut Body<'b>, Value, Value) -> Value,
) -> Value {
    let even = join(b, v0, v2);
    let odd = join(b, v1, v3);
    join(b, even, odd)
}

/// A sum divided by how many there are.
fn divided(b: &mut Body<'_>, sum: Value, count: Value) -> Value {
    let count = b.ins().ireduce(INT, count);
    let count = b.to_float(count);
    b.fdiv(sum, count)
}

/// Attention: a score relative to the logarithm of a sum.
fn weight_of(b: &mut Body<'_>, score: Value, sum: Value) -> Value {
    let difference = b.fsub(score, sum);
    b.exp(difference)
}
