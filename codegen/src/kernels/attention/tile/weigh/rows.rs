//! Weights over an int8 cache, of many queries.
//!
//! Three numbers of a query need all its lanes: the largest score, the total, and the largest product of
//! a weight and a scale. Lanes of as many queries as a register has lanes are folded together, which
//! takes three instructions a query, not eight, and gives each of the numbers in a vector of queries.
//! Pairs are those of [`Vectors::fold`], halves first, so the bits are, too.

use iced_x86::code_asm::*;
use weir_abi::KEY_TILE;

use super::{
    FOLDED, KeysRead, LEAST_OF_STEPS, ONE_OF_TOP, ORDER, PACKED, SCORES, TOP, VALUE_ROWS, constant,
    exp2, fold_group, whole_or_part,
};
use crate::kernels::attention::cache::QUAD;
use crate::kernels::attention::scratch::SCORE_ROW;
use crate::kernels::attention::tile::blocks::bind;
use crate::kernels::attention::tile::integer::value_scales;
use crate::kernels::attention::tile::{Tile, amx};
use crate::kernels::attention::vector::{Dots, Emitted, Fold, Vectors, Width, YMM, ZMM};

/// Lanes of the wider registers.
const LANES: usize = 16;
/// Queries in these whose weights are computed beside each other: the steps of one wait for each other,
/// and with less than eight registers of them some are always waited for. There is room for whole
/// vectors of queries, so that one too many does no harm.
const TOGETHER: usize = 2;
/// Where the numbers of queries lie behind the last fold.
pub(super) const FOLD_ORDER: [u32; LANES] = [0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15];
/// Where the quads of codes lie behind the packing of four registers.
pub(super) const CODE_ORDER: [u32; LANES] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// An operation on lanes: `[to, a, b]`.
type OnLanes = dyn Fn(&mut Vectors<'_>, [usize; 3]) -> Emitted;

/// Folds each of as many rows as a register has lanes, at `from`; row r's goes to lane r of `to`. Destroys
/// the registers from 16 to 25, on AVX2 from 6 to 11.
pub(super) fn fold(v: &mut Vectors<'_>, op: &OnLanes, from: AsmRegister64, to: usize) -> Emitted {
    match v.width {
        Width::Eight => fold_eight(v, op, from, to),
        Width::Sixteen => fold_sixteen(v, op, from, to),
    }
}

fn fold_eight(v: &mut Vectors<'_>, op: &OnLanes, from: AsmRegister64, to: usize) -> Emitted {
    let [first, row, high] = [6, 10, 11];
    let bytes = v.bytes();
    for query in 0..4 {
        let low = first + query;
        let other = ymmword_ptr(from + (query + 4) * bytes);
        v.load(row, from + query * bytes)?;
        v.code.vperm2f128(YMM[low], YMM[row], other, 0x20)?;
        v.code.vperm2f128(YMM[high], YMM[row], other, 0x31)?;
        op(v, [low, low, high])?;
    }
    for query in 0..2 {
        let low = first + query;
        let other = low + 2;
        v.code.vunpckhpd(YMM[high], YMM[low], YMM[other])?;
        v.code.vunpcklpd(YMM[low], YMM[low], YMM[other])?;
        op(v, [low, low, high])?;
    }
    let (low, other) = (first, first + 1);
    v.code.vshufps(YMM[high], YMM[low], YMM[other], 0xdd)?;
    v.code.vshufps(YMM[low], YMM[low], YMM[other], 0x88)?;
    op(v, [low, low, high])?;
    v.code.vshufps(YMM[to], YMM[low], YMM[low], 0b11_01_10_00)
}

fn fold_sixteen(v: &mut Vectors<'_>, op: &OnLanes, from: AsmRegister64, to: usize) -> Emitted {
    let [first, row, high] = [16, 24, 25];
    let bytes = v.bytes();
    // Halves of two rows beside each other, then quarters of four, and so on.
    for query in 0..8 {
        let low = first + query;
        let other = zmmword_ptr(from + (query + 8) * bytes);
        v.load(row, from + query * bytes)?;
        v.code.vshuff32x4(ZMM[low], ZMM[row], other, 0x44)?;
        v.code.vshuff32x4(ZMM[high], ZMM[row], other, 0xee)?;
        op(v, [low, low, high])?;
    }
    for query in 0..4 {
        let low = first + query;
        let other = low + 4;
        v.code.vshuff32x4(ZMM[high], ZMM[low], ZMM[other], 0xdd)?;
        v.code.vshuff32x4(ZMM[low], ZMM[low], ZMM[other], 0x88)?;
        op(v, [low, low, high])?;
    }
    for query in 0..2 {
        let low = first + query;
        let other = low + 2;
        v.code.vunpckhpd(ZMM[high], ZMM[low], ZMM[other])?;
        v.code.vunpcklpd(ZMM[low], ZMM[low], ZMM[other])?;
        op(v, [low, low, high])?;
    }
    let (low, other) = (first, first + 1);
    v.code.vshufps(ZMM[high], ZMM[low], ZMM[other], 0xdd)?;
    v.code.vshufps(ZMM[low], ZMM[low], ZMM[other], 0x88)?;
    op(v, [low, low, high])?;
    v.load(row, constant(FOLDED))?;
    v.code.vpermps(ZMM[to], ZMM[row], ZMM[low])
}

/// Scores of `rsi` queries become codes of weights; steps, and totals, which move on.
pub(super) fn weights(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    // By count 500 cycles lie in front of the exponentials of 32 queries and 500 behind them, which
    // take up to 1700 themselves.
    let keep_awake = |v: &mut Vectors<'_>| match tile.dots {
        Dots::Tiles => amx::keep_awake(v),
        Dots::Quads | Dots::Pairs => Ok(()),
    };
    keep_awake(v)?;
    match v.width {
        Width::Eight => products_of_eight(v, tile)?,
        Width::Sixteen => products(v, tile)?,
    }
    keep_awake(v)?;
    numbers(v, tile)?;
    match v.width {
        Width::Eight => codes_of_eight(v, tile),
        Width::Sixteen => codes(v, tile),
    }
}

