//! Selection and caches against values computed by hand and against a simulation that moves
//! nothing; masks and broken inputs.

use super::attend::Score;
use super::cache::{CacheState, Kept};
use super::codes::{LEVELS, TILE, encode, encode_levels};
use super::select::{Observed, lot, pooled, redundancies, reservoir_row, scores, selected};
use super::{Bindings, EvalFault, Tensor, evaluate, run_op};
use crate::constant::{ConstData, Constant, QuantData, QuantRow};
use crate::dim::{Dim, Symbol};
use crate::graph::{
    Aggregate, CacheDecl, CacheFormat, CacheRows, Graph, InputRole, KvPolicy, Normalise, Pooling,
    Scoring,
};
use crate::ops::binary::{Binary, BinaryOp};
use crate::ops::{Linear, Op, Range, Reshape};
use crate::types::{DType, Element, QuantFormat, TensorType, ZeroPoints};

#[test]
fn ties_and_plateaus_go_to_the_earlier_candidate() {
    assert_eq!(selected(&[1.0, 3.0, 3.0, 2.0, 3.0], 2).unwrap(), [1, 2]);
    assert_eq!(selected(&[0.5; 6], 3).unwrap(), [0, 1, 2]);
    assert_eq!(selected(&[0.1, 0.9], 5).unwrap(), [0, 1]);
    assert_eq!(selected(&[0.1, 0.9], 0).unwrap(), [0usize; 0]);
    assert!(matches!(selected(&[0.0, f32::NAN], 1), Err(EvalFault::Score { candidate: 1, .. })));
}

#[test]
fn pooling_stays_inside_the_candidates() {
    let average = |scores: &[f32], width| pooled(scores, width, Pooling::Average);
    assert_eq!(average(&[3.0, 0.0, 0.0, 6.0], 3), [1.5, 1.0, 2.0, 3.0]);
    // Wider than the candidates: every place sees all of them.
    assert_eq!(average(&[1.0, 2.0, 6.0], 9), [3.0, 3.0, 3.0]);
    assert_eq!(average(&[1.0, 2.0], 1), [1.0, 2.0]);
    assert_eq!(average(&[], 5), [0.0f32; 0]);
    assert_eq!(pooled(&[3.0, 0.0, 1.0, 6.0], 3, Pooling::Max), [3.0, 3.0, 6.0, 6.0]);
    assert_eq!(pooled(&[3.0, 0.0, 0.0, 6.0], 3, Pooling::Reference), [1.0, 1.0, 2.0, 2.0]);
}

#[test]
fn scores_average_over_queries_then_heads() {
    let queries = [[1.0f32], [2.0], [0.0], [0.0]];
    let observed = Observed {
        queries: vec![vec![&queries[0], &queries[1]], vec![&queries[2], &queries[3]]],
        sums: vec![vec![0.0, 0.0], vec![0.0, f32::ln(2.0)]],
        score: Score { scale: 1.0, softcap: 0.0 },
    };
    let keys = [[0.0f32], [f32::ln(2.0)]];
    let keys: Vec<&[f32]> = keys.iter().map(|key| &key[..]).collect();
    let check = |scoring: Scoring, expected: [f32; 2]| {
        let found = scores(&observed, &keys, 0..2, scoring);
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-6, "{scoring:?}: {found} {expected}");
        }
    };
    let mean = Scoring::default();
    // Key 0: ((1 + 1) / 2 + (1 + 1/2) / 2) / 2; key 1: ((2 + 4) / 2 + (1 + 1/2) / 2) / 2.
    check(mean, [0.875, 1.875]);
    // The largest of 1, 1, 1, 1/2 and of 2, 4, 1, 1/2.
    let max = Scoring { aggregate: Aggregate::Max, ..mean };
    check(max, [1.0, 4.0]);
    // Largest by head: 1, 1 and 4, 1; means over keys 5/2 and 1.
    check(Scoring { aggregate: Aggregate::Defensive, ..mean }, [2.5, 4.0]);
    // Shares of the keys: 1/3, 2/3; 1/5, 4/5; and halves.
    let shares = Scoring { normalise: Normalise::Candidates, ..mean };
    check(shares, [(8.0 / 15.0 + 1.0) / 4.0, (22.0 / 15.0 + 1.0) / 4.0]);
    check(Scoring { normalise: Normalise::Candidates, ..max }, [0.5, 0.8]);
}

