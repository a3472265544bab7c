//! Rows that come to a block of levels and leave it, over and over.

use super::{codes_to_levels, encode, encode_levels, encode_levels_again};
use crate::graph::CacheFormat;
use crate::interpret::plane::stored;

/// Numbers between -1 and 1, the same in every run.
fn rows(count: usize, width: usize) -> Vec<Vec<f32>> {
    let mut state = 0x9e37_79b9u32;
    let mut number = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / (1u32 << 31) as f32 - 1.0
    };
    (0..count).map(|_| (0..width).map(|_| number()).collect()).collect()
}

/// Levels and their scale.
fn levels(values: &[f32], encode: fn(&[f32], &mut [f32]) -> f32) -> (Vec<f32>, f32) {
    let mut codes = vec![0.0; values.len()];
    let scale = encode(values, &mut codes);
    (codes, scale)
}

#[test]
fn codes_become_the_levels_of_their_row() {
    for row in rows(200, 24) {
        let (mut codes, scale) = levels(&row, encode);
        let scale = codes_to_levels(&mut codes, scale);
        let (expected, of_row) = levels(&row, encode_levels);
        assert_eq!(codes, expected);
        // The largest magnitude may be off by an ulp, and its half by one of its own.
        assert!((scale - of_row).abs() <= of_row / 1000.0);
        let again = codes_to_levels(&mut codes, scale);
        assert_eq!((codes, again), (expected, scale));
    }
}

#[test]
fn levels_that_were_numbers_meanwhile_stay() {
    for ring in [CacheFormat::F32, CacheFormat::F16, CacheFormat::BF16] {
        for row in rows(200, 24) {
            let first = levels(&row, encode_levels_again);
            assert_eq!(first, levels(&row, encode_levels));
            let (codes, mut scale) = first;
            for _ in 0..10 {
                let numbers: Vec<f32> =
                    codes.iter().map(|code| stored(code * scale, ring)).collect();
                let (found, next) = levels(&numbers, encode_levels_again);
                assert_eq!(found, codes, "{ring:?}");
                if ring == CacheFormat::F32 {
                    assert_eq!(next, scale);
                }
                // Half a unit in the last place of bf16, and one of the half.
                assert!((next - scale).abs() <= scale / 200.0, "{ring:?}");
                scale = next;
            }
        }
    }
}
