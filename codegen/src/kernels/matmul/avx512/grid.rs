//! Integer products of many rows in tiles of rows by groups, chunk by chunk ([`Chunks`]).
//!
//! For processors whose 512-bit units add and multiply alike (Intel's): there the least number of
//! vector operations counts, and that none of them waits for another. A chunk's codes are made bytes in
//! scratch memory once for all rows of the portion, activation block by activation block, each with the
//! weight's scales before it; a tile then has up to 24 integer sums in registers, more than the units
//! have steps under way, and each activation and each register of codes is loaded once for all of them.
//! Per row, group and block of 32 that is 8 `vpdpbusd`, the conversion, the product of the scales, the
//! fused addition, and for one of the groups the start of the sum; where sums begin as floats a
//! subtraction and the fused addition are all that follows, and loads are all that comes before. Float
//! sums are read and written once a block. Order and rounding are those of [`super::integer`].

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{Avx512, MASK, ZMM};
use crate::kernels::matmul::assembled::{
    COUNT, INPUT, PORTION, Portion, SCRATCH, TILE_OUTPUT, TILE_RESIDUAL, TileShape, WEIGHTS,
};
use crate::kernels::matmul::chunks::{
    BLOCKS_LEFT, CHUNK_BLOCKS, CODES, ChunkTiles, Chunks, LINE_BYTES, ROWS_LEFT, Slot, TILE_ROWS,
    sum_at,
};
use crate::kernels::matmul::{Activation, BEGIN, MINUS_SUM, decode};
use crate::pack::{Blocks, GROUP, ZeroPoint};

/// Least rows.
pub(super) const FROM_ROWS: usize = 8;
/// Groups of tiles.
pub(super) const GROUPS: [usize; 3] = [4, 2, 1];
/// Rows of a portion: what a chunk needs of them is little, so that they may fill most of a second
/// cache and are not missed where it is smaller.
pub(super) const ROWS: Portion = Portion { bytes: 3 << 19, step: 16, ..PORTION };

/// Lines of weights of each group that are asked for beside a block of a large tile, so that some are
/// always under way, but not many; and beside one of a smaller tile: portions of few rows have only
/// these.
const ASKED: usize = 1;
const ASKED_BY_FEW: usize = 3;

/// Bytes of a chunk's codes in scratch memory.
const CODES_BYTES: usize = 16 << 10;
/// Elements of the shortest activation block.
const SHORTEST: usize = 16;
/// The same of its scales and zero points, at most.
const PARAMETER_BYTES: usize = CODES_BYTES / (GROUP * SHORTEST) * 2 * LINE_BYTES;
const CHUNK_AT: usize = Slot::BYTES;
const SUMS_AT: usize = CHUNK_AT + CODES_BYTES + PARAMETER_BYTES;
pub(super) const SCRATCH_BYTES: usize = SUMS_AT + ROWS.most * GROUPS[0] * LINE_BYTES;

/// Rows of tiles of so many groups. The largest is not taken where it would leave fewer rows than the
/// second one has.
fn tile_rows(groups: usize) -> &'static [usize] {
    match groups {
        1 => &[16, 8, 4, 2, 1],
        2 => &[12, 8, 4, 2, 1],
        _ => &[6, 4, 2, 1],
    }
}

/// The panel of a kernel.
struct Grid<'a> {
    wide: &'a Avx512<'a>,
    blocks: Blocks,
    /// Activations of one scale.
    activations: usize,
}

/// Registers of a tile.
struct Registers {
    /// Codes of a quad by group; behind the last quad they are free.
    codes: &'static [AsmRegisterZmm],
    /// Activations in turn.
    free: &'static [AsmRegisterZmm],
}

impl Avx512<'_> {
    /// All rows of a portion: what the frame calls a panel.
    pub(super) fn grid(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let (Some(blocks), Some(Activation::Int8 { block: activations, .. })) =
            (self.spec.layout.format.blocks(), self.spec.activation())
        else {
            return Ok(());
        };
        let grid = Grid { wide: self, blocks, activations };
        grid.chunks(shape).panel(code, shape, &grid)
    }
}

