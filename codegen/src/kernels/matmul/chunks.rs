//! The panel that walks the reduction in chunks: what versions share that take codes apart for all rows.
//!
//! For a tile of groups the reduction is taken in chunks whose codes, made ready, stay in the first
//! cache ([`ChunkTiles::keep_codes`]). Within a chunk rows are taken tile by tile
//! ([`ChunkTiles::row_tiles`]); their float sums wait in scratch memory between chunks. Beside the
//! products the next chunk's weights are asked for, a few lines at a time ([`Chunks::ask`]): memory does
//! not give a whole chunk at once when its codes are taken apart, and many lines that are under way hold
//! up the loads of the products.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::MatmulSpec;
use super::assembled::{
    COUNT, SCRATCH, TILE_INPUT, TILE_OUTPUT, TILE_RESIDUAL, TILE_WEIGHTS, TileShape, WEIGHTS,
};
use crate::pack::GROUP;

/// Float sums of the row tile.
pub(super) const SUMS: AsmRegister64 = rax;
/// Codes of the current block in scratch memory.
pub(super) const CODES: AsmRegister64 = r11;
/// Next weights to be asked for, of the first group. The frame finds its own number here again.
const AHEAD: AsmRegister64 = rdi;

/// A number of the panel's in scratch memory, by its index.
#[derive(Clone, Copy)]
pub(super) struct Slot(pub(super) usize);

impl Slot {
    const COUNT: usize = 24;
    /// Bytes of all of them, at the beginning of scratch memory.
    pub(super) const BYTES: usize = Slot::COUNT * 8;
    /// The first that the panel leaves to its tiles.
    pub(super) const FREE: usize = 11;

    pub(super) fn place(self) -> AsmMemoryOperand {
        debug_assert!(self.0 < Slot::COUNT);
        qword_ptr(SCRATCH + self.0 * 8)
    }
}

/// Weight blocks behind the chunk.
pub(super) const BLOCKS_LEFT: Slot = Slot(0);
/// Weight blocks of the chunk.
pub(super) const CHUNK_BLOCKS: Slot = Slot(1);
/// The chunk's weights.
pub(super) const CHUNK_WEIGHTS: Slot = Slot(2);
/// Those behind it.
const NEXT_WEIGHTS: Slot = Slot(3);
/// The chunk's activations of the portion's first row.
const CHUNK_INPUT: Slot = Slot(4);
/// The chunk's activations of the row tile.
pub(super) const TILE_ROWS: Slot = Slot(5);
/// Rows that no tile has computed.
pub(super) const ROWS_LEFT: Slot = Slot(6);
/// Output of the next row to be stored.
pub(super) const OUTPUT: Slot = Slot(7);
/// Residual of the same.
pub(super) const RESIDUAL: Slot = Slot(8);
/// What stands in [`AHEAD`] outside of panels.
const KEPT: Slot = Slot(9);
/// Where the weights end that are asked for.
const AHEAD_END: Slot = Slot(10);

/// Bytes of a group's sums of a row, and of a quad of its codes.
pub(super) const LINE_BYTES: usize = GROUP * 4;

/// What is done with a chunk.
pub(super) trait ChunkTiles {
    /// Makes the codes of the chunk at [`WEIGHTS`], of [`COUNT`] blocks, ready. Leaves [`WEIGHTS`] at
    /// its end.
    fn keep_codes(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError>;
    /// One chunk of all rows, whose float sums begin at [`SUMS`] and whose number is in
    /// [`ROWS_LEFT`]: tile by tile, each ended by [`Chunks::end_tile`].
    fn row_tiles(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError>;
}

/// How a product is walked.
#[derive(Clone, Copy)]
pub(super) struct Chunks<'a> {
    pub(super) spec: &'a MatmulSpec,
    /// Weight blocks of a chunk at most.
    pub(super) blocks: usize,
    /// Bytes of a row's activations for one weight block.
    pub(super) record_bytes: usize,
    /// Where scratch memory has float sums, by row and group.
    pub(super) sums_at: usize,
    /// Rows behind the portion's last that tiles have sums for, too.
    pub(super) rows_beyond: usize,
}

impl Chunks<'_> {
    /// The portion, whose number of rows is in r9: what the frame calls a panel.
    pub(super) fn panel(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        tiles: &dyn ChunkTiles,
    ) -> Result<(), IcedError> {
        code.mov(KEPT.place(), AHEAD)?;
        code.mov(CHUNK_INPUT.place(), TILE_INPUT)?;
        self.clear_sums(code, shape)?;
        code.mov(WEIGHTS, TILE_WEIGHTS)?;
        code.mov(BLOCKS_LEFT.place(), self.spec.layout.block_count() as i32)?;
        let mut next_chunk = code.create_label();
        code.set_label(&mut next_chunk)?;
        code.mov(COUNT, BLOCKS_LEFT.place())?;
        code.mov(r11, self.blocks as i64)?;
        code.cmp(COUNT, r11)?;
        code.cmovg(COUNT, r11)?;
        code.mov(CHUNK_BLOCKS.place(), COUNT)?;
        code.sub(BLOCKS_LEFT.place(), COUNT)?;
        code.mov(CHUNK_WEIGHTS.place(), WEIGHTS)?;
        tiles.keep_codes(code, shape)?;
        code.mov(NEXT_WEIGHTS.place(), WEIGHTS)?;
        self.look_ahead(code, shape)?;
        code.lea(SUMS, ptr(SCRATCH + self.sums_at))?;
        code.mov(r11, CHUNK_INPUT.place())?;
        code.mov(TILE_ROWS.place(), r11)?;
        code.mov(OUTPUT.place(), rdx)?;
        code.mov(RESIDUAL.place(), r8)?;
        code.mov(ROWS_LEFT.place(), r9)?;
        tiles.row_tiles(code, shape)?;
        code.mov(WEIGHTS, NEXT_WEIGHTS.place())?;
        code.imul_3(r11, CHUNK_BLOCKS.place(), self.record_bytes as i32)?;
        code.add(CHUNK_INPUT.place(), r11)?;
        code.cmp(BLOCKS_LEFT.place(), 0)?;
        code.jg(next_chunk)?;
        code.mov(AHEAD, KEPT.place())
    }

