//! Segment `observe`: scores of a prompt's candidates (sections 4.2 and 4.3 of the method's
//! document).
//!
//! A row's score is the mean over the heads of the group of the mean over the observed queries of
//! exp(score - log-sum-exp), queries by fours in lanes, then the rest one by one; then the average
//! of its neighbours among the candidates. [`Scoring`] names what may stand in place of each of the
//! three. Threads divide runs of 64 rows; a score depends on its own key and the queries alone, and
//! what is relative to all candidates sums them in ascending order.
//!
//! Phases: sums over the candidates, where attention is relative to these; means of heads, where
//! weights have a floor; rows; neighbours. Where lots are drawn there is one, without queries.

use std::mem::offset_of;

use weir_abi::{LayerCall, PromptCall, StepContext};
use weir_ir::graph::{Aggregate, Normalise, Pooling, Scoring};

use super::attention::{AttendSpec, KeyAside, plane_rows, products};
use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FuncId, INT, InstBuilder, LANES, POINTER, Value,
    segment_signature,
};

/// Rows of an item.
const RUN: i64 = 64;

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
    },
    /// A hash of seed, layer, head and position ([`weir_ir::interpret::select::lot`]).
    Lots {
        /// Seed.
        seed: u32,
    },
}

/// Emits the segment.
pub fn emit_observe(
    assembly: &mut Assembly,
    name: &str,
    spec: &ObserveSpec,
) -> Result<FuncId, EmitError> {
    let id = assembly.declare(name, segment_signature())?;
    assembly.define(id, |b| {
        let (context, thread, threads) = b.segment_params();
        match spec.source {
            ScoreSource::Queries { pool, scoring } => {
                let call = Call::new(b, spec.attend, scoring, context, [thread, threads]);
                call.all_phases(b, pool);
            }
            ScoreSource::Lots { seed } => {
                draw_lots(b, &spec.attend, seed, context, [thread, threads]);
            }
        }
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
        b.for_range(self.share.0, self.share.1, 1, |b, item| {
            let head = b.ins().udiv(item, self.runs);
            let before = b.mul(head, self.runs);
            let run = b.sub(item, before);
            let start = b.mul_const(run, RUN);
            let begin = b.add(self.begin, start);
            let end = b.add_const(begin, RUN);
            let end = b.min(end, self.end);
            b.for_range(begin, end, 1, |b, place| body(b, head, place));
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
    let times = |b: &mut Body<'_>, number: Value, factor: u32| {
        let factor = b.int32(factor as i32);
        b.ins().imul(number, factor)
    };
    let folded = |b: &mut Body<'_>, hash: Value, bits: i32| {
        let bits = b.int32(bits);
        let high = b.ins().ushr(hash, bits);
        b.ins().bxor(hash, high)
    };
    runs.for_rows(b, |b, head, place| {
        let mut hash = b.int32(seed as i32);
        let [head_number, position] = [head, place].map(|number| b.ins().ireduce(INT, number));
        let parts = [(layer, 0x85eb_ca6b), (head_number, 0xc2b2_ae35), (position, 0x9e37_79b1)];
        for (number, factor) in parts {
            let part = times(b, number, factor);
            hash = b.ins().iadd(hash, part);
        }
        for (bits, factor) in [(16, 0x85eb_ca6b), (13, 0xc2b2_ae35)] {
            hash = folded(b, hash, bits);
            hash = times(b, hash, factor);
        }
        hash = folded(b, hash, 16);
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
    /// A key on the stack.
    key_memory: Value,
    /// Scores of four queries, and logarithms of their sums.
    four: Value,
    four_sums: Value,
}

impl Call {
    fn new(
        b: &mut Body<'_>,
        spec: AttendSpec,
        scoring: Scoring,
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
            key_memory: b.stack(spec.cache.key_bytes_aside() as u32),
            four: b.stack(16),
            four_sums: b.stack(16),
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
        let runs = Runs::new(b, scored, kv_heads, self.team);
        runs.for_rows(b, |b, kv_head, place| {
            let score = self.score(b, kv_head, place);
            let to = self.place(b, self.raw, kv_head, place);
            b.store(score, to, 0);
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

    /// A row's key, beside the cache.
    fn key(&self, b: &mut Body<'_>, kv_head: Value, place: Value) -> KeyAside {
        let slot = b.int(0);
        let keys = plane_rows(b, self.layer, false, slot, kv_head);
        self.spec.cache.gather_key(b, keys, place, self.key_memory)
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

    /// The score of one query and a key.
    fn product(&self, b: &mut Body<'_>, query: Value, key: &KeyAside) -> Value {
        let stride = self.spec.score.heads * self.spec.cache.key_width;
        let product = products(b, query, stride, 1, key, &self.spec.cache)[0];
        self.spec.score.of(b, product)
    }

    /// Replaces the logarithm of a query's sum over all keys by that over the candidates. Items are
    /// queries times heads.
    fn sum_over_candidates(&self, b: &mut Body<'_>, item: Value) {
        let heads = b.int(self.spec.score.heads as i64);
        let query = b.ins().udiv(item, heads);
        let before = b.mul(query, heads);
        let head = b.sub(item, before);
        let group = b.int(self.group() as i64);
        let kv_head = b.ins().udiv(head, group);
        let [query, sum_at] = self.query(b, head, query);
        let [begin, end] = self.candidates;
        let least = b.float(f32::NEG_INFINITY);
        let most = b.fold_range(begin, end, 1, &[least], |b, place, most| {
            let key = self.key(b, kv_head, place);
            let score = self.product(b, query, &key);
            vec![b.fmax(most[0], score)]
        })[0];
        let zero = b.float(0.0);
        let sum = b.fold_range(begin, end, 1, &[zero], |b, place, sum| {
            let key = self.key(b, kv_head, place);
            let score = self.product(b, query, &key);
            let difference = b.fsub(score, most);
            let weight = b.exp(difference);
            vec![b.fadd(sum[0], weight)]
        })[0];
        let sum = b.ln(sum);
        let sum = b.fadd(most, sum);
        b.store(sum, sum_at, 0);
    }

    /// The mean of a head's weights over the candidates.
    fn find_floor(&self, b: &mut Body<'_>, head: Value) {
        let group = b.int(self.group() as i64);
        let kv_head = b.ins().udiv(head, group);
        let [begin, end] = self.candidates;
        let zero = b.float(0.0);
        let sum = b.fold_range(begin, end, 1, &[zero], |b, place, sum| {
            let key = self.key(b, kv_head, place);
            let weight = self.of_head(b, &key, head);
            vec![b.fadd(sum[0], weight)]
        })[0];
        let count = b.sub(end, begin);
        let mean = divided(b, sum, count);
        let to = b.element(self.floors, head, 4);
        b.store(mean, to, 0);
    }

    /// What the queries of a head give a key: their mean or their largest.
    fn of_head(&self, b: &mut Body<'_>, key: &KeyAside, head: Value) -> Value {
        let is_mean = self.scoring.aggregate == Aggregate::Mean;
        let joined = |b: &mut Body<'_>, mass: Value, weight: Value| match is_mean {
            true => b.fadd(mass, weight),
            false => b.fmax(mass, weight),
        };
        let heads = self.spec.score.heads;
        let stride = heads * self.spec.cache.key_width;
        let whole = b.ins().band_imm_s(self.observed, -4);
        let zero = b.int(0);
        let none = b.constant(LANES, 0.0);
        let lanes = b.fold_range(zero, whole, 4, &[none], |b, query, mass| {
            let [query, sum] = self.query(b, head, query);
            let scores = products(b, query, stride, 4, key, &self.spec.cache);
            for (lane, score) in scores.into_iter().enumerate() {
                b.store(score, self.four, lane as i32 * 4);
                let sum = b.load(FLOAT, sum, (lane * heads * 4) as i32);
                b.store(sum, self.four_sums, lane as i32 * 4);
            }
            let (scores, sums) = (b.load(LANES, self.four, 0), b.load(LANES, self.four_sums, 0));
            let scores = self.spec.score.of(b, scores);
            let weight = weight_of(b, scores, sums);
            vec![joined(b, mass[0], weight)]
        })[0];
        let mass = if is_mean { b.sum_lanes(lanes) } else { b.max_lanes(lanes) };
        let mass = b.fold_range(whole, self.observed, 1, &[mass], |b, query, mass| {
            let [query, sum] = self.query(b, head, query);
            let score = self.product(b, query, key);
            let sum = b.load(FLOAT, sum, 0);
            let weight = weight_of(b, score, sum);
            vec![joined(b, mass[0], weight)]
        })[0];
        if is_mean { divided(b, mass, self.observed) } else { mass }
    }

    /// What the heads of a group give a row.
    fn score(&self, b: &mut Body<'_>, kv_head: Value, place: Value) -> Value {
        let key = self.key(b, kv_head, place);
        let group = self.group();
        let nothing = b.float(0.0);
        let total = b.fold_count(group as i64, 1, &[nothing], |b, member, total| {
            let head = b.mul_const(kv_head, group as i64);
            let head = b.add(head, member);
            let weight = self.of_head(b, &key, head);
            vec![match self.scoring.aggregate {
                Aggregate::Mean => b.fadd(total[0], weight),
                Aggregate::Max => b.fmax(total[0], weight),
                Aggregate::Defensive => {
                    let floor = b.element(self.floors, head, 4);
                    let floor = b.load(FLOAT, floor, 0);
                    let weight = b.fmax(weight, floor);
                    b.fmax(total[0], weight)
                }
            }]
        })[0];
        if self.scoring.aggregate != Aggregate::Mean {
            return total;
        }
        let group = b.float(group as f32);
        b.fdiv(total, group)
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
