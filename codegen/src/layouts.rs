//! How a cache's rows lie in a slot, as the tables of a compiled model say it, and their bytes.

use weir_abi::{CacheLayout, CachePolicy};
use weir_ir::Op;
use weir_ir::graph::{CacheDecl, KvPolicy};

use crate::error::{CodegenError, number, wrong};
use crate::kernels::attention::CacheShape;

/// Bytes of a cache's rows and positions in a slot, without what fills up tiles.
pub(crate) fn slot_bytes(cache: &CacheDecl, layout: &CacheLayout, shape: &CacheShape) -> u64 {
    let bytes = |shape: CacheShape| shape.row_bytes() as u64;
    let of_block = shape.of_block().map_or(0, bytes);
    let block_rows = u64::from(layout.block_rows);
    let ring_rows = u64::from(layout.rows) - block_rows;
    let rows = block_rows * of_block + ring_rows * bytes(shape.of_ring());
    let selected = |head| cache.layout.as_ref().map_or(0, |rows| u64::from(rows.selected_of(head)));
    let selected: u64 = (0..cache.kv_heads as usize).map(selected).sum();
    let further = selected - u64::from(cache.kv_heads) * u64::from(layout.selected);
    let of_further = if ring_rows == 0 { of_block } else { bytes(shape.of_ring()) };
    rows + further * of_further / u64::from(cache.kv_heads) + selected * 4
}

/// The numbers of a cache; those of its heads go to `head_rows` where they differ.
pub(crate) fn layout(
    cache: &CacheDecl,
    layer: &Op,
    head_rows: &mut Vec<u32>,
) -> Result<CacheLayout, CodegenError> {
    let rows = cache.layout.as_ref();
    let rows = rows.ok_or_else(|| wrong(layer.to_string(), "a cache without a layout"))?;
    let policy = match rows.policy {
        KvPolicy::Full => CachePolicy::Full,
        KvPolicy::Stream => CachePolicy::Stream,
        KvPolicy::Snapstream => CachePolicy::Snapstream,
        KvPolicy::Snapkv => CachePolicy::Snapkv,
        KvPolicy::Random => CachePolicy::Random,
        KvPolicy::Window => CachePolicy::Window,
    };
    let first_head = match rows.by_head.as_slice() {
        [] => 0,
        by_head => {
            let known = head_rows.windows(by_head.len()).position(|known| known == by_head);
            known.unwrap_or_else(|| {
                head_rows.extend(by_head);
                head_rows.len() - by_head.len()
            })
        }
    };
    Ok(CacheLayout {
        policy: policy as u32,
        elastic: u32::from(rows.elastic),
        sinks: rows.sinks,
        selected: rows.selected,
        recent: rows.recent,
        rows: rows.rows(),
        window: cache.window,
        observed: rows.observed,
        pool: rows.pool,
        growth: rows.growth,
        in_flight: rows.in_flight,
        reservoir: rows.reservoir,
        reselect: rows.reselect.into(),
        redundancy: rows.redundancy,
        block_rows: cache.block_rows(),
        further: rows.most_selected() - rows.selected,
        first_head: number(first_head, "numbers of heads' rows")?,
        second: rows.second,
        second_share: rows.second_share,
    })
}
