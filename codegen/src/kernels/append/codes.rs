//! Rounding a head's row to codes in 256-bit vectors, and writing them where they belong: the bits of
//! `attention`'s `codes`, at the places that its `cache` names.
//!
//! A row is taken in two passes: its numbers, kept on the stack if they were computed on their way,
//! with the largest magnitude; then scale and codes. Magnitudes are compared as integers, which is
//! their order as floats and puts what is no number above all.
//!
//! A value's codes lie between those of other rows, which other threads may be writing: each is
//! stored as the byte that it is. Where the four rows of a quad are at hand their codes go to the stack
//! first, and from there as words of four ([`interleave`]): four rows of 64 numbers take 16 stores for
//! keys and 16 for values, not 64 and 256.

use iced_x86::code_asm::*;
use weir_abi::KEY_BLOCK;
use weir_ir::interpret::codes::BOUNDS;

use super::wide::{Emitted, LANES, LINE, floats};
use crate::kernels::attention::{CacheType, KEY_OFFSET, QUAD, TOP_CODE};
use crate::kernels::matmul::NEGLIGIBLE;

/// Constants in every lane of their registers.
const MAGNITUDE: AsmRegisterYmm = ymm15;
const OFFSETS: AsmRegisterYmm = ymm14;
const TOP: AsmRegisterXmm = xmm13;
const LEAST: AsmRegisterXmm = xmm12;

/// The row's largest magnitude, by lanes, then in the first.
const LARGEST: AsmRegisterYmm = ymm11;
const ROW_LARGEST: AsmRegisterXmm = xmm11;
/// What a number is multiplied by to become its code.
const INVERSE: AsmRegisterYmm = ymm10;

/// Vectors that become a register of codes.
const TOGETHER: usize = 4;

/// Words of the constants, in the order of their registers.
pub(super) fn constants() -> Vec<(AsmRegisterYmm, u32)> {
    vec![
        (MAGNITUDE, 0x7fff_ffff),
        (OFFSETS, u32::from_ne_bytes([KEY_OFFSET as u8; 4])),
        (ymm13, TOP_CODE.to_bits()),
        (ymm12, NEGLIGIBLE.to_bits()),
    ]
}

/// Constants of int4, each in all words of a vector on the stack: what codes of the second level and of
/// those behind it are greater than, the number of the first level, the lower half of a byte, and the
/// largest half.
const FIRST_LEVEL: usize = BOUNDS.len();
const LOWER: usize = FIRST_LEVEL + 1;
const MOST: usize = LOWER + 1;

/// Bytes of a vector of them.
pub(super) const VECTOR: usize = LANES * 4;

/// Words of these constants.
pub(super) fn stacked_constants(number: CacheType) -> Vec<u32> {
    if number != CacheType::Int4 {
        return Vec::new();
    }
    let of_bytes = |byte: i8| u32::from_ne_bytes([byte as u8; 4]);
    let bounds = BOUNDS.iter().map(|bound| of_bytes(bound - 1));
    bounds.chain([of_bytes(8), of_bytes(0xf), CacheType::F16.largest().to_bits()]).collect()
}

/// Begins a row: no number has been seen.
pub(super) fn begin(code: &mut CodeAssembler) -> Emitted {
    code.vpxor(LARGEST, LARGEST, LARGEST)
}

/// Sees eight numbers. Spoils them.
pub(super) fn see(code: &mut CodeAssembler, numbers: AsmRegisterYmm) -> Emitted {
    code.vpand(numbers, numbers, MAGNITUDE)?;
    code.vpmaxud(LARGEST, LARGEST, numbers)
}

/// Where a row's codes and scale go.
#[derive(Clone, Copy)]
pub(super) struct CodePlace {
    pub(super) is_key: bool,
    /// The first code.
    pub(super) first: AsmRegister64,
    /// Bytes from there to the scale.
    pub(super) to_scale: AsmRegister64,
    pub(super) number: CacheType,
    /// Where [`stacked_constants`] lie, in bytes from the stack pointer.
    pub(super) constants: usize,
    /// Of a row of a quad that is written together, its number, and where its codes lie until then, in
    /// bytes from the stack pointer.
    pub(super) of_quad: Option<(usize, usize)>,
}

