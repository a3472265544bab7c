//! Second queries by hand: whom they ask, what that gives, and what is selected by it.

use super::super::attend::Score;
use super::super::{CacheState, EvalFault, Tensor};
use super::{Asked, asked, scores, selected_by_both, share_of};
use crate::graph::{CacheDecl, CacheFormat, CacheRows, KvPolicy, Pooling, Scoring};
use crate::types::DType;

#[test]
fn rows_behind_peaks_are_asked_and_of_equals_the_first() {
    // Rows 1 to 8 have 5 in reach, rows 10 to 12 have 1, the others nothing.
    let scores = [0.0, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0];
    let asked = |from, count| asked(&scores, from, count).unwrap();
    assert_eq!(asked(0, 3), [1, 2, 3]);
    assert_eq!(asked(0, 10), [1, 2, 3, 4, 5, 6, 7, 8, 10, 11]);
    // 0 and 9 are equal.
    assert_eq!(asked(0, 12), [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12]);
    // Rows without queries count for those behind them.
    assert_eq!(asked(7, 3), [7, 8, 10]);
    assert_eq!(asked(9, 9), [9, 10, 11, 12]);
    assert_eq!(asked(13, 9), [0usize; 0]);
    assert_eq!(asked(20, 9), [0usize; 0]);
    let wrong = super::asked(&[0.0, f32::NAN], 0, 1);
    assert!(matches!(wrong, Err(EvalFault::Score { candidate: 1, .. })));
}

#[test]
fn keys_get_the_largest_mean_of_rows_that_are_not_near() {
    let queries = [[1.0f32], [0.0], [2.0], [0.0]];
    let of = |row, at: usize| Asked {
        row,
        queries: vec![&queries[at][..], &queries[at + 1]],
        sums: vec![f32::ln(8.0), f32::ln(2.0)],
    };
    let asked = [of(13, 0), of(15, 2)];
    let keys = [[f32::ln(2.0)], [0.0], [f32::ln(4.0)], [0.0], [f32::ln(3.0)]];
    let keys: Vec<&[f32]> = keys.iter().map(|key| &key[..]).collect();
    let found = scores(&asked, &keys, 3, Score { scale: 1.0, softcap: 0.0 });
    // Row 13 sees rows 3 and 4, row 15 those up to 6. ((2 / 8) + 1 / 2) / 2 and ((4 / 8) + 1 / 2) / 2;
    // (1 / 8 + 1 / 2) / 2 twice; (16 / 8 + 1 / 2) / 2.
    let expected = [0.5, 0.3125, 1.25, 0.3125, 0.0];
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    assert_eq!(found[4], 0.0);
}

#[test]
fn a_share_is_selected_by_second_queries() {
    let first = [5.0, 4.0, 3.0, 2.0, 1.0, 0.0];
    let second = [0.9, 0.5, 0.1, 0.2, 0.5, 0.5];
    let by_both = |count, percent| selected_by_both([&first, &second], count, percent).unwrap();
    assert_eq!([share_of(7, 25), share_of(8, 25), share_of(3, 100), share_of(3, 25)], [1, 2, 3, 0]);
    // None, for a quarter of three is less than one.
    assert_eq!(by_both(3, 25), [0, 1, 2]);
    // The better one of 3, 4 and 5 that comes first.
    assert_eq!(by_both(4, 25), [0, 1, 2, 4]);
    assert_eq!(by_both(4, 50), [0, 1, 4, 5]);
    assert_eq!(by_both(2, 100), [0, 1]);
    assert_eq!(by_both(9, 25), [0, 1, 2, 3, 4, 5]);
    let wrong = selected_by_both([&first, &[0.0, 0.0, 0.0, f32::INFINITY, 0.0, 0.0]], 4, 25);
    assert!(matches!(wrong, Err(EvalFault::Score { candidate: 3, .. })));
}

const ROWS: usize = 40;
/// What the last queries look for, what stands there looks for, and who asks.
const FOUND: usize = 20;
const LED_TO: usize = 9;

fn layout(second: u32, second_share: u32) -> CacheRows {
    CacheRows {
        sinks: 1,
        selected: 4,
        observed: 2,
        second,
        second_share,
        ..CacheRows::ring(KvPolicy::Snapstream, 6)
    }
}

