//! The products over an int8 cache in AMX tiles, for units of many queries; few queries are products
//! in vectors (`integer`).
//!
//! One `tdpb*` multiplies 16 queries with 16 quads of 16 columns. Sums of codes are exact whoever makes
//! them, and what follows them is done lane by lane in the order of `integer`, so the number of
//! queries may choose between the two: their bits are equal.
//!
//! | tile | rows | bytes of a row | holds |
//! |---|---|---|---|
//! | 0 to 3 | 16 | 64 | sums of 16 queries with four times 16 columns |
//! | 4 | 16 | quads · 4 | queries |
//! | 5 | quads | 64 | keys |
//! | 6 | 16 | 64 | weights |
//! | 7 | 16 | 64 | values |
//!
//! Keys lie in their blocks as a tile wants them; a query's sums begin as they stand behind its codes, 16
//! times over. Values of a tile lie in four blocks with scales between them: 64 columns of them at a time
//! are copied together, once for all queries. A tile has 16 queries whether they are there or not: the
//! scratch has room for them, and nobody looks at their sums.
//!
//! Tiles are configured once a call of attention, if it has queries enough, and released at its end:
//! `ldtilecfg` takes 160 cycles on a Xeon, as long as the products of five tiles.
//! There a product and the storing of its sums take 30 cycles together, for they do not overlap, and all
//! loads hide behind them: one tile for each side will do, since the processor renames them. Vectors
//! convert the sums of all queries when the last product is stored: dealing out both among each other
//! gained nothing over all steps.

use iced_x86::code_asm::*;
use weir_abi::{KEY_BLOCK, KEY_TILE};

use super::blocks::{bind, close, open};
use super::integer::SCALES;
use super::{ANCHOR, Tile};
use crate::kernels::attention::cache::QUAD;
use crate::kernels::attention::scratch::SCORE_ROW;
use crate::kernels::attention::vector::{Emitted, Vectors};

/// Least queries for tiles.
pub(in crate::kernels::attention) const LEAST: usize = 8;
/// Rows of a tile of sums.
const ROWS: usize = 16;
/// Bytes of a row of one.
const ROW_BYTES: usize = 64;
/// Tiles of sums, side by side.
const COLUMNS: usize = 4;
/// Most quads of a product.
const MOST_QUADS: usize = 16;
/// Least quads of a product that is one of several: emptier tiles are no faster than vectors.
const LEAST_QUADS: usize = 8;
/// Quads of a tile of keys, along its keys.
const KEY_QUADS: usize = KEY_TILE / QUAD;

const SUMS: [AsmRegisterTmm; COLUMNS] = [tmm0, tmm1, tmm2, tmm3];
/// Left and right sides of scores and of values.
const OF_SCORES: [AsmRegisterTmm; 2] = [tmm4, tmm5];
const OF_VALUES: [AsmRegisterTmm; 2] = [tmm6, tmm7];

/// Registers that are kept for the caller.
const SAVED: usize = 6;

/// Bytes from row to row: of the left side, of the right side, of sums.
const LEFT_ROW: AsmRegister64 = r10;
const RIGHT_ROW: AsmRegister64 = r11;
const SUM_ROW: AsmRegister64 = rax;
/// Rows that are being converted.
const TURNS: AsmRegister64 = r12;
/// Results of the row that is.
const RESULT: AsmRegister64 = r13;
/// Its sums, where they do not lie there.
const CONVERTED: AsmRegister64 = rbp;
/// Values that were copied together, and [`ANCHOR_ROW`] behind them.
const MEMORY: AsmRegister64 = r9;
/// All queries: their weights, and how many they are.
const WEIGHTS: AsmRegister64 = r14;
const QUERIES: AsmRegister64 = r15;

/// Bytes of the memory that [`values`] works in: 64 columns of a tile's values, and what sums begin at.
pub(in crate::kernels::attention) const VALUE_MEMORY: usize = ANCHOR_ROW + ROW_BYTES;
const ANCHOR_ROW: usize = COLUMNS * KEY_BLOCK * KEY_TILE;
/// [`ANCHOR`] in all lanes: sums of 64 products of a weight and a value are small enough for it.
const ANCHOR_LANES: usize = 27;
const _: () = assert!(KEY_TILE * 255 * 127 < 1 << 22);

