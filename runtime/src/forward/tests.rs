//! Steps, tiles and compaction over segments written here, against a reference without a cache.
//!
//! The segments do integer arithmetic whose sums have no order, so that every row must agree
//! exactly with the reference, which knows only sets of positions. The cache is poisoned before.

#![allow(unsafe_code)]

mod comparison;
mod continuation;
mod guesses;
mod logits;
mod samples;

use std::collections::BTreeSet;

use memmap2::{Mmap, MmapMut};
use weir_abi::{
    ABI_VERSION, Blob, CacheLayout, CachePolicy, CacheRange, HeadResult, IsaLevel, KindCode,
    KindEntry, LayerCall, LayerEntry, LevelEntry, MAGIC, ModelHeader, Segment, StepContext, Table,
};

use super::*;
use crate::sampling::greedy;
use crate::{CompiledModel, Engine, Model, Request, RuntimeOptions};

const VOCABULARY: u32 = 11;
const CONTEXT: u32 = 40;
const HEADS: u32 = 2;
const MAX_ROWS: u32 = 5;
/// Two rows fill 64 bytes, so tiles have four of the five rows of a step.
const HIDDEN_WIDTH: u32 = 8;
const ROTARY_SWITCH: u32 = 20;
const OBSERVED: u32 = 2;

