//! Tiles of an int4 cache as tiles of int8: every code becomes the level that it names, every scale a
//! float, at the places that `cache` gives for int8. Attention reads these.
//!
//! Tiles of an immutable block with a format of its own become what the ring's are: its levels, or its
//! codes, become numbers of the ring's format by way of int8 (`floats`).
//!
//! Levels are codes of int8, so nothing is rounded: the result is that of an int8 cache of the same
//! levels, on every level of instructions.
//!
//! A row's last group may be wider than the row: what lies behind it is written as well, and then, as
//! rows and their scales follow in the order of their places, overwritten.

mod floats;
mod wide;

use weir_abi::{KEY_BLOCK, KEY_TILE};
use weir_ir::interpret::codes::LEVELS;

use super::cache::{BlockOfKeys, CacheShape, CacheType, GROUP, KEY_OFFSET, QUAD};
use crate::emit::{
    Assembly, BYTES, Body, EmitError, FuncId, INTS, InstBuilder, LANES, Lanes, POINTER, Value,
    signature,
};

/// What a largest magnitude is multiplied by to become the scale.
pub(super) const SCALE: f32 = 1.0 / 127.0;
/// Bytes of a vector.
const VECTOR: usize = 16;

/// Functions that unpack blocks of keys, and of values.
#[derive(Clone, Copy)]
pub(super) struct Unpack {
    /// Levels to codes of int8.
    levels: Option<[FuncId; 2]>,
    /// Codes of int8 to numbers of the ring's format.
    codes: Option<[FuncId; 2]>,
}

/// Where a tile is unpacked to: keys and values; and where it lies as int8 in between.
#[derive(Clone, Copy)]
pub(super) struct Memory {
    pub(super) tile: [Value; 2],
    pub(super) between: [Value; 2],
}

/// Bytes of an unpacked tile of keys, or of values; none where the cache is read as it is.
pub(super) fn bytes(cache: &CacheShape, is_key: bool) -> usize {
    match (cache.number, cache.block) {
        (CacheType::Int4, _) | (_, Some(_)) => tile_bytes(&cache.unpacked(), is_key),
        _ => 0,
    }
}

/// Bytes of such a tile as int8 in between, where it does not stay so.
pub(super) fn bytes_between(cache: &CacheShape, is_key: bool) -> usize {
    match cache.block {
        Some(CacheType::Int4) if !cache.number.is_coded() => tile_bytes(&as_int8(cache), is_key),
        _ => 0,
    }
}

fn tile_bytes(cache: &CacheShape, is_key: bool) -> usize {
    block_bytes(cache, is_key) * (KEY_TILE / KEY_BLOCK)
}

fn as_int8(cache: &CacheShape) -> CacheShape {
    CacheShape { number: CacheType::Int8, block: None, ..*cache }
}

impl Unpack {
    /// The functions for a cache, if it is not read as it is: for all of its tiles, or for those of a
    /// block with a format of its own.
    pub(super) fn of(
        assembly: &mut Assembly,
        cache: &CacheShape,
        is_wide: bool,
    ) -> Result<Option<Unpack>, EmitError> {
        let packed = cache.of_block().unwrap_or(*cache);
        if packed.number == cache.unpacked().number {
            return Ok(None);
        }
        let levels = match packed.number {
            CacheType::Int4 => Some([
                emit(assembly, &packed, true, is_wide)?,
                emit(assembly, &packed, false, is_wide)?,
            ]),
            _ => None,
        };
        let codes = match cache.unpacked().number {
            CacheType::Int8 => None,
            _ => Some([
                floats::emit(assembly, &cache.of_ring(), true, is_wide)?,
                floats::emit(assembly, &cache.of_ring(), false, is_wide)?,
            ]),
        };
        Ok(Some(Unpack { levels, codes }))
    }

    /// Unpacks the blocks of a tile that have its first `rows` rows, keys and values.
    pub(super) fn tile(&self, b: &mut Body<'_>, from: [Value; 2], to: Memory, rows: Value) {
        let blocks = b.add_const(rows, KEY_BLOCK as i64 - 1);
        let blocks = b.ins().ushr_imm_u(blocks, i64::from(KEY_BLOCK.trailing_zeros()));
        let mut unpack = |functions: [FuncId; 2], from: [Value; 2], to: [Value; 2]| {
            for (function, (from, to)) in functions.into_iter().zip(from.into_iter().zip(to)) {
                b.call(function, &[from, to, blocks]);
            }
        };
        match (self.levels, self.codes) {
            (Some(levels), Some(codes)) => {
                unpack(levels, from, to.between);
                unpack(codes, to.between, to.tile);
            }
            (functions, None) | (None, functions) => {
                if let Some(functions) = functions {
                    unpack(functions, from, to.tile);
                }
            }
        }
    }
}

fn block_bytes(cache: &CacheShape, is_key: bool) -> usize {
    KEY_BLOCK * if is_key { cache.key_bytes() } else { cache.value_bytes() }
}

