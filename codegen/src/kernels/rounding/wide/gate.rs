//! The gate in 512-bit vectors: SiLU of a block times its second operand.
//!
//! The values are those of the 256-bit version, bit for bit. One instruction (`vscalefps`) multiplies by
//! 2ⁿ, which is exact, or infinite, as it is there.

use iced_x86::code_asm::*;

use super::{
    BLOCK_INPUT, BLOCK_SECOND, Constant, Emitted, LARGEST, SERIES, TOGETHER, YMM, constant,
};
use crate::kernels::rounding::Blocks;

pub(super) const ZMM: [AsmRegisterZmm; 16] = [
    zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm8, zmm9, zmm10, zmm11, zmm12, zmm13, zmm14,
    zmm15,
];
const LANES: usize = 16;

fn all(which: Constant) -> AsmMemoryOperand {
    dword_bcst(constant(which))
}

/// The block's values on the stack, and their largest magnitude in its 256-bit register.
pub(super) fn block_values(code: &mut CodeAssembler, blocks: &Blocks) -> Emitted {
    let largest = ZMM[LARGEST];
    code.vpxord(largest, largest, largest)?;
    let vectors = blocks.form.block / LANES;
    for first in (0..vectors).step_by(TOGETHER) {
        let count = TOGETHER.min(vectors - first);
        sigmoids(code, count, first)?;
        for (index, value) in ZMM.into_iter().take(count).enumerate() {
            let at = |base: AsmRegister64| zmmword_ptr(base + (first + index) * 4 * LANES);
            code.vmulps(value, value, at(BLOCK_INPUT))?;
            code.vmulps(value, value, at(BLOCK_SECOND))?;
            code.vmovups(at(rsp), value)?;
            code.vpandd(value, value, all(Constant::Magnitude))?;
            code.vpmaxsd(largest, largest, value)?;
        }
    }
    code.vextracti64x4(ymm0, largest, 1)?;
    code.vpmaxsd(YMM[LARGEST], YMM[LARGEST], ymm0)
}

/// 1 / (1 + exp(-x)) of `count` vectors of the block's input from `first` on, in registers 0 and
/// following.
pub(super) fn sigmoids(code: &mut CodeAssembler, count: usize, first: usize) -> Emitted {
    let x = |index: usize| ZMM[TOGETHER + index];
    let n = |index: usize| ZMM[2 * TOGETHER + index];
    let series = |index: usize| ZMM[index];
    let each = 0..count;
    code.vbroadcastss(zmm12, dword_ptr(constant(Constant::Sign)))?;
    for index in each.clone() {
        let input = zmmword_ptr(BLOCK_INPUT + (first + index) * 4 * LANES);
        code.vxorps(x(index), zmm12, input)?;
    }
    // The second operand of both is the one that stays where it is not a number.
    code.vbroadcastss(zmm12, dword_ptr(constant(Constant::Least)))?;
    code.vbroadcastss(zmm13, dword_ptr(constant(Constant::Most)))?;
    for index in each.clone() {
        code.vmaxps(x(index), zmm12, x(index))?;
        code.vminps(x(index), zmm13, x(index))?;
        code.vmulps(n(index), x(index), all(Constant::PerLn2))?;
        code.vrndscaleps(n(index), n(index), 8)?;
    }
    for part in [Constant::Ln2High, Constant::Ln2Low] {
        for index in each.clone() {
            code.vfmadd231ps(x(index), n(index), all(part))?;
        }
    }
    for coefficient in 0..SERIES.len() {
        let place = constant(Constant::Series) + coefficient * 32;
        for index in each.clone() {
            match coefficient {
                0 => code.vbroadcastss(series(index), dword_ptr(place))?,
                _ => code.vfmadd213ps(series(index), x(index), dword_bcst(place))?,
            }
        }
    }
    code.vbroadcastss(zmm13, dword_ptr(constant(Constant::One)))?;
    for index in each {
        code.vscalefps(series(index), series(index), n(index))?;
        code.vaddps(series(index), zmm13, series(index))?;
        code.vdivps(series(index), zmm13, series(index))?;
    }
    Ok(())
}
