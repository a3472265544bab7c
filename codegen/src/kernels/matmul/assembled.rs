//! The frame that the assembled versions share: arguments, groups of channels, blocks of rows.
//!
//! Weights are walked in tiles of groups; for each tile all rows are computed, so that weights come
//! from memory once and from the cache for every further block of rows. A version supplies the tile:
//! the code between a row block's addresses and its stored outputs.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::MatmulSpec;
use crate::pack::GROUP;

/// Input row of the tile.
pub(super) const TILE_INPUT: AsmRegister64 = rax;
/// Packed weights of the tile's first group.
pub(super) const TILE_WEIGHTS: AsmRegister64 = rsi;
/// Output of the tile's first row and channel.
pub(super) const TILE_OUTPUT: AsmRegister64 = rbx;
/// Bias of the tile's first channel.
pub(super) const TILE_BIAS: AsmRegister64 = rcx;
/// Residual of the tile's first row and channel.
pub(super) const TILE_RESIDUAL: AsmRegister64 = r12;
/// Free for the tile: addresses that move with the reduction, and a counter.
pub(super) const INPUT: AsmRegister64 = r13;
/// See [`INPUT`].
pub(super) const WEIGHTS: AsmRegister64 = r14;
/// See [`INPUT`].
pub(super) const COUNT: AsmRegister64 = r10;

/// How far ahead of their use weights are asked for, in bytes. The processor's own prefetch stops at
/// page boundaries; with this a single stream of weights comes as fast as several.
pub(super) const PREFETCH: usize = 4096;

/// Rows and groups that one tile computes.
#[derive(Clone, Copy, Debug)]
pub(super) struct TileShape {
    pub(super) rows: usize,
    pub(super) groups: usize,
    /// The group is the last one and not full.
    pub(super) is_part: bool,
}

/// Tile sizes for a range of M: all groups and rows are covered greedily, so both end with 1.
pub(super) struct Plan {
    /// Least number of rows for which this plan is used.
    pub(super) from_rows: usize,
    pub(super) rows: &'static [usize],
    pub(super) groups: &'static [usize],
}

