//! The frame that the assembled versions share: arguments, rows, groups of channels, reduction.
//!
//! Rows are taken in portions that stay in the second cache. For each portion weights are walked in
//! tiles of groups; for each tile all rows of the portion are computed, so that weights come from
//! memory once a portion and from the nearest cache for every further block of rows. A version
//! supplies the tile: the code between a row block's addresses and its stored outputs.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{Apart, MatmulSpec, decode};
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
/// How much further ahead than [`ahead`] tells weights are asked for: 0, or [`FURTHER`].
pub(super) const FURTHER_ON: AsmRegister64 = r15;
/// Free for the tile: addresses that move with the reduction, and a counter.
pub(super) const INPUT: AsmRegister64 = r13;
/// See [`INPUT`].
pub(super) const WEIGHTS: AsmRegister64 = r14;
/// See [`INPUT`].
pub(super) const COUNT: AsmRegister64 = r10;

/// Memory of the version's own, aligned to 64 bytes: [`Version::scratch_bytes`] of it.
pub(super) const SCRATCH: AsmRegister64 = rsp;

/// How far ahead of their use weights are asked for by a tile, in bytes.
///
/// With one or two rows weights are needed as fast as memory gives them, and a little ahead is best:
/// so that the next page has begun to come where the processor's own prefetch stops at page
/// boundaries. One sequential stream with this is as fast as reading can be; more than about 512 takes
/// places from the processor's own prefetch (a fifth less on Zen 4), and so do several streams side by
/// side (a tenth to a fifth). Zen 5 is the other way round: see [`FURTHER`]. The more rows share a weight,
/// the slower weights are needed, and the processor's own prefetch is too late: 8 rows get a quarter more
/// from 4096 bytes than from 512.
pub(super) const fn ahead(rows: usize) -> usize {
    match rows {
        0..=2 => 512,
        3..=4 => 2048,
        _ => 4096,
    }
}

/// How much further where the processor reads best from far ahead, which the ninth argument says. Two
/// threads of a Zen 5 that do nothing but read large pages have 72 GB/s without being told anything, 64
/// asking 512 bytes ahead, 77 with 4,096 and 83 with 8,192, in the seconds in which memory is fast, and the
/// same in others. Products of one to four rows of int4 are as fast with 8,192 as with 12,288 or 16,384.
const FURTHER: usize = 8192 - ahead(1);

/// How many rows are computed before the weights are walked again.
#[derive(Clone, Copy)]
pub(super) struct Portion {
    /// Bytes of input that a portion may have: half of the second cache. The weights are read once a
    /// portion, which with dozens of rows costs a few percent of the time.
    pub(super) bytes: usize,
    /// Its rows are a multiple of this, so that they fill the largest tiles.
    pub(super) step: usize,
    /// Most rows: a version may keep sums of all of them in scratch memory.
    pub(super) most: usize,
}

impl Portion {
    /// Rows of a portion.
    pub(super) fn rows(self, spec: &MatmulSpec) -> usize {
        let rows = self.bytes / spec.input_row_bytes();
        (rows / self.step * self.step).clamp(2 * self.step, self.most)
    }
}

/// The portion of common machines.
pub(super) const PORTION: Portion = Portion { bytes: 256 << 10, step: 12, most: 16 * 12 };

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
    /// Rows of tiles; none if the version takes all rows of a portion in one [`Version::panel`].
    pub(super) rows: &'static [usize],
    pub(super) groups: &'static [usize],
}

