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
//! weights have a floor; rows; neighbours; `second`, where rows are asked beside the last queries;
//! `redundancy`, where rows are selected anew and it counts. Where lots are drawn there is one,
//! without queries (`drawn`).

mod drawn;
mod exponentials;
mod pooling;
mod products;
mod redundancy;
mod rows;
mod runs;
mod second;
mod weights;

use std::mem::offset_of;

use weir_abi::{IsaLevel, KEY_BLOCK, LayerCall, PromptCall, StepContext};
use weir_ir::graph::{Aggregate, Normalise, Pooling, Scoring};

use self::drawn::emit_lots;
use self::exponentials::Exponentials;
use self::products::Products;
use self::redundancy::Redundancy;
use self::rows::Rows;
use self::runs::{Runs, candidates};
use self::second::Second;
use super::attention::{AttendSpec, BlockOfKeys, plane_rows};
use crate::emit::{
    Assembly, Body, EmitError, FuncId, InstBuilder, IntCC, POINTER, Value, segment_signature,
};

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
        /// Whether rows near what these attend to are asked as well.
        second: bool,
    },
    /// A hash of seed, layer, head and position ([`weir_ir::interpret::select::lot`]).
    Lots {
        /// Seed.
        seed: u32,
    },
}

impl ScoreSource {
    /// Whether rows may be asked beside the last queries.
    pub fn asks(&self) -> bool {
        matches!(self, ScoreSource::Queries { second: true, .. })
    }
}

