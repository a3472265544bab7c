//! All rows of a portion, for one or two groups of channels.
//!
//! The reduction is walked in chunks whose codes stay in the first cache. Within a chunk rows are taken
//! 16 at a time, the last of them 8; their float sums stay in registers from the chunk's first block
//! to its last, as many as fit, and wait in scratch memory between chunks. Where rows are left over, a
//! tile reaches back over rows that others have computed, too: it keeps sums of its own for them and
//! does not store them.
//!
//! While tiles multiply a block, vectors convert the sums of the one before. What that costs, measured
//! on a Xeon in cycles for 16 rows, 16 channels and a block of 32 (of which the peak would need 8):
//! products of half-filled tiles 16, their sums to memory 15, loads of codes and rows 18, conversion
//! (`t` to f32, product of scales, sum) 27 alone and 45 beside tiles, for as long as these are at work
//! one of the two 512-bit ports takes no float multiplications. Together 62 to 78, by the state of the
//! machine. `docs/kernels.md` has what else was tried.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{Amx, FREE_SLOT, LARGE, PORTION, SMALL};
use crate::kernels::matmul::MINUS_SUM;
use crate::kernels::matmul::assembled::{
    COUNT, INPUT, SCRATCH, TILE_OUTPUT, TILE_RESIDUAL, TileShape, WEIGHTS,
};
use crate::kernels::matmul::avx512::ZMM;
use crate::kernels::matmul::chunks::{
    BLOCKS_LEFT, CHUNK_BLOCKS, CHUNK_WEIGHTS, CODES, ChunkTiles, Chunks, LINE_BYTES, ROWS_LEFT,
    SUMS, Slot, TILE_ROWS, sum_at,
};
use crate::pack::{Blocks, GROUP, ZeroPoint};

/// Bytes from one row of activations to the next.
const ROW_BYTES: AsmRegister64 = rbx;
/// Bytes of a row of codes and of sums.
const LINE: AsmRegister64 = r12;

/// First rows of the tile that another tile has computed.
const KNOWN_ROWS: Slot = Slot(FREE_SLOT);

/// Elements of a chunk, or one block.
const CHUNK: usize = 512;
/// Groups of a tile at most.
const GROUPS: usize = 2;

/// Scratch memory: slots, integer sums of a block, codes of a chunk, float sums of the portion.
const WHOLES_AT: usize = Slot::BYTES;
pub(super) const CODES_AT: usize = WHOLES_AT + GROUPS * LARGE * LINE_BYTES;
const SUMS_AT: usize = CODES_AT + CHUNK * GROUP * GROUPS;
pub(super) const SCRATCH_BYTES: usize = SUMS_AT + (PORTION.most + LARGE - 1) * GROUPS * LINE_BYTES;

/// Registers of a group's scales and zero points, of the row's −Σ a, and two free ones. Sums have the
/// rest; the mask of codes stays in the last register.
const SCALES: [AsmRegisterZmm; GROUPS] = [zmm30, zmm29];
const FREE: [AsmRegisterZmm; 2] = [zmm28, zmm27];
const ZEROS: [AsmRegisterZmm; GROUPS] = [zmm26, zmm25];
const MINUS_CODE_SUM: AsmRegisterZmm = zmm24;

/// Where a float sum is while a chunk is walked.
enum Sum {
    Register(AsmRegisterZmm),
    Memory,
}

/// Tiles for a number of rows.
struct Tiles {
    sums: [AsmRegisterTmm; GROUPS],
    activations: AsmRegisterTmm,
    codes: [AsmRegisterTmm; GROUPS],
}

fn tiles(rows: usize) -> Tiles {
    let codes = [tmm3, tmm4];
    if rows == LARGE {
        Tiles { sums: [tmm0, tmm1], activations: tmm2, codes }
    } else {
        Tiles { sums: [tmm5, tmm6], activations: tmm7, codes }
    }
}

fn whole_at(row: usize, group: usize) -> usize {
    WHOLES_AT + (group * LARGE + row) * LINE_BYTES
}

