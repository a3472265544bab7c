//! Codes of a chunk of the reduction, made ready for tiles once for all rows.
//!
//! Nibbles become bytes; where the zero point is a whole number near the codes it is subtracted, so
//! that tiles of signed bytes sum `(code − zero) · a` without further work per row: int4 with an
//! implied zero point or one of a code (−15 … 15), int8 with an implied one (−128 … 127). Int8 codes
//! with other zero points are multiplied where they lie, as unsigned bytes.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::Amx;
use super::panel::CODES_AT;
use crate::kernels::matmul::assembled::{COUNT, SCRATCH, TileShape, WEIGHTS};
use crate::kernels::matmul::avx512::MASK;
use crate::kernels::matmul::chunks::CODES;
use crate::pack::{GROUP, WeightFormat, ZeroPoint};

/// What is subtracted from every byte of codes.
const ZERO: AsmRegisterZmm = zmm2;
/// One in every byte: a number times this is the number in each of its four bytes.
const REPEAT: AsmRegisterZmm = zmm3;

/// A number in each byte of a register.
fn fill(code: &mut CodeAssembler, register: AsmRegisterZmm, byte: u8) -> Result<(), IcedError> {
    code.mov(r11d, u32::from_le_bytes([byte; 4]))?;
    code.vpbroadcastd(register, r11d)
}

impl Amx<'_> {
    fn is_int4(&self) -> bool {
        matches!(self.spec.layout.format, WeightFormat::Int4(_))
    }

    /// Whether tiles' sums are those about the zero point.
    pub(super) fn is_about_zero(&self) -> bool {
        match self.blocks.zero {
            ZeroPoint::Implied => true,
            ZeroPoint::Code => self.is_int4(),
            ZeroPoint::Float => false,
        }
    }

    /// Whether codes are copied to scratch memory.
    pub(super) fn copies_codes(&self) -> bool {
        self.is_int4() || self.is_about_zero()
    }

    /// Bytes of one block's codes of a tile of groups in scratch memory.
    pub(super) fn block_codes_bytes(&self, groups: usize) -> usize {
        groups * self.blocks.block * GROUP
    }

    /// The chunk at [`WEIGHTS`], of [`COUNT`] blocks.
    pub(super) fn take_apart(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
    ) -> Result<(), IcedError> {
        if self.is_about_zero() {
            match (self.is_int4(), self.blocks.zero) {
                (_, ZeroPoint::Code) => fill(code, REPEAT, 1)?,
                (true, _) => fill(code, ZERO, 8)?,
                (false, _) => fill(code, ZERO, 128)?,
            }
        }
        let mut again = code.create_label();
        code.lea(CODES, ptr(SCRATCH + CODES_AT))?;
        code.set_label(&mut again)?;
        for group in 0..shape.groups {
            self.keep_block(code, group)?;
        }
        code.add(WEIGHTS, self.spec.layout.block_bytes() as i32)?;
        code.add(CODES, self.block_codes_bytes(shape.groups) as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)
    }

    /// One block of a group.
    fn keep_block(&self, code: &mut CodeAssembler, group: usize) -> Result<(), IcedError> {
        let (low, high) = (zmm0, zmm1);
        let layout = self.spec.layout;
        let packed = group * layout.group_bytes();
        let to = |unit: usize| {
            zmmword_ptr(CODES + (group * self.blocks.block * GROUP + unit * GROUP * 4))
        };
        if self.is_about_zero() && self.blocks.zero == ZeroPoint::Code {
            let zeros = packed + layout.zeros_offset();
            code.vpmovzxbd(ZERO, xmmword_ptr(WEIGHTS + zeros))?;
            code.vpmulld(ZERO, ZERO, REPEAT)?;
        }
        let elements = if self.is_int4() { 8 } else { 4 };
        for unit in 0..self.blocks.block / elements {
            let at = packed + layout.codes_offset() + unit * GROUP * 4;
            let from = zmmword_ptr(WEIGHTS + at);
            if self.is_int4() {
                code.vmovdqu32(high, from)?;
                code.vpandd(low, high, MASK)?;
                code.vpsrld(high, high, 4)?;
                code.vpandd(high, high, MASK)?;
                for (half, codes) in [low, high].into_iter().enumerate() {
                    if self.is_about_zero() {
                        code.vpsubb(codes, codes, ZERO)?;
                    }
                    code.vmovdqu32(to(2 * unit + half), codes)?;
                }
            } else if self.copies_codes() {
                // Minus 128, as a signed byte.
                code.vpxord(low, ZERO, from)?;
                code.vmovdqu32(to(unit), low)?;
            }
        }
        Ok(())
    }
}
