//! Attention where heads have different numbers of rows: what each head reads alone, bit by bit.

use weir_abi::{CacheRange, FURTHER, HeadRows, KEY_TILE};

use super::attention::{Case, PATTERNS, Sizes, levels};
use super::attention_planes::{CACHE_ROWS, Formats};
use super::*;

const SIZES: [Sizes; 5] = [
    (1, 6, 3, 16, 20),
    (7, 8, 2, 32, 32),
    (40, 4, 4, 24, 16),
    (1, 8, 2, 64, 64),
    (3, 66, 2, 12, 30),
];

/// Rows of each head, anywhere in the planes: none, a few, chunks of them.
fn heads(random: &mut Random, count: usize) -> Vec<HeadRows> {
    let one = |head: usize| {
        let rows = [0, 1 + random.below(70), 64, 600 + random.below(100)][(head + count) % 4];
        let first = random.below((CACHE_ROWS - rows) / KEY_TILE + 1) * KEY_TILE;
        HeadRows { first: first as u32, rows: rows as u32, positions: 0 }
    };
    (0..count).map(one).collect()
}

#[test]
fn heads_read_their_own_rows() {
    let mut random = Random::new(71);
    for sizes in SIZES {
        for pattern in PATTERNS {
            for formats in Formats::all().into_iter().filter(|formats| formats.block.is_none()) {
                let mut case = Case::new(&mut random, sizes, formats, pattern, (true, 0.0));
                case.fill(&mut random);
                let heads = heads(&mut random, sizes.2);
                // Rows of a step take part of them, all, or more than any head has.
                let most = [30, 64, 660, 5000][random.below(4)];
                let (common, spans) = (case.spans.clone(), |own: &dyn Fn(u32) -> CacheRange| {
                    let mut spans = case.spans.clone();
                    for span in spans.iter_mut().filter(|span| span.range_count < 4) {
                        span.ranges[span.range_count as usize] = own(span.ranges[0].slot);
                        span.range_count += 1;
                    }
                    spans
                });
                let by_head = spans(&|slot| CacheRange { slot, first: FURTHER, rows: most });
                let of_head = heads.iter().map(|own| {
                    let rows = own.rows.min(most);
                    spans(&|slot| CacheRange { slot, first: own.first, rows })
                });
                let of_head: Vec<_> = of_head.collect();
                for level in levels() {
                    for threads in [1, 3] {
                        case.spans = by_head.clone();
                        let got = case.run_whole(level, Some(&heads), threads);
                        for (head, spans) in of_head.iter().enumerate() {
                            case.spans = spans.clone();
                            let alone = case.run_whole(level, None, 1);
                            case.check_head(head, &got, &alone, level);
                        }
                    }
                }
                case.spans = common;
            }
        }
    }
}
