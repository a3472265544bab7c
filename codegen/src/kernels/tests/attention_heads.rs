//! Attention where heads have different numbers of rows: what each head reads alone, bit by bit.

use weir_abi::{CacheRange, FURTHER, HeadRows, KEY_TILE, RowSpans};

use super::attention::{Case, PATTERNS, Sizes, levels};
use super::attention_planes::{CACHE_ROWS, Formats};
use super::*;
use crate::kernels::attention::CacheType;

const SIZES: [Sizes; 5] = [
    (1, 6, 3, 16, 20),
    (7, 8, 2, 32, 32),
    (40, 4, 4, 24, 16),
    (1, 8, 2, 64, 64),
    (3, 34, 2, 12, 30),
];

/// Rows of each head, anywhere in the planes: none, a few, a tile, chunks of them.
fn heads(random: &mut Random, count: usize) -> Vec<HeadRows> {
    let one = |head: usize| {
        let rows = [0, 600 + random.below(100), 1 + random.below(70), 64][head % 4];
        let first = random.below((CACHE_ROWS - rows) / KEY_TILE + 1) * KEY_TILE;
        HeadRows { first: first as u32, rows: rows as u32, positions: 0 }
    };
    (0..count).map(one).collect()
}

/// Spans with one more range behind the others, of the slot of the first.
fn with_range(spans: &[RowSpans], first: u32, rows: u32) -> Vec<RowSpans> {
    let mut spans = spans.to_vec();
    for span in spans.iter_mut().filter(|span| span.range_count < 4) {
        let slot = span.ranges[0].slot;
        span.ranges[span.range_count as usize] = CacheRange { slot, first, rows };
        span.range_count += 1;
    }
    spans
}

#[test]
fn heads_read_their_own_rows() {
    let mut random = Random::new(71);
    for (index, sizes) in SIZES.into_iter().enumerate() {
        for (pattern, format) in PATTERNS.iter().zip(CacheType::ALL.iter().cycle().skip(index)) {
            let formats = Formats::from(*format);
            let mut case = Case::new(&mut random, sizes, formats, *pattern, (true, 0.0));
            case.fill(&mut random);
            let heads = heads(&mut random, sizes.2);
            // Rows of a step read a part of what heads have, or more than any has.
            let most = [30, 64, 660, 5000][random.below(4)];
            let (planes, spans) = (case.encoded(), case.spans.clone());
            for level in levels() {
                let [alike, by_head] = case.kernels(level);
                case.spans = with_range(&spans, FURTHER, most);
                let got =
                    [1, 3].map(|threads| case.run_whole(&by_head, &planes, Some(&heads), threads));
                for (head, own) in heads.iter().enumerate() {
                    case.spans = with_range(&spans, own.first, own.rows.min(most));
                    let alone = case.run_whole(&alike, &planes, None, 1);
                    for got in &got {
                        case.check_head(head, got, &alone, level);
                    }
                }
            }
        }
    }
}