fn mix(a: u32, b: u32, c: u32) -> u32 {
    let mut hash = u64::from(a) << 32 ^ u64::from(b) << 8 ^ u64::from(c);
    hash = (hash ^ hash >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (hash >> 32) as u32
}

fn key(state: u32, head: u32, salt: u32) -> u32 {
    mix(state, head, 2 * salt)
}

fn value(state: u32, head: u32, salt: u32) -> u32 {
    mix(state, head, 2 * salt + 1)
}

fn product(key: u32, value: u32) -> u32 {
    key.wrapping_mul(value | 1)
}

fn query(state: u32, head: u32) -> f32 {
    (mix(state, head, 77) >> 8) as f32
}

fn score(key: u32, observed: u32) -> f32 {
    // Few distinct values, so that there are ties.
    (mix(key, observed, 5) % 7) as f32
}

fn logit(state: u32, id: u32) -> f32 {
    (mix(state, id, 99) >> 8) as f32
}

/// The values that a segment reads and writes, by raw address.
struct Rows {
    context: StepContext,
}

impl Rows {
    fn new(context: *const StepContext) -> Rows {
        // SAFETY: `Team::enter` passes a living context.
        Rows { context: unsafe { *context } }
    }

    fn state(&self, row: u32) -> *mut u32 {
        self.context.hidden.cast::<u32>().wrapping_add((row * HIDDEN_WIDTH) as usize)
    }

    fn layer(&self) -> LayerCall {
        // SAFETY: layer segments receive a layer.
        unsafe { *self.context.layer }
    }

    fn salt(&self) -> u32 {
        // SAFETY: every layer has one weight.
        unsafe { (*self.context.weights.add(*self.context.segment_weights as usize)).into() }
    }

    fn barrier(&self, thread: u32) {
        // SAFETY: the barrier and its argument belong together.
        unsafe { (self.context.barrier)(self.context.team, thread) }
    }
}

fn cell(
    plane: *mut u8,
    slot: u64,
    head: u64,
    row: u32,
    head_index: u32,
    slot_index: u32,
) -> *mut u32 {
    let offset = slot * u64::from(slot_index) + head * u64::from(head_index) + 4 * u64::from(row);
    plane.wrapping_add(offset as usize).cast()
}

fn key_cell(layer: &LayerCall, slot: u32, head: u32, row: u32) -> *mut u32 {
    cell(layer.keys, layer.key_slot_stride, layer.key_head_stride, row, head, slot)
}

fn value_cell(layer: &LayerCall, slot: u32, head: u32, row: u32) -> *mut u32 {
    cell(layer.values, layer.value_slot_stride, layer.value_head_stride, row, head, slot)
}

unsafe extern "C" fn embed(context: *const StepContext, thread: u32, threads: u32) {
    let rows = Rows::new(context);
    for row in (thread..rows.context.rows).step_by(threads as usize) {
        let index = row as usize;
        // SAFETY: every row has a token, a rotary row and a hidden row.
        unsafe {
            let (token, rotary) =
                (*rows.context.tokens.add(index), *rows.context.rotary_rows.add(index));
            *rows.state(row) = mix(token, rotary, 1);
        }
    }
    rows.barrier(thread);
}

unsafe extern "C" fn layer(context: *const StepContext, thread: u32, threads: u32) {
    let rows = Rows::new(context);
    let (layer, salt) = (rows.layer(), rows.salt());
    let own = || (thread..rows.context.rows).step_by(threads as usize);
    for row in own() {
        // SAFETY: the row has spans, and its cells lie in the planes.
        unsafe {
            let state = *rows.state(row);
            let spans = *layer.spans.add(row as usize);
            for head in 0..HEADS {
                *key_cell(&layer, spans.write_slot, head, spans.write_row) = key(state, head, salt);
                *value_cell(&layer, spans.write_slot, head, spans.write_row) =
                    value(state, head, salt);
                let position = *rows.context.positions.add(row as usize);
                if !layer.observed_queries.is_null() && position >= layer.observed_from {
                    let index = ((position - layer.observed_from) * HEADS + head) as usize;
                    *layer.observed_queries.add(index) = query(state, head);
                    *layer.observed_lse.add(index) = query(state, head) + 1.0;
                }
            }
        }
    }
    rows.barrier(thread);
    for row in own() {
        // SAFETY: the ranges lie in the planes; all rows have been written.
        unsafe {
            let spans = *layer.spans.add(row as usize);
            let mut sum = 0_u32;
            for range in &spans.ranges[..spans.range_count as usize] {
                let CacheRange { slot, first, rows: count } = *range;
                for (head, row) in
                    (0..HEADS).flat_map(|h| (first..first + count).map(move |r| (h, r)))
                {
                    let (key, value) =
                        (key_cell(&layer, slot, head, row), value_cell(&layer, slot, head, row));
                    sum = sum.wrapping_add(product(*key, *value));
                }
            }
            let state = rows.state(row);
            *state = mix(*state, sum, salt);
        }
    }
    rows.barrier(thread);
}

unsafe extern "C" fn observe(context: *const StepContext, thread: u32, _threads: u32) {
    let rows = Rows::new(context);
    if thread > 0 {
        return rows.barrier(thread);
    }
    let layer = rows.layer();
    // SAFETY: observe receives a prompt whose scratch has the documented sizes.
    unsafe {
        let prompt = *rows.context.prompt;
        let (end, begin) = (prompt.rows, prompt.rows - prompt.observed);
        // The first ones of those that may be asked, in place of the best.
        let first = prompt.sinks.max(layer.observed_from);
        let rows = (begin..end).chain(first..first + prompt.asked);
        let observed = rows.flat_map(|row| (0..HEADS).map(move |head| (row, head))).fold(
            0_u32,
            |sum, (row, head)| {
                let index = ((row - layer.observed_from) * HEADS + head) as usize;
                let query = *layer.observed_queries.add(index);
                let lse = *layer.observed_lse.add(index);
                sum.wrapping_add(query.to_bits()).wrapping_add(lse.to_bits())
            },
        );
        for head in 0..HEADS {
            for row in prompt.sinks..prompt.rows - prompt.recent {
                *prompt.scores.add((head * prompt.rows + row) as usize) =
                    score(*key_cell(&layer, 0, head, row), observed);
            }
        }
    }
    rows.barrier(thread);
}

unsafe extern "C" fn compact(context: *const StepContext, thread: u32, _threads: u32) {
    let rows = Rows::new(context);
    if thread > 0 {
        return rows.barrier(thread);
    }
    let layer = rows.layer();
    // SAFETY: compact receives a prompt; rows of both plane pairs are inside them.
    unsafe {
        let prompt = *rows.context.prompt;
        let destination = LayerCall {
            keys: prompt.keys,
            values: prompt.values,
            key_slot_stride: prompt.key_slot_stride,
            key_head_stride: prompt.key_head_stride,
            value_slot_stride: prompt.value_slot_stride,
            value_head_stride: prompt.value_head_stride,
            ..layer
        };
        for head in 0..HEADS {
            let mut candidates: Vec<u32> = (prompt.sinks..prompt.rows - prompt.recent).collect();
            let score = |row: &u32| -*prompt.scores.add((head * prompt.rows + row) as usize);
            if prompt.selected > 0 {
                candidates.sort_by(|a, b| score(a).total_cmp(&score(b)).then(a.cmp(b)));
            }
            candidates.truncate(prompt.selected as usize);
            candidates.sort_unstable();
            let mut moves: Vec<(u32, u32)> = (0..prompt.sinks).map(|row| (row, row)).collect();
            for (index, row) in (0..).zip(candidates) {
                moves.push((row, prompt.sinks + index));
                let place = u64::from(head) * prompt.positions_stride + u64::from(index);
                *prompt.selected_positions.add(place as usize) = row;
            }
            for p in prompt.rows - prompt.recent..prompt.rows {
                moves.push((p, prompt.ring_base + (p - prompt.ring_anchor) % prompt.ring_rows));
            }
            for (from, to) in moves {
                *key_cell(&destination, prompt.slot, head, to) = *key_cell(&layer, 0, head, from);
                *value_cell(&destination, prompt.slot, head, to) =
                    *value_cell(&layer, 0, head, from);
            }
        }
    }
    rows.barrier(thread);
}

unsafe extern "C" fn head(context: *const StepContext, thread: u32, threads: u32) {
    let rows = Rows::new(context);
    assert!(rows.context.head_row_count <= 2, "the model takes two rows at once");
    for index in (thread..rows.context.head_row_count).step_by(threads as usize) {
        // SAFETY: head rows are hidden rows, and every one has a row of logits.
        unsafe {
            let state = *rows.state(*rows.context.head_rows.add(index as usize));
            for id in 0..VOCABULARY {
                *rows.context.logits.add((index * VOCABULARY + id) as usize) = logit(state, id);
            }
        }
    }
    rows.barrier(thread);
}

fn layout(policy: CachePolicy, elastic: bool, rows: [u32; 3], window: u32) -> CacheLayout {
    let [sinks, selected, recent] = rows;
    CacheLayout {
        policy: policy as u32,
        elastic: elastic.into(),
        sinks,
        selected,
        recent,
        rows: match policy {
            CachePolicy::Full => CONTEXT,
            CachePolicy::Window => window + MAX_ROWS,
            _ => sinks + selected + recent,
        },
        window,
        observed: if selected > 0 { OBSERVED } else { 0 },
        pool: 1,
        growth: 0,
        in_flight: 0,
        reservoir: 0,
        reselect: 0,
        redundancy: 0,
        block_rows: 0,
        further: 0,
        first_head: 0,
        second: 0,
        second_share: 0,
    }
}

/// Layouts of the layers.
fn layouts(elastic: bool) -> Vec<CacheLayout> {
    vec![
        layout(CachePolicy::Snapstream, elastic, [2, 3, 4], 0),
        layout(CachePolicy::Window, false, [0, 0, 0], 4),
        layout(CachePolicy::Stream, elastic, [1, 0, 12], 0),
        layout(CachePolicy::Full, false, [0, 0, 0], 0),
        layout(CachePolicy::Snapstream, elastic, [2, 3, 4], 0),
    ]
}

fn running(slots: u32, threads: usize) -> RuntimeOptions {
    RuntimeOptions { slots: Some(slots), threads: Some(threads), ..RuntimeOptions::default() }
}

/// Positions of a sequence: the rows of a layout that keeps all, if there is one.
fn context(layouts: &[CacheLayout]) -> u32 {
    let full = layouts.iter().filter(|layout| layout.policy == CachePolicy::Full as u32);
    full.map(|layout| layout.rows).max().unwrap_or(CONTEXT)
}

/// The bytes of a table's entries.
fn bytes_of<T: Copy>(entries: &[T]) -> &[u8] {
    // SAFETY: the tables' types are `repr(C)` without padding.
    unsafe { std::slice::from_raw_parts(entries.as_ptr().cast(), size_of_val(entries)) }
}

fn model(layouts: &[CacheLayout]) -> Model {
    let (code, [embed, head, layer, observe, compact]) =
        trampolines([embed, head, layer, observe, compact]);
    let mut tables = vec![0; size_of::<ModelHeader>()];
    let mut place = |bytes: &[u8], count: usize| {
        let table = Table { offset: tables.len() as u64, count: count as u64 };
        tables.extend_from_slice(bytes);
        tables.resize(tables.len().next_multiple_of(8), 0);
        table
    };
    let codes = place(bytes_of(&[KindCode { layer, observe, compact }]), 1);
    let level = LevelEntry { level: IsaLevel::Avx2 as u32, reserved: 0, embed, head, kinds: codes };
    let kind = KindEntry {
        heads: HEADS,
        kv_heads: HEADS,
        key_width: 1,
        value_width: 1,
        key_row_bytes: 4,
        value_row_bytes: 4,
        block_key_row_bytes: 0,
        block_value_row_bytes: 0,
    };
    let count = layouts.len();
    let layers: Vec<LayerEntry> = (0..count as u32)
        .map(|index| LayerEntry { kind: 0, layout: index, weights: index, weight_count: 1 })
        .collect();
    let offsets: Vec<u64> = (0..count as u64).collect();
    let weights: Vec<u8> = (0..count as u8).map(|index| index + 10).collect();
    let mut header = ModelHeader {
        magic: MAGIC,
        abi_version: ABI_VERSION,
        reserved: 0,
        header_digest: [0; 32],
        tables_digest: [0; 32],
        code_digest: [0; 32],
        weights_digest: [0; 32],
        levels: place(bytes_of(&[level]), 1),
        kinds: place(bytes_of(&[kind]), 1),
        layers: place(bytes_of(&layers), count),
        layouts: place(bytes_of(layouts), count),
        head_rows: Table::default(),
        weight_offsets: place(bytes_of(&offsets), count),
        tables_bytes: tables.len() as u64,
        code_bytes: code.len() as u64,
        weights_bytes: weights.len() as u64,
        vocabulary: VOCABULARY,
        head_result: HeadResult::Logits as u32,
        head_width: VOCABULARY,
        hidden_width: HIDDEN_WIDTH,
        context: context(layouts),
        max_rows: MAX_ROWS,
        max_head_rows: 2,
        slots: 3,
        rotary_sets: 2,
        rotary_switch: ROTARY_SWITCH,
        arena_bytes: 64,
        embed_weights: 0,
        head_weights: 0,
        tokenizer: Blob::default(),
        chat_template: Blob::default(),
        facts: Blob::default(),
        symbols: Table::default(),
        names: Blob::default(),
    };
    header.header_digest = *blake3::hash(bytes_of(&[header])).as_bytes();
    tables[..size_of::<ModelHeader>()].copy_from_slice(bytes_of(&[header]));
    let mut region = MmapMut::map_anon(weights.len()).unwrap();
    region.copy_from_slice(&weights);
    let weights = region.make_read_only().unwrap();
    Model::new(CompiledModel::from_parts(code, tables, weights.into()).unwrap()).unwrap()
}

/// A code region that jumps to functions of this program, and where its entries are.
fn trampolines(segments: [Segment; 5]) -> (Mmap, [u64; 5]) {
    const ENTRY: usize = 16;
    let mut code = MmapMut::map_anon(ENTRY * segments.len()).unwrap();
    let entries = code.chunks_exact_mut(ENTRY);
    for (entry, segment) in entries.zip(segments) {
        // mov rax, address; jmp rax
        entry[..2].copy_from_slice(&[0x48, 0xb8]);
        entry[2..10].copy_from_slice(&(segment as *const u8).expose_provenance().to_le_bytes());
        entry[10..12].copy_from_slice(&[0xff, 0xe0]);
    }
    (code.make_exec().unwrap(), std::array::from_fn(|index| (index * ENTRY) as u64))
}

/// Rows that lie in the cache when a prompt begins, and rows behind it: those of a conversation, the
/// first of which begin at 0.
type Turns<'a> = &'a [std::ops::Range<usize>];

/// Logits of every position, by sets of positions instead of a cache.
fn reference(
    layouts: &[CacheLayout],
    tokens: &[u32],
    turns: Turns<'_>,
    rotary_set: u32,
) -> Vec<Vec<f32>> {
    let mut states: Vec<u32> = (0_u32..)
        .zip(tokens)
        .map(|(position, token)| mix(*token, rotary_set * context(layouts) + position, 1))
        .collect();
    for (salt, layout) in (10_u32..).zip(layouts) {
        let visible: Vec<_> =
            (0..HEADS).map(|head| visible_positions(layout, &states, turns, head, salt)).collect();
        let next = |position: usize| {
            let mut sum = 0_u32;
            for (head, visible) in (0_u32..).zip(&visible) {
                for other in &visible[position] {
                    let state = states[*other];
                    sum =
                        sum.wrapping_add(product(key(state, head, salt), value(state, head, salt)));
                }
            }
            mix(states[position], sum, salt)
        };
        states = (0..tokens.len()).map(next).collect();
    }
    let row = |state: &u32| (0..VOCABULARY).map(|id| logit(*state, id)).collect();
    states.iter().map(row).collect()
}

fn visible_positions(
    layout: &CacheLayout,
    states: &[u32],
    turns: Turns<'_>,
    head: u32,
    salt: u32,
) -> Vec<BTreeSet<usize>> {
    let drops = shape::drops_rows(layout);
    let [sinks, capacity, recent, rows, growth] = [
        layout.sinks,
        layout.selected,
        layout.recent,
        layout.rows - layout.in_flight,
        layout.growth,
    ]
    .map(|rows| rows as usize);
    let window = if layout.window == 0 { usize::MAX } else { layout.window as usize };
    let back = |p: usize| (p + 1).saturating_sub(window)..p + 1;
    if !drops {
        return (0..states.len()).map(|p| back(p).collect()).collect();
    }
    let mut visible: Vec<BTreeSet<usize>> = Vec::new();
    let (mut fixed, mut ring) = (BTreeSet::new(), Vec::new());
    let ends = turns[1..].iter().map(|turn| turn.start).chain([states.len()]);
    for (turn, end) in turns.iter().zip(ends) {
        // What is left, then the prompt: it sees both, and all of it may be chosen.
        let mut order: Vec<usize> = fixed.iter().chain(&ring).copied().collect();
        for p in turn.clone() {
            order.push(p);
            visible.push(order.iter().copied().collect());
        }
        let length = order.len();
        let selected_rows = length.saturating_sub(sinks + recent).min(capacity);
        fixed = order[..sinks.min(length)].iter().copied().collect();
        let mut first = (sinks + selected_rows).min(length);
        if length <= rows - growth {
            fixed.extend(&order[sinks.min(length)..first]);
        } else {
            first = length - recent;
            let window = turn.len().min(layout.observed as usize);
            // Of the turn's own rows, between the sinks and the last ones.
            let own = (length - turn.len()).max(sinks)..length - window;
            let asked = own.take(layout.second as usize).map(|place| order[place]);
            let observed = (turn.end - window..turn.end)
                .chain(asked)
                .flat_map(|p| (0..HEADS).map(move |head| query(states[p], head)))
                .fold(0_u32, |sum, query| {
                    sum.wrapping_add(query.to_bits()).wrapping_add((query + 1.0).to_bits())
                });
            let mut candidates = order[sinks..first].to_vec();
            let score = |p: &usize| -score(key(states[*p], head, salt), observed);
            candidates.sort_by(|a, b| score(a).total_cmp(&score(b)).then(a.cmp(b)));
            fixed.extend(&candidates[..selected_rows]);
        }
        ring = order[first..].to_vec();
        let ring_rows =
            if layout.elastic != 0 { rows - sinks - selected_rows } else { recent + growth };
        for p in turn.end..end {
            if fixed.len() < sinks {
                fixed.insert(p);
            } else {
                ring.push(p);
                if ring.len() > ring_rows {
                    ring.remove(0);
                }
            }
            visible.push(fixed.iter().chain(&ring).copied().collect());
        }
    }
    visible
}

fn prompt_of(length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| mix(i, length as u32, 3) % VOCABULARY).collect()
}