impl CodePlace {
    /// Asks for the lines of a row of so many bytes.
    pub(super) fn prefetch(self, code: &mut CodeAssembler, bytes: usize) -> Emitted {
        let lines = if self.is_key { bytes / QUAD } else { (bytes * QUAD).div_ceil(LINE) };
        for line in 0..lines {
            code.prefetchw(byte_ptr(self.first + line * LINE))?;
        }
        code.prefetchw(byte_ptr(self.first + self.to_scale))
    }

    /// Where the scale goes.
    fn scale_at(self) -> AsmMemoryOperand {
        let row = self.of_quad.map_or(0, |(row, _)| row);
        self.first + self.to_scale + row * self.number.scale_bytes()
    }

    /// Rounds the row of `width` numbers that lies `before` of them behind `from`, all of which have been
    /// seen.
    pub(super) fn write(
        self,
        code: &mut CodeAssembler,
        (from, before): (AsmRegister64, usize),
        width: usize,
    ) -> Emitted {
        self.scale(code)?;
        let vectors = width / LANES;
        for first in (0..vectors).step_by(TOGETHER) {
            let count = TOGETHER.min(vectors - first);
            let registers = [ymm0, ymm1, ymm2, ymm3];
            for (index, register) in registers.into_iter().take(count).enumerate() {
                code.vmulps(register, INVERSE, floats(from, before + (first + index) * LANES))?;
                code.vcvtps2dq(register, register)?;
            }
            // Quads of the lower halves in their order, then of the upper ones.
            let [low, high] = [registers[1.min(count - 1)], registers[3.min(count - 1)]];
            code.vpackssdw(ymm0, ymm0, low)?;
            if count > 2 {
                code.vpackssdw(ymm2, ymm2, high)?;
                code.vpacksswb(ymm0, ymm0, ymm2)?;
            } else {
                code.vpacksswb(ymm0, ymm0, ymm0)?;
            }
            if self.number == CacheType::Int4 {
                self.levels(code)?;
                code.vextracti128(xmm1, ymm0, 1)?;
                // Four numbers in lower halves of bytes, the next four in the upper ones.
                code.vpsllw(xmm1, xmm1, 4)?;
                code.vpor(xmm0, xmm0, xmm1)?;
                for index in 0..count {
                    self.store(code, xmm0, index, first + index)?;
                }
                continue;
            }
            if self.is_key {
                code.vpxor(ymm0, ymm0, OFFSETS)?;
            }
            code.vextracti128(xmm1, ymm0, 1)?;
            if let Some((_, stage)) = self.of_quad {
                let to = rsp + (stage + first * LANES);
                code.vpunpckldq(xmm2, xmm0, xmm1)?;
                code.vmovups(xmmword_ptr(to), xmm2)?;
                if count > 2 {
                    code.vpunpckhdq(xmm2, xmm0, xmm1)?;
                    code.vmovups(xmmword_ptr(to + SIXTEEN), xmm2)?;
                }
                continue;
            }
            for index in 0..count {
                for (half, codes) in [xmm0, xmm1].into_iter().enumerate() {
                    self.store(code, codes, index, (first + index) * 2 + half)?;
                }
            }
        }
        Ok(())
    }

    /// Stores the row's scale and finds what becomes codes by it. Spoils two registers.
    fn scale(self, code: &mut CodeAssembler) -> Emitted {
        code.vextracti128(xmm0, LARGEST, 1)?;
        code.vpmaxud(xmm0, xmm0, ROW_LARGEST)?;
        for half in [0x4e, 0xb1] {
            code.vpshufd(xmm1, xmm0, half)?;
            code.vpmaxud(xmm0, xmm0, xmm1)?;
        }
        // Zero, or no number if the largest is infinite.
        code.vsubss(xmm1, xmm0, xmm0)?;
        if self.number == CacheType::Int4 {
            code.vaddss(xmm1, xmm1, xmm0)?;
            // Where one is no number, the second.
            code.vmovss(xmm2, dword_ptr(self.constant(MOST)))?;
            code.vminss(xmm1, xmm2, xmm1)?;
            code.vcvtps2ph(xmm1, xmm1, 0)?;
            code.vpextrw(word_ptr(self.first + self.to_scale), xmm1, 0)?;
        } else {
            code.vdivss(ROW_LARGEST, xmm0, TOP)?;
            code.vaddss(xmm1, xmm1, ROW_LARGEST)?;
            code.vmovss(dword_ptr(self.scale_at()), xmm1)?;
        }
        code.vdivss(xmm1, TOP, xmm0)?;
        code.vcmpltss(xmm0, LEAST, xmm0)?;
        code.vandps(xmm0, xmm0, xmm1)?;
        code.vbroadcastss(INVERSE, xmm0)
    }