#[test]
fn redundant_keys_are_like_others_and_older() {
    let redundancies =
        |keys: &[[f32; 2]]| redundancies(&keys.iter().map(|key| &key[..]).collect::<Vec<_>>());
    let check = |found: Vec<f32>, expected: &[f64]| {
        for (found, expected) in found.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-6, "{found} {expected}");
        }
    };
    // Cosines 1, 0, 0.6; 0, 0.6; 0.8. Sums of them 1.6, 1.6, 0.8 and 2, of which the last key, the
    // newest like each other one, loses all, and the third what makes it the newest like the last.
    let found = redundancies(&[[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [3.0, 4.0]]);
    let (older, newer) = ((1.6f64 / 4.0).exp(), 1.0);
    let total = 2.0 * (older + newer);
    check(found, &[older / total, older / total, newer / total, newer / total]);
    // Nothing is like a key of zeros; what is opposed is less than not alike.
    let found = redundancies(&[[0.0, 0.0], [1.0, 1.0], [-2.0, -2.0]]);
    let opposed = (-1.0f64 / 3.0).exp();
    let total = 1.0 + 2.0 * opposed;
    check(found, &[1.0 / total, opposed / total, opposed / total]);
    check(redundancies(&[[5.0, 2.0]]), &[1.0]);
}

#[test]
fn lots_are_spread_and_depend_on_their_place() {
    let lots: Vec<f32> = (0..4096).map(|position| lot(7, 3, 1, position)).collect();
    let mean = lots.iter().sum::<f32>() / 4096.0;
    // The mean of 4,096 uniform numbers is within five deviations, 5 / sqrt(12 * 4096), of a half.
    assert!((mean - 0.5).abs() < 0.0226, "{mean}");
    assert!(lots.iter().all(|lot| (0.0..1.0).contains(lot)));
    for (seed, layer, head) in [(8, 3, 1), (7, 4, 1), (7, 3, 2)] {
        assert!(
            (0..64).any(|position| lot(seed, layer, head, position) != lots[position as usize])
        );
    }
}

/// SnapKV keeps what is generated beside a compacted prompt until its slot is full.
#[test]
fn room_beside_the_prompt_is_filled_before_the_ring_turns() {
    let mut rows = layout(KvPolicy::Snapkv, 0, 2, 2);
    rows.growth = 3;
    let mut state = cache(rows);
    prompt(&mut state, &[0.0, 2.0, 1.0, 0.0, 0.0, 0.0], 1.0);
    let held = |state: &CacheState, rows| {
        let kept = state.kept().unwrap();
        (0..kept.ring).filter_map(|index| kept.held(index, rows)).collect::<Vec<_>>()
    };
    assert_eq!(state.kept().unwrap().positions, [[1, 2]]);
    assert_eq!(held(&state, 6), [4, 5]);
    let held_sorted = |rows| {
        let mut held = held(&state, rows);
        held.sort_unstable();
        held
    };
    assert_eq!(held_sorted(9), [4, 5, 6, 7, 8]);
    assert_eq!(held_sorted(10), [5, 6, 7, 8, 9]);
}

const FORMATS: [CacheFormat; 3] = [CacheFormat::F32, CacheFormat::I8, CacheFormat::I4];

/// Every row that has left is in the reservoir with the same chance, and heads keep different rows.
#[test]
fn a_reservoir_is_a_uniform_sample() {
    const ROWS: usize = 8;
    const LEFT: usize = 64;
    const TRIALS: u32 = 2000;
    let sample = |seed: u32, head: u32| {
        let mut rows = [0; ROWS];
        for rank in 1..=LEFT {
            if let Some(row) = reservoir_row((seed, 3), head, 100 + rank as u32, rank, ROWS) {
                rows[row] = rank;
            }
        }
        rows
    };
    let mut counts = [0_u32; LEFT];
    for seed in 0..TRIALS {
        sample(seed, 1).iter().for_each(|rank| counts[rank - 1] += 1);
    }
    // Binomial: mean 2000 / 8 = 250 and deviation sqrt(250 * 7 / 8) = 14.8; five of them.
    assert!(counts.iter().all(|count| count.abs_diff(250) <= 74), "{counts:?}");
    assert_ne!(sample(1, 1), sample(1, 2));
    assert_eq!(reservoir_row((0, 0), 0, 0, 0, ROWS), None);
}

