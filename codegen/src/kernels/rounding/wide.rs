//! The assembled version in 256-bit vectors; where there are longer ones, the gate and the records are in
//! 512 bits, and so are pairs of bf16 (`pairs`).
//!
//! A block of codes is taken in two passes: its values, kept on the stack if they are not the row's own, with
//! the largest magnitude; then codes and their sum. Where a row has one scale, a pass over all of its
//! values finds the largest magnitude first, and the first pass of a block leaves it alone. Magnitudes
//! are compared as integers, which is their order as floats and puts what is not a number above all:
//! what shares a scale with it has codes 0 and a scale that is not finite, as in the portable version.

mod gate;
mod pairs;
mod records;
mod together;

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{Blocks, Parts, Rounded, Source, Vectors};
use crate::kernels::matmul::{
    EXPONENT, LIMIT_OF_POWERS, MINUS_SUM, NEGLIGIBLE, NEGLIGIBLE_OF_POWERS, PAIRS_BEGIN,
    POWER_CARRY, POWER_INVERSE, POWER_LOWERED, Scaling, TO_ANCHOR, UNITS, VALUE_ORDER,
    paired_eights,
};

type Emitted = Result<(), IcedError>;

const YMM: [AsmRegisterYmm; 16] = [
    ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11, ymm12, ymm13, ymm14,
    ymm15,
];

/// First operand: of the row, then of the block.
const INPUT: AsmRegister64 = rdi;
const BLOCK_INPUT: AsmRegister64 = r11;
/// Second operand, likewise.
const SECOND: AsmRegister64 = rsi;
const BLOCK_SECOND: AsmRegister64 = rax;
/// Records, likewise.
const RECORDS: AsmRegister64 = r10;
const RECORD: AsmRegister64 = rdx;
/// Blocks left in all rows and in this one.
const LEFT: AsmRegister64 = r8;
const LEFT_IN_ROW: AsmRegister64 = r9;
const CONSTANTS: AsmRegister64 = rcx;

/// The norm's factor in every lane, as long as a row lasts.
const FACTOR: usize = 15;
/// The largest magnitude of the block, or of the row as long as it lasts.
const LARGEST: usize = 14;
/// A block's anchor, behind its largest magnitude.
const ANCHOR: AsmRegisterXmm = xmm14;
/// Values that are computed beside each other.
const TOGETHER: usize = 4;

/// Constants of eight lanes, at these multiples of 32 bytes from their label.
#[derive(Clone, Copy)]
enum Constant {
    Magnitude,
    Sign,
    Levels,
    Negligible,
    Infinity,
    Ones8,
    Ones16,
    Least,
    Most,
    PerLn2,
    Ln2High,
    Ln2Low,
    /// First of the eight of the series, the highest power's before the others.
    Series,
    /// [`WHOLE`].
    Whole = 20,
    One,
    /// What [`WHOLE`] leaves out of a power.
    Four,
    Width,
    Epsilon,
    /// 16 in every word.
    Sixteens,
    /// 256 in the words of each unit's second four.
    SecondFour,
    /// The sign of a byte, in every byte.
    Signs,
    /// 8 in every byte.
    Eights,
    /// The first four bytes, of each four lanes.
    FirstFour,
    /// Their signs, and eights in the second half of the four lanes.
    SignsThenEights,
    /// Of sixteen lanes, as the others behind it: see [`together::constants`].
    Order,
    SecondFactors = 33,
    FirstKept = 35,
    FirstChanged = 37,
    /// What makes a power of two of a magnitude, its anchor and its inverse: see `quantise`.
    PowerCarry = 39,
    Exponent,
    PowerToAnchor,
    PowerInverse,
    /// The greatest magnitude that powers of two serve.
    Greatest,
    /// The upper halves of two vectors of sixteen values in the order of `VALUE_ORDER`.
    ValueOrder,
}

