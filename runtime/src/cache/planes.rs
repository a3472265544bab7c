//! Bytes of the slot cache: one anonymous mapping, made once, cut into planes by layer.
//!
//! Plane layout per layer: `[slot][key/value head][row]`, with room for whole tiles of rows, behind
//! which lie the rows that only some heads have ([`super::heads`]), and
//! `[key/value head][slot][row]` where some slots have no block of their own ([`Pool`]). Where the
//! immutable block has a number format of its own, its rows come first, then the ring's from the tile on
//! in which the block ends: row numbers and the places where tiles begin are those of any cache. A page
//! that no row was ever written to costs address space only, but the memory ceiling counts all of it.
//! Pages become large before a long prompt or a second slot is used ([`SlotCache::expect`]), where heads
//! are not larger than such a page. Planes begin at multiples of 64 bytes; so do heads.

#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use memmap2::{Advice, MmapMut};
use weir_abi::{CacheLayout, HeadRows, KEY_TILE, KindEntry};

use super::heads::Further;
use super::placement::{Placement, block_end, rows_apart};
use super::pools::{Pool, Seat, ring_bytes};
use crate::RuntimeError;
use crate::machine::LARGE_PAGE;
use crate::team::{LayerPlanes, PlaneStrides};

/// Alignment of planes in bytes: a cache line and the widest vector.
const ALIGN: u64 = 64;

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
#[derive(Clone, Debug)]
pub struct LayerShape {
    /// Heads and row sizes.
    pub kind: KindEntry,
    /// Rows.
    pub layout: CacheLayout,
    /// K of each key/value head; nothing where all have the layout's.
    pub by_head: Arc<[u32]>,
}

/// How many sequences a cache has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotCount {
    /// Sequences.
    pub slots: u32,
    /// How many of them can have a block of their own; at least one.
    pub blocks: u32,
}

impl SlotCount {
    /// That of so many sequences, each with a block.
    pub fn whole(slots: u32) -> SlotCount {
        SlotCount { slots, blocks: slots }
    }
}

impl LayerShape {
    /// A layer whose heads all have the layout's rows.
    pub fn alike(kind: KindEntry, layout: CacheLayout) -> LayerShape {
        LayerShape { kind, layout, by_head: Arc::default() }
    }

    fn strides(&self, further: &Further) -> Option<PlaneStrides> {
        let rows = strides(&self.kind, self.layout.rows.into(), self.layout.block_rows)?;
        let [key, value] = ring_bytes(&self.layout, &self.kind).map(u64::from);
        Some(PlaneStrides {
            key_slot: rows.key_slot.checked_add(further.rows.checked_mul(key)?)?,
            value_slot: rows.value_slot.checked_add(further.rows.checked_mul(value)?)?,
            ..rows
        })
    }

    /// Distances in planes of a pool; `None` also where heads have different rows and some slots no block.
    fn pooled(&self, pool: &Pool, further: &Further) -> Option<PlaneStrides> {
        let LayerShape { kind, layout, .. } = self;
        let [Some(key_slot), Some(value_slot)] =
            ring_bytes(layout, kind).map(|bytes| pool.stride(bytes))
        else {
            return self.strides(further);
        };
        if !further.heads.is_empty() {
            return None;
        }
        let ring = |stride: u64| match rows_apart(layout) {
            0 => 0,
            rows => pool.ring_at(rows).wrapping_mul(stride),
        };
        Some(PlaneStrides {
            key_slot,
            key_head: key_slot.checked_mul(pool.length()?)?,
            value_slot,
            value_head: value_slot.checked_mul(pool.length()?)?,
            key_ring: ring(key_slot),
            value_ring: ring(value_slot),
            block_rows: layout.block_rows,
        })
    }
}