/// The cache's rows, step by step, against lists of positions.
#[test]
fn what_leaves_the_ring_is_sampled() {
    for (policy, selected) in [(KvPolicy::Stream, 0), (KvPolicy::Snapstream, 2)] {
        for length in 1..20 {
            let rows = CacheRows { reservoir: 2, seed: 9, ..layout(policy, 1, selected, 3) };
            let (fits, capacity) = (rows.prompt_rows() as usize, rows.rows() as usize);
            let mut state = cache(rows);
            prompt(&mut state, &vec![0.0; length], 1.0);
            let kept = state.kept().unwrap().clone();
            let positions = |state: &CacheState, rows: std::ops::Range<usize>| -> Vec<f32> {
                state.planes()[1].f32s().unwrap()[rows].to_vec()
            };
            let mut ring: Vec<usize> = (kept.oldest..length).collect();
            let mut sample: Vec<f32> = Vec::new();
            let mut left = 0;
            for position in length..length + 30 {
                let row = |number: f32| Tensor::from_f32(DType::F32, vec![1, 1, 1], vec![number]);
                state.append(&row(0.0), &row(position as f32)).unwrap();
                ring.extend((position >= kept.sinks).then_some(position));
                if ring.len() > kept.ring {
                    let leaves = ring.remove(0);
                    left += 1;
                    if let Some(row) = reservoir_row((9, 0), 0, leaves as u32, left, 2) {
                        sample.resize(sample.len().max(row + 1), f32::NAN);
                        sample[row] = leaves as f32;
                    }
                }
                if left > 0 {
                    assert_eq!(
                        positions(&state, capacity - 2..capacity - 2 + sample.len()),
                        sample
                    );
                }
                // Equal keys: the mean of the positions that are seen.
                let score = Score { scale: 1.0, softcap: 0.0 };
                let mean = state.attend(&row(0.0), None, score).unwrap().f32s().unwrap()[0];
                let fixed = positions(&state, 0..(kept.sinks + kept.valid).min(position + 1));
                let ring = ring.iter().map(|position| *position as f32);
                let seen: Vec<f32> = fixed.into_iter().chain(ring).chain(sample.clone()).collect();
                let expected = seen.iter().sum::<f32>() / seen.len() as f32;
                assert!((mean - expected).abs() < 1e-4, "{policy:?} L={length} p={position}");
                if length <= fits && position < capacity {
                    assert_eq!(seen.len(), position + 1, "nothing is dropped yet");
                }
            }
        }
    }
}

fn layout(policy: KvPolicy, sinks: u32, selected: u32, recent: u32) -> CacheRows {
    CacheRows { sinks, selected, observed: recent.min(2), ..CacheRows::ring(policy, recent) }
}

fn cache(layout: CacheRows) -> CacheState {
    cache_of(CacheFormat::F32, 1, layout)
}

fn cache_of(format: CacheFormat, value_width: u32, layout: CacheRows) -> CacheState {
    let window = if layout.policy == KvPolicy::Window { layout.recent } else { 0 };
    CacheState::new(&CacheDecl {
        layer: 0,
        kv_heads: 1,
        key_width: 1,
        value_width,
        format,
        block: None,
        window,
        layout: Some(layout),
    })
    .unwrap()
}

/// Runs a prompt of one-value keys; the values are the positions.
fn prompt(state: &mut CacheState, keys: &[f32], query: f32) {
    let rows = keys.len();
    let key = Tensor::from_f32(DType::F32, vec![rows, 1, 1], keys.to_vec());
    let positions = (0..rows).map(|position| position as f32).collect();
    let value = Tensor::from_f32(DType::F32, vec![rows, 1, 1], positions);
    state.append(&key, &value).unwrap();
    let query = Tensor::from_f32(DType::F32, vec![rows, 1, 1], vec![query; rows]);
    state.attend(&query, None, Score { scale: 1.0, softcap: 0.0 }).unwrap();
    state.finish_prompt().unwrap();
}

