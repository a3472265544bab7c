//! Rows that some heads have overlap nothing, and their bytes are counted.

use weir_abi::{CacheLayout, CachePolicy, HeadRows, KindEntry};

use super::Further;
use crate::cache::{LayerShape, SlotCache, SlotCount};

/// A layer of heads with so many selected rows beside 4 sinks and a ring of 30, whose rows have 8 bytes
/// of keys and 12 of values.
fn layer(by_head: &[u32]) -> LayerShape {
    let least = by_head.iter().copied().min().unwrap_or(0);
    let most = by_head.iter().copied().max().unwrap_or(0);
    LayerShape {
        kind: KindEntry {
            heads: 2 * by_head.len() as u32,
            kv_heads: by_head.len() as u32,
            key_width: 2,
            value_width: 3,
            key_row_bytes: 8,
            value_row_bytes: 12,
            block_key_row_bytes: 0,
            block_value_row_bytes: 0,
        },
        layout: CacheLayout {
            policy: CachePolicy::Snapstream as u32,
            elastic: 1,
            sinks: 4,
            selected: least,
            recent: 30,
            rows: 34 + least,
            window: 0,
            observed: 8,
            pool: 5,
            growth: 0,
            in_flight: 0,
            reservoir: 0,
            reselect: 0,
            redundancy: 0,
            block_rows: 0,
            further: most - least,
            first_head: 0,
            second: 0,
            second_share: 0,
        },
        by_head: by_head.into(),
    }
}

#[test]
fn rows_lie_behind_all_heads() {
    // 34 + 10 rows take a tile of each head.
    let further = Further::of(&layer(&[10, 75, 10, 200])).unwrap();
    let head = |first, rows, positions| HeadRows { first, rows, positions };
    let expected = [
        head(4 * 64, 0, 0),
        head(3 * 64, 65, 10),
        // Its two tiles lie behind those of the head before.
        head(2 * 64 + 128, 0, 85),
        head(64 + 128, 190, 95),
    ];
    assert_eq!(further.heads, expected);
    assert_eq!(further.rows, 128 + 192);
}

#[test]
fn no_two_heads_share_a_row_of_a_plane() {
    for by_head in [&[3, 70, 0, 129, 3][..], &[64, 0], &[31, 30, 95]] {
        let layer = layer(by_head);
        let further = Further::of(&layer).unwrap();
        let of_head = u64::from(layer.layout.rows).next_multiple_of(64);
        let heads = further.heads.len() as u64;
        let mut rows = Vec::new();
        for (head, own) in (0..).zip(&further.heads) {
            let first = head * of_head + u64::from(own.first);
            assert!(own.rows == 0 || first >= heads * of_head);
            assert_eq!(first % 64, 0);
            rows.extend(first..first + u64::from(own.rows));
        }
        let count = rows.len();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), count);
        assert!(rows.iter().all(|row| *row < heads * of_head + further.rows));
    }
}

#[test]
fn bytes_are_those_of_every_heads_rows() {
    // 4 + 30 rows and 30 selected ones are a tile; 64 and 128 more of two heads are whole tiles.
    let layer = layer(&[30, 94, 158]);
    let bytes = SlotCache::bytes(std::slice::from_ref(&layer), SlotCount::whole(5)).unwrap();
    let rows = 3 * 64 + 64 + 128;
    assert_eq!(bytes, 5 * (rows * (8 + 12) + 4 * (30 + 94 + 158)));
    let cache = SlotCache::new(std::slice::from_ref(&layer), SlotCount::whole(5));
    assert_eq!(cache.unwrap().planes(0).strides.key_slot, rows * 8);
    // A ring without a block would have to find the rows of another slot.
    assert_eq!(SlotCache::bytes(&[layer], SlotCount { slots: 5, blocks: 2 }), None);
}
