//! Rows of four bits while a prompt runs and afterwards.

use super::super::codes::LEVELS;
use super::{CacheState, Score, Tensor, turn};
use crate::graph::{CacheDecl, CacheFormat, CacheRows, KvPolicy, RowFormats};
use crate::types::DType;

const WIDTH: usize = 8;

fn decl(format: CacheFormat, policy: KvPolicy) -> CacheDecl {
    let ring = CacheRows::ring(policy, 8);
    let rows = match policy {
        KvPolicy::Full => CacheRows { selected: 40, recent: 8, ..ring },
        _ => CacheRows { sinks: 2, selected: 6, observed: 2, reservoir: 1, ..ring },
    };
    CacheDecl {
        layer: 0,
        kv_heads: 1,
        key_width: WIDTH as u32,
        value_width: WIDTH as u32,
        format,
        block: None,
        window: 0,
        layout: Some(rows),
    }
}

fn wave(rows: usize, step: f32) -> Tensor {
    let numbers = (0..rows * WIDTH).map(|index| (index as f32 * step).sin()).collect();
    Tensor::from_f32(DType::F32, vec![rows, 1, WIDTH], numbers)
}

/// Attention of a query over a prompt of so many rows, before its end and behind it. Keys and queries
/// of a cache that does not turn them are turned here.
fn attended(format: CacheFormat, policy: KvPolicy, length: usize) -> (CacheState, [Vec<f32>; 2]) {
    let decl = decl(format, policy);
    let heads = |rows: usize, step: f32| {
        let mut numbers = wave(rows, step).f32s().unwrap().to_vec();
        if !decl.turns_keys() {
            numbers.chunks_mut(WIDTH).for_each(turn);
        }
        Tensor::from_f32(DType::F32, vec![rows, 1, WIDTH], numbers)
    };
    let mut state = CacheState::new(&decl).unwrap();
    state.append(&heads(length, 2.1), &wave(length, 1.3)).unwrap();
    let score = Score { scale: 1.0, softcap: 0.0 };
    let ask = |state: &mut CacheState| {
        let found = state.attend(&heads(1, 0.7), None, score).unwrap();
        found.f32s().unwrap().to_vec()
    };
    // As many queries as are observed.
    ask(&mut state);
    let running = ask(&mut state);
    state.finish_prompt().unwrap();
    let kept = ask(&mut state);
    (state, [running, kept])
}

fn is_levels(state: &CacheState, row: usize) -> bool {
    let (codes, _) = state.values.coded(row, 0);
    codes.iter().all(|code| LEVELS.iter().any(|level| f32::from(*level) == code.abs()))
}

#[test]
fn a_longer_prompt_is_computed_over_eight_bits() {
    let eight = RowFormats { ring: CacheFormat::I8, block: Some(CacheFormat::I4) };
    let long = decl(CacheFormat::I4, KvPolicy::Snapstream);
    assert_eq!((long.row_formats(), long.block_rows()), (eight, 2 + 6 + 8 + 1));
    let full = decl(CacheFormat::I4, KvPolicy::Full);
    assert_eq!((full.row_formats(), full.block_rows()), (CacheFormat::I4.into(), 0));

    let (_, [in_eight, _]) = attended(CacheFormat::I8, KvPolicy::Snapstream, 40);
    let (four, [running, kept]) = attended(CacheFormat::I4, KvPolicy::Snapstream, 40);
    let (_, [in_four, _]) = attended(CacheFormat::I4, KvPolicy::Full, 40);
    assert_eq!(running, in_eight);
    assert_ne!(running, in_four);
    assert_ne!(running, kept);
    assert!((0..16).all(|row| is_levels(&four, row)));
}

/// A prompt that fits is rounded once, when it is written.
#[test]
fn a_prompt_that_fits_is_computed_over_what_is_kept() {
    for format in [CacheFormat::I8, CacheFormat::I4] {
        let (state, [running, kept]) = attended(format, KvPolicy::Snapstream, 16);
        assert_eq!(running, kept);
        assert_eq!((0..16).all(|row| is_levels(&state, row)), format == CacheFormat::I4);
    }
}

/// A prompt of two heads whose keys are these and whose values are positions; then the mean of the values
/// that each head's query 0 reads.
fn read_by_head(keys: [&[f32]; 2]) -> (Vec<Vec<usize>>, Vec<f32>) {
    let ring = CacheRows::ring(KvPolicy::Snapstream, 2);
    let layout = CacheRows { sinks: 1, selected: 1, by_head: vec![1, 3], observed: 2, ..ring };
    let decl = CacheDecl {
        layer: 0,
        kv_heads: 2,
        key_width: 1,
        value_width: 1,
        format: CacheFormat::F32,
        block: None,
        window: 0,
        layout: Some(layout),
    };
    let mut state = CacheState::new(&decl).unwrap();
    let score = Score { scale: 1.0, softcap: 0.0 };
    let rows = keys[0].len();
    let both = |of: &dyn Fn(usize, usize) -> f32, rows: usize| {
        let numbers = (0..rows).flat_map(|row| [of(row, 0), of(row, 1)]).collect();
        Tensor::from_f32(DType::F32, vec![rows, 2, 1], numbers)
    };
    let values = both(&|row, _| row as f32, rows);
    state.append(&both(&|row, head| keys[head][row], rows), &values).unwrap();
    state.attend(&both(&|_, _| 1.0, rows), None, score).unwrap();
    state.finish_prompt().unwrap();
    let next = both(&|_, _| rows as f32, 1);
    state.append(&both(&|_, _| 0.0, 1), &next).unwrap();
    let means = state.attend(&both(&|_, _| 0.0, 1), None, score).unwrap();
    let positions = state.kept().unwrap().positions.clone();
    assert_eq!(state.reopen(0).is_err(), positions[1].len() > 1);
    (positions, means.f32s().unwrap().to_vec())
}

#[test]
fn heads_keep_as_many_rows_as_each_has() {
    // S = 1, R = 2: candidates are 1 to 4, and the shortest head has 4 rows. The ring holds 6 and 7.
    let keys = [&[0.0, 1.0, 3.0, 0.0, 2.0, 0.0, 0.0][..], &[0.0, 1.0, 3.0, 0.0, 2.0, 0.0, 0.0]];
    let (positions, means) = read_by_head(keys);
    assert_eq!(positions, [vec![2], vec![1, 2, 4]]);
    assert_eq!(means, [(2.0 + 6.0 + 7.0) / 4.0, (1.0 + 2.0 + 4.0 + 6.0 + 7.0) / 6.0]);
    // Two candidates: the second head keeps both and has a row left, which nobody takes.
    let (positions, means) = read_by_head(keys.map(|keys| &keys[..5]));
    assert_eq!(positions, [vec![2], vec![1, 2]]);
    assert_eq!(means, [(2.0 + 4.0 + 5.0) / 4.0, (1.0 + 2.0 + 4.0 + 5.0) / 5.0]);
    // All fit the shortest head.
    let (positions, means) = read_by_head(keys.map(|keys| &keys[..4]));
    assert_eq!(positions, [vec![1], vec![1]]);
    assert_eq!(means, [(1.0 + 3.0 + 4.0) / 4.0; 2]);
}