#[test]
fn a_prompt_of_one_row_too_many_loses_the_worst() {
    // S = 1, K = 2, R = 2 and 6 rows: candidates are positions 1, 2, 3.
    let mut state = cache(layout(KvPolicy::Snapstream, 1, 2, 2));
    prompt(&mut state, &[0.0, 2.0, -3.0, 1.0, 0.0, 0.0], 1.0);
    let kept = state.kept().unwrap();
    assert_eq!(kept.positions, [[1, 3]]);
    assert_eq!((kept.base, kept.anchor, kept.ring, kept.valid), (3, 3, 2, 2));
}

#[test]
fn a_dominating_sink_does_not_leak_into_its_neighbours() {
    let mut rows = layout(KvPolicy::Snapstream, 1, 1, 2);
    rows.pool = 3;
    let mut state = cache(rows);
    prompt(&mut state, &[30.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0], 1.0);
    // Position 4 is best; pooled with 3 alone it beats 3 with 2 and 4.
    assert_eq!(state.kept().unwrap().positions, [[4]]);
}

#[test]
fn without_selected_rows_the_cache_streams() {
    let mut state = cache(layout(KvPolicy::Stream, 1, 0, 2));
    prompt(&mut state, &[0.0; 7], 0.0);
    let kept = state.kept().unwrap().clone();
    let held: Vec<_> = (0..kept.ring).map(|index| kept.held(index, 7)).collect();
    assert_eq!(held, [Some(5), Some(6)]);
    // w = R: the observed rows are exactly the recent ones.
    let mut rows = layout(KvPolicy::Snapstream, 1, 1, 2);
    rows.observed = 2;
    let mut state = cache(rows);
    prompt(&mut state, &[0.0, 1.0, 2.0, 0.0, 0.0], 1.0);
    assert_eq!(state.kept().unwrap().positions, [[2]]);
}

#[test]
fn a_full_cache_refuses_a_prompt_that_does_not_fit() {
    let mut state = cache(layout(KvPolicy::Full, 0, 0, 3));
    let rows = Tensor::from_f32(DType::F32, vec![4, 1, 1], vec![0.0; 4]);
    state.append(&rows, &rows).unwrap();
    assert!(state.finish_prompt().is_err());
}

/// What a ring holds, by writing positions one after the other.
#[test]
fn ring_rows_agree_with_a_simulation() {
    for elastic in [true, false] {
        for (sinks, selected, recent) in
            (0..4).flat_map(|s| (0..4).flat_map(move |k| (1..6).map(move |r| (s, k, r))))
        {
            for (growth, in_flight) in [(0, 0), (2, 0), (0, 3), (2, 1)] {
                check_ring(CacheRows {
                    elastic,
                    growth,
                    in_flight,
                    sinks,
                    selected,
                    ..CacheRows::ring(KvPolicy::Snapkv, recent)
                });
            }
        }
    }
}

fn check_ring(layout: CacheRows) {
    let [sinks, recent, capacity] =
        [layout.sinks, layout.recent, layout.rows()].map(|rows| rows as usize);
    for length in 1..capacity + 8 {
        let kept = Kept::of(&layout, length);
        let (base, ring) = (kept.base, kept.ring);
        let mut slots = vec![None; capacity];
        let recent_rows = length.saturating_sub(recent).max(sinks.min(length))..length;
        for position in recent_rows.chain(length..length + 3 * ring + 2) {
            slots[kept.row(position)] = Some(position);
            if position + 1 >= length {
                for index in 0..ring {
                    let read = ring - layout.in_flight as usize;
                    let is_read = |held: &usize| held + read > position;
                    assert_eq!(kept.held(index, position + 1), slots[base + index].filter(is_read));
                }
            }
        }
    }
}

