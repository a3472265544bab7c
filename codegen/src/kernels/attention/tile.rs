//! The three assembled steps of wide attention: a tile of queries against a tile of keys.
//!
//! | step | result |
//! |---|---|
//! | `scores` | `s[q, j] = Σ_d query[q, d] · key[j, d]`: one chain of fused steps, d ascending |
//! | `weigh` | scores become `exp(s - m)`; running maxima m, totals and factors of the sums so far |
//! | `values` | `o[q, c] = o[q, c] · factor[q]`, then one fused step per key, keys ascending |
//!
//! Lanes of `scores` are keys and lanes of `values` are columns, so neither product ever adds lanes:
//! an element's chain is the same in every block of rows, on eight lanes and on sixteen. A total adds
//! the weights of a tile in sixteen lanes (keys 0, 16, 32, 48 in lane 0), then folds the lanes by
//! halves. A key that a query does not read has weight 0, which changes no bit of a total, and is
//! left out of the values. Hence results depend neither on the neighbours in a tile nor on the width
//! of registers.
//!
//! Both products hold a block of rows times two registers of columns in accumulators: 12 × 2 with 32
//! registers (24 fused steps per 14 loads), 6 × 2 with 16 (12 per 8).
//!
//! `exp` is the function of `emit::math`: the same steps in the same order, within 2 units in the
//! last place; arguments are not positive here, so its upper bound is left out.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_abi::{KEY_BLOCK, KEY_TILE};

use super::cache::CacheType;
use super::scratch::{SCORE_ROW, Scratch};
use super::vector::{Emitted, Fold, Vectors, Width};

/// Registers of columns that an accumulator block holds.
pub(super) const COLUMNS: usize = 2;
/// The same where there are [`FEW_ROWS`] at most: chains that do not wait for each other.
const FEW_COLUMNS: usize = 4;
/// Registers of scores that `weigh` works on at a time.
const SCORES: usize = 4;
/// Reduction steps of a turn.
const UNROLL: usize = 4;

/// What the steps are made for.
pub(super) struct Tile<'a> {
    pub(super) scratch: &'a Scratch,
    /// Query heads of a unit.
    pub(super) group: usize,
    pub(super) key_width: usize,
    pub(super) value_width: usize,
    /// Factor of the scores.
    pub(super) scale: f32,
    /// c of c·tanh(s / c); 0 for none.
    pub(super) softcap: f32,
    /// Number format of the cache.
    pub(super) number: CacheType,
}

/// How a product is cut: rows of accumulator blocks, largest first, down to 1, and registers of
/// columns.
struct Blocks {
    rows: &'static [usize],
    columns: usize,
}

impl Blocks {
    /// Those of a product of few rows (at most the first of them) or of many.
    fn of(width: Width, is_few: bool) -> Blocks {
        match (width, is_few) {
            (Width::Eight, true) => Blocks { rows: &[2, 1], columns: FEW_COLUMNS },
            (Width::Eight, false) => Blocks { rows: &[6, 4, 2, 1], columns: COLUMNS },
            (Width::Sixteen, true) => Blocks { rows: &[4, 2, 1], columns: FEW_COLUMNS },
            (Width::Sixteen, false) => Blocks { rows: &[12, 8, 4, 2, 1], columns: COLUMNS },
        }
    }
}

/// Binds a label at a place where others may be bound, too.
fn bind(v: &mut Vectors<'_>, label: &mut CodeLabel) -> Emitted {
    v.code.set_label(label)?;
    v.code.zero_bytes()
}

/// A product of rows with columns, summed over a reduction; and what lies [`AHEAD`] from the right
/// side is asked for.
struct Product {
    /// Bytes from row to row of the left side, whose reduction is dense.
    left_row: usize,
    /// Number format of the right side.
    right: CacheType,
    /// Bytes from step to step of the reduction on the right side.
    right_step: usize,
    /// Bytes from [`KEY_BLOCK`] columns to the next of them.
    right_block: usize,
    /// Bytes from row to row of the result.
    result_row: usize,
    /// Steps, if they are known; else they come in `r9`.
    steps: Option<usize>,
    /// The result holds sums that go on, each row times its factor.
    goes_on: bool,
}

impl Product {
    /// Bytes from the first column to another on the right side.
    fn right_column(&self, column: usize) -> usize {
        column / KEY_BLOCK * self.right_block + column % KEY_BLOCK * self.right.bytes()
    }