impl Grid<'_> {
    fn chunks(&self, shape: TileShape) -> Chunks<'_> {
        Chunks {
            spec: self.wide.spec,
            blocks: (CODES_BYTES / (GROUP * shape.groups * self.blocks.block)).max(1),
            record_bytes: self.parts() * self.wide.spec.record_bytes(),
            sums_at: SUMS_AT,
            rows_beyond: 0,
        }
    }

    /// Activation blocks of a weight block.
    fn parts(&self) -> usize {
        self.blocks.block / self.activations
    }

    fn has_zeros(&self) -> bool {
        self.blocks.zero != ZeroPoint::Implied
    }

    /// A group's scales of the activation block at [`CODES`].
    fn scales_at(&self, group: usize) -> AsmMemoryOperand {
        zmmword_ptr(CODES + group * LINE_BYTES)
    }

    /// A group's zero points.
    fn zeros_at(&self, shape: TileShape, group: usize) -> AsmMemoryOperand {
        zmmword_ptr(CODES + (shape.groups + group) * LINE_BYTES)
    }

    /// Four codes of each channel of a group.
    fn codes_at(&self, shape: TileShape, quad: usize, group: usize) -> AsmMemoryOperand {
        let parameters = if self.has_zeros() { 2 } else { 1 };
        zmmword_ptr(CODES + ((parameters + quad) * shape.groups + group) * LINE_BYTES)
    }

    /// Bytes of an activation block in scratch memory.
    fn part_bytes(&self, shape: TileShape) -> usize {
        let parameters = if self.has_zeros() { 2 } else { 1 };
        (parameters + self.activations / 4) * shape.groups * LINE_BYTES
    }

    fn registers(&self, shape: TileShape) -> Registers {
        let used = shape.rows * shape.groups;
        let (codes, free) = ZMM[used..ZMM.len() - 1].split_at(shape.groups);
        Registers { codes, free }
    }

    /// A tile of rows of the chunk, and behind the last chunk its outputs.
    fn row_tile(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let mut again = code.create_label();
        let mut is_not_last = code.create_label();
        let is_large = tile_rows(shape.groups)[0] == shape.rows;
        let asked = if is_large { ASKED } else { ASKED_BY_FEW };
        code.mov(INPUT, TILE_ROWS.place())?;
        code.imul_3(COUNT, CHUNK_BLOCKS.place(), self.parts() as i32)?;
        code.lea(CODES, ptr(SCRATCH + CHUNK_AT))?;
        code.set_label(&mut again)?;
        self.multiply(code, shape)?;
        self.chunks(shape).ask(code, shape, asked)?;
        self.convert(code, shape)?;
        code.add(INPUT, self.wide.spec.record_bytes() as i32)?;
        code.add(CODES, self.part_bytes(shape) as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)?;
        code.cmp(BLOCKS_LEFT.place(), 0)?;
        code.jg(is_not_last)?;
        self.store(code, shape)?;
        code.set_label(&mut is_not_last)?;
        self.chunks(shape).end_tile(code, shape, shape.rows)
    }

    /// Four bytes of a row's record, from `offset` on.
    fn input(&self, row: usize, offset: usize) -> AsmMemoryOperand {
        INPUT + (row * self.wide.spec.input_row_bytes() + offset)
    }

    fn minus_sum(&self, row: usize) -> AsmMemoryOperand {
        dword_bcst(self.input(row, self.activations + MINUS_SUM))
    }

    /// Integer sums of an activation block.
    fn multiply(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let Registers { codes, free } = self.registers(shape);
        let whole = |row, group| self.wide.sum(shape, row, group);
        for row in 0..shape.rows {
            let first = whole(row, 0);
            if self.has_zeros() {
                for group in 0..shape.groups {
                    let whole = whole(row, group);
                    code.vpxord(whole, whole, whole)?;
                }
                continue;
            }
            if self.wide.spec.is_anchored() {
                let begin = self.input(row, self.activations + BEGIN);
                code.vpbroadcastd(first, dword_ptr(begin))?;
            } else {
                code.vpslld(first, self.minus_sum(row), self.wide.log_zero())?;
            }
            for group in 1..shape.groups {
                code.vmovdqa32(whole(row, group), first)?;
            }
        }
        for quad in 0..self.activations / 4 {
            for (group, codes) in codes.iter().enumerate() {
                code.vmovdqa32(*codes, self.codes_at(shape, quad, group))?;
            }
            for row in 0..shape.rows {
                let input = self.input(row, quad * 4);
                if shape.groups == 1 {
                    code.vpdpbusd(whole(row, 0), codes[0], dword_bcst(input))?;
                    continue;
                }
                let activations = free[(quad * shape.rows + row) % free.len()];
                code.vpbroadcastd(activations, dword_ptr(input))?;
                for (group, codes) in codes.iter().enumerate() {
                    code.vpdpbusd(whole(row, group), *codes, activations)?;
                }
            }
        }
        Ok(())
    }

    /// `sum = fma(t, weight_scale · activation_scale, sum)`, t the integer sums about the zero point.
    fn convert(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let Registers { codes, free } = self.registers(shape);
        let [of_row, minus_sum] = [free[0], free[1]];
        let is_anchored = self.wide.spec.is_anchored();
        if is_anchored {
            for (group, scale) in codes.iter().enumerate() {
                code.vmovaps(*scale, self.scales_at(group))?;
            }
        }
        for row in 0..shape.rows {
            let input = self.input(row, self.activations);
            code.vbroadcastss(of_row, dword_ptr(input))?;
            if self.has_zeros() {
                code.vcvtdq2ps(minus_sum, self.minus_sum(row))?;
            }
            for (group, scale) in codes.iter().enumerate() {
                let whole = self.wide.sum(shape, row, group);
                if is_anchored {
                    code.vsubps(whole, whole, of_row)?;
                } else {
                    code.vcvtdq2ps(whole, whole)?;
                    if self.has_zeros() {
                        code.vfmadd231ps(whole, minus_sum, self.zeros_at(shape, group))?;
                    }
                    code.vmulps(*scale, of_row, self.scales_at(group))?;
                }
                code.vfmadd213ps(whole, *scale, sum_at(shape, row, group))?;
                code.vmovaps(sum_at(shape, row, group), whole)?;
            }
        }
        Ok(())
    }

    /// Bias, residual and outputs of a row tile.
    fn store(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let chunks = self.chunks(shape);
        chunks.load_outputs(code)?;
        for row in 0..shape.rows {
            for group in 0..shape.groups {
                code.vmovaps(self.wide.sum(shape, row, group), sum_at(shape, row, group))?;
            }
        }
        self.wide.store(code, shape)?;
        let row_bytes = (shape.rows * self.wide.spec.output_stride * 4) as i32;
        code.add(TILE_OUTPUT, row_bytes)?;
        code.add(TILE_RESIDUAL, row_bytes)?;
        chunks.keep_outputs(code)
    }

    /// Codes of one unit of a group, from [`WEIGHTS`], in the order of their activation blocks.
    fn keep_unit(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        group: usize,
        unit: usize,
    ) -> Result<(), IcedError> {
        let layout = self.wide.spec.layout;
        let units = self.activations / decode::unit_elements(layout.format);
        let (part, unit_of_part) = (unit / units, unit % units);
        let at = layout.codes_offset() + self.wide.weight_offset(group, unit);
        let packed = zmmword_ptr(WEIGHTS + at);
        let codes_at =
            |quad: usize| self.codes_at(shape, quad, group) + part * self.part_bytes(shape);
        let [low, high] = [zmm2, zmm3];
        code.vmovdqu32(high, packed)?;
        if !self.wide.is_int4() {
            return code.vmovdqa32(codes_at(unit_of_part), high);
        }
        code.vpandd(low, high, MASK)?;
        code.vpsrld(high, high, 4)?;
        code.vpandd(high, high, MASK)?;
        code.vmovdqa32(codes_at(2 * unit_of_part), low)?;
        code.vmovdqa32(codes_at(2 * unit_of_part + 1), high)
    }
}

