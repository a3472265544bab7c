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

/// A weight of one sixth is rounded, and so is each sum.
fn near(means: &[f32], wanted: [f32; 2]) {
    let is_near = |(mean, wanted): (&f32, f32)| (mean - wanted).abs() < 1e-6;
    assert!(means.iter().zip(wanted).all(is_near), "{means:?} instead of {wanted:?}");
}

#[test]
fn heads_keep_as_many_rows_as_each_has() {
    // S = 1, R = 2: candidates are 1 to 4, and the shortest head has 4 rows. The ring holds 6 and 7.
    let keys = [&[0.0, 1.0, 3.0, 0.0, 2.0, 0.0, 0.0][..], &[0.0, 1.0, 3.0, 0.0, 2.0, 0.0, 0.0]];
    let (positions, means) = read_by_head(keys);
    assert_eq!(positions, [vec![2], vec![1, 2, 4]]);
    near(&means, [(2.0 + 6.0 + 7.0) / 4.0, (1.0 + 2.0 + 4.0 + 6.0 + 7.0) / 6.0]);
    // Two candidates: the second head keeps both and has a row left, which nobody takes.
    let (positions, means) = read_by_head(keys.map(|keys| &keys[..5]));
    assert_eq!(positions, [vec![2], vec![1, 2]]);
    near(&means, [(2.0 + 4.0 + 5.0) / 4.0, (1.0 + 2.0 + 4.0 + 5.0) / 5.0]);
    // All fit the shortest head.
    let (positions, means) = read_by_head(keys.map(|keys| &keys[..4]));
    assert_eq!(positions, [vec![1], vec![1]]);
    near(&means, [(1.0 + 3.0 + 4.0) / 4.0; 2]);
}

/// Heads over a prompt that is longer than its cache: query heads, key/value heads, widths of key and
/// value. A latent row's value is its key's first numbers.
struct Heads {
    sizes: [usize; 4],
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
}

const LENGTH: usize = 40;
const FACTOR: f32 = 0.07;

impl Heads {
    fn new([heads, kv_heads, key_width, value_width]: [usize; 4]) -> Heads {
        let wave = |count: usize, step: f32| -> Vec<f32> {
            (0..count).map(|index| (index as f32 * step).sin() * 1.5).collect()
        };
        let keys = wave(LENGTH * kv_heads * key_width, 2.1);
        let first = keys.chunks(key_width).flat_map(|key| key[..value_width].to_vec());
        Heads {
            sizes: [heads, kv_heads, key_width, value_width],
            values: first.collect(),
            queries: wave(LENGTH * heads * key_width, 0.7),
            keys,
        }
    }

    fn decl(&self) -> CacheDecl {
        let [_, kv_heads, key_width, value_width] = self.sizes.map(|size| size as u32);
        CacheDecl {
            kv_heads,
            key_width,
            value_width,
            ..decl(CacheFormat::F32, KvPolicy::Snapstream)
        }
    }