    /// Where lines begin that a step of the reduction reads first, in bytes from the right side. A
    /// block of keys is one run of bytes over all steps, which a line may hold several of.
    fn lines(&self, step: usize, columns: impl Iterator<Item = usize>) -> Vec<usize> {
        let before = if self.right_step < 64 { step * self.right_step } else { 0 };
        let starts = columns.map(|column| self.right_column(column));
        let begins = starts.filter(|start| (before + start).is_multiple_of(64));
        begins.map(|start| step * self.right_step + start).collect()
    }
}

const LEFT: AsmRegister64 = r13;
const RIGHT: AsmRegister64 = r14;
const STEPS: AsmRegister64 = rax;
/// From the keys or values of this tile to those that come next.
const AHEAD: AsmRegister64 = rbp;

/// `(queries, keys, scores, number of keys, rows, keys to ask for)`: scores of whole blocks of
/// columns, from blocks of keys; as many keys are asked for.
pub(super) fn scores(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let product = Product {
        left_row: tile.key_width * 4,
        right: tile.number,
        right_step: KEY_BLOCK * tile.number.bytes(),
        right_block: KEY_BLOCK * tile.key_width * tile.number.bytes(),
        result_row: SCORE_ROW,
        steps: Some(tile.key_width),
        goes_on: false,
    };
    let saved = open(v)?;
    v.code.mov(AHEAD, r9)?;
    v.code.sub(AHEAD, rsi)?;
    few_or_many(v, &|v, blocks| {
        let keys = blocks.columns * v.width.lanes();
        v.code.lea(r15, rcx + (keys - 1))?;
        v.code.shr(r15, keys.trailing_zeros())?;
        columns(v, &product, blocks)
    })?;
    close(v, saved)
}

/// `(weights, value rows, sums, factors, rows, keys, value rows to ask for)`: of those as many rows
/// are asked for as there are keys.
pub(super) fn values(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let number = tile.number;
    let product = Product {
        left_row: SCORE_ROW,
        right: number,
        right_step: tile.value_width * number.bytes(),
        right_block: KEY_BLOCK * number.bytes(),
        result_row: tile.scratch.sum_row,
        steps: None,
        goes_on: true,
    };
    let lanes = v.width.lanes();
    let mut ones = v.code.create_label();
    let saved = open(v)?;
    v.code.mov(AHEAD, qword_ptr(rsp + 8 * (saved.len() + 1)))?;
    v.code.sub(AHEAD, rsi)?;
    let part = tile.value_width % lanes;
    if part > 0 {
        v.code.lea(rax, ptr(ones))?;
        v.prepare_part(part, rax.into())?;
    }
    few_or_many(v, &|v, blocks| {
        let block = blocks.columns * lanes;
        if tile.value_width >= block {
            v.code.mov(r15, (tile.value_width / block) as i64)?;
            columns(v, &product, blocks)?;
        }
        let rest = tile.value_width % block;
        if rest > 0 {
            rows(v, &product, &Blocks { columns: rest.div_ceil(lanes), ..*blocks }, part)?;
        }
        Ok(())
    })?;
    close(v, saved)?;
    v.code.set_label(&mut ones)?;
    for lane in 0..lanes {
        v.code.db(&(if lane < part { u32::MAX } else { 0 }).to_le_bytes())?;
    }
    Ok(())
}

fn open(v: &mut Vectors<'_>) -> Result<[AsmRegister64; 6], IcedError> {
    let saved = [rbx, rbp, r12, r13, r14, r15];
    for register in saved {
        v.code.push(register)?;
    }
    Ok(saved)
}

fn close(v: &mut Vectors<'_>, saved: [AsmRegister64; 6]) -> Emitted {
    v.code.vzeroupper()?;
    for register in saved.into_iter().rev() {
        v.code.pop(register)?;
    }
    v.code.ret()
}