    /// Zeros for all rows that have sums.
    fn clear_sums(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let mut again = code.create_label();
        code.vpxord(zmm0, zmm0, zmm0)?;
        code.lea(SUMS, ptr(SCRATCH + self.sums_at))?;
        code.lea(COUNT, ptr(r9 + self.rows_beyond))?;
        code.set_label(&mut again)?;
        for group in 0..shape.groups {
            code.vmovups(zmmword_ptr(SUMS + group * LINE_BYTES), zmm0)?;
        }
        code.add(SUMS, (shape.groups * LINE_BYTES) as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)
    }

    /// The weights behind the chunk, which ends at [`WEIGHTS`]: those of the same groups, or behind
    /// their last ones those of the next groups.
    fn look_ahead(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let others = (shape.groups - 1) * self.spec.layout.group_bytes();
        code.mov(AHEAD, WEIGHTS)?;
        code.lea(r11, ptr(WEIGHTS + others))?;
        code.cmp(BLOCKS_LEFT.place(), 0)?;
        code.cmovle(AHEAD, r11)?;
        code.imul_3(r11, CHUNK_BLOCKS.place(), self.spec.layout.block_bytes() as i32)?;
        code.add(r11, AHEAD)?;
        code.mov(AHEAD_END.place(), r11)
    }

    /// Asks for the next so many lines of weights of each group, unless the next chunk has been asked
    /// for.
    pub(super) fn ask(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        lines: usize,
    ) -> Result<(), IcedError> {
        let mut nothing = code.create_label();
        code.cmp(AHEAD, AHEAD_END.place())?;
        code.jae(nothing)?;
        for line in 0..lines {
            for group in 0..shape.groups {
                let at = group * self.spec.layout.group_bytes() + line * LINE_BYTES;
                code.prefetcht0(byte_ptr(AHEAD + at))?;
            }
        }
        code.add(AHEAD, (lines * LINE_BYTES) as i32)?;
        code.set_label(&mut nothing)?;
        code.zero_bytes()
    }

    /// Goes on behind a tile of so many rows, whose first begins at [`TILE_ROWS`].
    pub(super) fn end_tile(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        rows: usize,
    ) -> Result<(), IcedError> {
        code.add(SUMS, (rows * shape.groups * LINE_BYTES) as i32)?;
        code.add(TILE_ROWS.place(), (rows * self.spec.input_row_bytes()) as i32)?;
        code.sub(ROWS_LEFT.place(), rows as i32)
    }

    /// Loads where the next row's output and residual are to [`TILE_OUTPUT`] and [`TILE_RESIDUAL`];
    /// [`Chunks::keep_outputs`] keeps where they have moved to.
    pub(super) fn load_outputs(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.mov(TILE_OUTPUT, OUTPUT.place())?;
        code.mov(TILE_RESIDUAL, RESIDUAL.place())
    }

    /// See [`Chunks::load_outputs`].
    pub(super) fn keep_outputs(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.mov(OUTPUT.place(), TILE_OUTPUT)?;
        code.mov(RESIDUAL.place(), TILE_RESIDUAL)
    }
}

/// A row's sums of a group, in the row tile at [`SUMS`].
pub(super) fn sum_at(shape: TileShape, row: usize, group: usize) -> AsmMemoryOperand {
    zmmword_ptr(SUMS + (row * shape.groups + group) * LINE_BYTES)
}