/// A whole number that is added to it lies in its lowest bits, less 2: so the exponents of all powers from
/// those of [`Constant::Least`] to infinity's are those of normal numbers, until they are taken times
/// [`Constant::Four`]. What is added is whole, so nothing is rounded.
const WHOLE: f32 = 12_582_912.0 - 2.0;

/// Coefficients of the exponential's series, as in `emit::math`.
const SERIES: [f32; 8] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];

fn constants(rounded: &Rounded, source: Source) -> Vec<[u32; 8]> {
    let epsilon = if let Source::RmsNorm { epsilon } = source { epsilon } else { 0.0 };
    let mut words = vec![
        0x7fff_ffff,
        0x8000_0000,
        UNITS.to_bits(),
        match rounded {
            Rounded::Codes(blocks) if blocks.form.scaling == Scaling::Power => {
                NEGLIGIBLE_OF_POWERS.to_bits()
            }
            Rounded::Codes(_) | Rounded::Halves(..) => NEGLIGIBLE.to_bits(),
        },
        f32::INFINITY.to_bits(),
        0x0101_0101,
        0x0001_0001,
        (-85f32).to_bits(),
        89f32.to_bits(),
        std::f32::consts::LOG2_E.to_bits(),
        (-0.693_359_4f32).to_bits(),
        2.121_944_4e-4f32.to_bits(),
    ];
    words.extend(SERIES.map(f32::to_bits));
    let width = rounded.parts().reduction as f32;
    words.extend([WHOLE, 1.0, 4.0, width, epsilon].map(f32::to_bits));
    words.push(0x0010_0010);
    let uniform = |word: u32| [word; 8];
    let repeated = |four: [u32; 4]| std::array::from_fn(|lane| four[lane % 4]);
    let mut constants: Vec<[u32; 8]> = words.into_iter().map(uniform).collect();
    constants.push(repeated([0, 0, 0x0100_0100, 0x0100_0100]));
    constants.extend([0x8080_8080, 0x0808_0808].map(uniform));
    constants.push(repeated([u32::MAX, 0, 0, 0]));
    constants.push(repeated([0x8080_8080, 0, 0x0808_0808, 0x0808_0808]));
    debug_assert_eq!(constants.len(), Constant::Order as usize, "each at its place");
    for lanes in together::constants() {
        constants.extend([0, 8].map(|half| std::array::from_fn(|lane| lanes[half + lane])));
    }
    debug_assert_eq!(constants.len(), Constant::PowerCarry as usize, "each at its place");
    let greatest = LIMIT_OF_POWERS.to_bits() - 1;
    let to_anchor = TO_ANCHOR - POWER_LOWERED;
    let powers = [POWER_CARRY, EXPONENT, to_anchor, POWER_INVERSE, greatest];
    constants.extend(powers.map(uniform));
    let halves: [u16; 32] = std::array::from_fn(|place| {
        let element = place / 8 * 8 + VALUE_ORDER[place % 8];
        (element / 16 * 32 + element % 16 * 2 + 1) as u16
    });
    let order = |lane: usize| u32::from(halves[2 * lane]) | u32::from(halves[2 * lane + 1]) << 16;
    debug_assert_eq!(constants.len(), Constant::ValueOrder as usize, "each at its place");
    constants.extend([0, 8].map(|half| std::array::from_fn(|lane| order(half + lane))));
    constants
}

fn constant(which: Constant) -> AsmMemoryOperand {
    CONSTANTS + which as i32 * 32
}

fn wide(which: Constant) -> AsmMemoryOperand {
    ymmword_ptr(constant(which))
}

