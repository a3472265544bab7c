//! Structures that kernels read, as bytes in which pointers are addresses of the instruction interpreter.

use std::mem::{offset_of, size_of};

use weir_abi::{CacheRange, LayerCall, RowSpans};

/// Writes a field of a structure that lies in bytes.
pub(crate) fn put<const N: usize>(place: &mut [u8], at: usize, field: [u8; N]) {
    place[at..at + N].copy_from_slice(&field);
}

/// What rows of a step write and read.
pub(crate) fn bytes_of_spans(spans: &[RowSpans]) -> Vec<u8> {
    let mut all = vec![0; size_of_val(spans)];
    for (span, place) in spans.iter().zip(all.chunks_mut(size_of::<RowSpans>())) {
        for (at, number) in [
            (offset_of!(RowSpans, write_slot), span.write_slot),
            (offset_of!(RowSpans, write_row), span.write_row),
            (offset_of!(RowSpans, range_count), span.range_count),
        ] {
            put(place, at, number.to_le_bytes());
        }
        for (index, range) in span.ranges.iter().enumerate() {
            let at = offset_of!(RowSpans, ranges) + index * size_of::<CacheRange>();
            put(place, at + offset_of!(CacheRange, slot), range.slot.to_le_bytes());
            put(place, at + offset_of!(CacheRange, first), range.first.to_le_bytes());
            put(place, at + offset_of!(CacheRange, rows), range.rows.to_le_bytes());
        }
    }
    all
}

/// A layer's call without observed rows, whose spans are at an address.
pub(crate) fn bytes_of_layer(layer: &LayerCall, spans: u64) -> Vec<u8> {
    let mut place = vec![0; size_of::<LayerCall>()];
    for (at, word) in [
        (offset_of!(LayerCall, keys), layer.keys.addr() as u64),
        (offset_of!(LayerCall, values), layer.values.addr() as u64),
        (offset_of!(LayerCall, key_slot_stride), layer.key_slot_stride),
        (offset_of!(LayerCall, key_head_stride), layer.key_head_stride),
        (offset_of!(LayerCall, value_slot_stride), layer.value_slot_stride),
        (offset_of!(LayerCall, value_head_stride), layer.value_head_stride),
        (offset_of!(LayerCall, spans), spans),
        (offset_of!(LayerCall, key_ring), layer.key_ring),
        (offset_of!(LayerCall, value_ring), layer.value_ring),
    ] {
        put(&mut place, at, word.to_le_bytes());
    }
    put(&mut place, offset_of!(LayerCall, block_rows), layer.block_rows.to_le_bytes());
    place
}
