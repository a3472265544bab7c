//! int4 with short scales in tiles of bf16: sums stay in tiles from one end of a chunk to the other.
//!
//! What integer tiles cost most is what follows them: with a scale for every 32 activations and every 32
//! weights, each product's sums leave the tiles and are converted, scaled and added in vectors (`panel`).
//! Here both factors have their scales in them and are exact in bf16: a code of an activation times a
//! power of two, and a code of a weight about its middle, three bits and the sign, times a scale of five
//! ([`ScaleType::Short`](crate::pack::ScaleType::Short)).
//!
//! # The same bits
//!
//! `tdpbf16ps` sums the 16 products of a tile's even places, and those of its odd ones, from zero, adds
//! both sums, and then adds the result to the tile. A tile is one block of 32. All numbers of a block are
//! multiples of u, the product of the activation's scale and of the weight scale's last bit, and every sum
//! of its products is below 2²⁰ of them (32 · 120 · 8 · 31): it is exact. So the tile's number
//! becomes what `fma(t, weight_scale · activation_scale, sum)` gives, rounded once, of the same exact
//! block, blocks ascending. Its denormals would be zeros, but there are none: u is at least 2⁻⁸⁶ · 2⁻²⁴,
//! and all sums are multiples of their least u; nor is anything beyond the range, for activations end at
//! 2¹⁰⁰ (`quantise`), weights at 2¹⁹. A block whose scale is not a number makes its row's sums none.
//!
//! # Walk
//!
//! A chunk of the weights is taken apart once for all rows of a portion and lies in the first cache.
//! The first rows' products are computed beside that, one block behind: vectors and tiles are units of
//! their own, and what is stored has reached the cache when a tile loads it. Rows are taken in two tiles
//! by two groups, the last ones in one; up to 16 of them with four groups, since a tile's sum waits three
//! products long for the one before. Where 16 rows do not fill a tile, it reaches back over rows that
//! others have computed, keeps sums of its own for them and does not store them. A call of fewer than 16
//! rows has tiles of so many.
//!
//! | tile | rows | holds |
//! |---|---|---|
//! | 0 to 3 | 16 | sums, by row tile and group |
//! | 4, 5 | 16 | activations of two row tiles |
//! | 6, 7 | 16 | weights of two groups in turn |

mod apart;

use std::cell::RefCell;

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{CALL_ROWS, FREE_SLOT, SMALL, if_in_tiles};
use crate::kernels::matmul::assembled::{
    COUNT, INPUT, Plan, Portion, SCRATCH, TILE_OUTPUT, TILE_RESIDUAL, TILE_WEIGHTS, TileShape,
    Version, WEIGHTS,
};
use crate::kernels::matmul::avx512::{Avx512, ManyRows, ZMM};
use crate::kernels::matmul::chunks::{
    BLOCKS_LEFT, CHUNK_BLOCKS, CHUNK_WEIGHTS, CODES, ChunkTiles, Chunks, LINE_BYTES, ROWS_LEFT,
    SUMS, Slot, TILE_ROWS,
};
use crate::kernels::matmul::{Activation, MatmulSpec, Scaling, values_at};
use crate::pack::GROUP;

/// Activations and weights of a block: the places of a row of a tile of bf16.
const BLOCK: usize = 32;
/// Rows of a tile.
const ROWS: usize = 16;
/// Bytes of a tile.
const TILE_BYTES: usize = ROWS * LINE_BYTES;
/// Row tiles that are computed together, where there are more than one.
const ROW_TILES: usize = 2;
/// Groups that are computed together: with one row tile, and with two.
const GROUPS: [&[usize]; ROW_TILES] = [&[4, 2, 1], &[2, 1]];
/// The most of them.
const MOST_GROUPS: usize = GROUPS[0][0];
/// Bytes of a chunk's values.
const CHUNK_BYTES: usize = 32 << 10;

/// Rows of a portion: lines of values are half of a record, and should stay in a second cache of 2 MB.
pub(super) const PORTION: Portion = Portion { bytes: 2 << 20, step: ROW_TILES * ROWS, most: 384 };

/// Rows of a tile in this call.
const ROWS_OF_TILE: Slot = Slot(FREE_SLOT);
/// Row of the portion with which the next row tile would begin if it did not reach back.
const FIRST_ROW: Slot = Slot(FREE_SLOT + 1);
/// Where the row tile's sums are, while weights are taken apart.
const KEPT_SUMS: Slot = Slot(FREE_SLOT + 2);
/// Blocks of 32 in the chunk, and those of the current weight block that are left.
const CHUNK_PARTS: Slot = Slot(FREE_SLOT + 3);
const PARTS_LEFT: Slot = Slot(FREE_SLOT + 4);
/// What stands in [`SCALES`] outside of a chunk's first rows.
const KEPT_SCALES: Slot = Slot(FREE_SLOT + 5);

