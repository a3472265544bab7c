//! The steps over an int8 cache: queries, keys, weights and values are codes, four of which are summed
//! at a time (a quad).
//!
//! Sums of codes are exact in 32 bits: `width · 255 · 127` and `64 · 255 · 127` at most. So they do not
//! depend on the instructions that make them: `vpdpbusd`, or on AVX2 two times `vpmaddwd` of the codes
//! 0 and 2, and 1 and 3, of each quad in words (`vpmaddubsw` would saturate), or of many queries one for
//! both ([`pairs`]). All that follows a sum is done lane by lane, the same on every level.
//!
//! Codes of keys are stored with 128 added, so a query's sums begin at -128 times the sum of its codes.

pub(in crate::kernels::attention) mod pairs;

use std::f32::consts::LOG2_E;

use iced_x86::code_asm::*;
use weir_abi::{KEY_BLOCK, KEY_TILE};

use super::blocks::{
    AHEAD, Blocks, LEFT, Product, RIGHT, STEPS, all_columns, close, first_columns, known_turns,
    open,
};
use super::weigh::KeysRead;
use super::{ANCHOR, Tile, amx};
use crate::kernels::attention::cache::{KEY_OFFSET, QUAD, TOP_CODE};
use crate::kernels::attention::scratch::SCORE_ROW;
use crate::kernels::attention::vector::{Dots, Emitted, Vectors, Width};
use crate::kernels::matmul::NEGLIGIBLE;

/// Bytes of the scales of a block of rows.
pub(super) const SCALES: usize = KEY_BLOCK * 4;
/// Quads of a block of value rows.
const QUADS: usize = KEY_BLOCK / QUAD;
/// Quads of keys of a turn.
const UNROLL: usize = 4;

/// Register of what AVX2 makes words with.
const EVEN_BYTES: usize = 15;

/// What becomes of the sums.
enum Sums {
    /// Scores: the keys' scales lie so far behind the begin of their block.
    Scores {
        /// Quads of a key.
        quads: usize,
        scales: usize,
        /// Where a query's sums begin, in bytes from its codes.
        begin: usize,
        /// Whether that is [`Tile::is_anchored`].
        is_anchored: bool,
    },
    /// Sums of values that go on: those before times a factor, then a step per code, which lies so far
    /// behind the factor.
    Values { step: usize },
}

/// A product of codes; and what lies [`AHEAD`] from the right side is asked for.
struct Codes {
    width: Width,
    dots: Dots,
    left_row: usize,
    /// Bytes from quad to quad on the right side.
    right_step: usize,
    /// Bytes from [`KEY_BLOCK`] columns to the next of them.
    right_block: usize,
    result_row: usize,
    sums: Sums,
}

/// `(query codes, keys, scores, number of keys, rows, keys to ask for)`: sums of whole blocks of
/// columns, times the keys' scales.
pub(in crate::kernels::attention) fn scores(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let quads = tile.key_width.div_ceil(QUAD);
    let scales = quads * QUAD * KEY_BLOCK;
    let product = Codes {
        width: v.width,
        dots: tile.dots,
        left_row: tile.scratch.rounded_row,
        right_step: QUAD * KEY_BLOCK,
        right_block: scales + SCALES,
        result_row: SCORE_ROW,
        sums: Sums::Scores {
            quads,
            scales,
            begin: tile.scratch.begin,
            is_anchored: tile.is_anchored(),
        },
    };
    if let (Dots::Tiles, Some(quads)) = (tile.dots, amx::quads_of_product(tile.key_width)) {
        amx::scores(v, tile, quads)?;
    }
    if tile.dots == Dots::Pairs {
        pairs::scores(v, tile.scratch, &product)?;
    }
    let saved = open(v)?;
    v.code.mov(AHEAD, r9)?;
    v.code.sub(AHEAD, rsi)?;
    first_columns(v, &product)?;
    close(v, saved)
}