/// Up to D rows are written before any of them attends, and some of the last are taken back.
#[test]
fn rows_in_flight_leave_no_trace() {
    let policies =
        [(KvPolicy::Stream, 1, 0), (KvPolicy::Snapstream, 1, 2), (KvPolicy::Snapkv, 0, 3)];
    for ((format, (policy, sinks, selected)), elastic) in FORMATS
        .into_iter()
        .flat_map(|format| policies.map(|rows| (format, rows)))
        .flat_map(|case| [true, false].map(|elastic| (case, elastic)))
    {
        let rows = layout(policy, sinks, selected, 4);
        let rows = CacheRows { elastic, in_flight: 3, ..rows };
        let [mut guessing, mut plain] = [(), ()].map(|()| cache_of(format, 1, rows.clone()));
        for state in [&mut guessing, &mut plain] {
            prompt(state, &[0.3, -1.0, 0.7, 2.0, -0.2, 0.9], 0.5);
        }
        let key = |position: usize| (position as f32 * 2.1).sin();
        for (rows, wrong) in [(1, 0), (3, 2), (3, 0), (2, 1), (3, 1)].into_iter().cycle().take(20) {
            let first = plain.rows();
            let keys: Vec<f32> = (first..first + rows).map(key).collect();
            append(&mut guessing, &keys, &keys);
            let query = Tensor::from_f32(DType::F32, vec![rows, 1, 1], vec![1.5; rows]);
            let score = Score { scale: 1.0, softcap: 0.0 };
            let found = guessing.attend(&query, None, score).unwrap().f32s().unwrap().to_vec();
            for (key, found) in keys[..rows - wrong].iter().zip(found) {
                append(&mut plain, &[*key], &[*key]);
                assert_eq!(ask(&mut plain, 1.5), [found], "{format:?} {policy:?} {first}");
            }
            guessing.take_back(wrong).unwrap();
        }
        assert!(guessing.take_back(3).is_err());
        let four = Tensor::from_f32(DType::F32, vec![4, 1, 1], vec![0.0; 4]);
        assert!(guessing.append(&four, &four).is_err());
    }
}

#[test]
fn bounded_attention_equals_dense_while_rows_fit() {
    let keys = [0.3f32, -1.0, 0.7, 2.0, -0.2];
    let policies = [(KvPolicy::Full, 0, 0), (KvPolicy::Stream, 2, 0), (KvPolicy::Snapstream, 1, 3)];
    for (format, (policy, sinks, selected)) in
        FORMATS.into_iter().flat_map(|format| policies.map(|rows| (format, rows)))
    {
        let mut bounded =
            cache_of(format, 1, layout(policy, sinks, selected, 8 - sinks - selected));
        let mut dense = cache_of(format, 1, layout(KvPolicy::Full, 0, 0, 8));
        prompt(&mut bounded, &keys, 0.5);
        prompt(&mut dense, &keys, 0.5);
        for step in 0..3 {
            let row = Tensor::from_f32(DType::F32, vec![1, 1, 1], vec![step as f32]);
            let score = Score { scale: 1.0, softcap: 0.0 };
            let outputs = [&mut bounded, &mut dense].map(|state| {
                state.append(&row, &row).unwrap();
                state.attend(&row, None, score).unwrap()
            });
            assert_eq!(outputs[0], outputs[1], "{format:?} {policy:?} step {step}");
        }
    }
}

#[test]
fn codes_are_parts_of_the_largest_value() {
    let encoded = |values: &[f32]| {
        let mut codes = vec![0.0; values.len()];
        let scale = encode(values, &mut codes);
        (codes, scale)
    };
    // Halves go to the even code.
    let (codes, scale) = encoded(&[-254.0, 1.0, 3.0, 5.0, 100.0, -0.9]);
    assert_eq!((codes, scale), (vec![-127.0, 0.0, 2.0, 2.0, 50.0, 0.0], 2.0));
    assert_eq!(encoded(&[0.0, -1e-31]).0, [0.0, 0.0]);
    assert_eq!(encoded(&[]).1, 0.0);
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(encoded(&[1.0, wrong, 2.0]).1.is_nan());
    }
}