fn state(layout: CacheRows) -> CacheState {
    layout.check().unwrap();
    CacheState::new(&CacheDecl {
        layer: 0,
        kv_heads: 1,
        key_width: 1,
        value_width: 1,
        format: CacheFormat::F32,
        block: None,
        window: 0,
        layout: Some(layout),
    })
    .unwrap()
}

fn append(state: &mut CacheState, keys: Vec<f32>, queries: Vec<f32>) {
    let tensor = |rows: Vec<f32>| Tensor::from_f32(DType::F32, vec![rows.len(), 1, 1], rows);
    state.append(&tensor(keys.clone()), &tensor(keys)).unwrap();
    state.attend(&tensor(queries), None, Score { scale: 1.0, softcap: 0.0 }).unwrap();
    state.finish_prompt().unwrap();
}

/// Keys and queries of a prompt: the last queries find [`FOUND`], and the query of row `asking` what it
/// leads to.
fn chain(asking: usize) -> [Vec<f32>; 2] {
    let (mut keys, mut queries) = (vec![0.0; ROWS], vec![0.0; ROWS]);
    (keys[FOUND], keys[LED_TO]) = (6.0, -6.0);
    queries[ROWS - 2..].fill(1.0);
    queries[asking] = -1.0;
    [keys, queries]
}

fn selected(layout: CacheRows, asking: usize) -> Vec<usize> {
    let mut state = state(layout);
    let [keys, queries] = chain(asking);
    append(&mut state, keys, queries);
    state.kept().unwrap().positions[0].clone()
}

#[test]
fn what_a_row_leads_to_is_kept() {
    // By the last queries alone: the one that they find, and of equals the first.
    assert_eq!(selected(layout(0, 0), 27), [1, 2, 3, FOUND]);
    assert_eq!(selected(layout(8, 25), 27), [1, 2, LED_TO, FOUND]);
    assert_eq!(selected(layout(1, 25), FOUND), [1, 2, LED_TO, FOUND]);
    // Too few are asked, or the row is too far behind. Those asked look at all rows alike, but the one
    // with the greatest key, which all attend to less.
    assert_eq!(selected(layout(7, 25), 27), [1, 2, 3, FOUND]);
    assert_eq!(selected(layout(8, 25), 28), [1, 2, 3, FOUND]);
    // Rows behind what was found are asked up to the last queries, though they are no candidates.
    assert_eq!(selected(layout(9, 25), 30), [1, 2, 3, FOUND]);
    assert_eq!(selected(layout(100, 25), ROWS - 3), [1, 2, LED_TO, FOUND]);
}

/// One row too many, none of which any other may look up.
#[test]
fn rows_without_attention_are_equal() {
    let mut state = state(layout(8, 50));
    let mut keys = vec![0.0; 12];
    (keys[2], keys[4]) = (-1.0, 2.0);
    append(&mut state, keys, vec![1.0; 12]);
    // By the first scores 4 and of equals 1; of those that are left the first, 2 and 3.
    assert_eq!(state.kept().unwrap().positions, [[1, 2, 3, 4]]);
}

/// A prompt of as many rows as observe, behind one that has left keys of 0, 0, what it led to, and what
/// was found.
#[test]
fn rows_of_earlier_prompts_are_not_asked() {
    let behind = |layout: CacheRows| {
        let mut state = state(layout);
        let [keys, queries] = chain(27);
        append(&mut state, keys, queries);
        state.reopen(0).unwrap();
        append(&mut state, vec![0.0; 2], vec![1.0; 2]);
        state.kept().unwrap().positions[0].clone()
    };
    // The last queries alone select, and not what it led to.
    assert_eq!(behind(layout(8, 25)), [1, 2, 4, 5]);
    assert_eq!(behind(layout(0, 0)), [1, 2, 3, 4]);
}

#[test]
fn second_scores_are_pooled_like_the_first() {
    let pooled = |pooling| {
        let scoring = Scoring { pooling, ..Scoring::default() };
        selected(CacheRows { pool: 3, scoring, ..layout(8, 50) }, 27)
    };
    for pooling in [Pooling::Average, Pooling::Max, Pooling::Reference] {
        // Two of the three rows around each.
        let near = pooled(pooling).into_iter().map(|row| match row {
            15.. => row.abs_diff(FOUND),
            _ => row.abs_diff(LED_TO) + 10,
        });
        let mut near: Vec<usize> = near.collect();
        near.sort_unstable();
        assert!(near == [0, 1, 10, 11] || near == [1, 1, 10, 11], "{pooling:?}: {near:?}");
    }
}
