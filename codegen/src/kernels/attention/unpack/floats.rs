//! Tiles of int8 as tiles of floats: every number is code times scale, rounded to the format as a row of
//! it would be when it is written.
//!
//! Assembled in vectors of 256 bits for rows of whole vectors, and by Cranelift for all others and for
//! the portable level; the bits are the same.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_abi::KEY_BLOCK;

use super::{as_int8, block_bytes};
use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FuncId, InstBuilder, LANES, POINTER, Value, signature,
};
use crate::kernels::attention::cache::{CacheShape, CacheType, KEY_OFFSET, QUAD};
use crate::kernels::attention::narrow;

/// Floats of a vector.
const VECTOR: usize = 8;

/// Emits (blocks of int8, place of the others, number of blocks) for a cache without codes.
pub(super) fn emit(
    assembly: &mut Assembly,
    cache: &CacheShape,
    is_key: bool,
    is_wide: bool,
) -> Result<FuncId, EmitError> {
    let (width, plane) = match is_key {
        true => (cache.key_width, "keys"),
        false => (cache.value_width, "values"),
    };
    // Values of a row are neighbours.
    let is_wide = is_wide && (is_key || width.is_multiple_of(VECTOR));
    let wide = if is_wide { "-wide" } else { "" };
    let symbol = format!("unpack-{plane}-{width}-{}{wide}", cache.number.name());
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 3], &[]))?;
    if is_wide {
        assembly.assemble(id, |code| assemble(code, cache, is_key))?;
        return Ok(id);
    }
    let codes = as_int8(cache);
    assembly.define(id, |b| {
        let [from, to, blocks] = b.params();
        let floats = b.stack(codes.wide_block_bytes() as u32);
        let zero = b.int(0);
        b.for_range(zero, blocks, 1, |b, block| {
            let from = b.element(from, block, block_bytes(&codes, is_key) as i64);
            let to = b.element(to, block, block_bytes(cache, is_key) as i64);
            match is_key {
                true => keys(b, cache, from, to, floats),
                false => values(b, cache, from, to),
            }
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

/// A block of keys: number by number, all rows of it.
fn keys(b: &mut Body<'_>, cache: &CacheShape, from: Value, to: Value, floats: Value) {
    let first = b.int(0);
    let wide = as_int8(cache).widen_block(b, from, first, floats);
    let Some(scales) = wide.scales else { return };
    b.for_count(cache.key_width as i64, 1, |b, index| {
        let from = b.element(wide.numbers, index, KEY_BLOCK as i64 * 4);
        let to = b.element(to, index, (KEY_BLOCK * cache.number.bytes()) as i64);
        for row in (0..KEY_BLOCK).step_by(4) {
            let codes = b.load(LANES, from, row as i32 * 4);
            let scales = b.load(LANES, scales, row as i32 * 4);
            let numbers = b.fmul(codes, scales);
            cache.number.store(b, numbers, to, (row * cache.number.bytes()) as i32);
        }
    });
}

/// A block of values: row by row.
fn values(b: &mut Body<'_>, cache: &CacheShape, from: Value, to: Value) {
    let (width, size) = (cache.value_width, cache.number.bytes());
    let scales = b.add_const(from, (KEY_BLOCK * width) as i64);
    for row in 0..KEY_BLOCK {
        let scale = b.load(FLOAT, scales, row as i32 * 4);
        let quad = b.add_const(from, (row / QUAD * QUAD * width) as i64);
        let row_to = b.add_const(to, (row * width * size) as i64);
        b.for_count_lanes(width as i64, |b, index, lanes| {
            let from = b.element(quad, index, QUAD as i64);
            let words = b.load(lanes.int(), from, 0);
            let up = b.int32(24 - (row % QUAD) as i32 * 8);
            let words = b.ins().ishl(words, up);
            let down = b.int32(24);
            let codes = b.ins().sshr(words, down);
            let codes = b.to_float(codes);
            let scale = b.spread(lanes, scale);
            let numbers = b.fmul(codes, scale);
            let to = b.element(row_to, index, size as i64);
            cache.number.store(b, numbers, to, 0);
        });
    }
}

/// Blocks of int8 and their place as floats.
const FROM: AsmRegister64 = rdi;
const TO: AsmRegister64 = rsi;
const BLOCKS: AsmRegister64 = rdx;
/// What is left of a loop.
const LEFT: AsmRegister32 = ecx;

/// Codes of four numbers of a row, or of a number of four rows.
const WORDS: AsmRegisterYmm = ymm2;
const NUMBERS: AsmRegisterYmm = ymm3;
/// Scales of rows, of the upper rows.
const SCALES: [AsmRegisterYmm; 2] = [ymm4, ymm5];
/// What makes a key's codes signed.
const OFFSETS: AsmRegisterYmm = ymm6;

/// The assembled version.
fn assemble(code: &mut CodeAssembler, cache: &CacheShape, is_key: bool) -> Result<(), IcedError> {
    let [mut block, mut done, mut data] = [(); 3].map(|()| code.create_label());
    let mut constants = narrow::constants(cache.number);
    constants.push((OFFSETS, u32::from_ne_bytes([KEY_OFFSET as u8; 4])));
    code.test(BLOCKS, BLOCKS)?;
    code.jz(done)?;
    code.lea(rax, ptr(data))?;
    for (index, (register, _)) in constants.iter().enumerate() {
        code.vbroadcastss(*register, dword_ptr(rax + index * 4))?;
    }
    code.set_label(&mut block)?;
    if is_key {
        block_of_keys(code, cache)?;
    } else {
        block_of_values(code, cache)?;
    }
    code.dec(BLOCKS)?;
    code.jnz(block)?;
    code.set_label(&mut done)?;
    code.vzeroupper()?;
    code.ret()?;
    code.set_label(&mut data)?;
    for (_, word) in constants {
        code.dd(&[word])?;
    }
    Ok(())
}

/// A quad of numbers after another, and of it both halves of the rows.
fn block_of_keys(code: &mut CodeAssembler, cache: &CacheShape) -> Result<(), IcedError> {
    let (width, size) = (cache.key_width, cache.number.bytes());
    let codes = as_int8(cache).bytes_of(true) * KEY_BLOCK;
    for (half, scales) in SCALES.into_iter().enumerate() {
        code.vmovups(scales, ymmword_ptr(FROM + (codes + half * VECTOR * 4)))?;
    }
    let quad = |code: &mut CodeAssembler, numbers: usize| -> Result<(), IcedError> {
        for (half, scales) in SCALES.into_iter().enumerate() {
            code.vpxor(WORDS, OFFSETS, ymmword_ptr(FROM + half * VECTOR * QUAD))?;
            for number in 0..numbers {
                signed(code, number)?;
                code.vmulps(NUMBERS, NUMBERS, scales)?;
                store(code, cache.number, (number * KEY_BLOCK + half * VECTOR) * size)?;
            }
        }
        code.add(FROM, (KEY_BLOCK * QUAD) as i32)?;
        code.add(TO, (numbers * KEY_BLOCK * size) as i32)
    };
    if width >= QUAD {
        let mut next = code.create_label();
        code.mov(LEFT, (width / QUAD) as i32)?;
        code.set_label(&mut next)?;
        quad(code, QUAD)?;
        code.dec(LEFT)?;
        code.jnz(next)?;
    }
    if !width.is_multiple_of(QUAD) {
        quad(code, width % QUAD)?;
    }
    code.add(FROM, (KEY_BLOCK * 4) as i32)
}

/// Four rows after another, eight numbers of them at a time.
fn block_of_values(code: &mut CodeAssembler, cache: &CacheShape) -> Result<(), IcedError> {
    let (width, size) = (cache.value_width, cache.number.bytes());
    // The first row's scale.
    code.lea(rax, FROM + KEY_BLOCK * width)?;
    let mut quads = code.create_label();
    code.mov(r8d, (KEY_BLOCK / QUAD) as i32)?;
    code.set_label(&mut quads)?;
    let mut next = code.create_label();
    code.mov(LEFT, (width / VECTOR) as i32)?;
    code.set_label(&mut next)?;
    code.vmovups(WORDS, ymmword_ptr(FROM))?;
    for row in 0..QUAD {
        code.vbroadcastss(SCALES[0], dword_ptr(rax + row * 4))?;
        signed(code, row)?;
        code.vmulps(NUMBERS, NUMBERS, SCALES[0])?;
        store(code, cache.number, row * width * size)?;
    }
    code.add(FROM, (VECTOR * QUAD) as i32)?;
    code.add(TO, (VECTOR * size) as i32)?;
    code.dec(LEFT)?;
    code.jnz(next)?;
    code.add(TO, ((QUAD - 1) * width * size) as i32)?;
    code.add(rax, (QUAD * 4) as i32)?;
    code.dec(r8d)?;
    code.jnz(quads)?;
    code.add(FROM, (KEY_BLOCK * 4) as i32)
}

/// Byte `place` of all words, signed, as floats.
fn signed(code: &mut CodeAssembler, place: usize) -> Result<(), IcedError> {
    code.vpslld(NUMBERS, WORDS, 24 - place as i32 * 8)?;
    code.vpsrad(NUMBERS, NUMBERS, 24)?;
    code.vcvtdq2ps(NUMBERS, NUMBERS)
}

/// Rounds and stores eight numbers so many bytes behind the place.
fn store(code: &mut CodeAssembler, number: CacheType, offset: usize) -> Result<(), IcedError> {
    if number == CacheType::F32 {
        return code.vmovups(ymmword_ptr(TO + offset), NUMBERS);
    }
    narrow::narrow(code, number, NUMBERS)?;
    code.vmovups(xmmword_ptr(TO + offset), xmm1)
}