/// Weights times the scales of the values, in place of the scores; lanes of totals and largest products.
fn products(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let bytes = v.bytes();
    // By query: scores, what the exponential needs, weights; then what is left of them.
    let score = |query: usize, index: usize| query * SCORES + index;
    let weight = |query: usize, index: usize| 2 * TOGETHER * SCORES + score(query, index);
    let [maxima, factors, totals, largest] = [25, 25 + TOGETHER, 0, TOGETHER];
    let [scratch_register, zero, least] = [24, 29, 30];
    v.code.mov(r9, qword_ptr(rsp + VALUE_ROWS))?;
    v.code.lea(r8, rdi + scratch.scores)?;
    v.code.lea(rbp, rdi + scratch.lanes)?;
    v.code.mov(r11, rdi)?;
    v.code.mov(rdx, rsi)?;
    v.zero(zero)?;
    v.load(least, constant(LEAST_OF_STEPS))?;
    whole_or_part(v, |v, keys| {
        let mut again = v.code.create_label();
        bind(v, &mut again)?;
        for query in 0..TOGETHER {
            let (maximum, factor) = (maxima + query, factors + query);
            v.broadcast(maximum, r11 + (scratch.maxima + query * 4))?;
            v.broadcast(factor, r11 + (scratch.query_factors + query * 4))?;
            for index in 0..SCORES {
                v.load(score(query, index), r8 + (query * SCORE_ROW + index * bytes))?;
                v.multiply_then_subtract(score(query, index), factor, maximum)?;
            }
        }
        let [x, n, y] = [0, TOGETHER * SCORES, weight(0, 0)];
        exp2(v, TOGETHER * SCORES, [x, n, y], scratch_register)?;
        for query in 0..TOGETHER {
            let (total, largest) = (totals + query, largest + query);
            v.add(total, weight(query, 0), weight(query, 1))?;
            for index in 2..SCORES {
                v.add(total, total, weight(query, index))?;
            }
            v.store(rbp + query * bytes, total)?;
            for index in 0..SCORES {
                let weight = weight(query, index);
                let scales = r9 + value_scales(tile, index * LANES);
                match keys {
                    KeysRead::Whole => v.mul(weight, weight, scales)?,
                    KeysRead::Part => v.mul_unless_zero(weight, scales, zero, scratch_register)?,
                }
                v.store(r8 + (query * SCORE_ROW + index * bytes), weight)?;
                let before = if index == 0 { least } else { largest };
                v.largest_bits(largest, before, weight)?;
            }
            let products = scratch.lane_products - scratch.lanes;
            v.store(rbp + (products + query * bytes), largest)?;
        }
        v.code.add(r8, (TOGETHER * SCORE_ROW) as i32)?;
        v.code.add(rbp, (TOGETHER * bytes) as i32)?;
        v.code.add(r11, (TOGETHER * 4) as i32)?;
        v.code.sub(rdx, TOGETHER as i32)?;
        v.code.jg(again)
    })
}

