//! Scores become weights: running maxima, totals and factors of the sums so far move on.
//!
//! Scores are in base 2 here: log₂ e is part of their factor. 2ˣ = 2ⁿ · 2ᶠ with n the nearest eighth, so
//! that f = x - n is exact: 2ⁿ comes from a table of eight and an exponent, 2ᶠ by the polynomial of
//! degree 3 with 1 at 0 that is within 2.6·10⁻⁸ of itself on ± 1/16 (least squares, weighted until errors
//! are level); all steps together are within 1.2·10⁻⁷. A sum of x and 1.5·2²⁰ + 127 has n + 127 in its
//! lowest bits, in eighths, so that rounding and scaling are additions and shifts: most processors have
//! two operations for the one and for the other, and on some with AMX what multiplies waits for one
//! unit of two. Arguments are not positive. Those below -126 are off by 2⁻¹²⁶ at most, those below
//! -127 give 0.

mod rows;

use std::f32::consts::{LOG2_E, SQRT_2};

use iced_x86::code_asm::*;
use weir_abi::KEY_TILE;

use super::blocks::bind;
use super::integer::{PACK_ORDER, WeightNumbers, round_weights};
use super::{Tile, amx};
use crate::kernels::attention::cache::CacheType;
use crate::kernels::attention::scratch::SCORE_ROW;
use crate::kernels::attention::vector::{Dots, Emitted, Fold, ROUNDING, Vectors, Width};
use crate::kernels::attention::{LEAST_STEP, TOP_WEIGHT};

/// Registers of scores that are worked on at a time.
const SCORES: usize = 4;

/// Numbers of [`exp2`], each in every lane, at these offsets (times 64) from the constants' label.
const EXP2: [f32; 5] = [
    // The least argument, whose power is 0.
    -127.0,
    5.549_622_3e-2,
    2.402_576_4e-1,
    6.931_472_4e-1,
    // 1.5·2²⁰ and the exponent's bias.
    1_572_991.0,
];
const LEAST: usize = 0;
const SERIES: std::ops::Range<usize> = 1..4;
const SHIFT: usize = 4;
/// Behind them: of two to each eighth what its mantissa has above the bits of the eighth itself, which
/// come with the exponent.
const EIGHTHS: usize = 5;
const ABOVE_EIGHTHS: [u32; 8] = {
    let powers: [f32; 8] =
        [1.0, 1.090_507_7, 1.189_207_1, 1.296_839_6, SQRT_2, 1.542_210_8, 1.681_792_9, 1.834_008_1];
    let mut above = [0; 8];
    let mut eighth = 0;
    while eighth < 8 {
        let mantissa = powers[eighth].to_bits() - 1f32.to_bits();
        above[eighth] = mantissa.wrapping_sub((eighth as u32) << EIGHTH_BIT);
        eighth += 1;
    }
    above
};
/// Where an eighth of an exponent lies: three bits below it.
const EIGHTH_BIT: u32 = 20;
/// The scores' factor; log₂ e where they are capped, and so scaled, before.
const SCALE: usize = 6;
/// Minus infinity.
const NEVER: usize = 7;
/// The scores' cap.
const CAP: usize = 8;
/// The sign bit.
const SIGN: usize = 9;
/// The factor of scores that get a cap.
const UNCAPPED: usize = 10;
/// Factor of a capped score's exponent.
const TWICE: usize = 11;
const ONE: usize = 12;
/// What weights over an int8 cache are rounded with.
const LEAST_OF_STEPS: usize = 13;
const TOP: usize = 14;
const ONE_OF_TOP: usize = 15;
const ORDER: usize = 16;
/// Orders of [`rows`].
const FOLDED: usize = 17;
const PACKED: usize = 18;
/// What weights over a bf16 cache are rounded with.
const ROUNDED_BY: usize = 19;
/// Behind the numbers: as many zeros as a tile has keys, as many ones (all bits), as many zeros.
const MASKS: usize = ROUNDED_BY + ROUNDING.len();

pub(super) const CONSTANTS: AsmRegister64 = rcx;

/// On the stack: not 0 if a row does not read all keys of the tile; the value rows.
const IS_PART: AsmRegister64 = rsp;
const VALUE_ROWS: i32 = 8;

/// Data: each number in sixteen lanes.
fn in_all_lanes(v: &mut Vectors<'_>, numbers: impl Iterator<Item = f32>) -> Emitted {
    for number in numbers {
        v.code.dd(&[number.to_bits(); 16])?;
    }
    Ok(())
}