/// Emits the whole kernel.
pub(super) fn assemble(
    code: &mut CodeAssembler,
    rounded: &Rounded,
    source: Source,
    vectors: Vectors,
) -> Emitted {
    let parts = rounded.parts();
    let has_second = source != Source::Row;
    let mut data = code.create_label();
    let [mut next_row, mut done] = [(); 2].map(|()| code.create_label());
    if !has_second {
        // Without a second operand the others come one register earlier.
        code.mov(r8, rcx)?;
        code.mov(rcx, rdx)?;
        code.mov(rdx, rsi)?;
    }
    code.push(rbp)?;
    code.mov(rbp, rsp)?;
    code.sub(rsp, 64 * 4)?;
    code.and(rsp, -64)?;
    code.sub(LEFT, rcx)?;
    code.jle(done)?;
    code.mov(RECORDS, rdx)?;
    // Row and block to begin with.
    code.mov(rax, rcx)?;
    code.xor(edx, edx)?;
    code.mov(r9d, parts.count as i32)?;
    code.div(r9)?;
    for (place, bytes) in row_strides(parts, source) {
        code.imul_3(r11, rax, bytes as i32)?;
        code.add(place, r11)?;
    }
    code.lea(CONSTANTS, ptr(data))?;

    code.set_label(&mut next_row)?;
    if let Source::RmsNorm { .. } = source {
        factor(code, parts, vectors)?;
    }
    match rounded {
        Rounded::Codes(blocks) if blocks.form.scaling == Scaling::Row => {
            largest_of_row(code, blocks, source)?;
        }
        Rounded::Codes(_) | Rounded::Halves(..) => {}
    }
    code.mov(LEFT_IN_ROW, parts.count as i64)?;
    code.sub(LEFT_IN_ROW, rdx)?;
    code.cmp(LEFT_IN_ROW, LEFT)?;
    code.cmovg(LEFT_IN_ROW, LEFT)?;
    code.sub(LEFT, LEFT_IN_ROW)?;
    code.imul_3(BLOCK_INPUT, rdx, parts.elements as i32 * 4)?;
    code.lea(BLOCK_SECOND, SECOND + BLOCK_INPUT)?;
    code.add(BLOCK_INPUT, INPUT)?;
    code.imul_3(RECORD, rdx, parts.bytes as i32)?;
    code.add(RECORD, RECORDS)?;

    match rounded {
        Rounded::Codes(blocks) => blocks_of_row(code, blocks, source, vectors)?,
        Rounded::Halves(..) => {
            let mut next_part = code.create_label();
            code.set_label(&mut next_part)?;
            pairs::part(code, source)?;
            advance(code, parts, 1)?;
            code.jnz(next_part)?;
        }
    }

    code.xor(edx, edx)?;
    for (place, bytes) in row_strides(parts, source) {
        code.add(place, bytes as i32)?;
    }
    code.test(LEFT, LEFT)?;
    code.jnz(next_row)?;

    code.set_label(&mut done)?;
    code.vzeroupper()?;
    code.mov(rsp, rbp)?;
    code.pop(rbp)?;
    code.ret()?;
    code.set_label(&mut data)?;
    for lanes in constants(rounded, source) {
        code.dd(&lanes)?;
    }
    Ok(())
}

/// Those blocks of a row that are left.
fn blocks_of_row(
    code: &mut CodeAssembler,
    blocks: &Blocks,
    source: Source,
    vectors: Vectors,
) -> Emitted {
    let [mut next_block, mut row_done] = [(); 2].map(|()| code.create_label());
    if together::serves(blocks, vectors) {
        let mut next_blocks = code.create_label();
        code.set_label(&mut next_blocks)?;
        code.cmp(LEFT_IN_ROW, together::COUNT as i32)?;
        code.jl(next_block)?;
        together::records(code, blocks, source)?;
        advance(code, &blocks.parts, together::COUNT)?;
        code.jnz(next_blocks)?;
        code.jmp(row_done)?;
    }
    code.set_label(&mut next_block)?;
    block_values(code, blocks, source, vectors)?;
    match vectors {
        Vectors::Of256Bits => codes(code, blocks, source)?,
        Vectors::Of512Bits => records::codes(code, blocks, source)?,
    }
    advance(code, &blocks.parts, 1)?;
    code.jnz(next_block)?;
    code.set_label(&mut row_done)?;
    code.zero_bytes()
}