impl ChunkTiles for Grid<'_> {
    fn keep_codes(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let layout = self.wide.spec.layout;
        let [scale, zero] = [zmm0, zmm1];
        let mut again = code.create_label();
        code.lea(CODES, ptr(SCRATCH + CHUNK_AT))?;
        code.set_label(&mut again)?;
        for group in 0..shape.groups {
            self.wide.block_parameters(code, self.blocks, group, scale, zero)?;
            for part in 0..self.parts() {
                let before = part * self.part_bytes(shape);
                code.vmovaps(self.scales_at(group) + before, scale)?;
                if self.has_zeros() {
                    code.vmovaps(self.zeros_at(shape, group) + before, zero)?;
                }
            }
            for unit in 0..self.blocks.block / decode::unit_elements(layout.format) {
                self.keep_unit(code, shape, group, unit)?;
            }
        }
        code.add(WEIGHTS, layout.block_bytes() as i32)?;
        code.add(CODES, (self.parts() * self.part_bytes(shape)) as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)
    }

    fn row_tiles(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let sizes = tile_rows(shape.groups);
        for (index, rows) in sizes.iter().enumerate() {
            let [mut again, mut take, mut fewer] = [(); 3].map(|()| code.create_label());
            code.set_label(&mut again)?;
            if index == 0 {
                code.cmp(ROWS_LEFT.place(), *rows as i32)?;
                code.je(take)?;
                code.cmp(ROWS_LEFT.place(), (rows + sizes[1]) as i32)?;
            } else {
                code.cmp(ROWS_LEFT.place(), *rows as i32)?;
            }
            code.jl(fewer)?;
            code.set_label(&mut take)?;
            self.row_tile(code, TileShape { rows: *rows, ..shape })?;
            code.jmp(again)?;
            code.set_label(&mut fewer)?;
            code.zero_bytes()?;
        }
        Ok(())
    }
}
