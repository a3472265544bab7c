//! What is asked for from memory while a tile is computed.
//!
//! Rows of short ranges come from another key/value head, and so from another place in memory, after
//! a few tiles: hardware that follows a stream of addresses has to begin anew each time. So while a
//! tile of a unit is computed, the tile at the same place of the unit that its thread takes next is
//! asked for, as many rows of it as are computed. Of a long range it is the next tile of the same
//! range, and behind its last one the first of the unit that follows: what a whole range holds would
//! not stay in the nearest caches until it is needed.
//!
//! Nothing here changes a result; rows that are asked for in vain (a next range that is shorter) lie
//! in the cache all the same.

use std::mem::offset_of;

use weir_abi::RowSpans;

use super::{Part, RangeOfRow, SPAN, TILE, Unit, Units, Walk};
use crate::emit::{Body, InstBuilder, IntCC, Value};

/// Bytes of rows of a range whose successor is asked for as a whole: a part of the second cache.
const SHORT: usize = 256 << 10;

/// The unit that a thread takes after another one: a row and a part of its heads.
#[derive(Clone, Copy)]
pub(super) struct Next {
    pub(super) row: Value,
    pub(super) part: Value,
}

/// The rows of a range that is walked next.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// Where its rows lie, and how far its tiles lie from the places of the one walked now.
    part: Part,
    moved: Value,
    /// Place behind the last row.
    end: Value,
    /// Whether the range walked now is long, and rows of its tiles.
    is_long: Value,
    tiles: Value,
}

/// Where rows are asked for.
pub(super) struct Place {
    pub(super) keys: Value,
    pub(super) values: Value,
}

impl Unit<'_> {
    /// The unit with this number, which a thread most likely takes next; the last one if it is none.
    pub(super) fn next(&self, b: &mut Body<'_>, units: &Units, number: Value) -> Next {
        let last = b.add_const(units.count, -1);
        let number = b.min(number, last);
        let [row, _, part] = self.place(b, units, number);
        Next { row, part }
    }
}

/// Bytes of a row of one head, keys and values.
fn row_bytes(unit: &Unit<'_>) -> usize {
    unit.spec.cache.key_bytes() + unit.spec.cache.value_bytes()
}

impl Ahead {
    /// What to ask for while range number `range` is walked, from the tile at `first` to `end`.
    pub(super) fn of(
        b: &mut Body<'_>,
        unit: &Unit<'_>,
        next: Next,
        range: Value,
        [first, end]: [Value; 2],
    ) -> Ahead {
        let span = b.element(unit.spans, next.row, SPAN);
        let ranges = b.load_count(span, offset_of!(RowSpans, range_count) as i32);
        let exists = b.compare(IntCC::SignedLessThan, range, ranges);
        let zero = b.int(0);
        let range = b.select(exists, range, zero);
        let RangeOfRow { slot, first: next_first, rows } = unit.range(b, [span, range], next.part);
        let next_end = b.add(next_first, rows);
        let next_tile = b.ins().band_imm_s(next_first, -TILE);
        let moved = b.sub(next_tile, first);
        let head = unit.kv_head(b, next.part);
        let part = Part::of(b, &unit.spec.cache, unit.layer, next_first, [slot, head]);
        let length = b.sub(end, first);
        let tiles = b.add_const(length, TILE - 1);
        let short = (SHORT / row_bytes(unit)) as i64;
        Ahead {
            part,
            moved,
            end: b.sub(next_end, moved),
            is_long: b.compare_const(IntCC::SignedGreaterThan, length, short),
            tiles: b.ins().band_imm_s(tiles, -TILE),
        }
    }

    /// What to ask for while the tile at `place` is computed; itself where nothing follows.
    pub(super) fn place(&self, b: &mut Body<'_>, walk: &Walk, place: Value) -> Place {
        let behind = b.add_const(place, TILE);
        let goes_on = b.compare(IntCC::SignedLessThan, behind, walk.end);
        let is_own = b.ins().band(self.is_long, goes_on);
        // What would lie behind the range lies in the next one, as far from its begin.
        let over = b.sub(behind, self.tiles);
        let place_of_long = b.select(goes_on, behind, over);
        let place_of_next = b.select(self.is_long, place_of_long, place);
        let exists = b.compare(IntCC::SignedLessThan, place_of_next, self.end);
        let exists = b.ins().bor(exists, is_own);
        let place_of_other = b.add(place_of_next, self.moved);
        let parts = [(walk.part.keys, self.part.keys), (walk.part.values, self.part.values)];
        let [keys, values] = parts.map(|(own, next)| {
            let own_place = own.row(b, place_of_next);
            let next = next.row(b, place_of_other);
            let next = b.select(is_own, own_place, next);
            b.select(exists, next, own_place)
        });
        Place { keys, values }
    }
}