#[test]
fn codes_of_four_bits_are_the_nearest_levels() {
    let encoded = |values: &[f32]| {
        let mut codes = vec![0.0; values.len()];
        let scale = encode_levels(values, &mut codes);
        (codes, scale)
    };
    let levels: Vec<f32> = LEVELS.iter().rev().map(|level| -f32::from(*level)).collect();
    let levels = [levels, LEVELS.map(f32::from).to_vec()].concat();
    // Every code of 8 bits; the largest is there, so that they are codes already.
    for code in -127..=127i8 {
        let nearest = |level: &f32| (level - f32::from(code)).abs();
        let least = levels.iter().map(nearest).fold(f32::INFINITY, f32::min);
        let (codes, scale) = encoded(&[f32::from(code), 127.0]);
        assert_eq!(nearest(&codes[0]), least, "{code}");
        assert!(codes[0].signum() == f32::from(code).signum() || code == 0);
        // The one further from zero of two.
        assert!(levels.iter().all(|level| nearest(level) > least || level.abs() <= codes[0].abs()));
        assert_eq!((codes[1], scale), (122.0, 127.0 * (1.0 / 127.0)));
    }
    // The scale is a half; beyond the range of halves the row shrinks.
    assert_eq!(encoded(&[1.0 + 1.0 / 4096.0]).1, 1.0 / 127.0);
    assert_eq!(encoded(&[-1e6, 5e5]), (vec![-122.0, 68.0], 65504.0 / 127.0));
    assert_eq!(encoded(&[]).1, 0.0);
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(encoded(&[1.0, wrong, 2.0]).1.is_nan());
    }
}

/// One row of queries of width 1.
fn ask(state: &mut CacheState, query: f32) -> Vec<f32> {
    let query = Tensor::from_f32(DType::F32, vec![1, 1, 1], vec![query]);
    let score = Score { scale: 1.0, softcap: 0.0 };
    state.attend(&query, None, score).unwrap().f32s().unwrap().to_vec()
}

/// Appends rows without asking.
fn append(state: &mut CacheState, keys: &[f32], values: &[f32]) {
    let rows = keys.len();
    let key = Tensor::from_f32(DType::F32, vec![rows, 1, 1], keys.to_vec());
    let width = values.len() / rows;
    let value = Tensor::from_f32(DType::F32, vec![rows, 1, width], values.to_vec());
    state.append(&key, &value).unwrap();
}

#[test]
fn weights_are_rounded_by_tiles() {
    // Keys 0 but for row 3, which weighs e^8; rows of each tile have a value of their own.
    let keys: Vec<f32> = (0..100).map(|row| if row == 3 { 8.0 } else { 0.0 }).collect();
    let values = (0..100).flat_map(|row| match row {
        3 => [1.0, 0.0, 0.0],
        0..TILE => [0.0, 1.0, 0.0],
        _ => [0.0, 0.0, 1.0],
    });
    let mut state = cache_of(CacheFormat::I8, 3, layout(KvPolicy::Full, 0, 0, 128));
    append(&mut state, &keys, &values.collect::<Vec<_>>());
    // Beside row 3 its tile's other weights are less than half a code; those of the next tile, which
    // begins at row 64, are the greatest of theirs. The sum has all of them.
    let total = 8f32.exp() + 99.0;
    let found = ask(&mut state, 1.0);
    for (found, wanted) in found.iter().zip([8f32.exp() / total, 0.0, 36.0 / total]) {
        assert!((found - wanted).abs() <= 1e-6 * wanted, "{found} {wanted}");
    }
}

#[test]
fn attention_over_codes_is_near_that_over_numbers() {
    let wave = |row: usize, of: usize| ((row * of) as f32 * 0.37).sin();
    let keys: Vec<f32> = (0..150).map(|row| wave(row, 3)).collect();
    let values: Vec<f32> = (0..300).map(|index| wave(index, 7)).collect();
    let found = FORMATS.map(|format| {
        let mut state = cache_of(format, 2, layout(KvPolicy::Full, 0, 0, 256));
        append(&mut state, &keys, &values);
        ask(&mut state, 1.7)
    });
    // One value is a key's largest, so keys and query are exact in 8 bits. A value is off by 1/254 of
    // its row's largest, a weight by 1/510 of its tile's greatest, which is e^3.4 of the least at most.
    let weights = 3.4f32.exp() / 510.0;
    // In 4 bits a value is off by 16 / 127 of that, half of the widest gap between levels, and by what
    // half a code and a half's scale add; keys, all with the largest level, are 5 / 127 too small,
    // which moves scores of up to 1.7 by so much, and weights by twice that.
    let of_levels = 16.5 / 127.0 + 1.0 / 2048.0 + 2.0 * (1.7 * (5.0 / 127.0 + 1.0 / 2048.0));
    for (found_in_codes, bound) in found[1..].iter().zip([1.0 / 254.0, of_levels]) {
        assert_ne!(&found[0], found_in_codes);
        for (exact, found) in found[0].iter().zip(found_in_codes) {
            assert!((exact - found).abs() <= bound + weights, "{exact} {found}");
        }
    }
}