/// The same in registers of eight floats.
fn products_of_eight(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let (bytes, lanes) = (v.bytes(), v.width.lanes());
    // Scores, what the exponential needs, weights; sums of both halves are where `fold_group` has them.
    let [x, n, y] = [0, SCORES, 2 * SCORES];
    let [largest, scratch_register, total, high] = [12, 13, 14, 15];
    v.code.mov(r9, qword_ptr(rsp + VALUE_ROWS))?;
    v.code.lea(r8, rdi + scratch.scores)?;
    v.code.lea(rbp, rdi + scratch.lanes)?;
    v.code.mov(r11, rdi)?;
    v.code.mov(rdx, rsi)?;
    whole_or_part(v, |v, keys| {
        let mut again = v.code.create_label();
        bind(v, &mut again)?;
        v.load(largest, constant(LEAST_OF_STEPS))?;
        for group in 0..KEY_TILE / (SCORES * lanes) {
            let (maximum, factor) = (n, n + 1);
            v.broadcast(maximum, r11 + scratch.maxima)?;
            v.broadcast(factor, r11 + scratch.query_factors)?;
            for index in 0..SCORES {
                v.load(x + index, r8 + (group * SCORES + index) * bytes)?;
                v.multiply_then_subtract(x + index, factor, maximum)?;
            }
            exp2(v, SCORES, [x, n, y], scratch_register)?;
            fold_group(v, Fold::Sum, y, group)?;
            let (zero, free) = (x, x + 1);
            if matches!(keys, KeysRead::Part) {
                v.zero(zero)?;
            }
            for index in 0..SCORES {
                let register = group * SCORES + index;
                let scales = r9 + value_scales(tile, register * lanes);
                match keys {
                    KeysRead::Whole => v.mul(y + index, y + index, scales)?,
                    KeysRead::Part => v.mul_unless_zero(y + index, scales, zero, free)?,
                }
                v.store(r8 + register * bytes, y + index)?;
                v.largest_bits(largest, largest, y + index)?;
            }
        }
        v.add(total, total, high)?;
        v.store(rbp.into(), total)?;
        v.store(rbp + (scratch.lane_products - scratch.lanes), largest)?;
        v.code.add(r8, SCORE_ROW as i32)?;
        v.code.add(rbp, bytes as i32)?;
        v.code.add(r11, 4)?;
        v.code.dec(rdx)?;
        v.code.jnz(again)
    })
}