/// A version of the kernel.
pub(super) trait Version {
    /// Plans by `from_rows`, descending; the last serves from 1 row.
    fn plans(&self) -> Vec<Plan>;
    /// Loads constants that live as long as the call.
    fn prepare(&self, code: &mut CodeAssembler) -> Result<(), IcedError>;
    /// Computes one tile. Keeps all general registers but those free for the tile.
    fn tile(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError>;
    /// Data behind the code.
    fn data(&self, code: &mut CodeAssembler) -> Result<(), IcedError>;
}

fn advance(
    code: &mut CodeAssembler,
    register: AsmRegister64,
    bytes: usize,
) -> Result<(), IcedError> {
    // Checked by `MatmulSpec::supported`: a tile's span fits a 32-bit displacement.
    code.add(register, bytes as i32)
}

/// Binds a label at a place where others may be bound, too: the assembler allows one label an
/// instruction, so each gets one of no bytes.
fn bind(code: &mut CodeAssembler, label: &mut CodeLabel) -> Result<(), IcedError> {
    code.set_label(label)?;
    code.zero_bytes()
}

/// Emits the whole kernel.
pub(super) fn assemble(
    code: &mut CodeAssembler,
    spec: &MatmulSpec,
    version: &dyn Version,
) -> Result<(), IcedError> {
    let group_outputs = GROUP * 4;
    let saved = [rbx, r12, r13, r14, r15];
    code.push(rbp)?;
    code.mov(rbp, rsp)?;
    for register in saved {
        code.push(register)?;
    }
    // Above the frame pointer: its old value, the return address, the seventh and eighth argument.
    let first = qword_ptr(rbp + 16);
    let end = qword_ptr(rbp + 24);
    let mut done = code.create_label();
    code.mov(r10, first)?;
    code.cmp(r10, end)?;
    code.jge(done)?;
    version.prepare(code)?;
    // rsi, rdx, rcx, r8: weights, output, bias and residual of the first group.
    code.imul_3(r11, r10, spec.layout.group_bytes() as i32)?;
    code.add(rsi, r11)?;
    code.imul_3(r11, r10, group_outputs as i32)?;
    code.add(rdx, r11)?;
    code.add(rcx, r11)?;
    code.add(r8, r11)?;
    // r15: full groups.
    code.mov(r15, end)?;
    if spec.tail() > 0 {
        let full = (spec.layout.channels / GROUP) as i32;
        code.mov(r11, i64::from(full))?;
        code.cmp(r15, r11)?;
        code.cmovg(r15, r11)?;
    }
    code.sub(r15, r10)?;

    let plans = version.plans();
    for (index, plan) in plans.iter().enumerate() {
        let mut next_plan = code.create_label();
        if index + 1 < plans.len() {
            code.cmp(r9, plan.from_rows as i32)?;
            code.jl(next_plan)?;
        }
        for groups in plan.groups {
            let mut again = code.create_label();
            let mut fewer = code.create_label();
            bind(code, &mut again)?;
            code.cmp(r15, *groups as i32)?;
            code.jl(fewer)?;
            let shape = TileShape { rows: 0, groups: *groups, is_part: false };
            all_rows(code, spec, version, plan, shape)?;
            advance(code, rsi, groups * spec.layout.group_bytes())?;
            for register in [rdx, rcx, r8] {
                advance(code, register, groups * group_outputs)?;
            }
            code.sub(r15, *groups as i32)?;
            code.jmp(again)?;
            bind(code, &mut fewer)?;
        }
        if spec.tail() > 0 {
            code.mov(r11, end)?;
            code.cmp(r11, spec.groups() as i32)?;
            code.jl(done)?;
            let shape = TileShape { rows: 0, groups: 1, is_part: true };
            all_rows(code, spec, version, plan, shape)?;
        }
        if index + 1 < plans.len() {
            code.jmp(done)?;
            bind(code, &mut next_plan)?;
        }
    }

    bind(code, &mut done)?;
    code.vzeroupper()?;
    for register in saved.into_iter().rev() {
        code.pop(register)?;
    }
    code.pop(rbp)?;
    code.ret()?;
    version.data(code)
}

/// All rows of one tile of groups.
fn all_rows(
    code: &mut CodeAssembler,
    spec: &MatmulSpec,
    version: &dyn Version,
    plan: &Plan,
    shape: TileShape,
) -> Result<(), IcedError> {
    code.mov(r11, r9)?;
    code.mov(TILE_INPUT, rdi)?;
    code.mov(TILE_OUTPUT, rdx)?;
    code.mov(TILE_RESIDUAL, r8)?;
    for rows in plan.rows {
        let mut again = code.create_label();
        let mut fewer = code.create_label();
        bind(code, &mut again)?;
        code.cmp(r11, *rows as i32)?;
        code.jl(fewer)?;
        version.tile(code, TileShape { rows: *rows, ..shape })?;
        advance(code, TILE_INPUT, rows * spec.input_row_bytes())?;
        advance(code, TILE_OUTPUT, rows * spec.output_stride * 4)?;
        advance(code, TILE_RESIDUAL, rows * spec.output_stride * 4)?;
        code.sub(r11, *rows as i32)?;
        code.jmp(again)?;
        bind(code, &mut fewer)?;
    }
    Ok(())
}

/// The reduction of float weights: `step(code, k)` for every k ascending, `unroll` of them a turn.
/// [`INPUT`] and [`WEIGHTS`] stand at k = 0 of a turn; [`COUNT`] counts turns.
pub(super) fn over_reduction(
    code: &mut CodeAssembler,
    spec: &MatmulSpec,
    unroll: usize,
    step: impl Fn(&mut CodeAssembler, usize) -> Result<(), IcedError>,
) -> Result<(), IcedError> {
    let reduction = spec.layout.reduction;
    if reduction >= unroll {
        let mut again = code.create_label();
        code.mov(COUNT, (reduction / unroll) as i64)?;
        code.set_label(&mut again)?;
        for k in 0..unroll {
            step(code, k)?;
        }
        code.add(INPUT, (unroll * 4) as i32)?;
        code.add(WEIGHTS, (unroll * GROUP * 4) as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)?;
    }
    for k in 0..reduction % unroll {
        step(code, k)?;
    }
    Ok(())
}