/// Tiles are those of the rows where the cache keeps a prompt, while it runs as after its end.
#[test]
fn the_end_of_a_prompt_that_fits_changes_no_tile() {
    for (policy, elastic, sinks, selected, recent, length) in [
        (KvPolicy::Snapstream, true, 5, 90, 40, 130),
        (KvPolicy::Snapstream, false, 5, 90, 40, 130),
        (KvPolicy::Snapstream, false, 5, 90, 40, 60),
        (KvPolicy::Snapstream, false, 5, 90, 40, 30),
        (KvPolicy::Stream, true, 3, 0, 90, 93),
        (KvPolicy::Window, true, 0, 0, 75, 60),
        (KvPolicy::Window, true, 0, 0, 75, 200),
    ] {
        let rows = CacheRows { elastic, ..layout(policy, sinks, selected, recent) };
        let mut state = cache_of(CacheFormat::I8, 2, rows);
        let keys: Vec<f32> = (0..length).map(|row| (row as f32 * 2.1).sin()).collect();
        let values: Vec<f32> = (0..2 * length).map(|index| (index as f32 * 1.3).cos()).collect();
        append(&mut state, &keys, &values);
        let running = ask(&mut state, 3.0);
        state.finish_prompt().unwrap();
        assert_eq!(running, ask(&mut state, 3.0), "{policy:?} of {length}");
    }
}

#[test]
fn a_long_mask_is_evaluated_at_chosen_sizes() {
    // Query and key positions, compared: mask[i, j] = j <= past + i.
    let mut graph = Graph::new();
    let total = Dim::total();
    let sequence = Dim::symbol(Symbol::Sequence);
    let past = Dim::symbol(Symbol::Past);
    let range = |start: Dim, length: Dim| Range { dtype: DType::I64, start, step: 1, length };
    let body = &mut graph.main;
    let queries = body.push1(range(past, sequence.clone()).into(), vec![], None).unwrap();
    let column = Op::from(Reshape { shape: vec![sequence, Dim::number(1)] });
    let queries = body.push1(column, vec![queries], None).unwrap();
    let keys = body.push1(range(Dim::number(0), total).into(), vec![], None).unwrap();
    let less = Op::from(Binary { op: BinaryOp::LessOrEqual });
    let mask = body.push1(less, vec![keys, queries], None).unwrap();
    let bindings = Bindings::one_sequence(4000, 96);
    let tensors = evaluate(&graph, &[mask], &bindings, &|_| None).unwrap();
    assert_eq!(tensors[0].sizes(), [96, 4096]);
    let kept = tensors[0].bools().unwrap().iter().filter(|keep| **keep).count();
    assert_eq!(kept, (4001..4097).sum::<usize>());
    let unbound = evaluate(&graph, &[mask], &Bindings::default(), &|_| None).unwrap_err();
    assert!(matches!(unbound.fault, EvalFault::Unbound(_)));
    let absurd = Bindings::one_sequence(1 << 40, 1 << 30);
    let error = evaluate(&graph, &[mask], &absurd, &|_| None).unwrap_err();
    assert!(matches!(error.fault, EvalFault::TooLarge(_)));
}

#[test]
fn a_missing_input_is_named() {
    let mut graph = Graph::new();
    let ty = TensorType::new(DType::F32, vec![2usize.into()]);
    let x = graph.main.param(InputRole::Other, ty, None, Some("x".into()));
    let error = evaluate(&graph, &[x], &Bindings::default(), &|_| None).unwrap_err();
    assert_eq!(error.fault, EvalFault::MissingInput("x".into()));
}

