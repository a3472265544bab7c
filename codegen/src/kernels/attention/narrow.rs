//! Rounding floats to numbers of 16 bits in 256-bit vectors: the bits of `cache`'s `store`.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::cache::CacheType;

/// Constants in every lane of their registers.
const MAGNITUDE: AsmRegisterYmm = ymm15;
const INFINITY: AsmRegisterYmm = ymm14;
const MOST: AsmRegisterYmm = ymm13;
const LEAST: AsmRegisterYmm = ymm12;
const BELOW_HALF: AsmRegisterYmm = ymm11;
const ONE: AsmRegisterYmm = ymm10;
const NO_NUMBER: AsmRegisterYmm = ymm9;

/// Words of the constants that rounding to a format needs, and their registers.
pub(in crate::kernels) fn constants(number: CacheType) -> Vec<(AsmRegisterYmm, u32)> {
    if !matches!(number, CacheType::F16 | CacheType::Bf16) {
        return Vec::new();
    }
    vec![
        (MAGNITUDE, 0x7fff_ffff),
        (INFINITY, f32::INFINITY.to_bits()),
        (MOST, number.largest().to_bits()),
        (LEAST, (-number.largest()).to_bits()),
        (BELOW_HALF, 0x7fff),
        (ONE, 1),
        (NO_NUMBER, 0x7fc0),
    ]
}

/// Rounds eight floats to 16 bits each in the second register. Spoils them and the first.
pub(in crate::kernels) fn narrow(
    code: &mut CodeAssembler,
    number: CacheType,
    value: AsmRegisterYmm,
) -> Result<(), IcedError> {
    // What is finite is held to the largest number; the rest is left alone.
    code.vandps(ymm0, value, MAGNITUDE)?;
    code.vcmpltps(ymm0, ymm0, INFINITY)?;
    code.vminps(ymm1, value, MOST)?;
    code.vmaxps(ymm1, ymm1, LEAST)?;
    code.vblendvps(value, value, ymm1, ymm0)?;
    if number == CacheType::F16 {
        // To nearest even.
        return code.vcvtps2ph(xmm1, value, 0);
    }
    code.vcmpunordps(ymm0, value, value)?;
    code.vpsrld(ymm1, value, 16)?;
    code.vpand(ymm1, ymm1, ONE)?;
    code.vpaddd(value, value, BELOW_HALF)?;
    code.vpaddd(value, value, ymm1)?;
    code.vpsrld(value, value, 16)?;
    code.vblendvps(value, value, NO_NUMBER, ymm0)?;
    code.vextractf128(xmm0, value, 1)?;
    code.vpackusdw(ymm1, value, ymm0)
}