/// Goes on by `count` parts; the zero flag says whether the row ends there.
fn advance(code: &mut CodeAssembler, parts: &Parts, count: usize) -> Emitted {
    for place in [BLOCK_INPUT, BLOCK_SECOND] {
        code.add(place, (count * parts.elements * 4) as i32)?;
    }
    code.add(RECORD, (count * parts.bytes) as i32)?;
    code.sub(LEFT_IN_ROW, count as i32)
}

/// What moves from row to row, and by how many bytes.
fn row_strides(parts: &Parts, source: Source) -> Vec<(AsmRegister64, usize)> {
    let mut strides = vec![(INPUT, parts.input_stride * 4), (RECORDS, parts.row_bytes)];
    if let Source::Gated { up_stride, .. } = source {
        strides.push((SECOND, up_stride * 4));
    }
    strides
}

/// 1 / sqrt(mean(x²) + ε) of the whole row, in sixteen lanes of sums. Spoils r11.
fn factor(code: &mut CodeAssembler, parts: &Parts, vectors: Vectors) -> Emitted {
    let mut again = code.create_label();
    code.vxorps(ymm0, ymm0, ymm0)?;
    code.vxorps(ymm1, ymm1, ymm1)?;
    code.xor(r11d, r11d)?;
    code.set_label(&mut again)?;
    for half in 0..2_usize {
        let (sum, square) = (YMM[half], YMM[2 + half]);
        code.vmovups(square, ymmword_ptr(INPUT + r11 * 4 + half * 32))?;
        code.vmulps(square, square, square)?;
        code.vaddps(sum, sum, square)?;
    }
    code.add(r11, 16)?;
    code.cmp(r11, parts.reduction as i32)?;
    code.jl(again)?;
    code.vaddps(ymm0, ymm0, ymm1)?;
    code.vextractf128(xmm1, ymm0, 1)?;
    code.vaddps(xmm0, xmm0, xmm1)?;
    code.vpshufd(xmm1, xmm0, 0x4e)?;
    code.vaddps(xmm0, xmm0, xmm1)?;
    code.vpshufd(xmm1, xmm0, 0xb1)?;
    code.vaddss(xmm0, xmm0, xmm1)?;
    code.vdivss(xmm0, xmm0, dword_ptr(constant(Constant::Width)))?;
    code.vaddss(xmm0, xmm0, dword_ptr(constant(Constant::Epsilon)))?;
    code.vsqrtps(xmm0, xmm0)?;
    code.vmovss(xmm1, dword_ptr(constant(Constant::One)))?;
    code.vdivss(xmm0, xmm1, xmm0)?;
    match vectors {
        Vectors::Of256Bits => code.vbroadcastss(YMM[FACTOR], xmm0),
        Vectors::Of512Bits => code.vbroadcastss(gate::ZMM[FACTOR], xmm0),
    }
}

/// The largest magnitude of the row's values, in every lane. Spoils what counts blocks and points to
/// them, which the row's first block sets anew.
fn largest_of_row(code: &mut CodeAssembler, blocks: &Blocks, source: Source) -> Emitted {
    let mut again = code.create_label();
    code.vpxor(YMM[LARGEST], YMM[LARGEST], YMM[LARGEST])?;
    code.mov(BLOCK_INPUT, INPUT)?;
    code.mov(BLOCK_SECOND, SECOND)?;
    code.mov(LEFT_IN_ROW, blocks.parts.count as i64)?;
    code.set_label(&mut again)?;
    values(code, blocks, source, |code, value, _| measure(code, value))?;
    code.add(BLOCK_INPUT, blocks.form.block as i32 * 4)?;
    code.add(BLOCK_SECOND, blocks.form.block as i32 * 4)?;
    code.dec(LEFT_IN_ROW)?;
    code.jnz(again)?;
    fold_largest(code)
}