/// The greedy answer by the reference.
fn expected_answer(layouts: &[CacheLayout], prompt: &[u32], count: usize) -> Vec<u32> {
    answer_after(layouts, prompt, std::slice::from_ref(&(0..prompt.len())), count)
}

/// The same for a prompt that ends a conversation.
fn answer_after(
    layouts: &[CacheLayout],
    prompt: &[u32],
    turns: Turns<'_>,
    count: usize,
) -> Vec<u32> {
    let rotary_set = u32::from(prompt.len() + count - 1 > ROTARY_SWITCH as usize);
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let logits = reference(layouts, &tokens, turns, rotary_set);
        tokens.push(greedy(logits.last().unwrap()).unwrap());
    }
    tokens.split_off(prompt.len())
}

#[test]
fn every_request_in_any_company_agrees_with_the_reference() {
    for elastic in [true, false] {
        let layouts = layouts(elastic);
        let model = model(&layouts);
        let expected: Vec<_> =
            (1..=28).map(|length| expected_answer(&layouts, &prompt_of(length), 12)).collect();
        for (slots, threads) in [(1, 1), (3, 1), (3, 2), (7, 1)] {
            let options = running(slots, threads);
            let mut forward = model.forward(&options).unwrap();
            forward.poison_cache(0xa5);
            let mut engine = Engine::new(forward, None, vec![]);
            let requests = (1..=28)
                .map(|length| Request {
                    prompt: prompt_of(length),
                    max_tokens: Some(12),
                    ..Request::default()
                })
                .collect();
            let answers = engine.generate(requests).unwrap();
            for (index, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
                let place = format!("elastic {elastic}, L = {}, {slots} slots", index + 1);
                assert_eq!(answer.ids, *expected, "{place}");
            }
            let last = answers.last().unwrap().usage;
            assert_eq!((last.kv_rows_kept, last.kv_rows_dropped), (9, 30));
        }
    }
}

#[test]
fn options_that_cannot_be_met_are_refused() {
    let model = model(&layouts(true));
    let beyond = (Some(MAX_SLOTS + 1), Some(MAX_THREADS + 1));
    for (slots, threads) in [(Some(0), None), (None, Some(0)), (beyond.0, None), (None, beyond.1)] {
        let options = RuntimeOptions { slots, threads, ..RuntimeOptions::default() };
        assert!(model.forward(&options).is_err(), "{options:?}");
    }
    for blocks in [0, 4] {
        let options = RuntimeOptions { blocks: Some(blocks), ..running(3, 1) };
        let error = model.forward(&options).err().unwrap().to_string();
        assert!(error.starts_with(&format!("{blocks} blocks for 3 slots")), "{error}");
    }
    let options = RuntimeOptions { isa: Some(IsaLevel::Portable), ..RuntimeOptions::default() };
    let error = model.forward(&options).err().unwrap().to_string();
    assert_eq!(error, "this model has no code for portable, only for avx2");
    let ceiling = model.memory_ceiling(&RuntimeOptions::default()).unwrap();
    assert!(ceiling.prefill > 0 && ceiling.total() > ceiling.cache);
}
