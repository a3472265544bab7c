//! Bytes of the slot cache: one anonymous mapping, made once, cut into planes by layer.
//!
//! Plane layout per layer: `[slot][key/value head][row]`, with room for whole tiles of rows. Where the
//! immutable block has a number format of its own, its rows come first, then the ring's from the tile on
//! in which the block ends: row numbers and the places where tiles begin are those of any cache. A page
//! that no row was ever written to costs address space only, but the memory ceiling counts all of it.
//! Pages become large before a long prompt or a second slot is used ([`SlotCache::expect`]), where heads
//! are not larger than such a page. Planes begin at multiples of 64 bytes; so do heads.

#[cfg(test)]
mod tests;

use std::ops::Range;

use memmap2::{Advice, MmapMut};
use weir_abi::{CacheLayout, KEY_TILE, KindEntry};

use crate::RuntimeError;
use crate::team::{LayerPlanes, PlaneStrides};

/// Alignment of planes in bytes: a cache line and the widest vector.
const ALIGN: u64 = 64;

/// Bytes of a large page. A step of many sequences reads and writes a little in each of thousands of
/// heads, and would wait for the processor's address tables more than for memory. Where a head is not
/// larger than such a page, a sequence takes at most what its slot is counted with; where it is, a
/// short sequence would take many times what it needs.
const LARGE_PAGE: u64 = 2 << 20;

/// Share of a slot's rows from which a prompt is worth large pages. One short prompt alone would wait
/// for the clearing of its whole slot: 70 MB for 16 rows of a 1b model with a context of 4,096.
const LONG_PROMPT: u32 = 4;

/// A byte of which codes, halves and floats are numbers of ordinary size: 60, 1.06 and 0.0115.
const ORDINARY: u8 = 0x3c;

/// What pages the cache is asked for in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pages {
    /// As the system gives them; all rows so far belong to this slot, if there are any.
    Small(Option<u32>),
    /// Large ones, from now on.
    Large,
}

/// What the cache must know of a layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerShape {
    /// Heads and row sizes.
    pub kind: KindEntry,
    /// Rows.
    pub layout: CacheLayout,
}

impl LayerShape {
    fn strides(&self) -> Option<PlaneStrides> {
        strides(&self.kind, self.layout.rows.into(), self.layout.block_rows)
    }
}

struct LayerBlock {
    keys: Range<usize>,
    values: Range<usize>,
    strides: PlaneStrides,
    /// Selected positions of all slots, `[slot][kv_head][K]`.
    positions: Range<usize>,
    positions_slot: usize,
}

/// Key and value rows of all layers and slots.
pub struct SlotCache {
    bytes: MmapMut,
    positions: Vec<u32>,
    layers: Vec<LayerBlock>,
    pages: Pages,
    /// Rows of a prompt from which on pages are large; none where they stay as they are.
    long_prompt: Option<u32>,
}

/// Distances in planes of `rows` rows, of which the first `block_rows` have the block's format.
pub(crate) fn strides(kind: &KindEntry, rows: u64, block_rows: u32) -> Option<PlaneStrides> {
    let heads = u64::from(kind.kv_heads);
    // Of a plane that is a block as a whole, nothing is the ring's.
    let rows = match u64::from(block_rows) == rows {
        true => rows / KEY_TILE as u64 * KEY_TILE as u64,
        false => rows.checked_next_multiple_of(KEY_TILE as u64)?,
    };
    let key = head_bytes(rows, block_rows, [kind.block_key_row_bytes, kind.key_row_bytes])?;
    let value = head_bytes(rows, block_rows, [kind.block_value_row_bytes, kind.value_row_bytes])?;
    Some(PlaneStrides {
        key_slot: key.head.checked_mul(heads)?,
        key_head: key.head,
        value_slot: value.head.checked_mul(heads)?,
        value_head: value.head,
        key_ring: key.ring,
        value_ring: value.ring,
        block_rows,
    })
}