/// Quads of each of the equal products that a width is divided into; nothing where there is no good
/// division.
pub(super) fn quads_of_product(width: usize) -> Option<usize> {
    let quads = width.div_ceil(QUAD);
    if quads <= MOST_QUADS {
        return Some(quads);
    }
    (LEAST_QUADS..=MOST_QUADS).rev().find(|part| quads.is_multiple_of(*part))
}

/// Makes scores of at least [`LEAST`] rows in tiles; what follows makes those of fewer. Arguments are
/// those of [`integer::scores`](super::integer::scores).
pub(super) fn scores(v: &mut Vectors<'_>, tile: &Tile<'_>, quads: usize) -> Emitted {
    let scratch = tile.scratch;
    let products = tile.key_width.div_ceil(QUAD) / quads;
    let scales = products * quads * QUAD * KEY_BLOCK;
    let block = scales + SCALES;
    let factors = [28, 29, 30, 31];
    let walk = Walk {
        tiles: OF_SCORES,
        quads,
        products,
        left_row: scratch.rounded_row,
        right_column: block,
        columns: COLUMNS,
    };
    let multiply = |v: &mut Vectors<'_>| {
        for sums in SUMS {
            v.code.tileloadd(sums, ptr(rdi + LEFT_ROW + scratch.begin))?;
        }
        walk.multiply(v, rsi, |code, [sums, left, right]| code.tdpbsud(sums, left, right))
    };
    let convert = |v: &mut Vectors<'_>| {
        for (column, factor) in factors.into_iter().enumerate() {
            if tile.is_anchored() {
                v.load(column, rdx + column * ROW_BYTES)?;
                v.sub(column, column, ANCHOR_LANES)?;
            } else {
                v.floats_of(column, rdx + column * ROW_BYTES)?;
            }
            v.mul(column, column, factor)?;
            v.store(rdx + column * ROW_BYTES, column)?;
        }
        ask(v, r9)?;
        v.code.add(rdx, SCORE_ROW as i32)
    };
    where_many(v, &walk, |v| {
        for (column, factor) in factors.into_iter().enumerate() {
            v.load(factor, rsi + (column * block + scales))?;
        }
        v.code.mov(RESULT, rdx)?;
        v.code.mov(TURNS, r8)?;
        walk.all_rows(v, &multiply)?;
        walk.convert_rows(v, &convert)
    })
}

/// The same with values: arguments are those of [`integer::values`](super::integer::values).
pub(super) fn values(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let registers = tile.value_width.div_ceil(KEY_BLOCK);
    let step = scratch.steps - scratch.factors;
    let walk = Walk {
        tiles: OF_VALUES,
        quads: KEY_QUADS,
        products: 1,
        left_row: KEY_TILE,
        right_column: KEY_QUADS * ROW_BYTES,
        columns: COLUMNS,
    };
    where_many(v, &walk, |v| {
        v.code.lea(MEMORY, rdx + (scratch.tile_values as i32 - scratch.sums as i32))?;
        v.code.mov(WEIGHTS, rdi)?;
        v.code.mov(QUERIES, r8)?;
        v.store(MEMORY + ANCHOR_ROW, ANCHOR_LANES)?;
        for first in (0..registers).step_by(COLUMNS) {
            let columns = COLUMNS.min(registers - first);
            copy_values(v, tile, first, columns)?;
            let walk = Walk { columns, ..walk };
            let multiply = |v: &mut Vectors<'_>| {
                for sums in &SUMS[..columns] {
                    v.code.tileloadd(*sums, ptr(MEMORY + TURNS + ANCHOR_ROW))?;
                }
                walk.multiply(v, MEMORY, |code, [sums, left, right]| {
                    code.tdpbusd(sums, left, right)
                })
            };
            let convert = |v: &mut Vectors<'_>| {
                let (factor, step_of_row) = (2 * COLUMNS, 2 * COLUMNS + 1);
                v.broadcast(factor, rbx.into())?;
                v.broadcast(step_of_row, rbx + step)?;
                for column in 0..columns {
                    let (before, sum) = (column, COLUMNS + column);
                    v.mul(before, factor, RESULT + (first + column) * ROW_BYTES)?;
                    v.load(sum, CONVERTED + column * ROW_BYTES)?;
                    v.sub(sum, sum, ANCHOR_LANES)?;
                    v.multiply_add(before, sum, step_of_row)?;
                    v.store(RESULT + (first + column) * ROW_BYTES, before)?;
                }
                ask(v, rdi)?;
                v.code.add(rbx, 4)?;
                v.code.add(RESULT, scratch.sum_row as i32)?;
                v.code.add(CONVERTED, SCORE_ROW as i32)
            };
            v.code.mov(rdi, WEIGHTS)?;
            v.code.mov(r8, QUERIES)?;
            v.code.lea(RESULT, rdx + (scratch.scores as i32 - scratch.sums as i32))?;
            v.code.mov(CONVERTED, RESULT)?;
            // All rows of a tile are the anchor's.
            v.code.xor(TURNS, TURNS)?;
            walk.all_rows(v, &multiply)?;
            v.code.mov(rdi, qword_ptr(rsp + 8 * (SAVED + 1)))?;
            v.code.add(rdi, (first * ROW_BYTES * KEY_QUADS) as i32)?;
            v.code.mov(rbx, rcx)?;
            v.code.mov(RESULT, rdx)?;
            v.code.mov(TURNS, QUERIES)?;
            walk.convert_rows(v, &convert)?;
        }
        Ok(())
    })
}