impl Amx<'_> {
    fn chunks(&self) -> Chunks<'_> {
        Chunks {
            spec: self.spec,
            blocks: (CHUNK / self.blocks.block).max(1),
            record_bytes: self.record_bytes(),
            sums_at: SUMS_AT,
            rows_beyond: LARGE - 1,
        }
    }

    /// What the frame calls a panel.
    pub(super) fn tile_panel(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
    ) -> Result<(), IcedError> {
        self.load_strides(code)?;
        self.chunks().panel(code, shape, self)
    }

    fn load_strides(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.mov(ROW_BYTES, self.spec.input_row_bytes() as i64)?;
        code.mov(LINE, LINE_BYTES as i64)
    }

    /// The next row tile: how far it reaches back, its products, its outputs after the last chunk.
    fn row_tile(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        rows: usize,
    ) -> Result<(), IcedError> {
        let row_bytes = self.spec.input_row_bytes();
        let mut reaches_back = code.create_label();
        let mut is_not_last = code.create_label();
        code.xor(r10d, r10d)?;
        code.mov(r11, rows as i64)?;
        code.sub(r11, ROWS_LEFT.place())?;
        code.cmovg(r10, r11)?;
        code.mov(KNOWN_ROWS.place(), r10)?;
        code.test(r10, r10)?;
        code.jz(reaches_back)?;
        code.imul_3(r11, r10, row_bytes as i32)?;
        code.sub(TILE_ROWS.place(), r11)?;
        code.set_label(&mut reaches_back)?;

        code.mov(INPUT, TILE_ROWS.place())?;
        code.mov(WEIGHTS, CHUNK_WEIGHTS.place())?;
        code.mov(COUNT, CHUNK_BLOCKS.place())?;
        code.lea(CODES, ptr(SCRATCH + CODES_AT))?;
        self.blocks_of_rows(code, shape, rows)?;
        code.cmp(BLOCKS_LEFT.place(), 0)?;
        code.jg(is_not_last)?;
        self.store_rows(code, shape, rows)?;
        code.set_label(&mut is_not_last)?;
        self.chunks().end_tile(code, shape, rows)
    }

    /// The chunk's blocks, one behind in the conversion.
    fn blocks_of_rows(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        rows: usize,
    ) -> Result<(), IcedError> {
        self.move_sums(code, shape, rows, |code, sum, place| code.vmovups(sum, place))?;
        let parts = self.parts();
        // All of the next chunk beside the first row tile.
        let asked = self.spec.layout.block_bytes().div_ceil(LINE_BYTES * parts);
        let mut again = code.create_label();
        let mut last = code.create_label();
        self.multiply(code, shape, rows, 0)?;
        self.store_wholes(code, shape, rows)?;
        code.set_label(&mut again)?;
        for part in 0..parts {
            if part + 1 == parts {
                code.dec(COUNT)?;
                code.jz(last)?;
            }
            self.multiply(code, shape, rows, part + 1)?;
            self.convert(code, shape, rows, part)?;
            self.store_wholes(code, shape, rows)?;
            self.chunks().ask(code, shape, asked)?;
        }
        code.add(INPUT, self.record_bytes() as i32)?;
        code.add(WEIGHTS, self.spec.layout.block_bytes() as i32)?;
        if self.copies_codes() {
            code.add(CODES, self.block_codes_bytes(shape.groups) as i32)?;
        }
        code.jmp(again)?;
        code.set_label(&mut last)?;
        self.convert(code, shape, rows, parts - 1)?;
        self.move_sums(code, shape, rows, |code, sum, place| code.vmovups(place, sum))
    }

    /// Products of a part, counted from the current block's first, in the tiles of sums.
    fn multiply(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        rows: usize,
        part: usize,
    ) -> Result<(), IcedError> {
        let Tiles { sums, activations, codes } = tiles(rows);
        let layout = self.spec.layout;
        code.tileloadd(activations, ptr(INPUT + ROW_BYTES + part * self.spec.record_bytes()))?;
        // Part 0 of the next block counts as one behind the last.
        let (block, in_block) = (part / self.parts(), part % self.parts() * self.block * GROUP);
        for group in 0..shape.groups {
            let (sum, codes) = (sums[group], codes[group]);
            code.tilezero(sum)?;
            if self.copies_codes() {
                let at = block * self.block_codes_bytes(shape.groups)
                    + group * self.blocks.block * GROUP
                    + in_block;
                code.tileloadd(codes, ptr(CODES + LINE + at))?;
                code.tdpbssd(sum, activations, codes)?;
            } else {
                let at = block * layout.block_bytes()
                    + group * layout.group_bytes()
                    + layout.codes_offset()
                    + in_block;
                code.tileloadd(codes, ptr(WEIGHTS + LINE + at))?;
                code.tdpbsud(sum, activations, codes)?;
            }
        }
        Ok(())
    }

    fn store_wholes(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        rows: usize,
    ) -> Result<(), IcedError> {
        for (group, sum) in tiles(rows).sums.into_iter().enumerate().take(shape.groups) {
            code.tilestored(ptr(SCRATCH + LINE + whole_at(0, group)), sum)?;
        }
        Ok(())
    }

    /// `sum = fma(t, weight_scale · activation_scale, sum)` for a part of the current block, t the
    /// stored sums about the zero point.
    fn convert(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        rows: usize,
        part: usize,
    ) -> Result<(), IcedError> {
        let [whole, scale] = FREE;
        // Zero points that the codes are about already are not loaded: sums stand in their registers.
        let zero = if self.is_about_zero() { ZeroPoint::Implied } else { self.blocks.zero };
        let blocks = Blocks { zero, ..self.blocks };
        for group in 0..shape.groups {
            self.wide.block_parameters(code, blocks, group, SCALES[group], ZEROS[group])?;
        }
        for row in 0..rows {
            let record = row * self.spec.input_row_bytes() + part * self.spec.record_bytes();
            if !self.is_about_zero() {
                code.vcvtdq2ps(
                    MINUS_CODE_SUM,
                    dword_bcst(INPUT + (record + self.block + MINUS_SUM)),
                )?;
            }
            for group in 0..shape.groups {
                code.vmulps(scale, SCALES[group], dword_bcst(INPUT + (record + self.block)))?;
                code.vcvtdq2ps(whole, zmmword_ptr(SCRATCH + whole_at(row, group)))?;
                if !self.is_about_zero() {
                    code.vfmadd231ps(whole, ZEROS[group], MINUS_CODE_SUM)?;
                }
                match self.sum(shape, row, group) {
                    Sum::Register(sum) => code.vfmadd231ps(sum, whole, scale)?,
                    Sum::Memory => {
                        let sum = sum_at(shape, row, group);
                        code.vfmadd213ps(whole, scale, sum)?;
                        code.vmovups(sum, whole)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn sum(&self, shape: TileShape, row: usize, group: usize) -> Sum {
        let reserved = if self.is_about_zero() { FREE[1] } else { MINUS_CODE_SUM };
        let mut registers = ZMM.into_iter().take_while(|register| *register != reserved);
        registers.nth(row * shape.groups + group).map_or(Sum::Memory, Sum::Register)
    }

    /// Loads or stores the float sums that are in registers.
    fn move_sums(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        rows: usize,
        step: impl Fn(&mut CodeAssembler, AsmRegisterZmm, AsmMemoryOperand) -> Result<(), IcedError>,
    ) -> Result<(), IcedError> {
        for row in 0..rows {
            for group in 0..shape.groups {
                if let Sum::Register(sum) = self.sum(shape, row, group) {
                    step(code, sum, sum_at(shape, row, group))?;
                }
            }
        }
        Ok(())
    }

    /// Outputs of a row tile but its known rows.
    fn store_rows(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        rows: usize,
    ) -> Result<(), IcedError> {
        let row_bytes = (self.spec.output_stride * 4) as i32;
        let one = TileShape { rows: 1, ..shape };
        let mut again = code.create_label();
        code.mov(r11, KNOWN_ROWS.place())?;
        code.mov(COUNT, rows as i64)?;
        code.sub(COUNT, r11)?;
        code.imul_3(r11, r11, (shape.groups * LINE_BYTES) as i32)?;
        code.lea(INPUT, ptr(SUMS + r11))?;
        self.chunks().load_outputs(code)?;
        code.set_label(&mut again)?;
        for (group, sum) in ZMM.into_iter().enumerate().take(shape.groups) {
            code.vmovups(sum, zmmword_ptr(INPUT + group * LINE_BYTES))?;
        }
        self.wide.store(code, one)?;
        code.add(INPUT, (shape.groups * LINE_BYTES) as i32)?;
        code.add(TILE_OUTPUT, row_bytes)?;
        code.add(TILE_RESIDUAL, row_bytes)?;
        code.dec(COUNT)?;
        code.jnz(again)?;
        self.chunks().keep_outputs(code)?;
        // The pointers have stood where the strides belong.
        self.load_strides(code)
    }
}

impl ChunkTiles for Amx<'_> {
    fn keep_codes(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        self.take_apart(code, shape)
    }

    /// Large tiles while there are rows for more than a small one.
    fn row_tiles(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let mut done = code.create_label();
        let mut small = code.create_label();
        let mut large = code.create_label();
        code.set_label(&mut large)?;
        code.cmp(ROWS_LEFT.place(), SMALL as i32)?;
        code.jle(small)?;
        // Without 16 rows to reach back over, small tiles take 9 to 15.
        code.cmp(r9, LARGE as i32)?;
        code.jl(small)?;
        self.row_tile(code, shape, LARGE)?;
        code.jmp(large)?;

        code.set_label(&mut small)?;
        code.cmp(ROWS_LEFT.place(), 0)?;
        code.jle(done)?;
        self.row_tile(code, shape, SMALL)?;
        code.jmp(small)?;
        code.set_label(&mut done)?;
        code.zero_bytes()
    }
}

/// Tile loads of codes and lines of scratch memory lie in whole cache lines.
const _: () = assert!(WHOLES_AT.is_multiple_of(64) && CODES_AT.is_multiple_of(64));