    fn row(numbers: &[f32], width: usize, row: usize) -> impl Iterator<Item = f64> + '_ {
        numbers[row * width..][..width].iter().map(|number| f64::from(*number))
    }

    /// Weights of the keys that a row's query of a head sees, and how far they may be off, relative to
    /// themselves: each number of a product is added with two roundings, the factor is another one; a
    /// score's shift is rounded, and exp and the division are.
    fn weights(&self, row: usize, head: usize) -> (Vec<f64>, f64) {
        let [heads, kv_heads, width, _] = self.sizes;
        let kv_head = head / (heads / kv_heads);
        let mut error = 0f64;
        let scores = (0..=row).map(|key| {
            let query = Heads::row(&self.queries, width, row * heads + head);
            let key = Heads::row(&self.keys, width, key * kv_heads + kv_head);
            let products: Vec<f64> = query.zip(key).map(|(q, k)| q * k).collect();
            let size: f64 = products.iter().map(|product| product.abs()).sum();
            error = error.max((2 * width + 1) as f64 * UNIT * size * f64::from(FACTOR));
            products.iter().sum::<f64>() * f64::from(FACTOR)
        });
        let scores: Vec<f64> = scores.collect();
        let most = scores.iter().copied().fold(f64::MIN, f64::max);
        let least = scores.iter().copied().fold(f64::MAX, f64::min);
        let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
        let weights = scores.iter().map(|score| (score - most).exp() / sum).collect();
        (weights, 2.0 * (2.0 * error + (most - least + 4.0 + row as f64) * UNIT))
    }

    /// Places of the candidates that a head keeps: the best means over the last queries and all heads of
    /// its group.
    fn selected(&self, kv_head: usize, layout: &CacheRows) -> Vec<usize> {
        let [heads, kv_heads, ..] = self.sizes;
        let group = heads / kv_heads;
        let [sinks, recent, kept, observed] =
            [layout.sinks, layout.recent, layout.selected, layout.observed].map(|n| n as usize);
        let score = |key: usize| {
            let of_head = |head: usize| {
                (LENGTH - observed..LENGTH).map(|row| self.weights(row, head).0[key]).sum::<f64>()
            };
            (kv_head * group..(kv_head + 1) * group).map(of_head).sum::<f64>()
        };
        let scores: Vec<f64> = (sinks..LENGTH - recent).map(score).collect();
        let mut order: Vec<usize> = (0..scores.len()).collect();
        order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
        let gap = scores[order[kept - 1]] - scores[order[kept]];
        assert!(gap > 1e-4 * scores[order[kept]], "the choice is a matter of rounding");
        order.truncate(kept);
        order.sort_unstable();
        order.into_iter().map(|place| sinks + place).collect()
    }
}

/// Unit roundoff.
const UNIT: f64 = 1.0 / (1u64 << 24) as f64;

/// Attention and selection against double precision, for groups of 1, 4 and 8 heads and for latent rows.
#[test]
fn groups_of_heads_read_and_keep_what_double_precision_does() {
    for sizes in [[3, 3, 24, 20], [8, 2, 16, 16], [16, 2, 32, 24], [16, 1, 576, 512]] {
        let heads = Heads::new(sizes);
        let [query_heads, kv_heads, key_width, value_width] = sizes;
        let decl = heads.decl();
        let mut state = CacheState::new(&decl).unwrap();
        let tensor = |numbers: &[f32], heads: usize, width: usize| {
            Tensor::from_f32(DType::F32, vec![LENGTH, heads, width], numbers.to_vec())
        };
        let key = tensor(&heads.keys, kv_heads, key_width);
        state.append(&key, &tensor(&heads.values, kv_heads, value_width)).unwrap();
        let score = Score { scale: FACTOR, softcap: 0.0 };
        let query = tensor(&heads.queries, query_heads, key_width);
        let got = state.attend(&query, None, score).unwrap();
        let got = got.f32s().unwrap();
        for (place, got) in got.chunks(value_width).enumerate() {
            let (row, head) = (place / query_heads, place % query_heads);
            let (weights, error) = heads.weights(row, head);
            let kv_head = head / (query_heads / kv_heads);
            let mut exact = vec![(0.0, 0.0); value_width];
            for (key, weight) in weights.iter().enumerate() {
                let value = Heads::row(&heads.values, value_width, key * kv_heads + kv_head);
                for (sum, value) in exact.iter_mut().zip(value) {
                    *sum = (sum.0 + weight * value, sum.1 + weight * value.abs());
                }
            }
            for (got, (exact, size)) in got.iter().zip(exact) {
                let bound = (error + (2 * row + 4) as f64 * UNIT) * size;
                let off = (f64::from(*got) - exact).abs();
                assert!(off <= bound, "{sizes:?}, row {row}, head {head}: {off:e} of {bound:e}");
            }
        }
        state.finish_prompt().unwrap();
        let layout = decl.layout.as_ref().unwrap();
        for (head, positions) in state.kept().unwrap().positions.iter().enumerate() {
            assert_eq!(*positions, heads.selected(head, layout), "{sizes:?}, head {head}");
        }
    }
}