/// Data that [`exp2`] reads, [`CONSTANTS`] at its begin.
pub(super) fn exp2_numbers(v: &mut Vectors<'_>) -> Emitted {
    in_all_lanes(v, EXP2.into_iter())?;
    // Sixteen lanes take the second half for the first where the bit above the eighths is set.
    [ABOVE_EIGHTHS; 2].iter().try_for_each(|half| v.code.dd(half))
}

fn constant(index: usize) -> AsmMemoryOperand {
    CONSTANTS + index * 64
}

/// Two to the registers `x .. x + count` in `y .. y + count`; `n` and the one `scratch` are destroyed.
pub(super) fn exp2(
    v: &mut Vectors<'_>,
    count: usize,
    [x, n, y]: [usize; 3],
    scratch: usize,
) -> Emitted {
    let each = |v: &mut Vectors<'_>,
                emit: &dyn Fn(&mut Vectors<'_>, usize) -> Emitted|
     -> Emitted { (0..count).try_for_each(|index| emit(v, index)) };
    v.load(scratch, constant(LEAST))?;
    each(v, &|v, i| v.max(x + i, scratch, x + i))?;
    v.load(scratch, constant(SHIFT))?;
    each(v, &|v, i| v.add(n + i, x + i, scratch))?;
    each(v, &|v, i| v.sub(y + i, n + i, scratch))?;
    each(v, &|v, i| v.sub(x + i, x + i, y + i))?;
    each(v, &|v, i| v.load(y + i, constant(SERIES.start)))?;
    for coefficient in SERIES.skip(1) {
        v.load(scratch, constant(coefficient))?;
        each(v, &|v, i| v.multiply_then_add(y + i, x + i, scratch))?;
    }
    each(v, &|v, i| v.mul(y + i, y + i, x + i))?;
    each(v, &|v, i| v.power_of_eighths(n + i, scratch, constant(EIGHTHS), EIGHTH_BIT))?;
    each(v, &|v, i| v.multiply_then_add(y + i, n + i, n + i))
}

/// `(scratch, rows, value rows)`: the scores of all queries of the rows become weights, over a bf16
/// cache rounded to it, and over an int8 cache codes; else the last argument is not read.
pub(in crate::kernels::attention) fn weigh(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let mut constants = v.code.create_label();
    if tile.scales_late() {
        let mut few = v.code.create_label();
        v.code.imul_3(rax, rsi, tile.group as i32)?;
        v.code.cmp(rax, amx::LEAST as i32)?;
        v.code.jl(few)?;
        all_steps(v, tile, constants, true)?;
        bind(v, &mut few)?;
    }
    all_steps(v, tile, constants, false)?;

    v.code.set_label(&mut constants)?;
    let scale = if tile.softcap == 0.0 { tile.scale * LOG2_E } else { LOG2_E };
    let numbers = [scale, f32::NEG_INFINITY, tile.softcap, -0.0, tile.scale, 2.0 * LOG2_E, 1.0];
    let of_steps = [LEAST_STEP, TOP_WEIGHT, 1.0 / TOP_WEIGHT];
    exp2_numbers(v)?;
    in_all_lanes(v, numbers.into_iter().chain(of_steps))?;
    v.code.dd(&PACK_ORDER)?;
    v.code.dd(&[0; 8])?;
    v.code.dd(&rows::FOLD_ORDER)?;
    v.code.dd(&rows::CODE_ORDER)?;
    ROUNDING.iter().try_for_each(|word| v.code.dd(&[*word; 16]))?;
    for mask in [0u32, u32::MAX, 0] {
        for _ in 0..KEY_TILE {
            v.code.db(&mask.to_le_bytes())?;
        }
    }
    Ok(())
}

/// The whole function, but its constants; with steps of [`rows`] or without.
fn all_steps(
    v: &mut Vectors<'_>,
    tile: &Tile<'_>,
    constants: CodeLabel,
    has_rows: bool,
) -> Emitted {
    let scratch = tile.scratch;
    let bytes = v.bytes();
    let groups = KEY_TILE / (SCORES * v.width.lanes());
    let is_rounded = tile.number == CacheType::Int8;
    let is_scaled_late = tile.scales_late();
    for register in [rbp, rbx, r12, r13, rdx] {
        v.code.push(register)?;
    }
    v.code.xor(eax, eax)?;
    v.code.push(rax)?;
    v.code.lea(CONSTANTS, ptr(constants))?;
    v.code.imul_3(rsi, rsi, tile.group as i32)?;

    if tile.softcap != 0.0 {
        cap_scores(v, tile)?;
    }

    // Scaled scores of the keys that a row reads, minus infinity for others, and their maximum.
    v.code.lea(r8, rdi + scratch.scores)?;
    v.code.lea(r9, rdi + scratch.bounds)?;
    v.code.lea(r11, rdi + scratch.tile_maxima)?;
    v.code.lea(rbp, rdi + scratch.lanes)?;
    v.code.mov(rdx, rsi)?;
    v.load(15, constant(NEVER))?;
    v.load(14, constant(SCALE))?;
    let [mut next_row, mut whole, mut row_done] = [(); 3].map(|()| v.code.create_label());
    bind(v, &mut next_row)?;
    // A row's bounds: the first key that it reads and the one behind the last. Masks begin where as
    // many zeros as the first, or ones as the last, are left.
    v.code.mov(eax, dword_ptr(r9))?;
    v.code.neg(rax)?;
    v.code.lea(rbx, CONSTANTS + rax * 4 + (MASKS * 64 + KEY_TILE * 4))?;
    v.code.mov(r13d, dword_ptr(r9 + 4))?;
    v.code.neg(r13)?;
    v.code.lea(r12, CONSTANTS + r13 * 4 + (MASKS * 64 + 2 * KEY_TILE * 4))?;
    v.code.sub(r13, rax)?;
    v.code.add(r9, 8)?;
    // Behind minus before: minus the number of keys.
    v.code.cmp(r13, -(KEY_TILE as i32))?;
    v.code.mov(r10d, tile.group as i32)?;
    v.code.je(whole)?;
    for is_part in [true, false] {
        let mut again = v.code.create_label();
        if is_part {
            v.code.mov(dword_ptr(IS_PART), r10d)?;
        } else {
            bind(v, &mut whole)?;
        }
        bind(v, &mut again)?;
        if is_rounded && tile.softcap == 0.0 && !has_rows {
            v.broadcast(14, r11 + (scratch.query_factors - scratch.tile_maxima))?;
        }
        for group in 0..groups {
            for index in 0..SCORES {
                let at = (group * SCORES + index) * bytes;
                if is_scaled_late {
                    v.load(index, r8 + at)?;
                } else {
                    v.mul(index, 14, r8 + at)?;
                }
                if is_part {
                    v.keep(index, [rbx + at, r12 + at], 15, 12)?;
                }
                if is_part || !is_scaled_late {
                    v.store(r8 + at, index)?;
                }
            }
            fold_group(v, Fold::Largest, 0, group)?;
        }
        if has_rows {
            if v.width == Width::Eight {
                v.max(8, 8, 9)?;
            }
            v.store(rbp.into(), 8)?;
            v.code.add(rbp, bytes as i32)?;
        } else {
            v.fold(Fold::Largest, 8, 9, 10)?;
            if is_scaled_late {
                v.mul(8, 8, 14)?;
            }
            v.store_first(r11.into(), 8)?;
        }
        v.code.add(r8, SCORE_ROW as i32)?;
        v.code.add(r11, 4)?;
        v.code.dec(r10)?;
        v.code.jnz(again)?;
        if is_part {
            v.code.jmp(row_done)?;
        }
    }
    bind(v, &mut row_done)?;
    v.code.sub(rdx, tile.group as i32)?;
    v.code.jnz(next_row)?;

    // Maxima move on; what came before is worth 2 to the difference of it.
    let mut again = v.code.create_label();
    v.code.mov(r8, rdi)?;
    v.code.lea(rbp, rdi + scratch.lanes)?;
    v.code.mov(rdx, rsi)?;
    bind(v, &mut again)?;
    v.load(4, r8 + scratch.maxima)?;
    if has_rows {
        rows::fold(v, &|v, [to, a, b]| v.max(to, a, b), rbp, 12)?;
        v.code.add(rbp, (v.width.lanes() * bytes) as i32)?;
        v.mul(12, 12, r8 + scratch.query_factors)?;
        v.max(12, 4, 12)?;
    } else {
        v.max(12, 4, r8 + scratch.tile_maxima)?;
    }
    v.store(r8 + scratch.maxima, 12)?;
    v.sub(0, 4, 12)?;
    exp2(v, 1, [0, 4, 8], 13)?;
    v.store(r8 + scratch.factors, 8)?;
    v.code.add(r8, bytes as i32)?;
    v.code.sub(rdx, v.width.lanes() as i32)?;
    v.code.jg(again)?;

    if has_rows {
        rows::weights(v, tile)?;
    } else {
        weights(v, tile)?;
    }

    v.code.vzeroupper()?;
    v.code.add(rsp, 8)?;
    for register in [rdx, r13, r12, rbx, rbp] {
        v.code.pop(register)?;
    }
    v.code.ret()
}

/// The keys of a tile that its rows read.
#[derive(Clone, Copy)]
pub(super) enum KeysRead {
    /// All rows read all.
    Whole,
    /// Some read a part: the other keys' weights are 0, and what is stored for such a key, or for its
    /// value, may be anything.
    Part,
}

/// Steps for either kind of tile, of which those of the one at hand are taken.
fn whole_or_part(
    v: &mut Vectors<'_>,
    mut steps: impl FnMut(&mut Vectors<'_>, KeysRead) -> Emitted,
) -> Emitted {
    let [mut part, mut done] = [(); 2].map(|()| v.code.create_label());
    v.code.cmp(dword_ptr(IS_PART), 0)?;
    v.code.jne(part)?;
    steps(v, KeysRead::Whole)?;
    v.code.jmp(done)?;
    bind(v, &mut part)?;
    steps(v, KeysRead::Part)?;
    bind(v, &mut done)
}

/// Scores of `rsi` queries become weights, over an int8 cache codes; totals move on.
fn weights(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let bytes = v.bytes();
    let groups = KEY_TILE / (SCORES * v.width.lanes());
    let is_scaled_late = tile.scales_late();
    // Weights and their sums.
    let mut again = v.code.create_label();
    v.code.lea(r8, rdi + scratch.scores)?;
    v.code.mov(r11, rdi)?;
    v.code.mov(rdx, rsi)?;
    bind(v, &mut again)?;
    for group in 0..groups {
        v.broadcast(12, r11 + scratch.maxima)?;
        if is_scaled_late {
            v.broadcast(13, r11 + scratch.query_factors)?;
        }
        for index in 0..SCORES {
            let at = (group * SCORES + index) * bytes;
            v.load(index, r8 + at)?;
            if is_scaled_late {
                v.multiply_then_subtract(index, 13, 12)?;
            } else {
                v.sub(index, index, 12)?;
            }
        }
        exp_scores(v, group)?;
        store_weights(v, tile, r8 + group * SCORES * bytes)?;
    }
    v.fold(Fold::Sum, 14, 15, 13)?;
    v.store_first(r11 + scratch.tile_totals, 14)?;
    v.code.add(r8, SCORE_ROW as i32)?;
    v.code.add(r11, 4)?;
    v.code.dec(rdx)?;
    v.code.jnz(again)?;

    // Codes of weights. A loop of their own, because the steps of one query wait for each other: the
    // shorter a turn, the more queries the processor has in hand.
    if tile.number == CacheType::Int8 {
        let numbers = WeightNumbers {
            least: constant(LEAST_OF_STEPS),
            top: constant(TOP),
            one_of_top: constant(ONE_OF_TOP),
            order: constant(ORDER),
        };
        if tile.dots == Dots::Tiles {
            amx::keep_awake(v)?;
        }
        v.code.mov(r9, qword_ptr(rsp + VALUE_ROWS))?;
        v.code.lea(r8, rdi + scratch.scores)?;
        v.code.lea(r11, rdi + scratch.steps)?;
        let (codes, codes_row) = tile.weight_codes();
        v.code.lea(r10, rdi + codes)?;
        v.code.mov(rdx, rsi)?;
        whole_or_part(v, |v, keys| {
            let mut again = v.code.create_label();
            bind(v, &mut again)?;
            round_weights(v, tile, &numbers, keys, r11.into(), r10)?;
            v.code.add(r8, SCORE_ROW as i32)?;
            v.code.add(r10, codes_row as i32)?;
            v.code.add(r11, 4)?;
            v.code.dec(rdx)?;
            v.code.jnz(again)
        })?;
    }

    // Totals move on.
    let mut again = v.code.create_label();
    v.code.mov(r8, rdi)?;
    bind(v, &mut again)?;
    v.load(0, r8 + scratch.totals)?;
    v.load(1, r8 + scratch.factors)?;
    v.multiply_then_add(0, 1, r8 + scratch.tile_totals)?;
    v.store(r8 + scratch.totals, 0)?;
    v.code.add(r8, bytes as i32)?;
    v.code.sub(rsi, v.width.lanes() as i32)?;
    v.code.jg(again)
}

/// Stores the weights of one group of registers, over a bf16 cache rounded; pairs lie as densely as their
/// numbers, behind scores that are still to come.
fn store_weights(v: &mut Vectors<'_>, tile: &Tile<'_>, to: AsmMemoryOperand) -> Emitted {
    let bytes = v.bytes();
    if tile.is_paired {
        return (0..SCORES)
            .step_by(2)
            .try_for_each(|index| v.store_pairs(to + index * bytes / 2, [8 + index, 9 + index]));
    }
    let masks = [5, 6, 7];
    if tile.number == CacheType::Bf16 {
        for (index, mask) in masks.into_iter().enumerate() {
            v.load(mask, constant(ROUNDED_BY + index))?;
        }
    }
    for index in 0..SCORES {
        if tile.number == CacheType::Bf16 {
            v.round_to_bf16(8 + index, [0, 1], masks)?;
        }
        v.store(to + index * bytes, 8 + index)?;
    }
    Ok(())
}

/// Scores of `rsi` queries become c·tanh(s·scale / c), by tanh |x| = (1 - e) / (1 + e) for
/// e = exp(-2·|x|).
///
/// The error: e is off by 4u of itself, so the quotient by 8u·e / (1 + e)² ≤ 2u and its own three
/// roundings, 5u of 1 at most; x has four roundings, and x times the slope of tanh is ½ at most; the
/// last product rounds once. Together 8u·c.
fn cap_scores(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let bytes = v.bytes();
    let groups = KEY_TILE / (SCORES * v.width.lanes());
    let [mut next_query, mut again] = [(); 2].map(|()| v.code.create_label());
    v.code.lea(r8, rdi + tile.scratch.scores)?;
    v.code.lea(r11, rdi + tile.scratch.query_factors)?;
    v.code.mov(rdx, rsi)?;
    bind(v, &mut next_query)?;
    if tile.number == CacheType::Int8 {
        v.broadcast(14, r11.into())?;
    } else {
        v.load(14, constant(UNCAPPED))?;
    }
    v.code.mov(r9d, groups as i32)?;
    bind(v, &mut again)?;
    for index in 0..SCORES {
        v.load(index, r8 + index * bytes)?;
        v.mul(index, index, 14)?;
        v.store(r8 + index * bytes, index)?;
        v.div(index, index, constant(CAP))?;
        v.or(index, index, constant(SIGN))?;
        v.mul(index, index, constant(TWICE))?;
    }
    exp2(v, SCORES, [0, 4, 8], 13)?;
    v.load(12, constant(ONE))?;
    for index in 0..SCORES {
        let (score, power) = (4 + index, 8 + index);
        v.sub(index, 12, power)?;
        v.add(power, 12, power)?;
        v.div(index, index, power)?;
        v.load(score, r8 + index * bytes)?;
        v.and(score, score, constant(SIGN))?;
        v.or(index, index, score)?;
        v.mul(index, index, constant(CAP))?;
        v.store(r8 + index * bytes, index)?;
    }
    v.code.add(r8, (SCORES * bytes) as i32)?;
    v.code.dec(r9d)?;
    v.code.jnz(again)?;
    v.code.add(r11, 4)?;
    v.code.dec(rdx)?;
    v.code.jnz(next_query)
}

/// Exponentials of one group of registers, added to the sums in 14 (and 15 on AVX2).
fn exp_scores(v: &mut Vectors<'_>, group: usize) -> Emitted {
    exp2(v, SCORES, [0, 4, 8], 13)?;
    fold_group(v, Fold::Sum, 8, group)
}

/// Folds the registers of one group into those of the groups before: sums into 14, maxima into 8.
/// On AVX2 registers alternate between the lower and the upper half of sixteen lanes.
fn fold_group(v: &mut Vectors<'_>, op: Fold, from: usize, group: usize) -> Emitted {
    let to = match op {
        Fold::Sum => 14,
        Fold::Largest => 8,
    };
    let halves = 16 / v.width.lanes();
    for index in 0..SCORES {
        let half = index % halves;
        let (to, from) = (to + half, from + index);
        match op {
            _ if group == 0 && index < halves => v.copy(to, from)?,
            Fold::Sum => v.add(to, to, from)?,
            Fold::Largest => v.max(to, to, from)?,
        }
    }
    Ok(())
}