/// `(codes of weights, value rows, sums, factors, rows, blocks of value rows, value rows to ask for)`.
pub(in crate::kernels::attention) fn values(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let product = Codes {
        width: v.width,
        dots: tile.dots,
        left_row: tile.weight_codes().1,
        right_step: QUAD * tile.value_width,
        right_block: QUAD * KEY_BLOCK,
        result_row: scratch.sum_row,
        sums: Sums::Values { step: scratch.steps - scratch.factors },
    };
    if tile.dots == Dots::Tiles {
        amx::values(v, tile)?;
    }
    if tile.dots == Dots::Pairs {
        pairs::values(v, tile, &product)?;
    }
    let saved = open(v)?;
    v.code.mov(AHEAD, qword_ptr(rsp + 8 * (saved.len() + 1)))?;
    v.code.sub(AHEAD, rsi)?;
    // What lies behind the last column of a quad is another one's, or scales: it goes where nobody
    // looks.
    all_columns(v, &product, tile.value_width, false)?;
    close(v, saved)
}

impl Product for Codes {
    fn blocks(&self, is_few: bool) -> Blocks {
        match (self.width, self.dots, is_few) {
            // One query's values are read once, in the order in which they lie: quads of all columns.
            (_, Dots::Pairs, true) if self.goes_on() => Blocks { rows: &[1], columns: 8 },
            (_, Dots::Pairs, _) => Blocks { rows: &[4, 2, 1], columns: 2 },
            (Width::Eight, _, true) => Blocks { rows: &[2, 1], columns: 4 },
            (Width::Eight, _, false) => Blocks { rows: &[6, 4, 2, 1], columns: 2 },
            (Width::Sixteen, _, true) => Blocks { rows: &[4, 2, 1], columns: 4 },
            (Width::Sixteen, _, false) => Blocks { rows: &[12, 8, 4, 2, 1], columns: 2 },
        }
    }

    fn left_row(&self) -> usize {
        self.left_row
    }

    fn result_row(&self) -> usize {
        self.result_row
    }

    fn goes_on(&self) -> bool {
        matches!(self.sums, Sums::Values { .. })
    }

    fn right_column(&self, column: usize) -> usize {
        column / KEY_BLOCK * self.right_block + column % KEY_BLOCK * QUAD
    }

    fn block(&self, v: &mut Vectors<'_>, [rows, columns]: [usize; 2], _part: usize) -> Emitted {
        let sum = |row: usize, column: usize| row * columns + column;
        for row in 0..rows {
            for column in 0..columns {
                match self.sums {
                    Sums::Scores { begin, .. } => {
                        v.broadcast(sum(row, column), r10 + (row * self.left_row + begin))?;
                    }
                    Sums::Values { .. } => v.zero(sum(row, column))?,
                }
            }
        }
        v.code.mov(LEFT, r10)?;
        v.code.mov(RIGHT, rsi)?;
        if self.dots == Dots::Pairs {
            v.prepare_words(!self.goes_on(), EVEN_BYTES)?;
        }
        let quad_bytes = self.dots.quad_bytes();
        match self.sums {
            Sums::Scores { quads, .. } => known_turns(v, quads, UNROLL, &|v, quads| {
                (0..quads).try_for_each(|quad| self.quad(v, [rows, columns], quad))?;
                v.code.add(LEFT, (quads * quad_bytes) as i32)?;
                v.code.add(RIGHT, (quads * self.right_step) as i32)
            })?,
            Sums::Values { .. } => {
                let mut again = v.code.create_label();
                v.code.mov(STEPS, r9)?;
                v.code.set_label(&mut again)?;
                (0..QUADS).try_for_each(|quad| self.quad(v, [rows, columns], quad))?;
                if self.asks(rows) {
                    v.code.prefetcht1(byte_ptr(RIGHT + AHEAD + QUADS * self.right_step))?;
                }
                v.code.add(LEFT, (QUADS * quad_bytes) as i32)?;
                v.code.add(RIGHT, (QUADS * self.right_step + SCALES) as i32)?;
                v.code.dec(STEPS)?;
                v.code.jnz(again)?;
            }
        }
        self.finish(v, [rows, columns])
    }
}

impl Codes {
    /// Whether a block asks for what comes next. With `vpdpbusd` in 256 bits a block of many rows
    /// computes for longer than its keys or values take to come; elsewhere its first rows would wait
    /// for them, and asking again for the others costs little.
    fn asks(&self, rows: usize) -> bool {
        match (self.width, self.dots) {
            (_, Dots::Pairs) | (Width::Sixteen, _) => true,
            (Width::Eight, _) => rows <= self.blocks(true).rows[0],
        }
    }