/// The block's values, on the stack if they are not the row's own, and their largest magnitude if that
/// is not the row's.
fn block_values(
    code: &mut CodeAssembler,
    blocks: &Blocks,
    source: Source,
    vectors: Vectors,
) -> Emitted {
    let keep = |code: &mut CodeAssembler, value, vector: usize| match source {
        Source::Row => Ok(()),
        _ => code.vmovups(ymmword_ptr(rsp + vector * 32), value),
    };
    match (blocks.form.scaling, source) {
        (Scaling::Block | Scaling::Power, Source::Gated { .. })
            if vectors == Vectors::Of512Bits =>
        {
            gate::block_values(code, blocks)?;
            fold_largest(code)
        }
        (Scaling::Block | Scaling::Power, _) => {
            code.vpxor(YMM[LARGEST], YMM[LARGEST], YMM[LARGEST])?;
            values(code, blocks, source, |code, value, vector| {
                keep(code, value, vector)?;
                measure(code, value)
            })?;
            fold_largest(code)
        }
        (Scaling::Row, Source::Row) => Ok(()),
        (Scaling::Row, _) => values(code, blocks, source, keep),
    }
}

/// Computes the block's values, a few vectors beside each other, and emits `then` for each with its
/// number in the block.
fn values(
    code: &mut CodeAssembler,
    blocks: &Blocks,
    source: Source,
    then: impl Fn(&mut CodeAssembler, AsmRegisterYmm, usize) -> Emitted,
) -> Emitted {
    let vectors = blocks.form.block / 8;
    for first in (0..vectors).step_by(TOGETHER) {
        let count = TOGETHER.min(vectors - first);
        let registers = || YMM.into_iter().take(count).enumerate();
        let at = |base: AsmRegister64, index: usize| ymmword_ptr(base + (first + index) * 32);
        match source {
            Source::Row => {
                for (index, value) in registers() {
                    code.vmovups(value, at(BLOCK_INPUT, index))?;
                }
            }
            Source::RmsNorm { .. } => {
                for (index, value) in registers() {
                    code.vmulps(value, YMM[FACTOR], at(BLOCK_INPUT, index))?;
                    code.vmulps(value, value, at(BLOCK_SECOND, index))?;
                }
            }
            Source::Gated { .. } => {
                sigmoids(code, count, first)?;
                for (index, value) in registers() {
                    code.vmulps(value, value, at(BLOCK_INPUT, index))?;
                    code.vmulps(value, value, at(BLOCK_SECOND, index))?;
                }
            }
        }
        for (index, value) in registers() {
            then(code, value, first + index)?;
        }
    }
    Ok(())
}

/// Takes a vector of values into the largest magnitude. Spoils it.
fn measure(code: &mut CodeAssembler, value: AsmRegisterYmm) -> Emitted {
    code.vandps(value, value, wide(Constant::Magnitude))?;
    code.vpmaxsd(YMM[LARGEST], YMM[LARGEST], value)
}

/// The largest of the lanes, in all of the lower four.
fn fold_largest(code: &mut CodeAssembler) -> Emitted {
    code.vextracti128(xmm0, YMM[LARGEST], 1)?;
    code.vpmaxsd(xmm0, xmm0, xmm14)?;
    for half in [0x4e, 0xb1] {
        code.vpshufd(xmm1, xmm0, half)?;
        code.vpmaxsd(xmm0, xmm0, xmm1)?;
    }
    code.vmovaps(xmm14, xmm0)
}