    /// The place of a constant on the stack.
    fn constant(self, index: usize) -> AsmMemoryOperand {
        rsp + (self.constants + index * VECTOR)
    }

    /// Codes of 8 bits in the first register become the numbers of their nearest levels.
    fn levels(self, code: &mut CodeAssembler) -> Emitted {
        let [codes, magnitudes, levels, reaches] = [ymm0, ymm4, ymm5, ymm6];
        code.vpabsb(magnitudes, codes)?;
        code.vmovdqa(levels, ymmword_ptr(self.constant(FIRST_LEVEL)))?;
        for bound in 0..BOUNDS.len() {
            // All bits where it is greater: -1.
            code.vpcmpgtb(reaches, magnitudes, ymmword_ptr(self.constant(bound)))?;
            code.vpsubb(levels, levels, reaches)?;
        }
        // Negative ones mirror the others.
        code.vpxor(reaches, reaches, reaches)?;
        code.vpcmpgtb(reaches, reaches, codes)?;
        code.vpand(reaches, reaches, ymmword_ptr(self.constant(LOWER)))?;
        code.vpxor(codes, levels, reaches)
    }

    /// Stores the four bytes of a word of a register as the row's `quad`.
    fn store(
        self,
        code: &mut CodeAssembler,
        codes: AsmRegisterXmm,
        word: usize,
        quad: usize,
    ) -> Emitted {
        if self.is_key {
            let to = dword_ptr(self.first + quad * QUAD * KEY_BLOCK);
            return code.vpextrd(to, codes, word as i32);
        }
        for byte in 0..QUAD {
            let to = byte_ptr(self.first + (quad * QUAD + byte) * QUAD);
            code.vpextrb(to, codes, (word * QUAD + byte) as i32)?;
        }
        Ok(())
    }
}

/// Numbers whose codes fill a 128-bit register.
pub(super) const SIXTEEN: usize = 16;

/// The codes of the rows of a quad, `width` at each of these places on the stack, go where they belong.
pub(super) fn interleave(
    code: &mut CodeAssembler,
    place: CodePlace,
    stages: [usize; QUAD],
    width: usize,
) -> Emitted {
    let rows = [xmm0, xmm1, xmm2, xmm3];
    let [low, high, other_low, other_high] = [xmm4, xmm5, xmm6, xmm7];
    // Four numbers of a key lie beside each other, and four rows of a value.
    let of_pairs = if place.is_key { QUAD } else { 1 };
    for at in (0..width).step_by(SIXTEEN) {
        for (row, stage) in rows.into_iter().zip(stages) {
            code.vmovups(row, xmmword_ptr(rsp + (stage + at)))?;
        }
        let pairs = [[low, high, rows[0], rows[1]], [other_low, other_high, rows[2], rows[3]]];
        for [low, high, first, second] in pairs {
            unpack(code, of_pairs, [low, high], [first, second])?;
        }
        for (half, [first, second]) in
            [[low, other_low], [high, other_high]].into_iter().enumerate()
        {
            let to = [rows[2 * half], rows[2 * half + 1]];
            unpack(code, 2 * of_pairs, to, [first, second])?;
        }
        for (index, row) in rows.into_iter().enumerate() {
            // A quad of numbers of four keys, or four numbers of a quad of values.
            let number = at + index * QUAD;
            let to = if place.is_key { number * KEY_BLOCK } else { number * QUAD };
            code.vmovups(xmmword_ptr(place.first + to), row)?;
        }
    }
    Ok(())
}

/// Runs of so many bytes of two registers in turn, those of the lower halves and those of the upper ones.
fn unpack(
    code: &mut CodeAssembler,
    bytes: usize,
    [low, high]: [AsmRegisterXmm; 2],
    [first, second]: [AsmRegisterXmm; 2],
) -> Emitted {
    match bytes {
        1 => {
            code.vpunpcklbw(low, first, second)?;
            code.vpunpckhbw(high, first, second)
        }
        2 => {
            code.vpunpcklwd(low, first, second)?;
            code.vpunpckhwd(high, first, second)
        }
        4 => {
            code.vpunpckldq(low, first, second)?;
            code.vpunpckhdq(high, first, second)
        }
        _ => {
            code.vpunpcklqdq(low, first, second)?;
            code.vpunpckhqdq(high, first, second)
        }
    }
}
