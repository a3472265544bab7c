//! Two blocks of 32 beside each other in 512-bit vectors.
//!
//! A block alone is a chain of some forty steps, from its values to their largest magnitude, the scale,
//! codes and sums, in which the units that compute mostly wait: as many operations as the processor
//! looks ahead are not more than two such chains. Here the steps behind the values serve two blocks, each
//! in one half of a register, and values stay in registers.
//!
//! The operations of a value are those of a block alone in the same order, sums are exact, so records
//! are the same, bit for bit.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{
    BLOCK_INPUT, BLOCK_SECOND, Constant, Emitted, FACTOR, RECORD, Vectors, constant, gate, times,
};
use crate::kernels::matmul::{MINUS_SUM, PAIRS_BEGIN, Scaling, paired_eights, values_at};
use crate::kernels::rounding::{Blocks, Source};

/// Elements of a block.
pub(super) const BLOCK: usize = 32;
/// Blocks that are rounded together.
pub(super) const COUNT: usize = 2;

/// The values of both blocks.
const VALUES: [AsmRegisterZmm; 4] = [zmm16, zmm17, zmm18, zmm19];
/// The anchor of each block in all lanes, and the rounded values, where records have them in bf16.
const ANCHORS: [AsmRegisterZmm; 2] = [zmm13, zmm14];
const EXACT: [AsmRegisterZmm; 4] = [zmm9, zmm10, zmm11, zmm12];
/// Bytes of a vector.
const VECTOR: usize = 64;
/// Orders of four 128-bit lanes: the lower two of both operands, the upper two, neighbours exchanged.
const LOWER: i32 = 0x44;
const UPPER: i32 = 0xee;
const EXCHANGED: i32 = 0xb1;

/// Whether blocks are rounded so.
pub(super) fn serves(blocks: &Blocks, vectors: Vectors) -> bool {
    vectors == Vectors::Of512Bits
        && blocks.form.block == BLOCK
        && blocks.parts.count >= COUNT
        && blocks.form.scaling != Scaling::Row
}

/// What the codes are put in order with, and what the sums of pairs are made of: see [`records`].
pub(super) fn constants() -> [[u32; 16]; 4] {
    let order = std::array::from_fn(|dword| (dword % 4 * 4 + dword / 4) as u32);
    // Of each eight codes: are they paired, and is this one of the first four?
    let bytes = |of_byte: &dyn Fn(usize, bool, bool) -> u8| {
        std::array::from_fn(|dword| {
            u32::from_le_bytes(std::array::from_fn(|byte| {
                let code = (dword * 4 + byte) % BLOCK;
                of_byte(code, code / 8 < paired_eights(BLOCK), code % 8 < 4)
            }))
        })
    };
    let second = |code: usize, is_paired: bool, is_first: bool| match (is_paired, is_first) {
        (true, true) => (code % 16) as u8 + 4,
        (true, false) => 0x80,
        (false, _) => (code % 16) as u8,
    };
    let kept = |_, is_paired: bool, is_first: bool| if is_paired && is_first { 0xff } else { 0 };
    let changed = |_, is_paired: bool, is_first: bool| match (is_paired, is_first) {
        (true, true) => 0x80,
        (true, false) => 0,
        (false, _) => 8,
    };
    [order, bytes(&second), bytes(&kept), bytes(&changed)]
}

fn all(which: Constant) -> AsmMemoryOperand {
    dword_bcst(constant(which))
}