/// Emits (packed blocks, place of the unpacked ones, number of blocks).
fn emit(
    assembly: &mut Assembly,
    cache: &CacheShape,
    is_key: bool,
    is_wide: bool,
) -> Result<FuncId, EmitError> {
    let (width, plane) = match is_key {
        true => (cache.key_width, "keys"),
        false => (cache.value_width, "values"),
    };
    let symbol = format!("unpack-{plane}-{width}{}", if is_wide { "-wide" } else { "" });
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 3], &[]))?;
    if is_wide {
        assembly.assemble(id, |code| wide::assemble(code, cache, is_key))?;
        return Ok(id);
    }
    let as_int8 = cache.unpacked();
    let groups = width.div_ceil(GROUP) as i64;
    assembly.define(id, |b| {
        let [from, to, blocks] = b.params();
        let levels = Levels::of(b, is_key);
        let zero = b.int(0);
        b.for_range(zero, blocks, 1, |b, block| {
            let from = b.element(from, block, block_bytes(cache, is_key) as i64);
            let to = b.element(to, block, block_bytes(&as_int8, is_key) as i64);
            if is_key {
                // A quad of all rows after another.
                let line = (KEY_BLOCK * QUAD) as i64;
                b.for_count(groups, 1, |b, group| {
                    let from = b.element(from, group, line);
                    let to = b.element(to, group, 2 * line);
                    for part in (0..line as usize).step_by(VECTOR) {
                        levels.unpack(b, [from, to], [part, part, part + line as usize]);
                    }
                });
            } else {
                for quad in 0..KEY_BLOCK / QUAD {
                    let from = b.add_const(from, (quad * QUAD * cache.bytes_of(false)) as i64);
                    let to = b.add_const(to, (quad * QUAD * as_int8.bytes_of(false)) as i64);
                    b.for_count(groups, 1, |b, group| {
                        let from = b.element(from, group, VECTOR as i64);
                        let to = b.element(to, group, 2 * VECTOR as i64);
                        levels.unpack(b, [from, to], [0, 0, VECTOR]);
                    });
                }
            }
            let from = b.add_const(from, (KEY_BLOCK * cache.bytes_of(is_key)) as i64);
            let to = b.add_const(to, (KEY_BLOCK * as_int8.bytes_of(is_key)) as i64);
            widen_scales(b, from, to);
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

/// The keys of a block in single precision, at `to`, and behind them their scales
/// ([`CacheShape::widen_block`]).
pub(super) fn widen_block(
    b: &mut Body<'_>,
    cache: &CacheShape,
    block: Value,
    to: Value,
) -> BlockOfKeys {
    let levels = Levels::of(b, false);
    let groups = cache.key_width.div_ceil(GROUP);
    let quad_bytes = QUAD * KEY_BLOCK * 4;
    b.for_count(groups as i64, 1, |b, group| {
        let from = b.element(block, group, (KEY_BLOCK * QUAD) as i64);
        let to = b.element(to, group, 2 * quad_bytes as i64);
        // Four levels of a row are one word.
        for rows in (0..KEY_BLOCK).step_by(4) {
            let codes = b.load(INTS, from, (rows * QUAD) as i32);
            for (quad, bytes) in levels.halves(b, codes).into_iter().enumerate() {
                let words = b.bitcast(INTS, bytes);
                for place in 0..QUAD {
                    let up = b.int32(24 - place as i32 * 8);
                    let number = b.ins().ishl(words, up);
                    let down = b.int32(24);
                    let number = b.ins().sshr(number, down);
                    let number = b.to_float(number);
                    let offset = quad * quad_bytes + (place * KEY_BLOCK + rows) * 4;
                    b.store(number, to, offset as i32);
                }
            }
        }
    });
    let from = b.add_const(block, (KEY_BLOCK * cache.bytes_of(true)) as i64);
    let scales = b.add_const(to, (groups * 2 * quad_bytes) as i64);
    widen_scales(b, from, scales);
    BlockOfKeys { numbers: to, scales: Some(scales) }
}

/// The scales of a block in single precision.
fn widen_scales(b: &mut Body<'_>, from: Value, to: Value) {
    for lane in (0..KEY_BLOCK as i32).step_by(4) {
        let largest = b.load_f16(Lanes::Four, from, lane * 2);
        let unit = b.constant(LANES, SCALE);
        let scale = b.fmul(largest, unit);
        b.store(scale, to, lane * 4);
    }
}

/// Levels by their number, as codes of keys or of values are stored in int8.
fn table(is_key: bool) -> [u8; VECTOR] {
    let offset = if is_key { KEY_OFFSET } else { 0 };
    std::array::from_fn(|number| {
        let level = match number {
            0..8 => -i32::from(LEVELS[7 - number]),
            _ => i32::from(LEVELS[number - 8]),
        };
        (level + offset) as u8
    })
}

/// That table, and the lower halves of bytes.
struct Levels {
    table: Value,
    lower: Value,
}

impl Levels {
    fn of(b: &mut Body<'_>, is_key: bool) -> Levels {
        Levels { table: b.constant_bytes(table(is_key)), lower: b.constant_bytes([0xf; VECTOR]) }
    }

    /// Levels that the lower halves of sixteen bytes name, and those of the upper ones.
    fn halves(&self, b: &mut Body<'_>, codes: Value) -> [Value; 2] {
        let words = b.bitcast(INTS, codes);
        let upper = b.ins().ushr_imm_u(words, 4);
        [codes, upper].map(|codes| {
            let codes = b.bitcast(BYTES, codes);
            let codes = b.ins().band(codes, self.lower);
            b.ins().x86_pshufb(self.table, codes)
        })
    }

    /// Unpacks the sixteen bytes that lie so far behind `from` to where their halves' levels belong.
    fn unpack(&self, b: &mut Body<'_>, [from, to]: [Value; 2], [at, lower, upper]: [usize; 3]) {
        let codes = b.load(BYTES, from, at as i32);
        for (levels, place) in self.halves(b, codes).into_iter().zip([lower, upper]) {
            b.store(levels, to, place as i32);
        }
    }
}