    /// Adds the products of one quad to all sums of a block.
    fn quad(&self, v: &mut Vectors<'_>, [rows, columns]: [usize; 2], quad: usize) -> Emitted {
        let lanes = v.width.lanes();
        let sum = |row: usize, column: usize| row * columns + column;
        let right = rows * columns;
        let start = |column: usize| quad * self.right_step + self.right_column(column * lanes);
        if self.asks(rows) {
            for column in 0..columns {
                if (column * lanes).is_multiple_of(KEY_BLOCK) {
                    v.code.prefetcht1(byte_ptr(RIGHT + AHEAD + start(column)))?;
                }
            }
        }
        let is_key = matches!(self.sums, Sums::Scores { .. });
        let left_at = |row: usize| LEFT + (row * self.left_row + quad * self.dots.quad_bytes());
        match self.dots {
            Dots::Quads | Dots::Tiles => {
                let left = right + columns;
                for column in 0..columns {
                    v.load(right + column, RIGHT + start(column))?;
                }
                for row in 0..rows {
                    v.broadcast(left, left_at(row))?;
                    for column in 0..columns {
                        let right = right + column;
                        let [plain, signed] = if is_key { [right, left] } else { [left, right] };
                        v.add_dots(sum(row, column), plain, signed)?;
                    }
                }
            }
            // A single row needs the words of a column once, so registers are left for more columns.
            Dots::Pairs if rows == 1 => {
                let [odd, lower, upper, product] = [1, 2, 3, 4].map(|place| right + place);
                v.broadcast(lower, left_at(0))?;
                v.broadcast(upper, left_at(0) + 4)?;
                for column in 0..columns {
                    v.load(right, RIGHT + start(column))?;
                    v.words(right, odd, is_key, EVEN_BYTES)?;
                    for (left, words) in [(lower, right), (upper, odd)] {
                        v.multiply_words(product, left, words)?;
                        v.add_ints(column, column, product)?;
                    }
                }
            }
            Dots::Pairs => {
                let (odd, left) = (right + columns, right + 2 * columns);
                let product = left + 1;
                for column in 0..columns {
                    v.load(right + column, RIGHT + start(column))?;
                    v.words(right + column, odd + column, is_key, EVEN_BYTES)?;
                }
                for row in 0..rows {
                    for (half, words) in [(0, right), (4, odd)] {
                        v.broadcast(left, left_at(row) + half)?;
                        for column in 0..columns {
                            v.multiply_words(product, left, words + column)?;
                            v.add_ints(sum(row, column), sum(row, column), product)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Sums become floats and go to the result.
    fn finish(&self, v: &mut Vectors<'_>, [rows, columns]: [usize; 2]) -> Emitted {
        let (bytes, lanes) = (v.bytes(), v.width.lanes());
        let sum = |row: usize, column: usize| row * columns + column;
        let result = |row: usize, column: usize| r11 + (row * self.result_row + column * bytes);
        let free = rows * columns;
        match self.sums {
            Sums::Scores { scales, is_anchored, .. } => {
                let anchor = free + 1;
                if is_anchored {
                    v.fill(anchor, ANCHOR)?;
                }
                for column in 0..columns {
                    let at = column * lanes;
                    let block = at / KEY_BLOCK * self.right_block + scales;
                    let at = block + at % KEY_BLOCK * 4;
                    v.load(free, rsi + at)?;
                    if self.asks(rows) && (column * lanes).is_multiple_of(KEY_BLOCK) {
                        v.code.prefetcht1(byte_ptr(rsi + AHEAD + at))?;
                    }
                    for row in 0..rows {
                        if is_anchored {
                            v.sub(sum(row, column), sum(row, column), anchor)?;
                        } else {
                            v.floats_of(sum(row, column), sum(row, column))?;
                        }
                        v.mul(sum(row, column), sum(row, column), free)?;
                        v.store(result(row, column), sum(row, column))?;
                    }
                }
            }
            Sums::Values { step } => {
                let (factor, step_of_row, before) = (free, free + 1, free + 2);
                for row in 0..rows {
                    v.broadcast(factor, rbx + row * 4)?;
                    v.broadcast(step_of_row, rbx + (row * 4 + step))?;
                    for column in 0..columns {
                        v.mul(before, factor, result(row, column))?;
                        v.floats_of(sum(row, column), sum(row, column))?;
                        v.multiply_add(before, sum(row, column), step_of_row)?;
                        v.store(result(row, column), before)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Numbers behind the code of [`round_queries`], as words at these offsets.
const MAGNITUDE: usize = 0;
const TOP: usize = 4;
const SCALE: usize = 8;
const LEAST: usize = 12;
const ORDER: usize = 32;
const ONES: usize = 64;

/// `(scratch, queries)`: queries become codes, the begin of their sums, and factors of their scores.
pub(in crate::kernels::attention) fn round_queries(
    v: &mut Vectors<'_>,
    tile: &Tile<'_>,
) -> Emitted {
    let scratch = tile.scratch;
    let (bytes, lanes, width) = (v.bytes(), v.width.lanes(), tile.key_width);
    let [mut again, mut negligible, mut data] = [(); 3].map(|()| v.code.create_label());
    let registers = width.div_ceil(lanes);
    let part = width % lanes;
    let load = |v: &mut Vectors<'_>, to: usize, register: usize| {
        let from = r8 + register * bytes;
        if part > 0 && register + 1 == registers {
            v.load_part(tile.number, part, to, from)
        } else {
            v.load(to, from)
        }
    };
    // Registers that stay: the largest magnitude, and with it the scale; 127 / largest; sums.
    let (largest, inverse, sums, mask) = (13, 12, 11, 14);
    let (scale, zero) = (0, 1);
    v.code.lea(rcx, ptr(data))?;
    if part > 0 {
        v.prepare_part(part, rcx + ONES)?;
    }
    v.code.lea(r8, rdi + scratch.queries)?;
    v.code.lea(r9, rdi + scratch.rounded_queries)?;
    v.code.lea(r11, rdi + scratch.query_factors)?;
    v.code.set_label(&mut again)?;
    v.broadcast(mask, rcx + MAGNITUDE)?;
    v.zero(largest)?;
    for register in 0..registers {
        load(v, 0, register)?;
        v.and(0, 0, mask)?;
        v.largest_bits(largest, largest, 0)?;
    }
    v.fold_bits(largest, 0, Vectors::largest_bits_of_four)?;
    // No number if the largest is not finite.
    v.first(|code, x| code.vsubss(x[zero], x[largest], x[largest]))?;
    v.first(|code, x| code.vdivss(x[scale], x[largest], dword_ptr(rcx + TOP)))?;
    v.first(|code, x| code.vaddss(x[scale], x[scale], x[zero]))?;
    v.first(|code, x| code.vmulss(x[scale], x[scale], dword_ptr(rcx + SCALE)))?;
    if tile.scales_late() {
        // A factor of 0 would make scores of keys that are not read no numbers.
        v.first(|code, x| code.vmovss(x[zero], dword_ptr(rcx + LEAST)))?;
        v.first(|code, x| code.vmaxss(x[scale], x[zero], x[scale]))?;
    }
    v.store_first(r11.into(), scale)?;
    v.zero(inverse)?;
    v.first(|code, x| code.vmovd(eax, x[largest]))?;
    v.code.cmp(eax, NEGLIGIBLE.to_bits() as i32)?;
    v.code.jle(negligible)?;
    v.first(|code, x| code.vmovss(x[inverse], dword_ptr(rcx + TOP)))?;
    v.first(|code, x| code.vdivss(x[inverse], x[inverse], x[largest]))?;
    v.spread_first(inverse, inverse)?;
    v.code.set_label(&mut negligible)?;
    v.zero(sums)?;
    let chunk = v.packed(tile.dots);
    for (index, first) in (0..registers).step_by(chunk).enumerate() {
        for register in first..first + chunk {
            let to = register - first;
            if register >= registers {
                v.zero(to)?;
                continue;
            }
            load(v, to, register)?;
            v.mul(to, to, inverse)?;
            v.ints_of(to, to)?;
            v.add_ints(sums, sums, to)?;
        }
        let code_bytes = chunk * lanes / QUAD * tile.dots.quad_bytes();
        v.pack(tile.dots, true, [0, 10], r9 + index * code_bytes, rcx + ORDER)?;
    }
    v.fold_bits(sums, 0, Vectors::sum_of_four)?;
    v.first(|code, x| code.vmovd(eax, x[sums]))?;
    v.code.imul_3(eax, eax, -KEY_OFFSET)?;
    if tile.is_anchored() {
        v.code.add(eax, ANCHOR.to_bits() as i32)?;
    }
    if tile.dots == Dots::Tiles {
        // In each column of a tile.
        v.code.vpbroadcastd(zmm0, eax)?;
        v.store(r9 + scratch.begin, 0)?;
    } else {
        v.code.mov(dword_ptr(r9 + scratch.begin), eax)?;
    }
    if tile.dots == Dots::Pairs {
        pairs::own_of_left(v, r9, width.div_ceil(QUAD) * tile.dots.quad_bytes())?;
        v.first(|code, x| code.vmovd(edx, x[0]))?;
        v.code.add(eax, edx)?;
        v.code.mov(dword_ptr(r9 + (scratch.begin + pairs::OWN_BEGIN)), eax)?;
    }
    v.code.add(r8, (width * 4) as i32)?;
    v.code.add(r9, scratch.rounded_row as i32)?;
    v.code.add(r11, 4)?;
    v.code.dec(rsi)?;
    v.code.jnz(again)?;
    v.code.vzeroupper()?;
    v.code.ret()?;

    v.code.set_label(&mut data)?;
    // A cap needs scores as they are.
    let factor = tile.scale * if tile.softcap == 0.0 { LOG2_E } else { 1.0 };
    v.code.dd(&[
        0x7fff_ffff,
        TOP_CODE.to_bits(),
        factor.to_bits(),
        f32::MIN_POSITIVE.to_bits(),
        0,
        0,
        0,
        0,
    ])?;
    v.code.dd(&PACK_ORDER)?;
    let ones: Vec<u32> = (0..8).map(|lane| if lane < part { u32::MAX } else { 0 }).collect();
    v.code.dd(&ones)
}

/// Where the words of packed registers come from (see [`Vectors::pack`]).
pub(super) const PACK_ORDER: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Numbers that [`round_weights`] reads.
pub(super) struct WeightNumbers {
    /// [`LEAST_STEP`](crate::kernels::attention::LEAST_STEP) in every lane.
    pub(super) least: AsmMemoryOperand,
    /// [`TOP_WEIGHT`](crate::kernels::attention::TOP_WEIGHT) and its inverse.
    pub(super) top: AsmMemoryOperand,
    pub(super) one_of_top: AsmMemoryOperand,
    pub(super) order: AsmMemoryOperand,
}

/// Bytes from the values of a tile to the scales of the rows from this one on.
pub(super) fn value_scales(tile: &Tile<'_>, row: usize) -> usize {
    let codes = KEY_BLOCK * tile.value_width;
    row / KEY_BLOCK * (codes + SCALES) + codes + row % KEY_BLOCK * 4
}

/// The weights of a query at `r8`, times the scales of the value rows at `r9`, become codes at `codes`;
/// the step of a code goes to `step`. Destroys registers 0 to 14.
pub(super) fn round_weights(
    v: &mut Vectors<'_>,
    tile: &Tile<'_>,
    numbers: &WeightNumbers,
    keys: KeysRead,
    step: AsmMemoryOperand,
    codes: AsmRegister64,
) -> Emitted {
    let (bytes, lanes) = (v.bytes(), v.width.lanes());
    let count = KEY_TILE / lanes;
    let [largest, inverse, zero, free] = [8, 9, 10, 11];
    v.zero(zero)?;
    v.load(largest, numbers.least)?;
    for register in 0..count {
        let scales = value_scales(tile, register * lanes);
        v.load(register, r8 + register * bytes)?;
        match keys {
            KeysRead::Whole => v.mul(register, register, r9 + scales)?,
            KeysRead::Part => v.mul_unless_zero(register, r9 + scales, zero, free)?,
        }
        v.largest_bits(largest, largest, register)?;
    }
    v.fold_bits(largest, free, Vectors::largest_bits_of_four)?;
    v.first(|code, x| code.vmovss(x[inverse], dword_ptr(numbers.top)))?;
    v.first(|code, x| code.vdivss(x[inverse], x[inverse], x[largest]))?;
    v.spread_first(inverse, inverse)?;
    v.first(|code, x| code.vmulss(x[largest], x[largest], dword_ptr(numbers.one_of_top)))?;
    v.store_first(step, largest)?;
    let chunk = v.packed(tile.dots);
    for register in 0..count {
        v.mul(register, register, inverse)?;
        v.ints_of(register, register)?;
    }
    for (index, first) in (0..count).step_by(chunk).enumerate() {
        let code_bytes = chunk * lanes / QUAD * tile.dots.quad_bytes();
        v.pack(tile.dots, false, [first, free], codes + index * code_bytes, numbers.order)?;
    }
    Ok(())
}