/// Asks for two of the lines that the next tile of keys will want: with 32 queries, all of them.
fn ask(v: &mut Vectors<'_>, ahead: AsmRegister64) -> Emitted {
    v.code.prefetcht1(byte_ptr(ahead))?;
    v.code.prefetcht1(byte_ptr(ahead + ROW_BYTES))?;
    v.code.add(ahead, (2 * ROW_BYTES) as i32)
}

/// Copies so many registers of columns of all values of a tile together.
fn copy_values(v: &mut Vectors<'_>, tile: &Tile<'_>, first: usize, columns: usize) -> Emitted {
    let quad_bytes = QUAD * tile.value_width;
    let quads = KEY_BLOCK / QUAD;
    let mut again = v.code.create_label();
    v.code.lea(RESULT, rsi + first * ROW_BYTES)?;
    v.code.mov(CONVERTED, MEMORY)?;
    v.code.mov(TURNS, (KEY_TILE / KEY_BLOCK) as i64)?;
    v.code.set_label(&mut again)?;
    for quad in 0..quads {
        for column in 0..columns {
            // What lies behind the last column of a quad is another one's, or scales: it goes where
            // nobody looks.
            v.load(column, RESULT + (quad * quad_bytes + column * ROW_BYTES))?;
            v.store(CONVERTED + (column * KEY_QUADS + quad) * ROW_BYTES, column)?;
        }
    }
    v.code.add(RESULT, (quads * quad_bytes + SCALES) as i32)?;
    v.code.add(CONVERTED, (quads * ROW_BYTES) as i32)?;
    v.code.dec(TURNS)?;
    v.code.jnz(again)
}

/// A product of rows with columns in tiles.
#[derive(Clone, Copy)]
struct Walk {
    /// Tiles of the left and of the right side.
    tiles: [AsmRegisterTmm; 2],
    /// Quads of a product, and products that make a sum.
    quads: usize,
    products: usize,
    /// Bytes from row to row of the left side.
    left_row: usize,
    /// Bytes from a tile of columns to the next on the right side.
    right_column: usize,
    /// Tiles of columns.
    columns: usize,
}

impl Walk {
    /// Adds the products of the rows at `rdi` with all columns.
    fn multiply(
        &self,
        v: &mut Vectors<'_>,
        right: AsmRegister64,
        product: fn(&mut CodeAssembler, [AsmRegisterTmm; 3]) -> Emitted,
    ) -> Emitted {
        let [left_tile, right_tile] = self.tiles;
        for part in 0..self.products {
            v.code.tileloadd(left_tile, ptr(rdi + LEFT_ROW + part * self.quads * QUAD))?;
            for (column, sums) in SUMS.into_iter().enumerate().take(self.columns) {
                let at = column * self.right_column + part * self.quads * ROW_BYTES;
                v.code.tileloadd(right_tile, ptr(right + RIGHT_ROW + at))?;
                product(v.code, [sums, left_tile, right_tile])?;
            }
        }
        Ok(())
    }

    fn store_sums(&self, v: &mut Vectors<'_>, to: AsmRegister64, at: usize) -> Emitted {
        let mut columns = SUMS.into_iter().enumerate().take(self.columns);
        columns.try_for_each(|(column, sums)| {
            v.code.tilestored(ptr(to + SUM_ROW + (at + column * ROW_BYTES)), sums)
        })
    }