fn quantised() -> Constant {
    let format =
        QuantFormat { bits: 4, block: 2, scale: DType::F32, short: false, zero: ZeroPoints::Codes };
    let scales: Vec<u8> = [0.5f32, -1.0, 2.0, 1.0].iter().flat_map(|s| s.to_le_bytes()).collect();
    Constant {
        name: "w".into(),
        ty: TensorType {
            element: Element::Quant(format),
            shape: vec![Dim::number(2), Dim::number(3)],
        },
        data: ConstData::Quantised(QuantData {
            codes: vec![0x21, 0x03, 0x54, 0x06].into(),
            code_strides: [4, 1],
            signed: false,
            scales: scales.into(),
            scale_strides: [2, 1],
            zeros: Some(vec![0x10, 0x32].into()),
            zero_strides: [2, 1],
        }),
    }
}

#[test]
fn quantised_rows_are_read_through_strides() {
    let constant = quantised();
    constant.check().unwrap();
    let mut row = QuantRow::default();
    assert!(constant.quant_row(0, &mut row));
    assert_eq!(
        (row.codes, row.scales, row.zeros),
        (vec![1, 2, 3], vec![0.5, -1.0], vec![0.0, 1.0])
    );
    let mut floats = [0.0; 3];
    assert!(constant.row_f32(1, &mut floats));
    assert_eq!(floats, [(4.0 - 2.0) * 2.0, (5.0 - 2.0) * 2.0, 6.0 - 3.0]);
    assert!(!constant.row_f32(2, &mut floats));
    let x = Tensor::from_f32(DType::F32, vec![1, 3], vec![1.0, 1.0, 1.0]);
    let op = Op::from(Linear { bias: false, residual: false });
    let y = run_op(&op, &[x, constant.tensor().unwrap()], &Bindings::default()).unwrap();
    assert_eq!(*y[0].f32s().unwrap(), [0.5 + 1.0 - 2.0, 13.0]);
    let mut short = constant;
    let ConstData::Quantised(data) = &mut short.data else { panic!() };
    data.scales = data.scales.slice(..12);
    assert!(short.check().is_err());
}

#[test]
fn a_quantised_matrix_with_one_scale_may_be_transposed() {
    // Blocks of two with scales of their own run along rows only.
    assert!(quantised().transposed().is_none());
    let mut one = quantised();
    let ConstData::Quantised(data) = &mut one.data else { panic!() };
    (data.scale_strides, data.zero_strides) = ([0, 0], [0, 0]);
    one.check().unwrap();
    let numbers = one.elements_f32().unwrap();
    assert_eq!(numbers, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(|code| code * 0.5));
    let turned = one.transposed().unwrap();
    turned.check().unwrap();
    assert_eq!(turned.ty.to_string(), "int4<block=2, scale=f32, zero=codes>[3, 2]");
    assert_eq!(turned.elements_f32().unwrap(), [0, 3, 1, 4, 2, 5].map(|index| numbers[index]));
    // And back: one block of a whole row.
    let back = turned.transposed().unwrap();
    assert_eq!(back.ty.to_string(), "int4<block=3, scale=f32, zero=codes>[2, 3]");
    assert_eq!(back.elements_f32().unwrap(), numbers);
    assert!(back.is_same_storage(&turned.transposed().unwrap()) && !back.is_same_storage(&turned));
    let mut other = one;
    let ConstData::Quantised(data) = &mut other.data else { panic!() };
    data.zero_strides = [2, 1];
    assert!(other.transposed().is_none());
}

#[test]
fn stacked_and_transposed_constants_are_views() {
    let a = Constant::from_f32("a", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let b = a.transposed().unwrap();
    assert!(a.is_row_major() && !b.is_row_major());
    assert_eq!(b.elements_f32().unwrap(), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    let ty = TensorType::new(DType::F32, vec![Dim::number(4), Dim::number(3)]);
    let stacked = Constant { name: "s".into(), ty, data: ConstData::Stacked(vec![a.clone(), a]) };
    stacked.check().unwrap();
    let mut row = [0.0; 3];
    assert!(stacked.row_f32(3, &mut row));
    assert_eq!(row, [4.0, 5.0, 6.0]);
    assert_eq!(stacked.elements_f32().unwrap().len(), 12);
}