/// Bytes of a head's rows, and from its first to where row 0 of the ring's would lie, modulo 2⁶⁴.
struct HeadBytes {
    head: u64,
    ring: u64,
}

/// Those of `rows` rows, a multiple of a tile and those of the block's last tile at least, with rows of so many bytes in the block and the ring.
fn head_bytes(rows: u64, block_rows: u32, [block, ring]: [u32; 2]) -> Option<HeadBytes> {
    let block_rows = u64::from(block_rows);
    // The tile in which they meet lies in both.
    let in_front = block_rows / KEY_TILE as u64 * KEY_TILE as u64;
    let of_block = block_rows.checked_next_multiple_of(KEY_TILE as u64)?;
    let of_block = of_block.checked_mul(block.into())?.checked_next_multiple_of(ALIGN)?;
    let of_ring = rows.checked_sub(in_front)?.checked_mul(ring.into())?;
    Some(HeadBytes {
        head: of_block.checked_add(of_ring)?.checked_next_multiple_of(ALIGN)?,
        ring: of_block.wrapping_sub(in_front.checked_mul(ring.into())?),
    })
}

/// Bytes of one layer's planes and selected positions for one slot.
fn slot_bytes(shape: &LayerShape) -> Option<u64> {
    let strides = shape.strides()?;
    let positions =
        u64::from(shape.kind.kv_heads).checked_mul(shape.layout.selected.into())?.checked_mul(4)?;
    strides.key_slot.checked_add(strides.value_slot)?.checked_add(positions)
}

impl SlotCache {
    /// Bytes that a cache of these layers and `slots` slots takes; `None` if they do not fit into
    /// 64 bits.
    pub fn bytes(layers: &[LayerShape], slots: u32) -> Option<u64> {
        layers.iter().try_fold(0_u64, |sum, shape| {
            sum.checked_add(slot_bytes(shape)?.checked_mul(slots.into())?)
        })
    }

    /// Maps the cache.
    pub fn new(layers: &[LayerShape], slots: u32) -> Result<SlotCache, RuntimeError> {
        let too_large =
            || RuntimeError::Tables("the cache is larger than the address space".into());
        let total = Self::bytes(layers, slots)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(too_large)?;
        let (mut next, mut next_position) = (0_usize, 0_usize);
        let mut blocks = Vec::with_capacity(layers.len());
        for shape in layers {
            let strides = shape.strides().ok_or_else(too_large)?;
            let mut plane = |slot_bytes: u64| {
                let start = next;
                next += (slot_bytes * u64::from(slots)) as usize;
                start..next
            };
            let (keys, values) = (plane(strides.key_slot), plane(strides.value_slot));
            let positions_slot = (shape.kind.kv_heads * shape.layout.selected) as usize;
            let first = next_position;
            next_position += positions_slot * slots as usize;
            blocks.push(LayerBlock {
                keys,
                values,
                strides,
                positions: first..next_position,
                positions_slot,
            });
        }
        let bytes = MmapMut::map_anon(total.max(1)).map_err(|error| {
            RuntimeError::Machine(format!("cannot map {total} bytes for the cache: {error}"))
        })?;
        let widest =
            blocks.iter().map(|block| block.strides.key_head.max(block.strides.value_head));
        let fits = widest.max().is_some_and(|head| head <= LARGE_PAGE);
        let most_rows = layers.iter().map(|shape| shape.layout.rows).max();
        let long_prompt = most_rows.filter(|_| fits).map(|rows| rows / LONG_PROMPT);
        Ok(SlotCache {
            bytes,
            positions: vec![0; next_position],
            layers: blocks,
            pages: Pages::Small(None),
            long_prompt,
        })
    }

