//! Values rounded to pairs of bf16 in 512-bit vectors.

use iced_x86::code_asm::*;

use super::gate::{self, ZMM};
use super::{BLOCK_INPUT, BLOCK_SECOND, Emitted, FACTOR, RECORD, TOGETHER};
use crate::kernels::matmul::CHUNK;
use crate::kernels::rounding::Source;

/// Bytes of a vector.
const VECTOR: usize = 64;

/// A part of a row: its values in registers, then as pairs, the earlier number above.
pub(super) fn part(code: &mut CodeAssembler, source: Source) -> Emitted {
    const {
        assert!(
            CHUNK == TOGETHER * VECTOR / 4,
            "a part is as many vectors as are computed together"
        )
    };
    let at = |base: AsmRegister64, index: usize| zmmword_ptr(base + index * VECTOR);
    let values = || ZMM.into_iter().take(TOGETHER).enumerate();
    if let Source::Gated { .. } = source {
        gate::sigmoids(code, TOGETHER, 0)?;
    }
    for (index, value) in values() {
        match source {
            Source::Row => code.vmovups(value, at(BLOCK_INPUT, index))?,
            Source::RmsNorm { .. } => {
                code.vmulps(value, ZMM[FACTOR], at(BLOCK_INPUT, index))?;
                code.vmulps(value, value, at(BLOCK_SECOND, index))?;
            }
            Source::Gated { .. } => {
                code.vmulps(value, value, at(BLOCK_INPUT, index))?;
                code.vmulps(value, value, at(BLOCK_SECOND, index))?;
            }
        }
    }
    for (index, low) in values().step_by(2) {
        code.vcvtne2ps2bf16(low, ZMM[index + 1], low)?;
        code.vprold(low, low, 16)?;
        code.vmovups(at(RECORD, index / 2), low)?;
    }
    Ok(())
}
