//! Slots with a block and without one lie side by side, and fill a head.

use weir_abi::{CacheLayout, KindEntry};

use super::{Pool, TILE, ring_bytes, rows_apart};
use crate::cache::placement::tests::layout;

/// Which rows have the block's format.
#[derive(Clone, Copy)]
enum Block {
    None,
    Fixed,
    All,
}

fn kind(block: [u32; 2], ring: [u32; 2]) -> KindEntry {
    KindEntry {
        heads: 1,
        kv_heads: 1,
        key_width: 64,
        value_width: 64,
        key_row_bytes: ring[0],
        value_row_bytes: ring[1],
        block_key_row_bytes: block[0],
        block_value_row_bytes: block[1],
    }
}

#[test]
fn parts_of_slots_do_not_overlap_and_fill_a_head() {
    let int4_in_f16 = kind([34, 34], [128, 128]);
    // Keys are wider than values.
    let uneven = kind([50, 34], [192, 128]);
    for (kinds, block) in [
        (vec![kind([0, 0], [68, 68])], Block::None),
        (vec![kind([0, 0], [136, 68])], Block::None),
        (vec![int4_in_f16], Block::Fixed),
        (vec![uneven], Block::Fixed),
        (vec![uneven, int4_in_f16], Block::Fixed),
        (vec![int4_in_f16], Block::All),
        (vec![uneven, int4_in_f16], Block::All),
    ] {
        for [sinks, selected, recent] in [[4, 124, 64], [4, 130, 20], [2, 3, 4], [70, 0, 500]] {
            let layout = layout(true, sinks, selected, recent);
            let block_rows = match block {
                Block::None => 0,
                Block::Fixed => sinks + selected,
                Block::All => layout.rows,
            };
            let layout = CacheLayout { block_rows, ..layout };
            for (slots, blocks) in [(2, 1), (5, 1), (5, 4), (9, 3)] {
                let pool = Pool::new(&layout, kinds.iter().copied(), slots, blocks).unwrap();
                for kind in &kinds {
                    let [key, value] = ring_bytes(&layout, kind);
                    for [block, ring] in
                        [[kind.block_key_row_bytes, key], [kind.block_value_row_bytes, value]]
                    {
                        check(&layout, &pool, [slots, blocks], [block.into(), ring.into()]);
                    }
                }
            }
        }
    }
}

fn check(layout: &CacheLayout, pool: &Pool, [slots, blocks]: [u32; 2], row_bytes: [u64; 2]) {
    let stride = pool.stride(row_bytes[1] as u32).unwrap();
    assert_eq!(stride % 64, 0, "slots begin at cache lines");
    let end = u64::from(super::block_end(layout));
    let in_front = end / TILE * TILE;
    let apart = rows_apart(layout);
    let ring_at = match apart {
        0 => 0,
        rows => pool.ring_at(rows).wrapping_mul(stride),
    };
    let mut parts = Vec::new();
    for slot in 0..slots {
        let start = u64::from(pool.number(slot)) * stride;
        if slot < blocks && end > 0 {
            let (rows, bytes) = match apart {
                0 => (in_front, row_bytes[1]),
                rows => (u64::from(rows).next_multiple_of(TILE), row_bytes[0]),
            };
            parts.push(start..start + rows * bytes);
        }
        let row = |row: u64| start.wrapping_add(ring_at).wrapping_add(row * row_bytes[1]);
        let rows = u64::from(layout.rows).next_multiple_of(TILE);
        parts.push(row(in_front)..row(rows));
    }
    let whole = pool.length().unwrap() * stride;
    assert!(parts.windows(2).all(|pair| pair[0].end <= pair[1].start), "{layout:?}: {parts:?}");
    assert_eq!(parts.last().unwrap().end, whole);
    let used: u64 = parts.iter().map(|part| part.end - part.start).sum();
    // Keys and values of other widths have one number.
    let spare = u64::from(blocks) * if apart == 0 { 0 } else { 8 * stride + in_front };
    assert!(whole - used <= spare, "{} bytes of {whole} are unused", whole - used);
}