struct LayerBlock {
    keys: Range<usize>,
    values: Range<usize>,
    strides: PlaneStrides,
    pool: Pool,
    further: Further,
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

/// Those of `rows` rows, whole tiles or as many as the block's whole tiles, with rows of so many bytes in
/// the block and the ring.
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

/// How the slots of every layer lie in its planes: alike in all layers of a layout.
fn pools(layers: &[LayerShape], count: SlotCount) -> Option<Vec<Pool>> {
    let SlotCount { slots, blocks } = count;
    let pool = |shape: &LayerShape| {
        let alike = layers.iter().filter(|other| other.layout == shape.layout);
        Pool::new(&shape.layout, alike.map(|other| other.kind), slots, blocks)
    };
    layers.iter().map(pool).collect()
}

/// Bytes of a layer's planes of keys and of values.
fn plane_bytes(pool: &Pool, strides: &PlaneStrides, heads: u32) -> Option<[u64; 2]> {
    let (key, value, count) = if pool.is_whole() {
        (strides.key_slot, strides.value_slot, pool.length()?)
    } else {
        (strides.key_head, strides.value_head, heads.into())
    };
    Some([key.checked_mul(count)?, value.checked_mul(count)?])
}

/// Where whole tiles of these rows lie behind row 0 of a slot's head, in bytes: those of the block's
/// format, and those of the ring's. Rows have so many bytes in the one and the other.
fn parts_of_head(
    rows: &Range<u32>,
    block_rows: u32,
    ring: u64,
    row_bytes: [u32; 2],
) -> [Range<usize>; 2] {
    let tiles = |first: u32, end: u32, row: u32, before: u64| {
        let first = first / KEY_TILE as u32 * KEY_TILE as u32;
        let end = u64::from(end).next_multiple_of(KEY_TILE as u64);
        let place = |row_number: u64| before.wrapping_add(row_number * u64::from(row)) as usize;
        place(first.into())..place(end)
    };
    let in_front = rows.end.min(block_rows);
    let block =
        if rows.start < in_front { tiles(rows.start, in_front, row_bytes[0], 0) } else { 0..0 };
    let behind = rows.start.max(block_rows);
    let ring = if behind < rows.end { tiles(behind, rows.end, row_bytes[1], ring) } else { 0..0 };
    [block, ring]
}

impl SlotCache {
    /// Bytes that a cache of these layers takes; `None` if they do not fit into 64 bits.
    pub fn bytes(layers: &[LayerShape], count: SlotCount) -> Option<u64> {
        layers.iter().zip(pools(layers, count)?).try_fold(0_u64, |sum, (shape, pool)| {
            let strides = shape.pooled(&pool, &Further::of(shape)?)?;
            let [keys, values] = plane_bytes(&pool, &strides, shape.kind.kv_heads)?;
            let positions = shape.positions()?.0 as u64;
            let positions = positions.checked_mul(u64::from(count.blocks) * 4)?;
            sum.checked_add(keys)?.checked_add(values)?.checked_add(positions)
        })
    }

