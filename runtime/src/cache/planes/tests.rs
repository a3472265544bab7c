//! When the cache asks for large pages.

use weir_abi::{CacheLayout, CachePolicy, KindEntry};

use super::{LayerShape, SlotCache, SlotCount};
use crate::machine::LARGE_PAGE;

/// A cache of four slots of so many rows of 64 bytes.
fn cache(rows: u32) -> SlotCache {
    let kind = KindEntry {
        heads: 4,
        kv_heads: 2,
        key_width: 64,
        value_width: 64,
        key_row_bytes: 64,
        value_row_bytes: 64,
        block_key_row_bytes: 0,
        block_value_row_bytes: 0,
    };
    let layout = CacheLayout {
        policy: CachePolicy::Full as u32,
        elastic: 0,
        sinks: 0,
        selected: 0,
        recent: rows,
        rows,
        window: 0,
        observed: 0,
        pool: 0,
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
    };
    SlotCache::new(&[LayerShape::alike(kind, layout)], SlotCount::whole(4)).unwrap()
}

/// Whether pages are large after each of the (slot, rows of the prompt).
fn large_after<const N: usize>(rows: u32, expected: [(u32, u32); N]) -> [bool; N] {
    let mut cache = cache(rows);
    expected.map(|(slot, prompt_rows)| {
        cache.expect(slot, prompt_rows);
        cache.has_large_pages()
    })
}

#[test]
fn short_prompts_of_one_slot_do_without_large_pages() {
    assert_eq!(large_after(4096, [(2, 1), (2, 1023), (2, 16)]), [false; 3]);
}

#[test]
fn a_long_prompt_or_a_second_slot_takes_large_pages_for_good() {
    assert_eq!(large_after(4096, [(0, 16), (0, 1024), (0, 16)]), [false, true, true]);
    assert_eq!(large_after(4096, [(0, 16), (1, 16), (0, 16)]), [false, true, true]);
}

#[test]
fn heads_larger_than_a_page_keep_theirs() {
    let rows = (LARGE_PAGE / 64) as u32;
    assert_eq!(large_after(rows, [(0, rows)]), [true]);
    assert_eq!(large_after(rows + 64, [(0, rows), (1, rows)]), [false; 2]);
}