/// Scratch memory: slots, what `ldtilecfg` reads, what scales are multiplied by, their units by group,
/// values of a chunk, sums of the portion by row tile, group and row.
const CONFIGURATION_AT: usize = Slot::BYTES;
const FACTORS_AT: usize = CONFIGURATION_AT + 64;
const UNITS_AT: usize = FACTORS_AT + 64;
const VALUES_AT: usize = UNITS_AT + MOST_GROUPS * LINE_BYTES;
const SUMS_AT: usize = VALUES_AT + CHUNK_BYTES;
const SCRATCH_BYTES: usize = SUMS_AT + (PORTION.most + ROWS - 1) * VALUES.len() * LINE_BYTES;

/// Bytes of a row of a tile of sums or weights.
const LINE: AsmRegister64 = r12;
/// Bytes from one row of activations to the next.
const ROW_BYTES: AsmRegister64 = rbx;
/// Scales of the weight block whose codes are at [`WEIGHTS`].
const SCALES: AsmRegister64 = TILE_WEIGHTS;
/// Activations of two row tiles. Sums are loaded before and stored after these are used.
const INPUTS: [AsmRegister64; ROW_TILES] = [INPUT, SUMS];

const ACTIVATIONS: [AsmRegisterTmm; ROW_TILES] = [tmm4, tmm5];
const VALUES: [AsmRegisterTmm; 2] = [tmm6, tmm7];
const TILES: [AsmRegisterTmm; 4] = [tmm0, tmm1, tmm2, tmm3];

/// Whether a product is computed so on AMX: scales of both factors are exact in bf16, in blocks of a tile.
pub(super) fn serves(spec: &MatmulSpec) -> bool {
    let form = spec.activation().and_then(Activation::form);
    form.is_some_and(|form| form.scaling == Scaling::Power && form.block == BLOCK)
}

pub(super) struct Values<'a> {
    spec: &'a MatmulSpec,
    /// Computes few rows, and stores.
    wide: Avx512<'a>,
    configuration: RefCell<CodeLabel>,
    constants: RefCell<CodeLabel>,
}

impl<'a> Values<'a> {
    pub(super) fn new(code: &mut CodeAssembler, spec: &'a MatmulSpec) -> Self {
        let wide = Avx512::new(code, spec, ManyRows::Single);
        let [configuration, constants] = [(); 2].map(|()| RefCell::new(code.create_label()));
        Self { spec, wide, configuration, constants }
    }

