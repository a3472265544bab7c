//! Integer products of many rows in AMX tiles; few rows are products in 512-bit vectors.
//!
//! One `tdpb*` multiplies up to 16 rows of activations with a block of at most 64 elements of a group
//! of 16 channels. The packed layout is what it wants: a 64-byte row of codes is a row of its second
//! operand. Sums of a block are exact 32-bit integers, so [`panel`] can hand them to the same
//! `acc = fma(t, weight_scale · activation_scale, acc)`, blocks ascending, as all other versions
//! do, and the number of rows may choose between the two units: their bits are equal.
//!
//! # Tiles
//!
//! All eight are configured once a call (`ldtilecfg`), if it has rows enough to use them, and released
//! before it returns: the caller finds tiles in their initial state, which costs the system nothing
//! to save. Loads touch exactly rows × bytes of their configuration.
//!
//! | tile | rows | bytes of a row | holds |
//! |---|---|---|---|
//! | 0, 1 | 16 | 64 | sums of two groups |
//! | 2 | 16 | block | activations |
//! | 3, 4 | block / 4 | 64 | codes of two groups |
//! | 5, 6 | 8 | 64 | sums of two groups |
//! | 7 | 8 | block | activations |
//!
//! Source: Intel, *Software Developer's Manual*, volume 1 chapter 18 (tiles, configuration) and
//! volume 2 (`LDTILECFG`, `TILELOADD`, `TDPBSSD` and its relatives).

mod codes;
mod panel;
mod values;

use std::cell::RefCell;

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::assembled::{Plan, Portion, TileShape, Version, assemble};
use super::avx512::{Avx512, ManyRows};
use super::chunks::Slot;
use super::{Activation, MatmulSpec};
use crate::emit::{Assembly, EmitError, FuncId};
use crate::pack::{Blocks, GROUP};

/// Rows of the large row tile.
const LARGE: usize = 16;
/// Rows of the small one, and least rows of a portion that is computed in tiles.
const SMALL: usize = weir_abi::TILE_ROWS as usize;
/// Rows of a portion: processors with AMX have second caches of 2 MB, and what is asked of them at a
/// time are the rows' parts of a chunk.
const PORTION: Portion = Portion { bytes: 3 << 19, step: LARGE, most: 384 };

/// Rows of the call.
const CALL_ROWS: Slot = Slot(Slot::FREE);
/// The first slot that a panel has for itself.
const FREE_SLOT: usize = Slot::FREE + 1;

/// Emits what only a call does whose rows are enough for tiles.
fn if_in_tiles(
    code: &mut CodeAssembler,
    then: impl FnOnce(&mut CodeAssembler) -> Result<(), IcedError>,
) -> Result<(), IcedError> {
    let mut few = code.create_label();
    code.cmp(CALL_ROWS.place(), SMALL as i32)?;
    code.jl(few)?;
    then(code)?;
    code.set_label(&mut few)?;
    code.zero_bytes()
}

/// How rows are divided.
pub(super) fn portion(spec: &MatmulSpec) -> Portion {
    if spec.in_bf16 { values::PORTION } else { PORTION }
}

/// Whether rows of activations should have their values in bf16: see [`values`].
pub(super) fn multiplies_values(spec: &MatmulSpec) -> bool {
    values::serves(spec)
}

/// Whether tiles compute a product: blocks of 16 activations would leave three quarters of a tile
/// empty, which is no faster than vectors; and sums that begin as floats begin so in vectors alone.
pub(super) fn serves(spec: &MatmulSpec) -> bool {
    let is_long = matches!(spec.activation(), Some(Activation::Int8 { block: 32.., .. }));
    is_long && (spec.in_bf16 || !spec.is_anchored())
}

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    spec: &MatmulSpec,
) -> Result<(), EmitError> {
    let (Some(Activation::Int8 { block, .. }), Some(blocks)) =
        (spec.activation(), spec.layout.format.blocks())
    else {
        return super::avx512::define(assembly, id, spec, ManyRows::Single);
    };
    if spec.in_bf16 {
        return assembly.assemble(id, |code| {
            let values = values::Values::new(code, spec);
            assemble(code, spec, &values)
        });
    }
    assembly.assemble(id, |code| {
        let wide = Avx512::new(code, spec, ManyRows::Single);
        let configuration = RefCell::new(code.create_label());
        assemble(code, spec, &Amx { spec, blocks, block, wide, configuration })
    })
}

struct Amx<'a> {
    spec: &'a MatmulSpec,
    /// Blocks of the weight.
    blocks: Blocks,
    /// Elements of an activation block, and of a product of tiles.
    block: usize,
    /// Computes few rows, and stores.
    wide: Avx512<'a>,
    /// What `ldtilecfg` reads.
    configuration: RefCell<CodeLabel>,
}

impl Version for Amx<'_> {
    fn plans(&self) -> Vec<Plan> {
        let mut plans = self.wide.plans();
        plans.retain(|plan| plan.from_rows < SMALL);
        plans.insert(0, Plan { from_rows: SMALL, rows: &[], groups: &[2, 1] });
        plans
    }

    fn portion(&self) -> Portion {
        PORTION
    }

    fn scratch_bytes(&self) -> usize {
        panel::SCRATCH_BYTES
    }

    fn prepare(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        self.wide.prepare(code)?;
        code.mov(CALL_ROWS.place(), r9)?;
        if_in_tiles(code, |code| code.ldtilecfg(zmmword_ptr(*self.configuration.borrow())))
    }

    fn tile(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        self.wide.tile(code, shape)
    }

    fn panel(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        self.tile_panel(code, shape)
    }

    fn finish(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        if_in_tiles(code, CodeAssembler::tilerelease)
    }

    fn data(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        self.wide.data(code)?;
        code.set_label(&mut self.configuration.borrow_mut())?;
        code.db(&self.configuration_bytes())
    }
}

impl Amx<'_> {
    /// Palette 1 with the tiles of the module's header.
    fn configuration_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[0] = 1;
        let sums = (LARGE, GROUP * 4);
        let codes = (self.block / 4, GROUP * 4);
        let few_sums = (SMALL, GROUP * 4);
        let tiles = [
            sums,
            sums,
            (LARGE, self.block),
            codes,
            codes,
            few_sums,
            few_sums,
            (SMALL, self.block),
        ];
        for (tile, (rows, row_bytes)) in tiles.into_iter().enumerate() {
            // At most 64, in two bytes whose upper one stays 0.
            bytes[16 + 2 * tile] = row_bytes as u8;
            bytes[48 + tile] = rows as u8;
        }
        bytes
    }

    /// Activation blocks of a weight block.
    fn parts(&self) -> usize {
        self.blocks.block / self.block
    }

    /// Bytes of a row's activations for one weight block.
    fn record_bytes(&self) -> usize {
        self.parts() * self.spec.record_bytes()
    }
}