    /// All `r8` rows at `rdi`: their sums go to the rows of scores at [`RESULT`].
    fn all_rows(
        &self,
        v: &mut Vectors<'_>,
        multiply: &dyn Fn(&mut Vectors<'_>) -> Emitted,
    ) -> Emitted {
        let mut again = v.code.create_label();
        bind(v, &mut again)?;
        multiply(v)?;
        self.store_sums(v, RESULT, 0)?;
        v.code.add(rdi, (ROWS * self.left_row) as i32)?;
        v.code.add(RESULT, (ROWS * SCORE_ROW) as i32)?;
        v.code.sub(r8, ROWS as i32)?;
        v.code.jg(again)
    }

    fn convert_rows(
        &self,
        v: &mut Vectors<'_>,
        convert: &dyn Fn(&mut Vectors<'_>) -> Emitted,
    ) -> Emitted {
        let mut again = v.code.create_label();
        bind(v, &mut again)?;
        convert(v)?;
        v.code.dec(TURNS)?;
        v.code.jnz(again)
    }
}

/// A function of at least [`LEAST`] rows, in front of that of fewer.
fn where_many(
    v: &mut Vectors<'_>,
    walk: &Walk,
    body: impl FnOnce(&mut Vectors<'_>) -> Emitted,
) -> Emitted {
    let mut few = v.code.create_label();
    v.code.cmp(r8, LEAST as i32)?;
    v.code.jl(few)?;
    let saved = open(v)?;
    v.fill(ANCHOR_LANES, ANCHOR)?;
    v.code.mov(LEFT_ROW, walk.left_row as i64)?;
    v.code.mov(RIGHT_ROW, ROW_BYTES as i64)?;
    v.code.mov(SUM_ROW, SCORE_ROW as i64)?;
    body(v)?;
    close(v, saved)?;
    bind(v, &mut few)
}

/// A product that nobody looks at, among the vectors of `rsi` queries. Behind some 2000 cycles without
/// any the next one takes 1000 cycles more (a Xeon, measured), as long as the products of 32 queries;
/// this one takes 100.
pub(super) fn keep_awake(v: &mut Vectors<'_>) -> Emitted {
    let [left, right] = OF_VALUES;
    let mut few = v.code.create_label();
    v.code.cmp(rsi, ROWS as i32)?;
    v.code.jle(few)?;
    v.code.tdpbusd(SUMS[0], left, right)?;
    bind(v, &mut few)
}

/// `(scratch, queries)`: [`keep_awake`] as a step of its own.
pub(in crate::kernels::attention) fn stay_awake(v: &mut Vectors<'_>, _: &Tile<'_>) -> Emitted {
    keep_awake(v)?;
    v.code.ret()
}

/// `()`: configures the tiles.
pub(in crate::kernels::attention) fn configure(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let mut configuration = v.code.create_label();
    v.code.ldtilecfg(zmmword_ptr(configuration))?;
    v.code.ret()?;
    v.code.set_label(&mut configuration)?;
    // Palette 1 with the tiles of the module's header.
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let sums = (ROWS, ROW_BYTES);
    // Tiles that no product uses have no rows.
    let quads = quads_of_product(tile.key_width).unwrap_or(0);
    let queries = if quads == 0 { (0, 0) } else { (ROWS, quads * QUAD) };
    let keys = if quads == 0 { (0, 0) } else { (quads, ROW_BYTES) };
    let weights = (ROWS, KEY_TILE);
    let values = (KEY_QUADS, ROW_BYTES);
    let tiles = [sums, sums, sums, sums, queries, keys, weights, values];
    for (tile, (rows, row_bytes)) in tiles.into_iter().enumerate() {
        // At most 64, in two bytes whose upper one stays 0.
        bytes[16 + 2 * tile] = row_bytes as u8;
        bytes[48 + tile] = rows as u8;
    }
    v.code.db(&bytes)
}

/// `()`: brings the tiles back to their initial state, which costs the system nothing to save.
pub(in crate::kernels::attention) fn release(v: &mut Vectors<'_>, _tile: &Tile<'_>) -> Emitted {
    v.code.tilerelease()?;
    v.code.ret()
}