    fn chunks(&self, shape: TileShape) -> Chunks<'_> {
        Chunks {
            spec: self.spec,
            blocks: CHUNK_BYTES / (shape.groups * TILE_BYTES * self.parts()),
            record_bytes: self.parts() * self.spec.record_bytes(),
            sums_at: SUMS_AT,
            rows_beyond: ROWS - 1,
        }
    }

    /// Tiles of 16 rows of 64 bytes; those of sums and activations get the call's number of rows.
    fn configuration_bytes() -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        for tile in 0..8 {
            bytes[16 + 2 * tile] = LINE_BYTES as u8;
            bytes[48 + tile] = ROWS as u8;
        }
        bytes
    }

    /// Tiles of as many rows as the call has, at most 16. Spoils r11.
    fn configure(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.mov(r11, ROWS as i64)?;
        code.cmp(r11, r9)?;
        code.cmovg(r11, r9)?;
        code.mov(ROWS_OF_TILE.place(), r11)?;
        code.vmovdqu32(zmm0, zmmword_ptr(*self.configuration.borrow()))?;
        code.vmovdqu32(zmmword_ptr(SCRATCH + CONFIGURATION_AT), zmm0)?;
        for tile in 0..TILES.len() + ACTIVATIONS.len() {
            code.mov(byte_ptr(SCRATCH + (CONFIGURATION_AT + 48 + tile)), r11b)?;
        }
        code.ldtilecfg(zmmword_ptr(SCRATCH + CONFIGURATION_AT))
    }

    /// Blocks of 32 in a weight block.
    fn parts(&self) -> usize {
        self.spec.layout.format.blocks().map_or(1, |blocks| blocks.block / BLOCK)
    }

    fn load_strides(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.mov(ROW_BYTES, self.spec.input_row_bytes() as i64)?;
        code.mov(LINE, LINE_BYTES as i64)
    }

    /// The row of the portion with which a row tile begins, in r10. Spoils r11.
    fn begin(&self, code: &mut CodeAssembler, tile: usize) -> Result<(), IcedError> {
        code.mov(r10, FIRST_ROW.place())?;
        code.add(r10, (tile * ROWS) as i32)?;
        code.mov(r11, r9)?;
        code.sub(r11, ROWS_OF_TILE.place())?;
        code.cmp(r10, r11)?;
        code.cmovg(r10, r11)
    }

    /// The chunk for so many row tiles, and their outputs after the last one. The first rows take the
    /// weights apart.
    fn rows(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        tiles: usize,
        is_first: bool,
    ) -> Result<(), IcedError> {
        let sums = || (0..tiles * shape.groups).map(|index| (TILES[index], index * TILE_BYTES));
        for (sum, at) in sums() {
            code.tileloadd(sum, ptr(SUMS + LINE + at))?;
        }
        code.mov(KEPT_SUMS.place(), SUMS)?;
        for (tile, input) in INPUTS.into_iter().enumerate().take(tiles) {
            self.begin(code, tile)?;
            code.imul_3(input, r10, self.spec.input_row_bytes() as i32)?;
            code.add(input, TILE_ROWS.place())?;
        }
        code.lea(CODES, ptr(SCRATCH + VALUES_AT))?;
        code.imul_3(COUNT, CHUNK_BLOCKS.place(), self.parts() as i32)?;
        if is_first {
            self.blocks_taken_apart(code, shape, tiles)?;
        } else {
            let mut again = code.create_label();
            code.set_label(&mut again)?;
            self.multiply(code, shape, tiles, 0)?;
            code.add(CODES, (shape.groups * TILE_BYTES) as i32)?;
            code.dec(COUNT)?;
            code.jnz(again)?;
        }
        code.mov(SUMS, KEPT_SUMS.place())?;
        for (sum, at) in sums() {
            code.tilestored(ptr(SUMS + LINE + at), sum)?;
        }
        let mut is_not_last = code.create_label();
        code.cmp(BLOCKS_LEFT.place(), 0)?;
        code.jg(is_not_last)?;
        for tile in 0..tiles {
            self.store_rows(code, shape, tile)?;
        }
        // The pointers have stood where the strides belong.
        self.load_strides(code)?;
        code.set_label(&mut is_not_last)?;
        code.add(SUMS, (tiles * shape.groups * TILE_BYTES) as i32)?;
        code.add(FIRST_ROW.place(), (tiles * ROWS) as i32)?;
        code.sub(ROWS_LEFT.place(), (tiles * ROWS) as i32)
    }

    /// Takes all blocks of the chunk apart and multiplies them, one block behind.
    fn blocks_taken_apart(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        tiles: usize,
    ) -> Result<(), IcedError> {
        let (layout, parts) = (self.spec.layout, self.parts());
        let tile_bytes = shape.groups * TILE_BYTES;
        // Two codes a byte.
        let code_bytes = BLOCK * GROUP / 2;
        // All of the next chunk.
        let asked = layout.block_bytes().div_ceil(LINE_BYTES * parts);
        let mut again = code.create_label();
        let mut is_first = code.create_label();
        let mut same_scales = code.create_label();
        self.keep_units(code, shape.groups)?;
        code.mov(KEPT_SCALES.place(), SCALES)?;
        code.mov(CHUNK_PARTS.place(), COUNT)?;
        code.mov(PARTS_LEFT.place(), parts as i32)?;
        code.mov(SCALES, CHUNK_WEIGHTS.place())?;
        code.lea(WEIGHTS, ptr(SCALES + layout.codes_offset()))?;
        code.set_label(&mut again)?;
        for group in 0..shape.groups {
            self.take_apart(code, group)?;
        }
        code.cmp(COUNT, CHUNK_PARTS.place())?;
        code.je(is_first)?;
        self.multiply(code, shape, tiles, tile_bytes)?;
        code.set_label(&mut is_first)?;
        self.chunks(shape).ask(code, shape, asked)?;
        code.add(CODES, tile_bytes as i32)?;
        code.add(WEIGHTS, code_bytes as i32)?;
        if parts > 1 {
            code.dec(PARTS_LEFT.place())?;
            code.jnz(same_scales)?;
            code.mov(PARTS_LEFT.place(), parts as i32)?;
        }
        code.add(SCALES, layout.block_bytes() as i32)?;
        code.add(WEIGHTS, layout.codes_offset() as i32)?;
        code.set_label(&mut same_scales)?;
        code.dec(COUNT)?;
        code.jnz(again)?;
        self.multiply(code, shape, tiles, tile_bytes)?;
        code.mov(SCALES, KEPT_SCALES.place())
    }

    /// Products of the block whose values end so many bytes behind [`CODES`]; goes on to the next block
    /// of activations.
    fn multiply(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        tiles: usize,
        behind: usize,
    ) -> Result<(), IcedError> {
        for (tile, input) in INPUTS.into_iter().enumerate().take(tiles) {
            code.tileloadd(ACTIVATIONS[tile], ptr(input + ROW_BYTES + values_at(BLOCK)))?;
            for group in 0..shape.groups {
                let values = VALUES[group % VALUES.len()];
                if tile == 0 {
                    let from = (group * TILE_BYTES) as i32 - behind as i32;
                    code.tileloadd(values, ptr(CODES + LINE + from))?;
                }
                code.tdpbf16ps(TILES[tile * shape.groups + group], ACTIVATIONS[tile], values)?;
            }
            code.add(input, self.spec.record_bytes() as i32)?;
        }
        Ok(())
    }

    /// Outputs of a row tile but those of rows that others have computed.
    fn store_rows(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        tile: usize,
    ) -> Result<(), IcedError> {
        let row_bytes = (self.spec.output_stride * 4) as i32;
        let one = TileShape { rows: 1, ..shape };
        let mut again = code.create_label();
        self.begin(code, tile)?;
        code.mov(r11, FIRST_ROW.place())?;
        code.add(r11, (tile * ROWS) as i32)?;
        code.sub(r11, r10)?;
        code.mov(COUNT, ROWS_OF_TILE.place())?;
        code.sub(COUNT, r11)?;
        code.imul_3(r11, r11, LINE_BYTES as i32)?;
        code.lea(INPUT, ptr(SUMS + r11 + tile * shape.groups * TILE_BYTES))?;
        self.chunks(shape).load_outputs(code)?;
        code.set_label(&mut again)?;
        for (group, sum) in ZMM.into_iter().enumerate().take(shape.groups) {
            code.vmovups(sum, zmmword_ptr(INPUT + group * TILE_BYTES))?;
        }
        self.wide.store(code, one)?;
        code.add(INPUT, LINE_BYTES as i32)?;
        code.add(TILE_OUTPUT, row_bytes)?;
        code.add(TILE_RESIDUAL, row_bytes)?;
        code.dec(COUNT)?;
        code.jnz(again)?;
        self.chunks(shape).keep_outputs(code)
    }
}