/// Both records.
pub(super) fn records(code: &mut CodeAssembler, blocks: &Blocks, source: Source) -> Emitted {
    const { assert!(PAIRS_BEGIN == MINUS_SUM + 4, "both sums are stored together") };
    let in_bf16 = blocks.form.in_bf16;
    let record = blocks.parts.bytes;
    values(code, source)?;
    let largest = largest(code)?;

    // Scales or their anchors, and for codes the scales' inverses; blocks that are negligible or not finite
    // have codes 0.
    let (scales, inverses) = (zmm5, zmm4);
    code.vpcmpd(k1, largest, all(Constant::Negligible), GREATER)?;
    if blocks.form.scaling == Scaling::Power {
        code.vpaddd(scales, largest, all(Constant::PowerCarry))?;
        code.vpandd(scales, scales, all(Constant::Exponent))?;
        code.vpbroadcastd(inverses, dword_ptr(constant(Constant::PowerInverse)))?;
        code.vpsubd(inverses, inverses, scales)?;
        code.vpaddd(scales.k1().z(), scales, all(Constant::PowerToAnchor))?;
        code.vpcmpd(k2, largest, all(Constant::Greatest), GREATER)?;
        code.vpternlogd(scales.k2(), scales, scales, ONES)?;
        code.vpcmpd(k1.k1(), largest, all(Constant::Greatest), NOT_GREATER)?;
        code.vmovdqa32(inverses.k1().z(), inverses)?;
    } else {
        code.vdivps(scales, largest, all(Constant::Levels))?;
        code.vbroadcastss(inverses, dword_ptr(constant(Constant::Levels)))?;
        code.vdivps(inverses, inverses, largest)?;
        code.vpcmpd(k1.k1(), largest, all(Constant::Infinity), LESS)?;
    }
    for (anchor, lanes) in ANCHORS.into_iter().zip([LOWER, UPPER]) {
        if in_bf16 {
            code.vshuff32x4(anchor, scales, scales, lanes)?;
        }
    }
    code.vmovss(dword_ptr(RECORD + BLOCK), xmm5)?;
    code.vextractf32x4(xmm6, scales, 2)?;
    code.vmovss(dword_ptr(RECORD + (record + BLOCK)), xmm6)?;
    for (inverse, lanes) in [(zmm6, LOWER), (zmm7, UPPER)] {
        code.vshuff32x4(inverse, inverses, inverses, lanes)?;
    }

    let codes = zmm0;
    for (index, value) in VALUES.into_iter().enumerate() {
        code.vmulps(value, value, [zmm6, zmm7][index / 2])?;
        code.vcvtps2dq(value, value)?;
        if in_bf16 {
            let anchor = ANCHORS[index / 2];
            code.vpaddd(EXACT[index], value, anchor)?;
            code.vsubps(EXACT[index], EXACT[index], anchor)?;
        }
    }
    if in_bf16 {
        code.vmovdqu32(zmm0, zmmword_ptr(constant(Constant::ValueOrder)))?;
        for (number, halves) in EXACT.chunks_exact(2).enumerate() {
            code.vpermt2w(halves[0], zmm0, halves[1])?;
            code.vmovdqu32(zmmword_ptr(RECORD + (number * record + values_at(BLOCK))), halves[0])?;
        }
    }
    let [first, second, third, fourth] = VALUES;
    code.vpackssdw(first, first, second)?;
    code.vpackssdw(third, third, fourth)?;
    code.vpacksswb(codes, first, third)?;
    code.vmovdqu32(zmm1, zmmword_ptr(constant(Constant::Order)))?;
    code.vpermd(codes.k1().z(), zmm1, codes)?;
    code.vmovdqu32(ymmword_ptr(RECORD), ymm0)?;
    code.vextracti64x4(ymmword_ptr(RECORD + record), codes, 1)?;

    // Sums of codes, and what sums in pairs begin with, as in `quantise`: (a₁ + 128) a₂ of the paired
    // eights, where one factor of the second four is 0, and 8 a of the others.
    let (sums, pairs) = (zmm2, zmm3);
    code.vpxord(sums, sums, sums)?;
    code.vpxord(pairs, pairs, pairs)?;
    code.vpbroadcastd(zmm4, dword_ptr(constant(times(blocks))))?;
    code.vpdpbusd(sums, zmm4, codes)?;
    code.vpshufb(zmm7, codes, zmmword_ptr(constant(Constant::SecondFactors)))?;
    code.vmovdqu32(zmm6, zmmword_ptr(constant(Constant::FirstKept)))?;
    code.vpternlogd(codes, zmm6, zmmword_ptr(constant(Constant::FirstChanged)), AND_THEN_XOR)?;
    code.vpdpbusd(pairs, codes, zmm7)?;
    // Lanes of both sums side by side.
    code.vpunpckldq(zmm0, sums, pairs)?;
    code.vpunpckhdq(zmm1, sums, pairs)?;
    code.vpaddd(zmm0, zmm0, zmm1)?;
    code.vpshufd(zmm1, zmm0, 0x4e)?;
    code.vpaddd(zmm0, zmm0, zmm1)?;
    code.vshufi32x4(zmm1, zmm0, zmm0, EXCHANGED)?;
    code.vpaddd(zmm0, zmm0, zmm1)?;
    let begins = match blocks.form.scaling {
        Scaling::Power => scales,
        Scaling::Block | Scaling::Row => {
            code.vpxord(zmm1, zmm1, zmm1)?;
            zmm1
        }
    };
    code.vpsubd(zmm0, begins, zmm0)?;
    code.vmovq(qword_ptr(RECORD + (BLOCK + MINUS_SUM)), xmm0)?;
    code.vextracti32x4(xmm1, zmm0, 2)?;
    code.vmovq(qword_ptr(RECORD + (record + BLOCK + MINUS_SUM)), xmm1)
}

/// Predicates of `vpcmpd`.
const LESS: i32 = 1;
const NOT_GREATER: i32 = 2;
const GREATER: i32 = 6;
/// All ones, as `vpternlogd` has it.
const ONES: i32 = 0xff;
/// (a & b) ^ c, as `vpternlogd` has it.
const AND_THEN_XOR: i32 = 0x6a;

/// The values of both blocks in their registers.
fn values(code: &mut CodeAssembler, source: Source) -> Emitted {
    if let Source::Gated { .. } = source {
        gate::sigmoids(code, VALUES.len(), 0)?;
    }
    for (index, value) in VALUES.into_iter().enumerate() {
        let at = |base: AsmRegister64| zmmword_ptr(base + index * VECTOR);
        let factor = match source {
            Source::Row => {
                code.vmovups(value, at(BLOCK_INPUT))?;
                continue;
            }
            Source::RmsNorm { .. } => gate::ZMM[FACTOR],
            Source::Gated { .. } => gate::ZMM[index],
        };
        code.vmulps(value, factor, at(BLOCK_INPUT))?;
        code.vmulps(value, value, at(BLOCK_SECOND))?;
    }
    Ok(())
}

/// The largest magnitude of each block, in all lanes of its half. Spoils what is not a value.
fn largest(code: &mut CodeAssembler) -> Result<AsmRegisterZmm, IcedError> {
    let largest = zmm8;
    for (index, value) in VALUES.into_iter().enumerate() {
        code.vpandd(gate::ZMM[index], value, all(Constant::Magnitude))?;
    }
    code.vpmaxsd(zmm0, zmm0, zmm1)?;
    code.vpmaxsd(zmm2, zmm2, zmm3)?;
    code.vshuff32x4(zmm1, zmm0, zmm2, LOWER)?;
    code.vshuff32x4(zmm3, zmm0, zmm2, UPPER)?;
    code.vpmaxsd(largest, zmm1, zmm3)?;
    code.vshuff32x4(zmm1, largest, largest, EXCHANGED)?;
    code.vpmaxsd(largest, largest, zmm1)?;
    for half in [0x4e, 0xb1] {
        code.vpshufd(zmm1, largest, half)?;
        code.vpmaxsd(largest, largest, zmm1)?;
    }
    Ok(largest)
}