/// Steps of codes, what becomes a code of 1, and totals that move on.
fn numbers(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let (bytes, lanes) = (v.bytes(), v.width.lanes());
    let [number, before, factor] = [0, 1, 2];
    let mut again = v.code.create_label();
    v.code.mov(r8, rdi)?;
    v.code.lea(rbp, rdi + scratch.lanes)?;
    v.code.lea(r11, rdi + scratch.lane_products)?;
    v.code.mov(rdx, rsi)?;
    bind(v, &mut again)?;
    fold(v, &|v, [to, a, b]| v.add(to, a, b), rbp, number)?;
    v.load(before, r8 + scratch.totals)?;
    v.load(factor, r8 + scratch.factors)?;
    v.multiply_then_add(before, factor, number)?;
    v.store(r8 + scratch.totals, before)?;
    fold(v, &|v, [to, a, b]| v.largest_bits(to, a, b), r11, number)?;
    v.mul(before, number, constant(ONE_OF_TOP))?;
    v.store(r8 + scratch.steps, before)?;
    v.load(before, constant(TOP))?;
    v.div(before, before, number)?;
    v.store(r8 + scratch.tile_maxima, before)?;
    v.code.add(r8, bytes as i32)?;
    v.code.add(rbp, (lanes * bytes) as i32)?;
    v.code.add(r11, (lanes * bytes) as i32)?;
    v.code.sub(rdx, lanes as i32)?;
    v.code.jg(again)
}

/// Codes of the products.
fn codes(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let bytes = v.bytes();
    let (place, row) = tile.weight_codes();
    let [inverse, order] = [4, 5];
    let mut again = v.code.create_label();
    v.code.lea(r8, rdi + scratch.scores)?;
    v.code.lea(r10, rdi + place)?;
    v.code.lea(r11, rdi + scratch.tile_maxima)?;
    v.code.mov(rdx, rsi)?;
    v.load(order, constant(PACKED))?;
    bind(v, &mut again)?;
    v.broadcast(inverse, r11.into())?;
    for index in 0..SCORES {
        v.mul(index, inverse, r8 + index * bytes)?;
        v.ints_of(index, index)?;
    }
    v.code.vpackssdw(ZMM[0], ZMM[0], ZMM[1])?;
    v.code.vpackssdw(ZMM[2], ZMM[2], ZMM[3])?;
    v.code.vpackuswb(ZMM[0], ZMM[0], ZMM[2])?;
    v.code.vpermd(ZMM[0], ZMM[order], ZMM[0])?;
    v.store(r10.into(), 0)?;
    v.code.add(r8, SCORE_ROW as i32)?;
    v.code.add(r10, row as i32)?;
    v.code.add(r11, 4)?;
    v.code.dec(rdx)?;
    v.code.jnz(again)
}

/// The same in registers of eight floats.
fn codes_of_eight(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let (bytes, lanes) = (v.bytes(), v.width.lanes());
    let (place, row) = tile.weight_codes();
    let count = KEY_TILE / lanes;
    let [inverse, free] = [count, count + 1];
    let mut again = v.code.create_label();
    v.code.lea(r8, rdi + scratch.scores)?;
    v.code.lea(r10, rdi + place)?;
    v.code.lea(r11, rdi + scratch.tile_maxima)?;
    v.code.mov(rdx, rsi)?;
    bind(v, &mut again)?;
    v.broadcast(inverse, r11.into())?;
    for register in 0..count {
        v.mul(register, inverse, r8 + register * bytes)?;
        v.ints_of(register, register)?;
    }
    // Codes may lie where the products did: all of a query's are here now.
    let chunk = v.packed(tile.dots);
    for (index, first) in (0..count).step_by(chunk).enumerate() {
        let to = r10 + index * (chunk * lanes / QUAD * tile.dots.quad_bytes());
        v.pack(tile.dots, false, [first, free], to, constant(ORDER))?;
    }
    v.code.add(r8, SCORE_ROW as i32)?;
    v.code.add(r10, row as i32)?;
    v.code.add(r11, 4)?;
    v.code.dec(rdx)?;
    v.code.jnz(again)
}

/// A row of scores fills the wider registers that are worked on at a time.
const _: () = assert!(SCORES * LANES == KEY_TILE);
