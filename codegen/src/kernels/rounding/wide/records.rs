//! Codes and sums of a block where there are 512-bit vectors: sixteen values are one, and one
//! `vpdpbusd` a sum takes the place of widening to words.
//!
//! Sums are exact, so records are those of the 256-bit version, bit for bit.

use iced_x86::code_asm::*;

use super::{Constant, Emitted, RECORD, block_place, constant, scale, small, times};
use crate::kernels::matmul::{MINUS_SUM, PAIRS_BEGIN, Scaling, paired_eights, values_at};
use crate::kernels::rounding::{Blocks, Source};

/// Values of a block of 32 in bf16, before they are.
const VALUES: [AsmRegisterZmm; 2] = [zmm16, zmm17];

/// The block's record; the largest magnitude is in the lower lanes of its register.
pub(super) fn codes(code: &mut CodeAssembler, blocks: &Blocks, source: Source) -> Emitted {
    const { assert!(PAIRS_BEGIN == MINUS_SUM + 4, "both sums are stored together") };
    let block = blocks.form.block;
    let (inverse, is_usual, sum, pairs) = (zmm13, xmm12, xmm11, xmm8);
    let (ones, signs) = (xmm9, xmm10);
    scale(code, blocks)?;
    code.vbroadcastss(inverse, xmm1)?;
    code.vpxor(sum, sum, sum)?;
    code.vpxor(pairs, pairs, pairs)?;
    code.vmovups(ones, small(times(blocks)))?;
    code.vmovups(signs, small(Constant::Signs))?;
    let from = block_place(source);
    for sixteen in 0..block / 16 {
        // Two sixteens take turns with registers.
        let is_even = sixteen % 2 == 0;
        let (values, codes) = if is_even { (zmm0, xmm0) } else { (zmm4, xmm4) };
        let [first, second] = if is_even { [xmm1, xmm2] } else { [xmm5, xmm6] };
        code.vmulps(values, inverse, zmmword_ptr(from + sixteen * 64))?;
        code.vcvtps2dq(values, values)?;
        if blocks.form.in_bf16 {
            let exact = VALUES[sixteen % 2];
            let anchor = dword_bcst(RECORD + block);
            code.vpaddd(exact, values, anchor)?;
            code.vsubps(exact, exact, anchor)?;
        }
        code.vpmovdb(codes, values)?;
        code.vpand(codes, codes, is_usual)?;
        code.vmovups(xmmword_ptr(RECORD + sixteen * 16), codes)?;
        code.evex().vpdpbusd(sum, ones, codes)?;
        // What sums in pairs begin with, as in `quantise`: (a₁ + 128) a₂ of the paired eights, where
        // one factor of the second four is 0, and 8 a of the others.
        match paired_eights(block).saturating_sub(2 * sixteen) {
            0 => {
                code.vmovups(first, small(Constant::Eights))?;
                code.evex().vpdpbusd(pairs, first, codes)?;
            }
            1 => {
                code.vpshufd(second, codes, 0b11_10_01_01)?;
                code.vpand(first, codes, small(Constant::FirstFour))?;
                code.vpxor(first, first, small(Constant::SignsThenEights))?;
                code.evex().vpdpbusd(pairs, first, second)?;
            }
            _ => {
                code.vpsrlq(second, codes, 32)?;
                code.vpxor(first, codes, signs)?;
                code.evex().vpdpbusd(pairs, first, second)?;
            }
        }
    }
    if blocks.form.in_bf16 {
        let [first, second] = VALUES;
        code.vmovdqu32(zmm0, zmmword_ptr(constant(Constant::ValueOrder)))?;
        code.vpermt2w(first, zmm0, second)?;
        code.vmovdqu32(zmmword_ptr(RECORD + values_at(block)), first)?;
    }
    // Lanes of both sums side by side.
    code.vpunpckldq(xmm0, sum, pairs)?;
    code.vpunpckhdq(xmm1, sum, pairs)?;
    code.vpaddd(xmm0, xmm0, xmm1)?;
    code.vpshufd(xmm1, xmm0, 0x4e)?;
    code.vpaddd(xmm0, xmm0, xmm1)?;
    match blocks.form.scaling {
        Scaling::Power => code.vpbroadcastd(xmm1, dword_ptr(RECORD + block))?,
        Scaling::Block | Scaling::Row => code.vpxor(xmm1, xmm1, xmm1)?,
    }
    code.vpsubd(xmm0, xmm1, xmm0)?;
    code.vmovq(qword_ptr(RECORD + (block + MINUS_SUM)), xmm0)
}