/// Code for `r8` rows: for few of them and for many.
fn few_or_many(
    v: &mut Vectors<'_>,
    emit: &dyn Fn(&mut Vectors<'_>, &Blocks) -> Emitted,
) -> Emitted {
    let (few, many) = (Blocks::of(v.width, true), Blocks::of(v.width, false));
    let [mut is_many, mut done] = [(); 2].map(|()| v.code.create_label());
    v.code.cmp(r8, few.rows[0] as i32)?;
    v.code.jg(is_many)?;
    emit(v, &few)?;
    v.code.jmp(done)?;
    bind(v, &mut is_many)?;
    emit(v, &many)?;
    bind(v, &mut done)
}

/// `r15` whole blocks of columns; `rsi` and `rdx` move on to the column behind them.
fn columns(v: &mut Vectors<'_>, product: &Product, blocks: &Blocks) -> Emitted {
    let mut again = v.code.create_label();
    bind(v, &mut again)?;
    rows(v, product, blocks, 0)?;
    let numbers = blocks.columns * v.width.lanes();
    v.code.add(rsi, product.right_column(numbers) as i32)?;
    v.code.add(rdx, (numbers * 4) as i32)?;
    v.code.dec(r15)?;
    v.code.jnz(again)
}

/// All `r8` rows of a block of columns, of whose last register only `part` lanes are there unless
/// that is 0.
fn rows(v: &mut Vectors<'_>, product: &Product, blocks: &Blocks, part: usize) -> Emitted {
    v.code.mov(r10, rdi)?;
    v.code.mov(r11, rdx)?;
    if product.goes_on {
        v.code.mov(rbx, rcx)?;
    }
    v.code.mov(r12, r8)?;
    for rows in blocks.rows {
        let (mut again, mut fewer) = (v.code.create_label(), v.code.create_label());
        bind(v, &mut again)?;
        v.code.cmp(r12, *rows as i32)?;
        v.code.jl(fewer)?;
        block(v, product, [*rows, blocks.columns], part)?;
        v.code.add(r10, (rows * product.left_row) as i32)?;
        v.code.add(r11, (rows * product.result_row) as i32)?;
        if product.goes_on {
            v.code.add(rbx, (rows * 4) as i32)?;
        }
        v.code.sub(r12, *rows as i32)?;
        v.code.jmp(again)?;
        bind(v, &mut fewer)?;
    }
    Ok(())
}

/// One block of accumulators over the whole reduction.
fn block(
    v: &mut Vectors<'_>,
    product: &Product,
    [rows, columns]: [usize; 2],
    part: usize,
) -> Emitted {
    let bytes = v.bytes();
    let lanes = v.width.lanes();
    let sum = |row: usize, column: usize| row * columns + column;
    let right = rows * columns;
    let left = right + columns;
    let result = |row: usize, column: usize| r11 + (row * product.result_row + column * bytes);
    for row in 0..rows {
        if product.goes_on {
            v.broadcast(left, rbx + row * 4)?;
        }
        for column in 0..columns {
            if product.goes_on {
                v.mul(sum(row, column), left, result(row, column))?;
            } else {
                v.zero(sum(row, column))?;
            }
        }
    }
    v.code.mov(LEFT, r10)?;
    v.code.mov(RIGHT, rsi)?;
    // A block of many rows computes for longer than its keys or values take to come.
    let asks = rows <= Blocks::of(v.width, true).rows[0];
    let step = |v: &mut Vectors<'_>, step: usize| -> Emitted {
        if asks {
            for line in product.lines(step, (0..columns).map(|column| column * lanes)) {
                v.code.prefetcht1(byte_ptr(RIGHT + AHEAD + line))?;
            }
        }
        for column in 0..columns {
            let from = RIGHT + (step * product.right_step + product.right_column(column * lanes));
            if part > 0 && column + 1 == columns {
                v.load_part(product.right, part, right + column, from)?;
            } else {
                v.load_as(product.right, right + column, from)?;
            }
        }
        for row in 0..rows {
            v.broadcast(left, LEFT + (row * product.left_row + step * 4))?;
            for column in 0..columns {
                v.multiply_add(sum(row, column), left, right + column)?;
            }
        }
        Ok(())
    };
    let turn = |v: &mut Vectors<'_>, steps: usize| -> Emitted {
        for index in 0..steps {
            step(v, index)?;
        }
        v.code.add(LEFT, (steps * 4) as i32)?;
        v.code.add(RIGHT, (steps * product.right_step) as i32)
    };
    match product.steps {
        Some(steps) => {
            if steps >= UNROLL {
                let mut again = v.code.create_label();
                v.code.mov(STEPS, (steps / UNROLL) as i64)?;
                v.code.set_label(&mut again)?;
                turn(v, UNROLL)?;
                v.code.dec(STEPS)?;
                v.code.jnz(again)?;
            }
            if !steps.is_multiple_of(UNROLL) {
                turn(v, steps % UNROLL)?;
            }
        }
        None => {
            let [mut again, mut rest, mut single, mut done] =
                [(); 4].map(|()| v.code.create_label());
            v.code.mov(STEPS, r9)?;
            v.code.sub(STEPS, UNROLL as i32)?;
            v.code.jl(rest)?;
            bind(v, &mut again)?;
            turn(v, UNROLL)?;
            v.code.sub(STEPS, UNROLL as i32)?;
            v.code.jge(again)?;
            bind(v, &mut rest)?;
            v.code.add(STEPS, UNROLL as i32)?;
            v.code.jz(done)?;
            bind(v, &mut single)?;
            turn(v, 1)?;
            v.code.dec(STEPS)?;
            v.code.jnz(single)?;
            bind(v, &mut done)?;
        }
    }
    for row in 0..rows {
        for column in 0..columns {
            v.store(result(row, column), sum(row, column))?;
        }
    }
    Ok(())
}

