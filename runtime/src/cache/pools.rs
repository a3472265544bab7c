//! Slots that share a block: where the parts of a slot lie in a head's rows.
//!
//! A slot has two parts: the immutable block, which is written once with the prompt, and the ring
//! behind it. The first `blocks` slots have both; of the others only the ring has memory, and their
//! sequences read the block of another slot. So several samples of one prompt take its block once:
//!
//! ```text
//! head   block 0 | ring 0 | block 1 | ring 1 | … | ring of slot `blocks` | next ring | …
//! ```
//!
//! Parts meet at whole tiles of rows. Model code finds row 0 of a slot by one number ([`Pool::number`])
//! times a stride: where every slot has a block that is the slot itself, and slots lie one behind the
//! other. Otherwise it counts equal parts of a tile of the ring's format, of whole cache lines, from the
//! first row of a head on, and a ring without a block has the number that its row 0 would have: its rows
//! keep their numbers, and with them the places where tiles begin and the order of sums.

#[cfg(test)]
mod tests;

use weir_abi::{CacheLayout, KEY_TILE, KindEntry};

use super::placement::{block_end, rows_apart};

/// Rows of a tile.
const TILE: u64 = KEY_TILE as u64;

/// How the slots of one layout lie in a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Slots, and how many of them have a block.
    slots: u32,
    blocks: u32,
    /// Length of a block and of a ring, in strides.
    block: u32,
    ring: u32,
    /// Strides of a tile of the ring's format; 0 where a stride is a slot.
    of_tile: u32,
}

/// Where a sequence's rows lie: numbers of slots in its layout's planes ([`Pool::number`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// Of the slot whose block it reads.
    pub block: u32,
    /// Of its own.
    pub ring: u32,
}

impl Seat {
    /// That of a sequence with a block of its own.
    pub fn own(number: u32) -> Seat {
        Seat { block: number, ring: number }
    }
}

impl Pool {
    /// That of `slots` slots, each with a block.
    pub fn whole(slots: u32) -> Pool {
        Pool { slots, blocks: slots, block: 0, ring: 1, of_tile: 0 }
    }

    /// That of a layout which these kinds of layers have; `None` if numbers do not fit into 32 bits.
    pub fn new(
        layout: &CacheLayout,
        kinds: impl Iterator<Item = KindEntry> + Clone,
        slots: u32,
        blocks: u32,
    ) -> Option<Pool> {
        if blocks == slots {
            return Some(Pool::whole(slots));
        }
        let row_bytes = kinds.clone().flat_map(|kind| ring_bytes(layout, &kind));
        let of_tile = row_bytes.fold(0, common_divisor).max(1);
        let of_block = kinds.map(|kind| block_length(layout, &kind, of_tile.into())).max();
        let of_ring = ring_tiles(layout) * u64::from(of_tile);
        let pool = Pool {
            slots,
            blocks,
            block: of_block.unwrap_or(0).try_into().ok()?,
            ring: of_ring.try_into().ok()?,
            of_tile,
        };
        u32::try_from(pool.length()?).ok().map(|_| pool)
    }

    /// Whether every slot has a block.
    pub fn is_whole(&self) -> bool {
        self.blocks == self.slots
    }

    /// Strides from row 0 of the first slot to row 0 of this one.
    pub fn number(&self, slot: u32) -> u32 {
        if slot < self.blocks {
            slot * (self.block + self.ring)
        } else {
            // At least one slot with a block lies in front of it.
            self.blocks * (self.block + self.ring) + (slot - self.blocks) * self.ring - self.block
        }
    }

    /// Strides of all slots.
    pub fn length(&self) -> Option<u64> {
        let [slots, blocks, block, ring] =
            [self.slots, self.blocks, self.block, self.ring].map(u64::from);
        blocks.checked_mul(block)?.checked_add(slots.checked_mul(ring)?)
    }

    /// Bytes of a stride where rows of the ring's format have so many; `None` where a stride is a slot.
    pub fn stride(&self, row_bytes: u32) -> Option<u64> {
        (u64::from(row_bytes) * TILE).checked_div(self.of_tile.into())
    }

    /// From the rows of the block in a slot to where row 0 of those of the ring's format would lie, in
    /// strides modulo 2⁶⁴, if the block ends at row `block_rows`.
    pub fn ring_at(&self, block_rows: u32) -> u64 {
        // Behind the block's memory lies the tile in which it ends.
        let in_front = u64::from(block_rows) / TILE * u64::from(self.of_tile);
        u64::from(self.block).wrapping_sub(in_front)
    }

    /// Strides of a slot with a block.
    pub fn slot_length(&self) -> u64 {
        u64::from(self.block) + u64::from(self.ring)
    }
}

/// Bytes of a key and of a value of the rows behind the block, which have the block's format where nothing
/// else is kept.
pub(super) fn ring_bytes(layout: &CacheLayout, kind: &KindEntry) -> [u32; 2] {
    match layout.block_rows == layout.rows {
        true => [kind.block_key_row_bytes, kind.block_value_row_bytes],
        false => [kind.key_row_bytes, kind.value_row_bytes],
    }
}

/// Strides that a block takes, of which a tile of the ring's format has `of_tile`: its whole tiles if rows
/// have one format, else all of it in its own.
fn block_length(layout: &CacheLayout, kind: &KindEntry, of_tile: u64) -> u64 {
    let apart = rows_apart(layout);
    if apart == 0 {
        return u64::from(block_end(layout)) / TILE * of_tile;
    }
    let length = u64::from(apart).div_ceil(TILE) * of_tile;
    let room = |block: u32, ring: u32| (length * u64::from(block)).div_ceil(u64::from(ring).max(1));
    room(kind.block_key_row_bytes, kind.key_row_bytes)
        .max(room(kind.block_value_row_bytes, kind.value_row_bytes))
}

fn common_divisor(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { common_divisor(other, one % other) }
}

/// Tiles of a ring, from the one on in which the block ends.
fn ring_tiles(layout: &CacheLayout) -> u64 {
    u64::from(layout.rows).div_ceil(TILE) - u64::from(block_end(layout)) / TILE
}
