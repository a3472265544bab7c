//! Rows that only some heads of a layer have.
//!
//! Heads have the same rows up to a number that all of them have, and those lie as in any cache. What
//! more a head selects lies in tiles of its own behind all heads of the slot ([`HeadRows`]), with row
//! numbers that lead there from its own rows: so only the range that begins at [`FURTHER`] differs from
//! head to head, in its place and its length, and a head's sums follow its own rows alone. A head
//! without such rows reads no row of that range.

use std::mem::offset_of;

use weir_abi::{FURTHER, HeadRows, LayerCall};

use super::{CacheShape, RangeOfRow, layer_field, range_of_row};
use crate::emit::{Body, IntCC, Value};

/// Numbers of a head's entry, each an `i64`.
pub(in crate::kernels) struct RowsOfHead {
    /// Its first row.
    pub(in crate::kernels) first: Value,
    /// Its rows.
    pub(in crate::kernels) rows: Value,
    /// Place of the first position of the rows selected for it.
    pub(in crate::kernels) positions: Value,
}

impl RowsOfHead {
    /// The entry of a head in a table.
    pub(in crate::kernels) fn load(b: &mut Body<'_>, heads: Value, head: Value) -> RowsOfHead {
        let entry = b.element(heads, head, size_of::<HeadRows>() as i64);
        let [first, rows, positions] = [
            offset_of!(HeadRows, first),
            offset_of!(HeadRows, rows),
            offset_of!(HeadRows, positions),
        ]
        .map(|field| b.load_count(entry, field as i32));
        RowsOfHead { first, rows, positions }
    }
}

/// Range number `range` of a row as a key/value head reads it.
pub(super) fn range_of_head(
    b: &mut Body<'_>,
    cache: &CacheShape,
    layer: Value,
    [span, range]: [Value; 2],
    head: Value,
) -> RangeOfRow {
    let common = range_of_row(b, span, range);
    if !cache.by_head {
        return common;
    }
    let RangeOfRow { slot, first, rows } = common;
    let differs = b.compare_const(IntCC::Equal, first, i64::from(FURTHER));
    let own = b.if_else(
        differs,
        |b| {
            let heads = layer_field(b, layer, offset_of!(LayerCall, heads));
            let own = RowsOfHead::load(b, heads, head);
            vec![own.first, b.min(own.rows, rows)]
        },
        |_| vec![first, rows],
    );
    RangeOfRow { slot, first: own[0], rows: own[1] }
}