/// Numbers of `exp`, each in every lane, at these offsets (times 64) from the constants' label.
const EXP: [f32; 13] = [
    -104.0,
    std::f32::consts::LOG2_E,
    -0.693_359_4,
    2.121_944_4e-4,
    1.0 / 5040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
    // The exponent's bias as an integer.
    f32::from_bits(127),
];
const LEAST: usize = 0;
const PER_LN2: usize = 1;
const ONE: usize = 10;
const LN2: [usize; 2] = [2, 3];
const SERIES: std::ops::Range<usize> = 4..12;
const BIAS: usize = 12;
/// The scores' factor; 1 where they are capped, and so scaled, before.
const SCALE: usize = 13;
/// Minus infinity.
const NEVER: usize = 14;
/// The scores' cap.
const CAP: usize = 15;
/// The sign bit.
const SIGN: usize = 16;
/// The factor of scores that get a cap.
const UNCAPPED: usize = 17;
/// Behind the numbers: as many zeros as a tile has keys, as many ones (all bits), as many zeros.
const MASKS: usize = 18;

const CONSTANTS: AsmRegister64 = rcx;

fn constant(index: usize) -> AsmMemoryOperand {
    CONSTANTS + index * 64
}

/// Registers `x .. x + SCORES` become their exponentials in `y .. y + SCORES`; `n` and the one
/// `scratch` are destroyed.
fn exp(v: &mut Vectors<'_>, count: usize, [x, n, y]: [usize; 3], scratch: usize) -> Emitted {
    let each = |v: &mut Vectors<'_>,
                emit: &dyn Fn(&mut Vectors<'_>, usize) -> Emitted|
     -> Emitted { (0..count).try_for_each(|index| emit(v, index)) };
    v.load(scratch, constant(LEAST))?;
    each(v, &|v, i| v.max(x + i, scratch, x + i))?;
    v.load(scratch, constant(PER_LN2))?;
    each(v, &|v, i| v.mul(n + i, x + i, scratch))?;
    each(v, &|v, i| v.round(n + i, n + i))?;
    for part in LN2 {
        v.load(scratch, constant(part))?;
        each(v, &|v, i| v.multiply_add(x + i, n + i, scratch))?;
    }
    each(v, &|v, i| v.load(y + i, constant(SERIES.start)))?;
    for coefficient in SERIES.skip(1) {
        v.load(scratch, constant(coefficient))?;
        each(v, &|v, i| v.multiply_then_add(y + i, x + i, scratch))?;
    }
    each(v, &|v, i| v.scale_by_power(y + i, n + i, scratch, constant(BIAS)))
}

/// `(scratch, rows)`: the scores of all queries of the rows become weights.
pub(super) fn weigh(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let bytes = v.bytes();
    let groups = KEY_TILE / (SCORES * v.width.lanes());
    let mut constants = v.code.create_label();
    for register in [rbx, r12, r13] {
        v.code.push(register)?;
    }
    v.code.lea(CONSTANTS, ptr(constants))?;
    v.code.imul_3(rsi, rsi, tile.group as i32)?;

    if tile.softcap != 0.0 {
        cap_scores(v, tile)?;
    }

    // Scaled scores of the keys that a row reads, minus infinity for others, and their maximum.
    v.code.lea(r8, rdi + scratch.scores)?;
    v.code.lea(r9, rdi + scratch.bounds)?;
    v.code.lea(r11, rdi + scratch.tile_maxima)?;
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
        if !is_part {
            bind(v, &mut whole)?;
        }
        bind(v, &mut again)?;
        for group in 0..groups {
            for index in 0..SCORES {
                let at = (group * SCORES + index) * bytes;
                v.mul(index, 14, r8 + at)?;
                if is_part {
                    v.keep(index, [rbx + at, r12 + at], 15, 12)?;
                }
                v.store(r8 + at, index)?;
            }
            fold_group(v, Fold::Largest, 0, group)?;
        }
        v.fold(Fold::Largest, 8, 9, 10)?;
        v.store_first(r11.into(), 8)?;
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

    // Maxima move on; what came before is worth exp(old - new) of it.
    let mut again = v.code.create_label();
    v.code.mov(r8, rdi)?;
    v.code.mov(rdx, rsi)?;
    bind(v, &mut again)?;
    v.load(4, r8 + scratch.maxima)?;
    v.max(12, 4, r8 + scratch.tile_maxima)?;
    v.store(r8 + scratch.maxima, 12)?;
    v.sub(0, 4, 12)?;
    exp(v, 1, [0, 4, 8], 13)?;
    v.store(r8 + scratch.factors, 8)?;
    v.code.add(r8, bytes as i32)?;
    v.code.sub(rdx, v.width.lanes() as i32)?;
    v.code.jg(again)?;

    // Weights and their sums.
    let mut again = v.code.create_label();
    v.code.lea(r8, rdi + scratch.scores)?;
    v.code.mov(r11, rdi)?;
    v.code.mov(rdx, rsi)?;
    bind(v, &mut again)?;
    for group in 0..groups {
        v.broadcast(12, r11 + scratch.maxima)?;
        for index in 0..SCORES {
            let at = (group * SCORES + index) * bytes;
            v.load(index, r8 + at)?;
            v.sub(index, index, 12)?;
        }
        exp_scores(v, group)?;
        for index in 0..SCORES {
            v.store(r8 + (group * SCORES + index) * bytes, 8 + index)?;
        }
    }
    v.fold(Fold::Sum, 14, 15, 13)?;
    v.store_first(r11 + scratch.tile_totals, 14)?;
    v.code.add(r8, SCORE_ROW as i32)?;
    v.code.add(r11, 4)?;
    v.code.dec(rdx)?;
    v.code.jnz(again)?;

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
    v.code.jg(again)?;

    v.code.vzeroupper()?;
    for register in [r13, r12, rbx] {
        v.code.pop(register)?;
    }
    v.code.ret()?;

    v.code.set_label(&mut constants)?;
    let scale = if tile.softcap == 0.0 { tile.scale } else { 1.0 };
    let numbers = [scale, f32::NEG_INFINITY, tile.softcap, -0.0, tile.scale];
    for number in EXP.into_iter().chain(numbers) {
        for _ in 0..16 {
            v.code.db(&number.to_bits().to_le_bytes())?;
        }
    }
    for mask in [0u32, u32::MAX, 0] {
        for _ in 0..KEY_TILE {
            v.code.db(&mask.to_le_bytes())?;
        }
    }
    Ok(())
}

/// Scores of `rsi` queries become c·tanh(s·scale / c), by tanh |x| = (1 - e) / (1 + e) for
/// e = exp(-2·|x|).
///
/// The error: e is off by 4u of itself, so the quotient by 8u·e / (1 + e)² ≤ 2u and its own three
/// roundings, 5u of 1 at most; x has two roundings and tanh has no slope above 1; the last product
/// rounds once. Together 6u·c + 2u·|s|.
fn cap_scores(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let bytes = v.bytes();
    let groups = KEY_TILE / (SCORES * v.width.lanes());
    let mut again = v.code.create_label();
    v.code.lea(r8, rdi + tile.scratch.scores)?;
    v.code.imul_3(rdx, rsi, groups as i32)?;
    bind(v, &mut again)?;
    for index in 0..SCORES {
        v.load(index, r8 + index * bytes)?;
        v.mul(index, index, constant(UNCAPPED))?;
        v.store(r8 + index * bytes, index)?;
        v.div(index, index, constant(CAP))?;
        v.or(index, index, constant(SIGN))?;
        v.add(index, index, index)?;
    }
    exp(v, SCORES, [0, 4, 8], 13)?;
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
    v.code.dec(rdx)?;
    v.code.jnz(again)
}

/// Exponentials of one group of registers, added to the sums in 14 (and 15 on AVX2).
fn exp_scores(v: &mut Vectors<'_>, group: usize) -> Emitted {
    exp(v, SCORES, [0, 4, 8], 13)?;
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
