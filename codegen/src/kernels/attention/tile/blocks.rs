//! How the products of a tile are cut into blocks of accumulators, and the walk over them.
//!
//! Registers of the walk: `rdi` rows of the left side, `rsi` the right side, `rdx` the result, `rcx`
//! factors of the rows where sums go on, `r8` rows, `r9` steps of the reduction where they are not
//! known; in a block `r10`, `r11` and `rbx` are its rows' left side, result and factors.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use crate::kernels::attention::vector::{Emitted, Vectors};

/// How a product is cut: rows of accumulator blocks, largest first, down to 1, and registers of
/// columns.
pub(super) struct Blocks {
    pub(super) rows: &'static [usize],
    pub(super) columns: usize,
}

/// A product of rows with columns, summed over a reduction.
pub(super) trait Product {
    /// Its blocks where there are few rows (at most the first of them), or many.
    fn blocks(&self, is_few: bool) -> Blocks;
    /// Bytes from row to row of the left side.
    fn left_row(&self) -> usize;
    /// Bytes from row to row of the result.
    fn result_row(&self) -> usize;
    /// Whether the result holds sums that go on, each row times its factor.
    fn goes_on(&self) -> bool;
    /// Bytes from the first column to another on the right side.
    fn right_column(&self, column: usize) -> usize;
    /// One block of accumulators over the whole reduction. Of its last register of columns only `part`
    /// lanes are there unless that is 0.
    fn block(&self, v: &mut Vectors<'_>, size: [usize; 2], part: usize) -> Emitted;
}

pub(super) const LEFT: AsmRegister64 = r13;
pub(super) const RIGHT: AsmRegister64 = r14;
pub(super) const STEPS: AsmRegister64 = rax;
/// From the keys or values of this tile to those that come next.
pub(super) const AHEAD: AsmRegister64 = rbp;

/// Binds a label at a place where others may be bound, too.
pub(super) fn bind(v: &mut Vectors<'_>, label: &mut CodeLabel) -> Emitted {
    v.code.set_label(label)?;
    v.code.zero_bytes()
}

pub(super) fn open(v: &mut Vectors<'_>) -> Result<[AsmRegister64; 6], IcedError> {
    let saved = [rbx, rbp, r12, r13, r14, r15];
    for register in saved {
        v.code.push(register)?;
    }
    Ok(saved)
}

pub(super) fn close(v: &mut Vectors<'_>, saved: [AsmRegister64; 6]) -> Emitted {
    v.code.vzeroupper()?;
    for register in saved.into_iter().rev() {
        v.code.pop(register)?;
    }
    v.code.ret()
}

/// Both versions, for few rows and for many.
pub(super) fn few_or_many(
    v: &mut Vectors<'_>,
    product: &dyn Product,
    emit: &dyn Fn(&mut Vectors<'_>, &Blocks) -> Emitted,
) -> Emitted {
    let (few, many) = (product.blocks(true), product.blocks(false));
    let [mut is_many, mut done] = [(); 2].map(|()| v.code.create_label());
    v.code.cmp(r8, few.rows[0] as i32)?;
    v.code.jg(is_many)?;
    emit(v, &few)?;
    v.code.jmp(done)?;
    bind(v, &mut is_many)?;
    emit(v, &many)?;
    bind(v, &mut done)
}

/// All columns of as many whole blocks as hold the first `rcx` columns.
pub(super) fn first_columns(v: &mut Vectors<'_>, product: &dyn Product) -> Emitted {
    few_or_many(v, product, &|v, blocks| {
        let lanes = blocks.columns * v.width.lanes();
        v.code.lea(r15, rcx + (lanes - 1))?;
        v.code.shr(r15, lanes.trailing_zeros())?;
        columns(v, product, blocks)
    })
}

/// All of `count` columns; the last register loads only those lanes that are there if it is `cut`.
pub(super) fn all_columns(
    v: &mut Vectors<'_>,
    product: &dyn Product,
    count: usize,
    is_cut: bool,
) -> Emitted {
    let lanes = v.width.lanes();
    let part = if is_cut { count % lanes } else { 0 };
    few_or_many(v, product, &|v, blocks| {
        let block = blocks.columns * lanes;
        if count >= block {
            v.code.mov(r15, (count / block) as i64)?;
            columns(v, product, blocks)?;
        }
        let rest = count % block;
        if rest > 0 {
            let blocks = Blocks { columns: rest.div_ceil(lanes), ..*blocks };
            rows(v, product, &blocks, part)?;
        }
        Ok(())
    })
}

/// `r15` whole blocks of columns; `rsi` and `rdx` move on to the column behind them.
fn columns(v: &mut Vectors<'_>, product: &dyn Product, blocks: &Blocks) -> Emitted {
    let mut again = v.code.create_label();
    bind(v, &mut again)?;
    rows(v, product, blocks, 0)?;
    let numbers = blocks.columns * v.width.lanes();
    v.code.add(rsi, product.right_column(numbers) as i32)?;
    v.code.add(rdx, (numbers * 4) as i32)?;
    v.code.dec(r15)?;
    v.code.jnz(again)
}

/// All `r8` rows of a block of columns.
pub(super) fn rows(
    v: &mut Vectors<'_>,
    product: &dyn Product,
    blocks: &Blocks,
    part: usize,
) -> Emitted {
    v.code.mov(r10, rdi)?;
    v.code.mov(r11, rdx)?;
    if product.goes_on() {
        v.code.mov(rbx, rcx)?;
    }
    v.code.mov(r12, r8)?;
    for rows in blocks.rows {
        let (mut again, mut fewer) = (v.code.create_label(), v.code.create_label());
        bind(v, &mut again)?;
        v.code.cmp(r12, *rows as i32)?;
        v.code.jl(fewer)?;
        product.block(v, [*rows, blocks.columns], part)?;
        v.code.add(r10, (rows * product.left_row()) as i32)?;
        v.code.add(r11, (rows * product.result_row()) as i32)?;
        if product.goes_on() {
            v.code.add(rbx, (rows * 4) as i32)?;
        }
        v.code.sub(r12, *rows as i32)?;
        v.code.jmp(again)?;
        bind(v, &mut fewer)?;
    }
    Ok(())
}

/// `r9` turns of the reduction, some at a time: `turn` emits so many.
pub(super) fn turns(
    v: &mut Vectors<'_>,
    unroll: usize,
    turn: &dyn Fn(&mut Vectors<'_>, usize) -> Emitted,
) -> Emitted {
    let [mut again, mut rest, mut single, mut done] = [(); 4].map(|()| v.code.create_label());
    v.code.mov(STEPS, r9)?;
    v.code.sub(STEPS, unroll as i32)?;
    v.code.jl(rest)?;
    bind(v, &mut again)?;
    turn(v, unroll)?;
    v.code.sub(STEPS, unroll as i32)?;
    v.code.jge(again)?;
    bind(v, &mut rest)?;
    v.code.add(STEPS, unroll as i32)?;
    v.code.jz(done)?;
    bind(v, &mut single)?;
    turn(v, 1)?;
    v.code.dec(STEPS)?;
    v.code.jnz(single)?;
    bind(v, &mut done)
}

/// The same with as many turns as are known now.
pub(super) fn known_turns(
    v: &mut Vectors<'_>,
    count: usize,
    unroll: usize,
    turn: &dyn Fn(&mut Vectors<'_>, usize) -> Emitted,
) -> Emitted {
    if count >= unroll {
        let mut again = v.code.create_label();
        v.code.mov(STEPS, (count / unroll) as i64)?;
        v.code.set_label(&mut again)?;
        turn(v, unroll)?;
        v.code.dec(STEPS)?;
        v.code.jnz(again)?;
    }
    match count % unroll {
        0 => Ok(()),
        rest => turn(v, rest),
    }
}