    /// Called before rows of a slot are written whose prompt has so many: asks the system for large
    /// pages as soon as they are worth their clearing.
    pub fn expect(&mut self, slot: u32, prompt_rows: u32) {
        let (Some(long_prompt), Pages::Small(first)) = (self.long_prompt, self.pages) else {
            return;
        };
        if prompt_rows < long_prompt && first.is_none_or(|first| first == slot) {
            self.pages = Pages::Small(Some(slot));
            return;
        }
        self.pages = Pages::Large;
        // A kernel without large pages says so, and the cache works all the same.
        let _ = self.bytes.advise(Advice::HugePage);
    }

    /// Planes of a layer.
    pub fn planes(&mut self, layer: usize) -> LayerPlanes<'_> {
        self.planes_and_positions(layer, 0).0
    }

    /// Planes of all layers, in order.
    pub fn all_planes(&mut self) -> impl Iterator<Item = LayerPlanes<'_>> {
        let mut rest = &mut self.bytes[..];
        // Layers lie behind each other from the first byte on.
        self.layers.iter().map(move |block| {
            let (keys, behind) = std::mem::take(&mut rest).split_at_mut(block.keys.len());
            let (values, behind) = behind.split_at_mut(block.values.len());
            rest = behind;
            LayerPlanes { keys, values, strides: block.strides }
        })
    }

    /// Planes of a layer, and the positions of the rows selected in a slot.
    pub fn planes_and_positions(
        &mut self,
        layer: usize,
        slot: u32,
    ) -> (LayerPlanes<'_>, &mut [u32]) {
        let block = &self.layers[layer];
        // Values lie directly behind keys.
        let (keys, values) =
            self.bytes[block.keys.start..block.values.end].split_at_mut(block.keys.len());
        let first = block.positions.start + slot as usize * block.positions_slot;
        let positions = &mut self.positions[first..first + block.positions_slot];
        (LayerPlanes { keys, values, strides: block.strides }, positions)
    }

    /// Fills every slot with the first `rows` rows, whole tiles of them, of another cache's first slot,
    /// over and over. Layers have the same heads and rows of the same bytes; the other cache has no
    /// block with a number format of its own, and where this one has, it holds the same numbers
    /// everywhere.
    pub fn repeat(&mut self, other: &SlotCache, rows: u32, kinds: &[KindEntry]) {
        let rows = rows as usize / KEY_TILE * KEY_TILE;
        for ((own, source), kind) in self.layers.iter().zip(&other.layers).zip(kinds) {
            let (to, from) = (own.strides, source.strides);
            let in_front = u64::from(to.block_rows) / KEY_TILE as u64 * KEY_TILE as u64;
            let ring = |ring: u64, row: u64| ring.wrapping_add(in_front * row);
            let [key_row, value_row] = [kind.key_row_bytes, kind.value_row_bytes].map(u64::from);
            let keys = [to.key_head, from.key_head, key_row, ring(to.key_ring, key_row)];
            let values =
                [to.value_head, from.value_head, value_row, ring(to.value_ring, value_row)];
            for (own, source, sizes) in
                [(&own.keys, &source.keys, keys), (&own.values, &source.values, values)]
            {
                let [to, from, row, ring] = sizes.map(|bytes| bytes as usize);
                let heads = self.bytes[own.clone()].chunks_exact_mut(to).enumerate();
                for (head, place) in heads {
                    let first = source.start + head % kind.kv_heads as usize * from;
                    let known = &other.bytes[first..first + rows * row];
                    let (block, place) = place.split_at_mut(ring);
                    block.fill(ORDINARY);
                    for part in place.chunks_mut(known.len()) {
                        part.copy_from_slice(&known[..part.len()]);
                    }
                }
            }
        }
    }

    /// Whether large pages were asked for.
    #[cfg(test)]
    pub fn has_large_pages(&self) -> bool {
        self.pages == Pages::Large
    }

    /// Overwrites everything, so that a test sees reads of rows that were never written.
    #[cfg(test)]
    pub fn poison(&mut self, byte: u8) {
        self.bytes.fill(byte);
    }
}
