//! The immutable block where it has a number format of its own: where its rows lie, and how rows come
//! to it and from there.
//!
//! Rows keep their numbers whichever part they lie in, and tiles begin at multiples of their length in
//! both; of the ring's rows those in front of the block's end have no memory. Attention computes in the
//! ring's format, and [unpacks](super::unpack) tiles of the block to it.
//!
//! A row that comes to the block is rounded from what it is in the ring's format: codes of int8 become
//! the nearest levels, with the scale for the same largest magnitude, which are the levels of the row
//! that these codes were made of; floats are rounded as ever, but those that are levels already stay
//! what they are (`weir_ir::interpret::codes`). A row that leaves it is what attention reads: levels as
//! codes of int8 with their scale, or code times scale as a number of the ring's.

use std::mem::offset_of;

use weir_abi::LayerCall;
use weir_ir::interpret::codes::LEVELS;

use super::cache::{CacheShape, CacheType, GROUP, KEY_OFFSET, QUAD, RowPlace};
use super::{codes, layer_field, plane_rows, unpack};
use crate::emit::{Body, FLOAT, INT, InstBuilder, IntCC, Lanes, Value, types};

/// Rows of a head in a part of a plane.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct PartRows {
    /// Where row 0 of the part's format would lie.
    pub(in crate::kernels) start: Value,
    bytes: RowBytes,
}

/// Bytes of a row.
#[derive(Clone, Copy)]
enum RowBytes {
    /// Of all rows.
    Same(usize),
    /// Of the part's.
    OfPart(Value),
}

impl PartRows {
    /// Where a row lies, or its block begins if it is the first of one.
    pub(in crate::kernels) fn row(&self, b: &mut Body<'_>, row: Value) -> Value {
        match self.bytes {
            RowBytes::Same(bytes) => b.element(self.start, row, bytes as i64),
            RowBytes::OfPart(bytes) => {
                let before = b.mul(row, bytes);
                b.add(self.start, before)
            }
        }
    }
}

/// The part of a slot and head in which the rows of a range lie.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Part {
    pub(in crate::kernels) keys: PartRows,
    pub(in crate::kernels) values: PartRows,
    /// Whether it is the block, where that has its own format.
    pub(in crate::kernels) is_block: Option<Value>,
}

impl Part {
    /// The part of a range that begins at row `first`.
    pub(in crate::kernels) fn of(
        b: &mut Body<'_>,
        cache: &CacheShape,
        layer: Value,
        first: Value,
        [slot, head]: [Value; 2],
    ) -> Part {
        let is_block = cache.block.map(|_| is_block(b, layer, first));
        let [keys, values] = [true, false].map(|is_key| {
            let start = plane_rows(b, layer, !is_key, slot, head);
            let (Some(is_block), Some(block)) = (is_block, cache.of_block()) else {
                return PartRows { start, bytes: RowBytes::Same(cache.bytes_of_row(is_key)) };
            };
            let [of_block, of_ring] =
                [&block, cache].map(|part| b.int(part.bytes_of_row(is_key) as i64));
            let bytes = RowBytes::OfPart(b.select(is_block, of_block, of_ring));
            let zero = b.int(0);
            let ring = layer_field(b, layer, ring_field(is_key));
            let moved = b.select(is_block, zero, ring);
            PartRows { start: b.add(start, moved), bytes }
        });
        Part { keys, values, is_block }
    }
}

/// Whether a row lies in the block of a layer's planes.
pub(in crate::kernels) fn is_block(b: &mut Body<'_>, layer: Value, row: Value) -> Value {
    let rows = b.load_count(layer, offset_of!(LayerCall, block_rows) as i32);
    b.compare(IntCC::SignedLessThan, row, rows)
}

/// The field that says how far the ring's rows lie from the block's.
fn ring_field(is_key: bool) -> usize {
    match is_key {
        true => offset_of!(LayerCall, key_ring),
        false => offset_of!(LayerCall, value_ring),
    }
}

/// Start of the ring's rows of a slot and head in a plane of the layer.
pub(in crate::kernels) fn ring_start(
    b: &mut Body<'_>,
    layer: Value,
    values: bool,
    slot: Value,
    head: Value,
) -> Value {
    let start = plane_rows(b, layer, values, slot, head);
    let ring = layer_field(b, layer, ring_field(!values));
    b.add(start, ring)
}

/// Rows that move between the parts of a cache whose block has its own format.
pub(in crate::kernels) struct Moves {
    block: CacheShape,
    ring: CacheShape,
    /// Floats of a row.
    aside: Value,
}

impl Moves {
    /// Those of a cache; nothing where all rows have one format.
    pub(in crate::kernels) fn of(b: &mut Body<'_>, cache: &CacheShape) -> Option<Moves> {
        let block = cache.of_block()?;
        let aside = b.stack(cache.key_width.max(cache.value_width) as u32 * 4);
        Some(Moves { block, ring: cache.of_ring(), aside })
    }

