//! Segment `observe`: scores of a prompt's candidates (sections 4.2 and 4.3 of the method's
//! document).
//!
//! A candidate's score is the mean over the heads of the group of the mean over the observed
//! queries of exp(score - log-sum-exp), queries by fours in lanes, then the rest one by one; then
//! the average of its neighbours among the candidates. Threads divide runs of 64 candidates; a
//! score depends on its own key and the queries alone.

use std::mem::offset_of;

use weir_abi::{LayerCall, PromptCall, StepContext};

use super::attention::{AttendSpec, plane_rows, products};
use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FuncId, InstBuilder, LANES, POINTER, Value, segment_signature,
};

/// Candidates of an item.
const RUN: i64 = 64;

/// What both halves need of the call.
struct Candidates {
    rows: Value,
    begin: Value,
    end: Value,
    runs: Value,
    items: Value,
}

/// Emits the segment. `pool` is the pooling width.
pub fn emit_observe(
    assembly: &mut Assembly,
    name: &str,
    spec: &AttendSpec,
    pool: usize,
) -> Result<FuncId, EmitError> {
    let id = assembly.declare(name, segment_signature())?;
    assembly.define(id, |b| {
        let (context, thread, threads) = b.segment_params();
        let prompt = b.load(POINTER, context, offset_of!(StepContext, prompt) as i32);
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let raw = b.load(POINTER, prompt, offset_of!(PromptCall, scratch) as i32);
        let pooled = b.load(POINTER, prompt, offset_of!(PromptCall, scores) as i32);
        let candidates = candidates(b, prompt, spec.cache.kv_heads);
        let (first, last) = b.partition(candidates.items, thread, threads);
        for_runs(b, &candidates, first, last, |b, head, begin, end| {
            score_run(b, spec, prompt, layer, raw, candidates.rows, head, begin, end);
        });
        b.barrier(context, thread);
        for_runs(b, &candidates, first, last, |b, head, begin, end| {
            pool_run(b, pool, &candidates, raw, pooled, head, begin, end);
        });
        b.barrier(context, thread);
        b.ret(&[]);
    })?;
    Ok(id)
}

fn candidates(b: &mut Body<'_>, prompt: Value, kv_heads: usize) -> Candidates {
    let rows = b.load_count(prompt, offset_of!(PromptCall, rows) as i32);
    let begin = b.load_count(prompt, offset_of!(PromptCall, sinks) as i32);
    let recent = b.load_count(prompt, offset_of!(PromptCall, recent) as i32);
    let end = b.sub(rows, recent);
    let count = b.sub(end, begin);
    let zero = b.int(0);
    let count = b.max(count, zero);
    let count = b.add_const(count, RUN - 1);
    let run = b.int(RUN);
    let runs = b.ins().udiv(count, run);
    let items = b.mul_const(runs, kv_heads as i64);
    Candidates { rows, begin, end, runs, items }
}

