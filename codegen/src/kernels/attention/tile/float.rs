//! Products of f32 queries and weights with keys and values that are widened to f32; or of pairs of
//! bf16 with pairs that are made of keys and values in passing.
//!
//! A block of accumulators is a block of rows times two registers of columns: 12 × 2 with 32 registers
//! (24 fused steps per 14 loads), 6 × 2 with 16 (12 per 8). A block of keys holds one number of sixteen
//! keys after the other, so that two numbers of them are one register whose words are reordered. Of
//! values two rows make pairs, three instructions a register, which twelve rows share.

use iced_x86::code_asm::*;
use weir_abi::KEY_BLOCK;

use super::Tile;
use super::blocks::{
    AHEAD, Blocks, LEFT, Product, RIGHT, all_columns, bind, close, first_columns, known_turns,
    open, rows, turns,
};
use crate::kernels::attention::cache::{CacheShape, CacheType};
use crate::kernels::attention::scratch::SCORE_ROW;
use crate::kernels::attention::vector::{Emitted, PAIR_ORDER, PairOf, Vectors, Width};

/// Registers of columns that an accumulator block holds.
const COLUMNS: usize = 2;
/// The same where there are few rows: chains that do not wait for each other.
const FEW_COLUMNS: usize = 4;
/// Reduction steps of a turn, of pairs half as many.
const UNROLL: usize = 4;
/// Registers beside accumulators, of a product of pairs: their order, and one to make them with.
const ORDER: usize = 31;
const PAIRING: usize = 30;

/// How the reduction is walked.
#[derive(Clone, Copy)]
enum Reduction {
    /// Number by number in f32: as many as are known, or come in `r9`.
    Floats(Option<usize>),
    /// By two in bf16, which on the right side are neighbours: so many numbers.
    Neighbours(usize),
    /// By two in bf16, which on the right side are rows: as many whole pairs as come in `r9`. In front
    /// of them there may be one of which only the later is read, and behind them one of which only the
    /// earlier is: if these are not 0.
    Rows { later: i32, earlier: i32 },
}

/// The product.
struct Floats {
    width: Width,
    /// Bytes from row to row of the left side, whose reduction is dense.
    left_row: usize,
    /// Number format of the right side.
    right: CacheType,
    /// Bytes from step to step of the reduction on the right side; of pairs, from pair to pair.
    right_step: usize,
    /// Bytes from [`KEY_BLOCK`] columns to the next of them.
    right_block: usize,
    result_row: usize,
    reduction: Reduction,
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
        let first = begins.map(|start| step * self.right_step + start);
        match self.reduction {
            Reduction::Rows { .. } => {
                first.flat_map(|line| [line, line + self.right_step / 2]).collect()
            }
            _ => first.collect(),
        }
    }

    /// Loads a register of columns of a step, of which `part` are there unless that is 0.
    fn load_right(
        &self,
        v: &mut Vectors<'_>,
        to: usize,
        from: AsmMemoryOperand,
        halves: PairOf,
        part: usize,
    ) -> Emitted {
        match (self.reduction, halves) {
            (Reduction::Floats(_), _) if part > 0 => v.load_part(self.right, part, to, from),
            (Reduction::Floats(_), _) => v.load_as(self.right, to, from),
            (Reduction::Neighbours(_), PairOf::Both) => v.load_neighbouring_pairs(to, from, ORDER),
            (Reduction::Neighbours(_) | Reduction::Rows { .. }, halves) => {
                let rows = [from, from + self.right_step / 2];
                v.load_pairs(to, rows, halves, part, [ORDER, PAIRING])
            }
        }
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
        let step = |v: &mut Vectors<'_>, step: usize, halves: PairOf| -> Emitted {
            if asks {
                for line in product.lines(step, (0..columns).map(|column| column * lanes)) {
                    v.code.prefetcht1(byte_ptr(RIGHT + AHEAD + line))?;
                }
            }
            for column in 0..columns {
                let from =
                    RIGHT + (step * product.right_step + product.right_column(column * lanes));
                let part = if column + 1 == columns { part } else { 0 };
                product.load_right(v, right + column, from, halves, part)?;
            }
            for row in 0..rows {
                v.broadcast(left, LEFT + (row * product.left_row + step * 4))?;
                for column in 0..columns {
                    match product.reduction {
                        Reduction::Floats(_) => {
                            v.multiply_add(sum(row, column), left, right + column)?;
                        }
                        _ => v.add_pairs(sum(row, column), left, right + column)?,
                    }
                }
            }
            Ok(())
        };
        let turn = |v: &mut Vectors<'_>, steps: usize| -> Emitted {
            for index in 0..steps {
                step(v, index, PairOf::Both)?;
            }
            v.code.add(LEFT, (steps * 4) as i32)?;
            v.code.add(RIGHT, (steps * product.right_step) as i32)
        };
        match product.reduction {
            Reduction::Floats(Some(steps)) => known_turns(v, steps, UNROLL, &turn)?,
            Reduction::Floats(None) => turns(v, UNROLL, &turn)?,
            Reduction::Neighbours(numbers) => {
                known_turns(v, numbers / 2, UNROLL / 2, &turn)?;
                if numbers % 2 == 1 {
                    step(v, 0, PairOf::Earlier)?;
                }
            }
            Reduction::Rows { later, earlier } => {
                let [mut is_whole, mut done] = [(); 2].map(|()| v.code.create_label());
                v.code.cmp(qword_ptr(rsp + later), 0)?;
                v.code.je(is_whole)?;
                step(v, 0, PairOf::Later)?;
                v.code.add(LEFT, 4)?;
                v.code.add(RIGHT, product.right_step as i32)?;
                bind(v, &mut is_whole)?;
                turns(v, UNROLL / 2, &turn)?;
                v.code.cmp(qword_ptr(rsp + earlier), 0)?;
                v.code.je(done)?;
                step(v, 0, PairOf::Earlier)?;
                bind(v, &mut done)?;
            }
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
    let (width, number) = (tile.key_width, tile.number);
    let product = Floats {
        width: v.width,
        left_row: match number {
            CacheType::Bf16 => tile.scratch.rounded_row,
            _ => width * 4,
        },
        right: number,
        right_step: KEY_BLOCK * number.bytes() * if tile.is_paired { 2 } else { 1 },
        right_block: KEY_BLOCK * width * number.bytes(),
        result_row: SCORE_ROW,
        reduction: match tile.is_paired {
            true => Reduction::Neighbours(width),
            false => Reduction::Floats(Some(width)),
        },
        goes_on: false,
        asks: true,
    };
    let saved = open(v)?;
    v.code.mov(AHEAD, r9)?;
    v.code.sub(AHEAD, rsi)?;
    with_order(v, tile, |v| {
        first_columns(v, &product)?;
        close(v, saved)
    })
}

