//! Codes of int4 with short scales become tiles of bf16.
//!
//! Within a block the order of k is free. A unit of eight nibbles and the same turned by sixteen bits
//! have four pairs of codes at equal places, which a mask and an "or" turn into floats 1 + code · 2⁻ⁿ;
//! one fused step, exact as well, makes them the values, whose upper halves are a pair of a tile's row. The
//! lower ones are zeros, so a shuffle of bytes moves one value's upper half beneath the other's: it is one
//! operation of Intel's processors, where `vpermt2w` is three.
//! Activations have the same order in their records
//! ([`VALUE_ORDER`](crate::kernels::matmul::VALUE_ORDER)).

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{BLOCK, FACTORS_AT, SCALES, TILE_BYTES, UNITS_AT, Values};
use crate::kernels::matmul::assembled::{SCRATCH, WEIGHTS};
use crate::kernels::matmul::avx512::ZMM;
use crate::kernels::matmul::chunks::{CODES, LINE_BYTES};

/// Where the nibbles of a unit, and of a unit turned by sixteen bits, become floats as they lie.
const PLACES: [usize; 4] = [4, 8, 12, 16];
/// Elements of a unit of codes.
const UNIT: usize = 8;

/// Registers of what takes codes apart.
const SCALE: AsmRegisterZmm = zmm12;
const FACTORS: [AsmRegisterZmm; 4] = [zmm13, zmm14, zmm15, zmm16];
const ADDENDS: [AsmRegisterZmm; 4] = [zmm17, zmm18, zmm19, zmm20];
const NIBBLES: [AsmRegisterZmm; 4] = [zmm21, zmm22, zmm23, zmm24];
const ONE: AsmRegisterZmm = zmm25;
const DOWN: AsmRegisterZmm = zmm26;
/// The lower halves of all lanes, as bytes.
const LOWER_HALVES: AsmRegisterK = k2;
/// Codes as they lie and turned, of two units in turn.
const WORDS: [[AsmRegisterZmm; 2]; 2] = [[zmm8, zmm9], [zmm10, zmm11]];

/// Constants: where the bytes of each four lanes come from, so that an upper half comes down; what scales
/// are multiplied by for factors and for addends; then the masks and 1, four bytes each.
const SCALED_AT: usize = 16;
const NIBBLES_AT: usize = SCALED_AT + 32;
const ONE_AT: usize = NIBBLES_AT + 16;

/// Writes the constants.
pub(super) fn constants(code: &mut CodeAssembler) -> Result<(), IcedError> {
    for lane in 0..4 {
        // What comes to the upper half is not taken.
        code.db(&[4 * lane + 2, 4 * lane + 3, 0, 0])?;
    }
    let steps = PLACES.map(|place| (1u32 << (23 - place)) as f32);
    let factors = steps.iter().map(|step| step.to_bits());
    let addends = steps.iter().map(|step| (-(step + 8.0)).to_bits());
    let words = PLACES.into_iter().map(|place| 0xf << place).chain([1f32.to_bits()]);
    for word in factors.chain(addends).chain(words) {
        code.dd(&[word])?;
    }
    Ok(())
}

impl Values<'_> {
    /// Copies what scales are multiplied by to scratch memory. Spoils r11.
    pub(super) fn keep_factors(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.lea(r11, ptr(*self.constants.borrow()))?;
        code.vmovups(ymm0, ymmword_ptr(r11 + SCALED_AT))?;
        code.vmovups(ymmword_ptr(SCRATCH + FACTORS_AT), ymm0)
    }

    /// Fills the registers that all blocks share. Spoils r11.
    pub(super) fn load_masks(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.lea(r11, ptr(*self.constants.borrow()))?;
        code.vbroadcasti32x4(DOWN, xmmword_ptr(r11))?;
        for (index, mask) in NIBBLES.into_iter().enumerate() {
            code.vpbroadcastd(mask, dword_ptr(r11 + (NIBBLES_AT + 4 * index)))?;
        }
        code.vpbroadcastd(ONE, dword_ptr(r11 + ONE_AT))?;
        code.mov(r11, LOWER_BYTES)?;
        code.kmovq(LOWER_HALVES, r11)
    }

    /// Copies the units of the groups' scales from the tile's weights, at [`SCALES`], to scratch memory.
    pub(super) fn keep_units(
        &self,
        code: &mut CodeAssembler,
        groups: usize,
    ) -> Result<(), IcedError> {
        let layout = self.spec.layout;
        for group in 0..groups {
            let at = group * layout.group_bytes() + layout.units_offset();
            code.vmovups(SCALE, zmmword_ptr(SCALES + at))?;
            code.vmovups(zmmword_ptr(SCRATCH + (UNITS_AT + group * LINE_BYTES)), SCALE)?;
        }
        Ok(())
    }

    /// One block of a group: sixteen rows of pairs at [`CODES`].
    pub(super) fn take_apart(
        &self,
        code: &mut CodeAssembler,
        group: usize,
    ) -> Result<(), IcedError> {
        let layout = self.spec.layout;
        let packed = group * layout.group_bytes();
        code.vpmovsxbd(SCALE, xmmword_ptr(SCALES + packed))?;
        code.vcvtdq2ps(SCALE, SCALE)?;
        code.vmulps(SCALE, SCALE, zmmword_ptr(SCRATCH + (UNITS_AT + group * LINE_BYTES)))?;
        for place in 0..PLACES.len() {
            let at = |index: usize| dword_bcst(SCRATCH + (FACTORS_AT + 4 * index));
            code.vmulps(FACTORS[place], SCALE, at(place))?;
            code.vmulps(ADDENDS[place], SCALE, at(PLACES.len() + place))?;
        }
        for unit in 0..BLOCK / UNIT {
            let [codes, turned] = WORDS[unit % 2];
            let from = packed + unit * LINE_BYTES;
            code.vmovdqu32(codes, zmmword_ptr(WEIGHTS + from))?;
            code.vprold(turned, codes, 16)?;
            for place in 0..PLACES.len() {
                let pair = [ZMM[2 * place], ZMM[2 * place + 1]];
                for (value, codes) in pair.into_iter().zip([codes, turned]) {
                    code.vmovdqa32(value, codes)?;
                    code.vpternlogd(value, NIBBLES[place], ONE, AND_THEN_OR)?;
                    code.vfmadd213ps(value, FACTORS[place], ADDENDS[place])?;
                }
                let [value, of_turned] = pair;
                code.vpshufb(of_turned.k2(), value, DOWN)?;
                let row = unit * PLACES.len() + place;
                let to = group * TILE_BYTES + row * LINE_BYTES;
                code.vmovdqu32(zmmword_ptr(CODES + to), of_turned)?;
            }
        }
        Ok(())
    }
}

/// Two bytes of each lane's four.
const LOWER_BYTES: u64 = 0x3333_3333_3333_3333;

/// (a & b) | c, as `vpternlogd` has it.
const AND_THEN_OR: i32 = 0xea;
