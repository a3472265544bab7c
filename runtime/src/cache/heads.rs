//! Where rows lie that only some heads of a layer have.
//!
//! All heads of a slot have S + K + R rows with the least K, one head behind the other. What more is
//! selected for a head has tiles of its own behind the last of them:
//!
//! ```text
//! slot   rows of head 0 | rows of head 1 | … | further rows of head 0 | further rows of head 1 | …
//! ```
//!
//! Model code finds them by the row number that they would have behind their own head's first row, which
//! is a multiple of a tile and the same in the planes of keys and of values, for rows of a layer have one
//! number format.

#[cfg(test)]
mod tests;

use std::ops::Range;

use weir_abi::{FURTHER, HeadRows, KEY_TILE};

use super::planes::LayerShape;

/// Rows of a tile.
const TILE: u64 = KEY_TILE as u64;

/// The further rows of a slot's heads.
#[derive(Clone, Debug, Default)]
pub(super) struct Further {
    /// Those of each head; none where heads have the same rows.
    pub heads: Vec<HeadRows>,
    /// Rows of whole tiles for all of them.
    pub rows: u64,
}

impl Further {
    /// Those of a layer; `None` if numbers do not fit into their bits.
    pub fn of(layer: &LayerShape) -> Option<Further> {
        let LayerShape { layout, by_head, .. } = layer;
        let of_head = u64::from(layout.rows).next_multiple_of(TILE);
        let mut behind = (by_head.len() as u64).checked_mul(of_head)?;
        let mut further = Further::default();
        let mut positions = 0_u32;
        for selected in by_head.iter() {
            let rows = selected.checked_sub(layout.selected)?;
            let first = u32::try_from(behind).ok()?;
            if first.checked_add(rows)? >= FURTHER {
                return None;
            }
            further.heads.push(HeadRows { first, rows, positions });
            let tiles = u64::from(rows).next_multiple_of(TILE);
            further.rows += tiles;
            // Counted from the first row of the next head.
            behind = (behind + tiles).checked_sub(of_head)?;
            positions = positions.checked_add(*selected)?;
        }
        Some(further)
    }
}

impl LayerShape {
    /// Positions of the rows selected in a slot, in values, and those of each head among them.
    pub(crate) fn positions(&self) -> Option<(usize, Vec<Range<usize>>)> {
        let mut end = 0_usize;
        let ranges = (0..self.kind.kv_heads as usize).map(|head| {
            let selected = self.by_head.get(head).copied().unwrap_or(self.layout.selected);
            let start = end;
            end = end.checked_add(selected as usize)?;
            Some(start..end)
        });
        let ranges = ranges.collect::<Option<Vec<_>>>()?;
        Some((end, ranges))
    }
}