impl Version for Values<'_> {
    fn plans(&self) -> Vec<Plan> {
        let mut plans = self.wide.plans();
        plans.retain(|plan| plan.from_rows < SMALL);
        let panel = |from_rows, groups| Plan { from_rows, rows: &[], groups };
        plans.splice(0..0, [panel(ROWS + 1, GROUPS[1]), panel(SMALL, GROUPS[0])]);
        plans
    }

    fn portion(&self) -> Portion {
        PORTION
    }

    fn scratch_bytes(&self) -> usize {
        SCRATCH_BYTES
    }

    fn prepare(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        self.wide.prepare(code)?;
        code.mov(CALL_ROWS.place(), r9)?;
        if_in_tiles(code, |code| {
            self.configure(code)?;
            self.keep_factors(code)
        })
    }

    fn tile(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        self.wide.tile(code, shape)
    }

    fn panel(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        self.load_masks(code)?;
        self.load_strides(code)?;
        self.chunks(shape).panel(code, shape, self)
    }

    fn finish(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        if_in_tiles(code, CodeAssembler::tilerelease)
    }

    fn data(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        self.wide.data(code)?;
        code.set_label(&mut self.configuration.borrow_mut())?;
        code.db(&Self::configuration_bytes())?;
        code.set_label(&mut self.constants.borrow_mut())?;
        apart::constants(code)?;
        Ok(())
    }
}

impl ChunkTiles for Values<'_> {
    /// The first rows take the chunk apart.
    fn keep_codes(&self, code: &mut CodeAssembler, _: TileShape) -> Result<(), IcedError> {
        code.imul_3(COUNT, COUNT, self.spec.layout.block_bytes() as i32)?;
        code.add(WEIGHTS, COUNT)
    }

    fn row_tiles(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        code.mov(FIRST_ROW.place(), 0)?;
        if GROUPS[1].contains(&shape.groups) {
            let mut last = code.create_label();
            let mut again = code.create_label();
            let mut done = code.create_label();
            let mut few = code.create_label();
            code.cmp(r9, ROWS as i32)?;
            code.jle(few)?;
            self.rows(code, shape, ROW_TILES, true)?;
            code.set_label(&mut again)?;
            code.cmp(ROWS_LEFT.place(), ROWS as i32)?;
            code.jle(last)?;
            self.rows(code, shape, ROW_TILES, false)?;
            code.jmp(again)?;
            code.set_label(&mut last)?;
            code.cmp(ROWS_LEFT.place(), 0)?;
            code.jle(done)?;
            self.rows(code, shape, 1, false)?;
            code.jmp(done)?;
            code.set_label(&mut few)?;
            self.rows(code, shape, 1, true)?;
            code.set_label(&mut done)?;
            code.zero_bytes()
        } else {
            self.rows(code, shape, 1, true)
        }
    }
}

/// Tile loads lie in whole cache lines.
const _: () = assert!(VALUES_AT.is_multiple_of(64) && SUMS_AT.is_multiple_of(64));
