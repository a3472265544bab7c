//! Products of f32 queries and weights with keys and values that are widened to f32.
//!
//! A block of accumulators is a block of rows times two registers of columns: 12 × 2 with 32 registers
//! (24 fused steps per 14 loads), 6 × 2 with 16 (12 per 8).

use iced_x86::code_asm::*;
use weir_abi::KEY_BLOCK;

use super::Tile;
use super::blocks::{
    AHEAD, Blocks, LEFT, Product, RIGHT, all_columns, close, first_columns, known_turns, open,
    rows, turns,
};
use crate::kernels::attention::cache::{CacheShape, CacheType};
use crate::kernels::attention::scratch::SCORE_ROW;
use crate::kernels::attention::vector::{Emitted, Vectors, Width};

/// Registers of columns that an accumulator block holds.
const COLUMNS: usize = 2;
/// The same where there are few rows: chains that do not wait for each other.
const FEW_COLUMNS: usize = 4;
/// Reduction steps of a turn.
const UNROLL: usize = 4;

/// The product.
struct Floats {
    width: Width,
    /// Bytes from row to row of the left side, whose reduction is dense.
    left_row: usize,
    /// Number format of the right side.
    right: CacheType,
    /// Bytes from step to step of the reduction on the right side.
    right_step: usize,
    /// Bytes from [`KEY_BLOCK`] columns to the next of them.
    right_block: usize,
    result_row: usize,
    /// Steps, if they are known; else they come in `r9`.
    steps: Option<usize>,
    goes_on: bool,
    /// Whether blocks of few rows ask for what lies [`AHEAD`].
    asks: bool,
}

impl Floats {
    /// Where lines begin that a step of the reduction reads first, in bytes from the right side. A
    /// block of keys is one run of bytes over all steps, which a line may hold several of.
    fn lines(&self, step: usize, columns: impl Iterator<Item = usize>) -> Vec<usize> {
        let before = if self.right_step < 64 { step * self.right_step } else { 0 };
        let starts = columns.map(|column| self.right_column(column));
        let begins = starts.filter(|start| (before + start).is_multiple_of(64));
        begins.map(|start| step * self.right_step + start).collect()
    }
}

impl Product for Floats {
    fn blocks(&self, is_few: bool) -> Blocks {
        match (self.width, is_few) {
            (Width::Eight, true) => Blocks { rows: &[2, 1], columns: FEW_COLUMNS },
            (Width::Eight, false) => Blocks { rows: &[6, 4, 2, 1], columns: COLUMNS },
            (Width::Sixteen, true) => Blocks { rows: &[4, 2, 1], columns: FEW_COLUMNS },
            (Width::Sixteen, false) => Blocks { rows: &[12, 8, 4, 2, 1], columns: COLUMNS },
        }
    }

    fn left_row(&self) -> usize {
        self.left_row
    }

    fn result_row(&self) -> usize {
        self.result_row
    }

    fn goes_on(&self) -> bool {
        self.goes_on
    }

    fn right_column(&self, column: usize) -> usize {
        column / KEY_BLOCK * self.right_block + column % KEY_BLOCK * self.right.bytes()
    }

    fn block(&self, v: &mut Vectors<'_>, [rows, columns]: [usize; 2], part: usize) -> Emitted {
        let product = self;
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
        let asks = product.asks && rows <= product.blocks(true).rows[0];
        let step = |v: &mut Vectors<'_>, step: usize| -> Emitted {
            if asks {
                for line in product.lines(step, (0..columns).map(|column| column * lanes)) {
                    v.code.prefetcht1(byte_ptr(RIGHT + AHEAD + line))?;
                }
            }
            for column in 0..columns {
                let from =
                    RIGHT + (step * product.right_step + product.right_column(column * lanes));
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
            Some(steps) => known_turns(v, steps, UNROLL, &turn)?,
            None => turns(v, UNROLL, &turn)?,
        }
        for row in 0..rows {
            for column in 0..columns {
                v.store(result(row, column), sum(row, column))?;
            }
        }
        Ok(())
    }
}

/// `(queries, keys, scores, number of keys, rows, keys to ask for)`: scores of whole blocks of
/// columns, from blocks of keys; as many keys are asked for.
pub(in crate::kernels::attention) fn scores(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let product = Floats {
        width: v.width,
        left_row: tile.key_width * 4,
        right: tile.number,
        right_step: KEY_BLOCK * tile.number.bytes(),
        right_block: KEY_BLOCK * tile.key_width * tile.number.bytes(),
        result_row: SCORE_ROW,
        steps: Some(tile.key_width),
        goes_on: false,
        asks: true,
    };
    let saved = open(v)?;
    v.code.mov(AHEAD, r9)?;
    v.code.sub(AHEAD, rsi)?;
    first_columns(v, &product)?;
    close(v, saved)
}

/// `(queries, block of keys, products, number of queries)`: products with the keys of one block, dense,
/// `[query][KEY_BLOCK]`. Queries are `query_row` bytes from each other; keys are what the cache holds,
/// or in single precision where these are codes.
pub(in crate::kernels::attention) fn block_products(
    v: &mut Vectors<'_>,
    cache: &CacheShape,
    query_row: usize,
) -> Emitted {
    let right = cache.number.aside();
    let product = Floats {
        width: v.width,
        left_row: query_row,
        right,
        right_step: KEY_BLOCK * right.bytes(),
        right_block: KEY_BLOCK * cache.key_width * right.bytes(),
        result_row: KEY_BLOCK * 4,
        steps: Some(cache.key_width),
        goes_on: false,
        asks: false,
    };
    let blocks = Blocks { columns: KEY_BLOCK / v.width.lanes(), ..product.blocks(false) };
    let saved = open(v)?;
    v.code.mov(r8, rcx)?;
    rows(v, &product, &blocks, 0)?;
    close(v, saved)
}

/// `(weights, value rows, sums, factors, rows, keys, value rows to ask for)`: of those as many rows
/// are asked for as there are keys.
pub(in crate::kernels::attention) fn values(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let number = tile.number;
    let product = Floats {
        width: v.width,
        left_row: SCORE_ROW,
        right: number,
        right_step: tile.value_width * number.bytes(),
        right_block: KEY_BLOCK * number.bytes(),
        result_row: tile.scratch.sum_row,
        steps: None,
        goes_on: true,
        asks: true,
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
    all_columns(v, &product, tile.value_width, true)?;
    close(v, saved)?;
    v.code.set_label(&mut ones)?;
    for lane in 0..lanes {
        v.code.db(&(if lane < part { u32::MAX } else { 0 }).to_le_bytes())?;
    }
    Ok(())
}