/// 1 / (1 + exp(-x)) of `count` vectors of the block's input from `first` on, in registers 0 and
/// following: the steps of `emit::math` in their order, but for 2ⁿ, which is exact there and here. Powers
/// below those of [`Constant::Least`] are nothing beside one. What is not a number gives any number.
fn sigmoids(code: &mut CodeAssembler, count: usize, first: usize) -> Emitted {
    let x = |index: usize| YMM[TOGETHER + index];
    let n = |index: usize| YMM[2 * TOGETHER + index];
    let series = |index: usize| YMM[index];
    let each = 0..count;
    code.vmovups(ymm12, wide(Constant::Sign))?;
    for index in each.clone() {
        code.vxorps(x(index), ymm12, ymmword_ptr(BLOCK_INPUT + (first + index) * 32))?;
    }
    // The second operand of both is the one that stays where it is not a number.
    code.vmovups(ymm12, wide(Constant::Least))?;
    code.vmovups(ymm13, wide(Constant::Most))?;
    for index in each.clone() {
        code.vmaxps(x(index), ymm12, x(index))?;
        code.vminps(x(index), ymm13, x(index))?;
        code.vmulps(n(index), x(index), wide(Constant::PerLn2))?;
        code.vroundps(n(index), n(index), 8)?;
    }
    for part in [Constant::Ln2High, Constant::Ln2Low] {
        code.vmovups(ymm12, wide(part))?;
        for index in each.clone() {
            code.vfmadd231ps(x(index), n(index), ymm12)?;
        }
    }
    for coefficient in 0..SERIES.len() {
        let place = ymmword_ptr(constant(Constant::Series) + coefficient * 32);
        code.vmovups(ymm12, place)?;
        for index in each.clone() {
            match coefficient {
                0 => code.vmovaps(series(index), ymm12)?,
                _ => code.vfmadd213ps(series(index), x(index), ymm12)?,
            }
        }
    }
    // Times 2ⁿ⁻² in the exponent, which stays within its range, and by four where one is added.
    code.vmovups(ymm12, wide(Constant::Whole))?;
    for index in each.clone() {
        code.vaddps(n(index), n(index), ymm12)?;
        code.vpslld(n(index), n(index), 23)?;
        code.vpaddd(series(index), series(index), n(index))?;
    }
    code.vmovups(ymm12, wide(Constant::Four))?;
    code.vmovups(ymm13, wide(Constant::One))?;
    for index in each.clone() {
        code.vfmadd213ps(series(index), ymm12, ymm13)?;
    }
    for index in each {
        code.vdivps(series(index), ymm13, series(index))?;
    }
    Ok(())
}

fn small(which: Constant) -> AsmMemoryOperand {
    xmmword_ptr(constant(which))
}

/// The record's scale, or its anchor. Leaves the scale's inverse in xmm1, and in xmm12 which codes count:
/// all, where the largest magnitude, which is in the lower lanes of its register, is above the negligible
/// and has codes.
fn scale(code: &mut CodeAssembler, blocks: &Blocks) -> Emitted {
    let block = blocks.form.block;
    if blocks.form.scaling == Scaling::Power {
        code.vpaddd(xmm0, xmm14, small(Constant::PowerCarry))?;
        code.vpand(xmm0, xmm0, small(Constant::Exponent))?;
        code.vmovups(xmm1, small(Constant::PowerInverse))?;
        code.vpsubd(xmm1, xmm1, xmm0)?;
        code.vpaddd(xmm0, xmm0, small(Constant::PowerToAnchor))?;
        code.vpcmpgtd(xmm12, xmm14, small(Constant::Negligible))?;
        code.vpcmpgtd(xmm2, xmm14, small(Constant::Greatest))?;
        code.vpand(xmm0, xmm0, xmm12)?;
        code.vpor(ANCHOR, xmm0, xmm2)?;
        code.vmovss(dword_ptr(RECORD + block), ANCHOR)?;
        code.vpandn(xmm12, xmm2, xmm12)?;
        return code.vpand(xmm1, xmm1, xmm12);
    }
    code.vmovss(xmm1, dword_ptr(constant(Constant::Levels)))?;
    code.vdivss(xmm0, xmm14, xmm1)?;
    code.vmovss(dword_ptr(RECORD + block), xmm0)?;
    code.vdivss(xmm1, xmm1, xmm14)?;
    code.vmovups(xmm0, small(Constant::Infinity))?;
    code.vpcmpgtd(xmm0, xmm0, xmm14)?;
    code.vpcmpgtd(xmm12, xmm14, small(Constant::Negligible))?;
    code.vpand(xmm12, xmm12, xmm0)
}