/// A version of the kernel.
pub(super) trait Version {
    /// Plans by `from_rows`, descending; the last serves from 1 row.
    fn plans(&self) -> Vec<Plan>;
    /// How rows are divided.
    fn portion(&self) -> Portion {
        PORTION
    }
    /// Bytes of memory that tiles use at [`SCRATCH`].
    fn scratch_bytes(&self) -> usize {
        0
    }
    /// Loads what lives as long as the call, whose number of rows is in r9; r11 is free.
    fn prepare(&self, code: &mut CodeAssembler) -> Result<(), IcedError>;
    /// Computes one tile. Keeps all general registers but those free for the tile.
    fn tile(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError>;
    /// Computes all rows of a portion, whose number is in r9, for a tile of groups. [`TILE_INPUT`],
    /// [`TILE_OUTPUT`] and [`TILE_RESIDUAL`] stand at the first row and may move; r11 is free.
    fn panel(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let _ = (code, shape);
        Ok(())
    }
    /// Undoes what [`Version::prepare`] did to state that callers share, when all is computed.
    fn finish(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        let _ = code;
        Ok(())
    }
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

/// Adds a number of any size. Spoils r11.
fn add_any(
    code: &mut CodeAssembler,
    place: AsmMemoryOperand,
    value: usize,
) -> Result<(), IcedError> {
    code.mov(r11, value as i64)?;
    code.add(place, r11)
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
    // Above the frame pointer: its old value, the return address, the seventh to the ninth argument.
    let [first, end, reads_far] = [16, 24, 32].map(|at| qword_ptr(rbp + at));
    // Below it: saved registers, then where every portion of rows begins, the rows left of all
    // and the full groups left of a portion.
    let slots_end = saved.len() * 8;
    let slot = |index: usize| qword_ptr(rbp - (slots_end + (index + 1) * 8) as i32);
    let (weights, output, bias, residual) = (slot(0), slot(1), slot(2), slot(3));
    let (full_groups, rows_left) = (slot(4), slot(5));
    let left = GroupsLeft { of_tiles: slot(6), of_run: slot(7), of_all: slot(8) };
    code.sub(rsp, (9 * 8 + version.scratch_bytes()) as i32)?;
    code.and(rsp, -64)?;

    let mut nothing = code.create_label();
    let mut done = code.create_label();
    code.mov(r10, first)?;
    code.cmp(r10, end)?;
    code.jge(nothing)?;
    version.prepare(code)?;
    // Weights, output, bias and residual of the first group.
    code.imul_3(r11, r10, spec.layout.group_bytes() as i32)?;
    code.add(rsi, r11)?;
    code.imul_3(r11, r10, group_outputs as i32)?;
    for (place, register) in [(weights, rsi), (output, rdx), (bias, rcx), (residual, r8)] {
        match (spec.apart, register == rdx) {
            (Some(Apart { groups, stride }), true) => {
                let [run, of_run] = [INPUT, WEIGHTS];
                code.mov(run, r10)?;
                code.shr(run, groups.trailing_zeros())?;
                code.imul_3(run, run, stride as i32 * 4)?;
                code.mov(of_run, r10)?;
                code.and(of_run, groups as i32 - 1)?;
                code.imul_3(of_run, of_run, group_outputs as i32)?;
                code.add(rdx, run)?;
                code.add(rdx, of_run)?;
            }
            _ if register != rsi => code.add(register, r11)?,
            _ => {}
        }
        code.mov(place, register)?;
    }
    code.mov(r15, end)?;
    if spec.tail() > 0 {
        let full = (spec.layout.channels / GROUP) as i32;
        code.mov(r11, i64::from(full))?;
        code.cmp(r15, r11)?;
        code.cmovg(r15, r11)?;
    }
    code.sub(r15, r10)?;
    code.mov(full_groups, r15)?;
    code.mov(rows_left, r9)?;
    code.mov(r11, FURTHER as i64)?;
    code.mov(FURTHER_ON, 0i64)?;
    code.cmp(reads_far, 0)?;
    code.cmovne(FURTHER_ON, r11)?;

    let portion = version.portion().rows(spec);
    let mut next_portion = code.create_label();
    bind(code, &mut next_portion)?;
    code.mov(r9, rows_left)?;
    code.mov(r11, portion as i64)?;
    code.cmp(r9, r11)?;
    code.cmovg(r9, r11)?;
    code.mov(r11, full_groups)?;
    code.mov(left.of_tiles, r11)?;
    if let Some(Apart { groups, .. }) = spec.apart {
        code.mov(left.of_all, r11)?;
        // The first run may have begun.
        code.mov(r11, first)?;
        code.and(r11, groups as i32 - 1)?;
        code.neg(r11)?;
        code.add(r11, groups as i32)?;
        code.mov(left.of_run, r11)?;
    }
    all_groups(code, spec, version, end, &left)?;
    code.sub(rows_left, portion as i32)?;
    code.jle(done)?;
    code.mov(r11, (portion * spec.input_row_bytes()) as i64)?;
    code.add(rdi, r11)?;
    for place in [output, residual] {
        add_any(code, place, portion * spec.output_stride * 4)?;
    }
    for (register, place) in [(rsi, weights), (rdx, output), (rcx, bias), (r8, residual)] {
        code.mov(register, place)?;
    }
    code.jmp(next_portion)?;

    bind(code, &mut done)?;
    version.finish(code)?;
    code.vzeroupper()?;
    bind(code, &mut nothing)?;
    code.lea(rsp, ptr(rbp - slots_end as i32))?;
    for register in saved.into_iter().rev() {
        code.pop(register)?;
    }
    code.pop(rbp)?;
    code.ret()?;
    version.data(code)
}

/// Counts of full groups, in memory.
struct GroupsLeft {
    /// Those that tiles are chosen by: of all, or of a run where runs lie apart.
    of_tiles: AsmMemoryOperand,
    /// Where runs lie apart: of the run, and of all behind what tiles are chosen by.
    of_run: AsmMemoryOperand,
    of_all: AsmMemoryOperand,
}

impl GroupsLeft {
    /// Takes the groups of a run, or what is left of all.
    fn take_run(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.mov(r11, self.of_run)?;
        code.cmp(r11, self.of_all)?;
        code.cmovg(r11, self.of_all)?;
        code.mov(self.of_tiles, r11)?;
        code.sub(self.of_all, r11)
    }

    /// Goes on at the next run's outputs, if any group is left.
    fn next_run(
        &self,
        code: &mut CodeAssembler,
        Apart { groups, stride }: Apart,
        again: CodeLabel,
    ) -> Result<(), IcedError> {
        code.mov(r11, ((stride - groups * GROUP) * 4) as i64)?;
        code.add(rdx, r11)?;
        code.mov(self.of_run, groups as i32)?;
        code.cmp(self.of_all, 0)?;
        code.jg(again)
    }
}

/// All groups of one portion: rdi, rsi, rdx, rcx and r8 stand at its input, weights, output, bias and
/// residual; r9 rows.
fn all_groups(
    code: &mut CodeAssembler,
    spec: &MatmulSpec,
    version: &dyn Version,
    end: AsmMemoryOperand,
    left: &GroupsLeft,
) -> Result<(), IcedError> {
    let group_outputs = GROUP * 4;
    let mut done = code.create_label();
    let plans = version.plans();
    for (index, plan) in plans.iter().enumerate() {
        let mut next_plan = code.create_label();
        if index + 1 < plans.len() {
            code.cmp(r9, plan.from_rows as i32)?;
            code.jl(next_plan)?;
        }
        let mut next_run = code.create_label();
        if spec.apart.is_some() {
            bind(code, &mut next_run)?;
            left.take_run(code)?;
        }
        for groups in plan.groups {
            let mut again = code.create_label();
            let mut fewer = code.create_label();
            bind(code, &mut again)?;
            code.cmp(left.of_tiles, *groups as i32)?;
            code.jl(fewer)?;
            let shape = TileShape { rows: 0, groups: *groups, is_part: false };
            all_rows(code, spec, version, plan, shape)?;
            advance(code, rsi, groups * spec.layout.group_bytes())?;
            for register in [rdx, rcx, r8] {
                advance(code, register, groups * group_outputs)?;
            }
            code.sub(left.of_tiles, *groups as i32)?;
            code.jmp(again)?;
            bind(code, &mut fewer)?;
        }
        if let Some(apart) = spec.apart {
            left.next_run(code, apart, next_run)?;
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
    bind(code, &mut done)
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
    if plan.rows.is_empty() {
        return version.panel(code, shape);
    }
    for rows in plan.rows {
        let mut again = code.create_label();
        let mut fewer = code.create_label();
        bind(code, &mut again)?;
        code.cmp(r11, *rows as i32)?;
        code.jl(fewer)?;
        code.mov(INPUT, TILE_INPUT)?;
        code.mov(WEIGHTS, TILE_WEIGHTS)?;
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

/// The reduction in float arithmetic, k ascending: one block after another (a format without blocks
/// is one that never begins), and in it one unit of the packed weight after another.
pub(super) struct FloatReduction<'a, Begin, Unit> {
    pub(super) spec: &'a MatmulSpec,
    /// Units of one turn of the loop.
    pub(super) unroll: usize,
    /// Offset of a free 8-byte number from [`SCRATCH`]: counts blocks.
    pub(super) blocks_left: usize,
    /// Loads a block's scales and zero points, which begin at [`WEIGHTS`].
    pub(super) begin_block: Begin,
    /// `(code, unit, elements)`: adds the first elements of a unit. [`WEIGHTS`] and [`INPUT`] stand at
    /// unit 0 of the turn.
    pub(super) unit: Unit,
}

impl<Begin, Unit> FloatReduction<'_, Begin, Unit>
where
    Begin: Fn(&mut CodeAssembler) -> Result<(), IcedError>,
    Unit: Fn(&mut CodeAssembler, usize, usize) -> Result<(), IcedError>,
{
    pub(super) fn emit(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        let layout = self.spec.layout;
        let Some(blocks) = layout.format.blocks() else {
            return self.units(code, layout.reduction);
        };
        let whole = layout.reduction / blocks.block;
        let block = |code: &mut CodeAssembler, elements: usize| {
            (self.begin_block)(code)?;
            advance(code, WEIGHTS, layout.codes_offset())?;
            self.units(code, elements)
        };
        if whole > 0 {
            let left = qword_ptr(SCRATCH + self.blocks_left);
            let mut again = code.create_label();
            code.mov(left, whole as i32)?;
            bind(code, &mut again)?;
            block(code, blocks.block)?;
            code.dec(left)?;
            code.jnz(again)?;
        }
        match layout.reduction % blocks.block {
            0 => Ok(()),
            rest => block(code, rest),
        }
    }

    /// `elements` elements in consecutive units. Leaves [`INPUT`] and [`WEIGHTS`] behind the whole
    /// units.
    fn units(&self, code: &mut CodeAssembler, elements: usize) -> Result<(), IcedError> {
        let per_unit = decode::unit_elements(self.spec.layout.format);
        let whole = elements / per_unit;
        let turns = whole / self.unroll;
        if turns > 0 {
            let mut again = code.create_label();
            code.mov(COUNT, turns as i64)?;
            bind(code, &mut again)?;
            for unit in 0..self.unroll {
                (self.unit)(code, unit, per_unit)?;
            }
            advance(code, INPUT, self.unroll * per_unit * 4)?;
            advance(code, WEIGHTS, self.unroll * GROUP * 4)?;
            code.dec(COUNT)?;
            code.jnz(again)?;
        }
        let rest = whole % self.unroll;
        for unit in 0..rest {
            (self.unit)(code, unit, per_unit)?;
        }
        if !elements.is_multiple_of(per_unit) {
            (self.unit)(code, rest, elements % per_unit)?;
        } else if rest > 0 {
            advance(code, INPUT, rest * per_unit * 4)?;
            advance(code, WEIGHTS, rest * GROUP * 4)?;
        }
        Ok(())
    }
}