    /// Maps the cache.
    pub fn new(layers: &[LayerShape], count: SlotCount) -> Result<SlotCache, RuntimeError> {
        let too_large =
            || RuntimeError::Tables("the cache is larger than the address space".into());
        let total = Self::bytes(layers, count)
            .and_then(|bytes| usize::try_from(bytes).ok())
            .ok_or_else(too_large)?;
        let (mut next, mut next_position) = (0_usize, 0_usize);
        let mut blocks = Vec::with_capacity(layers.len());
        for (shape, pool) in layers.iter().zip(pools(layers, count).ok_or_else(too_large)?) {
            let further = Further::of(shape).ok_or_else(too_large)?;
            let strides = shape.pooled(&pool, &further).ok_or_else(too_large)?;
            let bytes = plane_bytes(&pool, &strides, shape.kind.kv_heads).ok_or_else(too_large)?;
            let [keys, values] = bytes.map(|bytes| {
                let start = next;
                next += bytes as usize;
                start..next
            });
            let positions_slot = shape.positions().ok_or_else(too_large)?.0;
            let first = next_position;
            next_position += positions_slot * count.blocks as usize;
            blocks.push(LayerBlock {
                keys,
                values,
                strides,
                pool,
                further,
                positions: first..next_position,
                positions_slot,
            });
        }
        let bytes = MmapMut::map_anon(total.max(1)).map_err(|error| {
            RuntimeError::Machine(format!("cannot map {total} bytes for the cache: {error}"))
        })?;
        // Rows of a head of one slot lie together.
        let widest = blocks.iter().map(|block| {
            let PlaneStrides { key_head, value_head, key_slot, value_slot, .. } = block.strides;
            match block.pool.is_whole() {
                true => key_head.max(value_head),
                false => key_slot.max(value_slot).saturating_mul(block.pool.slot_length()),
            }
        });
        let fits = widest.max().is_some_and(|head| head <= LARGE_PAGE as u64);
        // A step of many sequences reads and writes a little in each of thousands of heads, and would wait
        // for the processor's address tables more than for memory. Where a head is not larger than a large
        // page, a sequence takes at most what its slot is counted with; where it is, a short sequence would
        // take many times what it needs.
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
            LayerPlanes { keys, values, strides: block.strides, heads: &block.further.heads }
        })
    }

    /// The number of a slot in a layer's planes.
    pub fn number(&self, layer: usize, slot: u32) -> u32 {
        self.layers[layer].pool.number(slot)
    }

    /// Where a layer's rows lie of a sequence in `slot` that reads the block of `block`.
    pub fn seat(&self, layer: usize, slot: u32, block: u32) -> Seat {
        let pool = &self.layers[layer].pool;
        Seat { block: pool.number(block), ring: pool.number(slot) }
    }

    /// Copies what a prompt of `prompt_rows` rows has left in slot `from` to slot `to`, as the layouts
    /// of these layers keep it: all of it, or without the rows of the block that `to` is to share.
    pub fn copy(
        &mut self,
        layers: &[LayerShape],
        prompt_rows: u32,
        [from, to]: [u32; 2],
        shares: bool,
    ) {
        for (block, shape) in self.layers.iter().zip(layers) {
            let LayerShape { kind, layout, .. } = shape;
            let first = if shares { block_end(layout) } else { 0 };
            let placement = Placement::new(layout, prompt_rows);
            let rows = first..placement.written(prompt_rows);
            let [from_number, to_number] = [from, to].map(|slot| block.pool.number(slot) as usize);
            let PlaneStrides { key_head, key_slot, key_ring, block_rows, .. } = block.strides;
            let PlaneStrides { value_head, value_slot, value_ring, .. } = block.strides;
            let keys = [kind.block_key_row_bytes, kind.key_row_bytes];
            let values = [kind.block_value_row_bytes, kind.value_row_bytes];
            for (plane, head_bytes, slot_bytes, ring, row_bytes) in [
                (&block.keys, key_head, key_slot, key_ring, keys),
                (&block.values, value_head, value_slot, value_ring, values),
            ] {
                let parts = parts_of_head(&rows, block_rows, ring, row_bytes);
                for head in 0..kind.kv_heads as usize {
                    let start = plane.start + head * head_bytes as usize;
                    let [from, to] =
                        [from_number, to_number].map(|number| start + number * slot_bytes as usize);
                    for part in &parts {
                        let bytes = from + part.start..from + part.end;
                        self.bytes.copy_within(bytes, to + part.start);
                    }
                }
                if !shares && placement.has_further() {
                    let further = (kind.kv_heads as u64 * head_bytes) as usize..slot_bytes as usize;
                    let [from, to] = [from_number, to_number]
                        .map(|number| plane.start + number * slot_bytes as usize);
                    let bytes = from + further.start..from + further.end;
                    self.bytes.copy_within(bytes, to + further.start);
                }
            }
            if !shares {
                let [from, to] = [from, to]
                    .map(|slot| block.positions.start + slot as usize * block.positions_slot);
                self.positions.copy_within(from..from + block.positions_slot, to);
            }
        }
    }

    /// Planes of a layer, and the positions of the rows selected in a slot that has a block.
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
        let heads: &[HeadRows] = &block.further.heads;
        (LayerPlanes { keys, values, strides: block.strides, heads }, positions)
    }

    /// Fills every slot, each with a block, with the first `rows` rows, whole tiles of them, of another
    /// cache's first slot, over and over. Layers have the same heads and rows of the same bytes; the
    /// other cache has no block with a number format of its own, and where this one has, it holds the
    /// same numbers everywhere.
    pub fn repeat(&mut self, other: &SlotCache, rows: u32, kinds: &[KindEntry]) {
        let rows = rows as usize / KEY_TILE * KEY_TILE;
        for ((own, source), kind) in self.layers.iter().zip(&other.layers).zip(kinds) {
            assert!(own.pool.is_whole(), "every slot has a block");
            let (to, from) = (own.strides, source.strides);
            let in_front = u64::from(to.block_rows) / KEY_TILE as u64 * KEY_TILE as u64;
            let ring = |ring: u64, row: u64| ring.wrapping_add(in_front * row);
            let [key_row, value_row] = [kind.key_row_bytes, kind.value_row_bytes].map(u64::from);
            let keys =
                [to.key_slot, to.key_head, from.key_head, key_row, ring(to.key_ring, key_row)];
            let values = [
                to.value_slot,
                to.value_head,
                from.value_head,
                value_row,
                ring(to.value_ring, value_row),
            ];
            for (own, source, sizes) in
                [(&own.keys, &source.keys, keys), (&own.values, &source.values, values)]
            {
                let [slot, to, from, row, ring] = sizes.map(|bytes| bytes as usize);
                for slot in self.bytes[own.clone()].chunks_exact_mut(slot) {
                    // What lies behind the heads' common rows is filled as more heads would be.
                    for (head, place) in slot.chunks_mut(to).enumerate() {
                        let first = source.start + head % kind.kv_heads as usize * from;
                        let known = &other.bytes[first..first + rows * row];
                        let (block, place) = place.split_at_mut(ring.min(place.len()));
                        block.fill(ORDINARY);
                        for part in place.chunks_mut(known.len()) {
                            part.copy_from_slice(&known[..part.len()]);
                        }
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