/// How many times a code counts in the record's first sum: what begins with an anchor has the zero point
/// of int4 in it.
fn times(blocks: &Blocks) -> Constant {
    match blocks.form.scaling {
        Scaling::Power => Constant::Eights,
        Scaling::Block | Scaling::Row => Constant::Ones8,
    }
}

/// Where the block's values are.
fn block_place(source: Source) -> AsmRegister64 {
    if source == Source::Row { BLOCK_INPUT } else { rsp }
}

/// The block's record.
fn codes(code: &mut CodeAssembler, blocks: &Blocks, source: Source) -> Emitted {
    let block = blocks.form.block;
    let (inverse, is_usual, sum, pairs) = (ymm13, xmm12, xmm11, ymm8);
    scale(code, blocks)?;
    code.vbroadcastss(inverse, xmm1)?;
    code.vpxor(sum, sum, sum)?;
    code.vpxor(pairs, pairs, pairs)?;
    code.vmovups(xmm9, small(times(blocks)))?;
    code.vmovups(xmm10, small(Constant::Ones16))?;
    let from = block_place(source);
    for sixteen in 0..block / 16 {
        // Two sixteens take turns with registers.
        let [low, high] = [0, 1].map(|half| YMM[sixteen % 2 * 4 + half]);
        let [first, second] = if sixteen % 2 == 0 { [xmm0, xmm1] } else { [xmm4, xmm5] };
        code.vmulps(low, inverse, ymmword_ptr(from + sixteen * 64))?;
        code.vmulps(high, inverse, ymmword_ptr(from + (sixteen * 64 + 32)))?;
        code.vcvtps2dq(low, low)?;
        code.vcvtps2dq(high, high)?;
        // Per 128 bits: quads 0 and 2, then 1 and 3.
        code.vpackssdw(low, low, high)?;
        code.vextracti128(second, low, 1)?;
        code.vpacksswb(first, first, second)?;
        code.vpshufd(first, first, 0xd8)?;
        code.vpand(first, first, is_usual)?;
        code.vmovups(xmmword_ptr(RECORD + sixteen * 16), first)?;
        code.vpmaddubsw(second, xmm9, first)?;
        code.vpmaddwd(second, second, xmm10)?;
        code.vpaddd(sum, sum, second)?;
        // Twice what sums in pairs begin with, as in `quantise`.
        let [words, factors] = if sixteen % 2 == 0 { [ymm2, ymm3] } else { [ymm6, ymm7] };
        code.vpmovsxbw(words, first)?;
        match paired_eights(block).saturating_sub(2 * sixteen) {
            0 => code.vpmaddwd(words, words, wide(Constant::Sixteens))?,
            paired => {
                code.vpshufd(factors, words, 0x4e)?;
                code.vpaddw(factors, factors, wide(Constant::SecondFour))?;
                if paired == 1 {
                    let sixteens = xmmword_ptr(constant(Constant::Sixteens));
                    code.vinserti128(factors, factors, sixteens, 1)?;
                }
                code.vpmaddwd(words, words, factors)?;
            }
        }
        code.vpaddd(pairs, pairs, words)?;
    }
    code.vextracti128(xmm1, pairs, 1)?;
    code.vpaddd(xmm8, xmm8, xmm1)?;
    for (total, offset) in [(sum, MINUS_SUM), (xmm8, PAIRS_BEGIN)] {
        for half in [0x4e, 0xb1] {
            code.vpshufd(xmm0, total, half)?;
            code.vpaddd(total, total, xmm0)?;
        }
        if offset == PAIRS_BEGIN {
            code.vpsrad(total, total, 1)?;
        }
        let from = match blocks.form.scaling {
            Scaling::Power => ANCHOR,
            Scaling::Block | Scaling::Row => {
                code.vpxor(xmm0, xmm0, xmm0)?;
                xmm0
            }
        };
        code.vpsubd(total, from, total)?;
        code.vmovd(dword_ptr(RECORD + (block + offset)), total)?;
    }
    Ok(())
}