/// For each item: its head and its candidates.
fn for_runs(
    b: &mut Body<'_>,
    candidates: &Candidates,
    first: Value,
    last: Value,
    body: impl FnOnce(&mut Body<'_>, Value, Value, Value),
) {
    b.for_range(first, last, 1, |b, item| {
        let head = b.ins().udiv(item, candidates.runs);
        let before = b.mul(head, candidates.runs);
        let run = b.sub(item, before);
        let start = b.mul_const(run, RUN);
        let begin = b.add(candidates.begin, start);
        let end = b.add_const(begin, RUN);
        let end = b.min(end, candidates.end);
        body(b, head, begin, end);
    });
}

#[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
fn score_run(
    b: &mut Body<'_>,
    spec: &AttendSpec,
    prompt: Value,
    layer: Value,
    raw: Value,
    rows: Value,
    kv_head: Value,
    begin: Value,
    end: Value,
) {
    let heads = spec.score.heads;
    let width = spec.cache.key_width;
    let group = heads / spec.cache.kv_heads;
    let queries = b.load(POINTER, layer, offset_of!(LayerCall, observed_queries) as i32);
    let sums = b.load(POINTER, layer, offset_of!(LayerCall, observed_lse) as i32);
    let observed = b.load_count(prompt, offset_of!(PromptCall, observed) as i32);
    let slot = b.int(0);
    let keys = plane_rows(b, layer, false, slot, kv_head);
    let four = b.stack(16);
    let lse = b.stack(16);
    let key = b.stack(spec.cache.key_bytes_aside() as u32);
    let out = b.mul(kv_head, rows);
    let out = b.element(raw, out, 4);
    b.for_range(begin, end, 1, |b, place| {
        let key = spec.cache.gather_key(b, keys, place, key);
        let nothing = b.float(0.0);
        let total = b.fold_count(group as i64, 1, &[nothing], |b, member, total| {
            let head = b.mul_const(kv_head, group as i64);
            let head = b.add(head, member);
            let queries = b.element(queries, head, width as i64 * 4);
            let sums = b.element(sums, head, 4);
            let whole = b.ins().band_imm_s(observed, -4);
            let zero = b.int(0);
            let none = b.constant(LANES, 0.0);
            let lanes = b.fold_range(zero, whole, 4, &[none], |b, query, mass| {
                let from = b.element(queries, query, (heads * width * 4) as i64);
                let sum = b.element(sums, query, heads as i64 * 4);
                let scores = products(b, from, heads * width, 4, &key, &spec.cache);
                for (lane, score) in scores.into_iter().enumerate() {
                    b.store(score, four, lane as i32 * 4);
                    let sum = b.load(FLOAT, sum, (lane * heads * 4) as i32);
                    b.store(sum, lse, lane as i32 * 4);
                }
                let (scores, sums) = (b.load(LANES, four, 0), b.load(LANES, lse, 0));
                let weight = weight_of(b, spec, scores, sums);
                vec![b.fadd(mass[0], weight)]
            })[0];
            let mass = b.sum_lanes(lanes);
            let mass = b.fold_range(whole, observed, 1, &[mass], |b, query, mass| {
                let from = b.element(queries, query, (heads * width * 4) as i64);
                let sum = b.element(sums, query, heads as i64 * 4);
                let score = products(b, from, heads * width, 1, &key, &spec.cache)[0];
                let sum = b.load(FLOAT, sum, 0);
                let weight = weight_of(b, spec, score, sum);
                vec![b.fadd(mass[0], weight)]
            })[0];
            let count = b.ins().ireduce(crate::emit::INT, observed);
            let count = b.to_float(count);
            let mean = b.fdiv(mass, count);
            vec![b.fadd(total[0], mean)]
        })[0];
        let group = b.float(group as f32);
        let score = b.fdiv(total, group);
        let to = b.element(out, place, 4);
        b.store(score, to, 0);
    });
}

fn weight_of(b: &mut Body<'_>, spec: &AttendSpec, product: Value, lse: Value) -> Value {
    let score = spec.score.of(b, product);
    let difference = b.fsub(score, lse);
    b.exp(difference)
}

#[allow(clippy::too_many_arguments, reason = "the operands of one formula")]
fn pool_run(
    b: &mut Body<'_>,
    pool: usize,
    candidates: &Candidates,
    raw: Value,
    pooled: Value,
    kv_head: Value,
    begin: Value,
    end: Value,
) {
    let base = b.mul(kv_head, candidates.rows);
    let raw = b.element(raw, base, 4);
    let pooled = b.element(pooled, base, 4);
    let reach = pool as i64 / 2;
    b.for_range(begin, end, 1, |b, place| {
        let low = b.add_const(place, -reach);
        let low = b.max(low, candidates.begin);
        let high = b.add_const(place, reach + 1);
        let high = b.min(high, candidates.end);
        let zero = b.float(0.0);
        let sum = b.fold_range(low, high, 1, &[zero], |b, neighbour, sum| {
            let from = b.element(raw, neighbour, 4);
            let score = b.load(FLOAT, from, 0);
            vec![b.fadd(sum[0], score)]
        })[0];
        let count = b.sub(high, low);
        let count = b.ins().ireduce(crate::emit::INT, count);
        let count = b.to_float(count);
        let mean = b.fdiv(sum, count);
        let to = b.element(pooled, place, 4);
        b.store(mean, to, 0);
    });
}