/// Writes a function's rest and, where it multiplies pairs, the order of them, loaded in front of it.
fn with_order(
    v: &mut Vectors<'_>,
    tile: &Tile<'_>,
    rest: impl FnOnce(&mut Vectors<'_>) -> Emitted,
) -> Emitted {
    if !tile.is_paired {
        return rest(v);
    }
    let mut order = v.code.create_label();
    v.code.lea(rax, ptr(order))?;
    v.load(ORDER, rax.into())?;
    rest(v)?;
    v.code.set_label(&mut order)?;
    PAIR_ORDER.iter().try_for_each(|word| v.code.db(&word.to_le_bytes()))
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
        reduction: Reduction::Floats(Some(cache.key_width)),
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
/// are asked for as there are keys. Where pairs are multiplied weights and value rows are those of the
/// first pair on, with which keys are counted, and one argument more is 1 if its earlier key is not
/// read, else 0.
pub(in crate::kernels::attention) fn values(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let number = tile.number;
    let lanes = v.width.lanes();
    let mut ones = v.code.create_label();
    let saved = open(v)?;
    // Arguments on the stack; the first one's place then says whether the last key is alone.
    let [ask, later] = [1, 2].map(|place| (8 * (saved.len() + place)) as i32);
    let earlier = ask;
    let product = Floats {
        width: v.width,
        left_row: SCORE_ROW,
        right: number,
        right_step: tile.value_width * number.bytes() * if tile.is_paired { 2 } else { 1 },
        right_block: KEY_BLOCK * number.bytes(),
        result_row: tile.scratch.sum_row,
        reduction: match tile.is_paired {
            true => Reduction::Rows { later, earlier },
            false => Reduction::Floats(None),
        },
        goes_on: true,
        asks: true,
    };
    v.code.mov(AHEAD, qword_ptr(rsp + ask))?;
    v.code.sub(AHEAD, rsi)?;
    if tile.is_paired {
        v.code.mov(rax, r9)?;
        v.code.and(eax, 1)?;
        v.code.mov(qword_ptr(rsp + earlier), rax)?;
        v.code.shr(r9, 1)?;
        v.code.sub(r9, qword_ptr(rsp + later))?;
    }
    let part = tile.value_width % lanes;
    if part > 0 {
        v.code.lea(rax, ptr(ones))?;
        v.prepare_part(part, rax.into())?;
    }
    with_order(v, tile, |v| {
        all_columns(v, &product, tile.value_width, true)?;
        close(v, saved)
    })?;
    v.code.set_label(&mut ones)?;
    for lane in 0..lanes {
        v.code.db(&(if lane < part { u32::MAX } else { 0 }).to_le_bytes())?;
    }
    Ok(())
}