/// Emits the segment for a level: levels with the same products share it.
pub fn emit_observe(
    assembly: &mut Assembly,
    name: &str,
    spec: &ObserveSpec,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    let (pool, scoring, redundancy, second) = match spec.source {
        ScoreSource::Queries { pool, scoring, redundancy, second } => {
            (pool, scoring, redundancy, second)
        }
        ScoreSource::Lots { seed } => return emit_lots(assembly, name, &spec.attend, seed),
    };
    let cache = &spec.attend.cache;
    let query_row = spec.attend.score.heads * cache.key_width;
    let products = Products::emit(assembly, cache, query_row, level)?;
    let exponentials = Exponentials::emit(assembly, &spec.attend, level)?;
    // Rows that lie one behind the other: keys, and queries that are asked.
    let dense = match redundancy > 0 || second {
        true => Some(Products::emit(assembly, cache, cache.key_width, level)?),
        false => None,
    };
    let redundancy = dense
        .filter(|_| redundancy > 0)
        .map(|products| Redundancy { percent: redundancy, products });
    let second = dense.filter(|_| second).map(|products| Second { products, pool });
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
        let call = Call::new(
            b,
            spec.attend,
            (scoring, products, exponentials),
            context,
            [thread, threads],
        );
        call.all_phases(b, pool, second.is_some());
        if let Some(second) = &second {
            let prompt = prompt_pointer(b, context);
            let asked = b.load_count(prompt, offset_of!(PromptCall, asked) as i32);
            let any = b.compare_const(IntCC::NotEqual, asked, 0);
            b.if_then(any, |b| second.all_phases(b, &call, asked));
        }
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

fn prompt_pointer(b: &mut Body<'_>, context: Value) -> Value {
    b.load(POINTER, context, offset_of!(StepContext, prompt) as i32)
}

/// The operands of the formula, and how rows are divided.
struct Call {
    spec: AttendSpec,
    scoring: Scoring,
    /// Products of queries with a block of keys.
    products: Products,
    /// What makes weights of them.
    exponentials: Exponentials,
    context: Value,
    team: [Value; 2],
    rows: Value,
    /// w.
    observed: Value,
    /// The queries that score, `[w, heads, width]`.
    queries: Value,
    /// Logarithms of their sums, `[w, heads]`.
    sums: Value,
    /// Queries that are there, the last w being these, and logarithms of their sums.
    observing: [Value; 2],
    /// The row of the first of them.
    observed_from: Value,
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
    /// Products of queries with a block, then weights, `[QUERIES][KEY_BLOCK]`, on the stack.
    dense: Value,
    /// Scores of its rows.
    sixteen: Value,
}

impl Call {
    fn new(
        b: &mut Body<'_>,
        spec: AttendSpec,
        (scoring, products, exponentials): (Scoring, Products, Exponentials),
        context: Value,
        team: [Value; 2],
    ) -> Call {
        let prompt = prompt_pointer(b, context);
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let rows = b.load_count(prompt, offset_of!(PromptCall, rows) as i32);
        let observed = b.load_count(prompt, offset_of!(PromptCall, observed) as i32);
        let observed_from = b.load_count(layer, offset_of!(LayerCall, observed_from) as i32);
        let mut pointer = |from: Value, offset: usize| b.load(POINTER, from, offset as i32);
        let observing =
            [offset_of!(LayerCall, observed_queries), offset_of!(LayerCall, observed_lse)]
                .map(|offset| pointer(layer, offset));
        let before = b.sub(rows, observed);
        let before = b.sub(before, observed_from);
        let (heads, width) = (spec.score.heads as i64, spec.cache.key_width as i64);
        let queries = b.element(observing[0], before, heads * width * 4);
        let sums = b.element(observing[1], before, heads * 4);
        let mut pointer = |from: Value, offset: usize| b.load(POINTER, from, offset as i32);
        Call {
            spec,
            scoring,
            products,
            exponentials,
            context,
            team,
            rows,
            queries,
            sums,
            observing,
            observed_from,
            raw: pointer(prompt, offset_of!(PromptCall, scratch)),
            pooled: pointer(prompt, offset_of!(PromptCall, scores)),
            floors: pointer(prompt, offset_of!(PromptCall, floors)),
            observed,
            candidates: candidates(b, prompt, rows),
            wide_keys: b.stack(spec.cache.wide_block_bytes() as u32),
            dense: b.stack((QUERIES * KEY_BLOCK * 4) as u32),
            sixteen: b.stack(KEY_BLOCK as u32 * 4),
            layer,
        }
    }

    /// Rows that are scored, of which candidates' neighbours are some: those beyond the candidates count
    /// in SnapKV's pooling alone.
    fn scored(&self, b: &mut Body<'_>) -> [Value; 2] {
        match self.scoring.pooling {
            Pooling::Reference => [b.int(0), b.sub(self.rows, self.observed)],
            Pooling::Average | Pooling::Max => self.candidates,
        }
    }

    /// Scores of the candidates; with `second` rows behind them are scored, too, but not pooled.
    fn all_phases(&self, b: &mut Body<'_>, pool: usize, second: bool) {
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
        let [begin, end] = self.scored(b);
        let end = if second { b.sub(self.rows, self.observed) } else { end };
        self.score_blocks(b, [begin, end], |b, kv_head, keys, _| self.score(b, kv_head, keys));
        b.barrier(self.context, thread);
        self.pool_all(b, pool, self.pooled);
    }

    /// Writes a score of every row between bounds: `score` gets a key/value head, a block of its keys
    /// and the first of their rows.
    fn score_blocks(
        &self,
        b: &mut Body<'_>,
        bounds: [Value; 2],
        score: impl FnOnce(&mut Body<'_>, Value, &BlockOfKeys, Value) -> Rows,
    ) {
        // Whole blocks of keys, which lie by their rows' numbers.
        let first = b.ins().band_imm_s(bounds[0], -(KEY_BLOCK as i64));
        let runs = Runs::new(b, [first, bounds[1]], self.spec.cache.kv_heads, self.team);
        runs.for_starts(b, KEY_BLOCK as i64, |b, kv_head, first| {
            let keys = self.block(b, kv_head, first);
            let scores = score(b, kv_head, &keys, first);
            self.write_block(b, kv_head, first, bounds, scores);
        });
    }

    /// Writes what every candidate and its neighbours come to.
    fn pool_all(&self, b: &mut Body<'_>, pool: usize, to: Value) {
        let scored = self.scored(b);
        let runs = Runs::new(b, self.candidates, self.spec.cache.kv_heads, self.team);
        runs.for_rows(b, |b, kv_head, place| {
            let score = self.pool(b, pool, scored, kv_head, place);
            let to = self.place(b, to, kv_head, place);
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
}
