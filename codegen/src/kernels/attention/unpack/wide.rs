//! The assembled version, in vectors of up to 256 bits, for all levels but the portable one.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_abi::KEY_BLOCK;

use super::{SCALE, VECTOR, table};
use crate::kernels::attention::cache::{CacheShape, GROUP, QUAD};

/// Packed bytes and their place as int8.
const FROM: AsmRegister64 = rdi;
const TO: AsmRegister64 = rsi;
const BLOCKS: AsmRegister64 = rdx;
const GROUPS: AsmRegister32 = ecx;

/// Numbers behind the code: levels, the lower halves of bytes, and what makes a scale.
const LOWER: usize = VECTOR;
const UNIT: usize = LOWER + 4;

/// Emits `(packed blocks, place of the unpacked ones, number of blocks)`, which may be none.
pub(super) fn assemble(
    code: &mut CodeAssembler,
    cache: &CacheShape,
    is_key: bool,
) -> Result<(), IcedError> {
    let width = if is_key { cache.key_width } else { cache.value_width };
    let groups = width.div_ceil(GROUP);
    let [mut block, mut done, mut data] = [(); 3].map(|()| code.create_label());
    code.test(BLOCKS, BLOCKS)?;
    code.jz(done)?;
    code.lea(rax, ptr(data))?;
    code.vbroadcasti128(ymm15, xmmword_ptr(rax))?;
    code.vpbroadcastd(ymm14, dword_ptr(rax + LOWER))?;
    code.vbroadcastss(ymm13, dword_ptr(rax + UNIT))?;
    code.set_label(&mut block)?;
    if is_key {
        // A quad of all rows after another.
        let line = KEY_BLOCK * QUAD;
        each_group(code, groups, |code| {
            for half in (0..line).step_by(2 * VECTOR) {
                code.vmovdqu(ymm0, ymmword_ptr(FROM + half))?;
                code.vpsrlw(ymm1, ymm0, 4)?;
                for (levels, place) in [(ymm0, half), (ymm1, half + line)] {
                    code.vpand(levels, levels, ymm14)?;
                    code.vpshufb(levels, ymm15, levels)?;
                    code.vmovdqu(ymmword_ptr(TO + place), levels)?;
                }
            }
            code.add(FROM, line as i32)?;
            code.add(TO, 2 * line as i32)
        })?;
        back(code, 2 * line * groups - KEY_BLOCK * cache.unpacked().bytes_of(true))?;
    } else {
        for _ in 0..KEY_BLOCK / QUAD {
            each_group(code, groups, |code| {
                code.vmovdqu(xmm0, xmmword_ptr(FROM))?;
                code.vpsrlw(xmm1, xmm0, 4)?;
                for (levels, place) in [(xmm0, 0), (xmm1, VECTOR)] {
                    code.vpand(levels, levels, xmm14)?;
                    code.vpshufb(levels, xmm15, levels)?;
                    code.vmovdqu(xmmword_ptr(TO + place), levels)?;
                }
                code.add(FROM, VECTOR as i32)?;
                code.add(TO, 2 * VECTOR as i32)
            })?;
            back(code, 2 * VECTOR * groups - QUAD * cache.unpacked().bytes_of(false))?;
        }
    }
    for half in 0..2 {
        code.vcvtph2ps(ymm0, xmmword_ptr(FROM + half * VECTOR))?;
        code.vmulps(ymm0, ymm0, ymm13)?;
        code.vmovups(ymmword_ptr(TO + half * 2 * VECTOR), ymm0)?;
    }
    code.add(FROM, 2 * VECTOR as i32)?;
    code.add(TO, 4 * VECTOR as i32)?;
    code.dec(BLOCKS)?;
    code.jnz(block)?;
    code.set_label(&mut done)?;
    code.vzeroupper()?;
    code.ret()?;

    code.set_label(&mut data)?;
    let words = table(is_key);
    let (words, _) = words.as_chunks::<4>();
    let words: Vec<u32> = words.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    code.dd(&words)?;
    code.dd(&[0x0f0f_0f0f, SCALE.to_bits()])
}

/// What the last group has beyond the row's width is overwritten by what follows.
fn back(code: &mut CodeAssembler, bytes: usize) -> Result<(), IcedError> {
    if bytes > 0 { code.sub(TO, bytes as i32) } else { Ok(()) }
}

fn each_group(
    code: &mut CodeAssembler,
    groups: usize,
    body: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<(), IcedError> {
    let mut next = code.create_label();
    code.mov(GROUPS, groups as i32)?;
    code.set_label(&mut next)?;
    body(code)?;
    code.dec(GROUPS)?;
    code.jnz(next)
}