    /// Where a row lies in the block that begins at `plane`.
    pub(in crate::kernels) fn block_row(
        &self,
        b: &mut Body<'_>,
        is_key: bool,
        plane: Value,
        row: Value,
    ) -> RowPlace {
        self.block.place(b, is_key, plane, row)
    }

    fn width(&self, is_key: bool) -> i64 {
        if is_key { self.ring.key_width as i64 } else { self.ring.value_width as i64 }
    }

    /// Copies a row of the block to a place of the ring's format.
    pub(in crate::kernels) fn widen(
        &self,
        b: &mut Body<'_>,
        is_key: bool,
        from: &RowPlace,
        to: &RowPlace,
    ) {
        let Some(scale) = from.scale else { return };
        let scale = match self.block.number {
            CacheType::Int4 => {
                let largest = b.load_f16(Lanes::One, scale, 0);
                let unit = b.float(unpack::SCALE);
                b.fmul(largest, unit)
            }
            _ => b.load(FLOAT, scale, 0),
        };
        if let Some(to) = to.scale {
            b.store(scale, to, 0);
        }
        b.for_count(self.width(is_key), 1, |b, index| {
            let code = code_of(b, self.block.number, is_key, from, index);
            let place = to.number(b, index);
            if to.scale.is_some() {
                let code = b.add_const(code, if is_key { i64::from(KEY_OFFSET) } else { 0 });
                return b.store8(code, place, 0);
            }
            let code = b.to_float(code);
            let number = b.fmul(code, scale);
            self.ring.number.store(b, number, place, 0);
        });
    }

    /// Rounds a row of the ring's format to a place of the block.
    pub(in crate::kernels) fn narrow(
        &self,
        b: &mut Body<'_>,
        is_key: bool,
        from: &RowPlace,
        to: &RowPlace,
    ) {
        b.for_count(self.width(is_key), 1, |b, index| {
            let number = match from.scale {
                Some(_) => {
                    let code = code_of(b, self.ring.number, is_key, from, index);
                    b.to_float(code)
                }
                None => {
                    let place = from.number(b, index);
                    self.ring.number.load(b, Lanes::One, place, 0)
                }
            };
            let place = b.element(self.aside, index, 4);
            b.store(number, place, 0);
        });
        match from.scale {
            Some(scale) => {
                let scale = b.load(FLOAT, scale, 0);
                codes::write_levels_of_codes(b, self.width(is_key) as usize, self.aside, scale, to);
            }
            None if self.block.number == CacheType::Int4 => {
                codes::write_levels_again(b, self.width(is_key) as usize, self.aside, to);
            }
            None => codes::write(b, &self.block, is_key, self.aside, to),
        }
    }
}

/// Code number `index` of a row of codes; of int4 the level that it names.
fn code_of(
    b: &mut Body<'_>,
    number: CacheType,
    is_key: bool,
    row: &RowPlace,
    index: Value,
) -> Value {
    if number != CacheType::Int4 {
        let place = row.number(b, index);
        let code = b.load(types::I8, place, 0);
        if !is_key {
            return b.ins().sextend(INT, code);
        }
        let code = b.ins().uextend(INT, code);
        return b.ins().iadd_imm_s(code, -i64::from(KEY_OFFSET));
    }
    let place = b.ins().band_imm_s(index, GROUP as i64 - 1);
    let group = b.sub(index, place);
    let group = b.ins().ushr_imm_u(group, 1);
    let in_quad = b.ins().band_imm_s(place, QUAD as i64 - 1);
    let byte = b.add(group, in_quad);
    let byte = row.number(b, byte);
    let byte = b.load(types::I8, byte, 0);
    let byte = b.ins().uextend(INT, byte);
    let upper = b.sub(place, in_quad);
    let upper = b.ins().ireduce(INT, upper);
    let level = b.ins().ushr(byte, upper);
    let level = b.ins().band_imm_s(level, 0xf);
    // The numbers of negative levels mirror those of the others, which begin at 8.
    let is_negative = b.compare_const(IntCC::SignedLessThan, level, 8);
    let mirrored = b.ins().bxor_imm_s(level, 0xf);
    let rank = b.select(is_negative, mirrored, level);
    let mut magnitude = b.int32(LEVELS[0].into());
    for (index, pair) in LEVELS.windows(2).enumerate() {
        let reaches = b.compare_const(IntCC::SignedGreaterThan, rank, 8 + index as i64);
        let more = b.int32(i32::from(pair[1]) - i32::from(pair[0]));
        let more = b.add(magnitude, more);
        magnitude = b.select(reaches, more, magnitude);
    }
    let negative = b.ins().ineg(magnitude);
    b.select(is_negative, negative, magnitude)
}
