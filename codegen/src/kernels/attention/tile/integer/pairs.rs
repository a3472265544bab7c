//! The products over an int8 cache with AVX2, for many queries: one multiplication for two products.
//!
//! `(x₀ + y₁)(x₁ + y₀) = x₀y₀ + x₁y₁ + x₀x₁ + y₀y₁` (Winograd, 1968): what either side has with itself is
//! summed once, the left side's with the codes, the right side's where its bytes become words, which is
//! once for all queries then, too. There are as many operations as without, but additions of words have
//! all units where multiplications have two: on Zen 4 a product of 32 queries takes 0.84 of the time.
//!
//! Sums are exact: a sum of two codes is within a word, all else is arithmetic modulo 2³², whose result
//! is the sum that `integer` has without.

use iced_x86::code_asm::*;
use weir_abi::KEY_TILE;

use super::{Codes, QUAD, QUADS, SCALES, Sums, Tile, UNROLL};
use crate::kernels::attention::scratch::Scratch;
use crate::kernels::attention::tile::blocks::{
    AHEAD, Blocks, LEFT, Product, RIGHT, STEPS, bind, close, known_turns, open, rows,
};
use crate::kernels::attention::vector::{Emitted, Vectors};

/// Least queries whose products gain more than the words cost.
const LEAST: usize = 16;
/// Registers of columns whose words lie ready: one block of keys, or as many columns of values.
const COLUMNS: usize = 2;
/// Bytes of a register.
const BYTES: usize = 32;
/// Of each quad and register of columns the words 0 and 2, then 1 and 3.
const WORDS_OF_QUAD: usize = COLUMNS * 2 * BYTES;
/// In front of them: minus what each column has with itself.
const OWN: usize = COLUMNS * BYTES;
/// From where a query's sums begin to where they begin here.
pub(super) const OWN_BEGIN: usize = 4;

/// Bytes of the words of so many quads and what belongs to them.
pub(in crate::kernels::attention) fn bytes_of_words(quads: usize) -> usize {
    OWN + quads * WORDS_OF_QUAD
}

/// A product of at least [`LEAST`] queries.
struct Paired<'a> {
    codes: &'a Codes,
    /// Where a row's sums begin: bytes from its codes (scores) or from its factor (values).
    begin: usize,
}

/// Makes scores of at least [`LEAST`] rows; what follows makes those of fewer. Arguments are those of
/// [`integer::scores`](super::scores).
pub(super) fn scores(v: &mut Vectors<'_>, scratch: &Scratch, codes: &Codes) -> Emitted {
    let product = Paired { codes, begin: scratch.begin + OWN_BEGIN };
    let mut few = v.code.create_label();
    v.code.cmp(r8, LEAST as i32)?;
    v.code.jl(few)?;
    let saved = open(v)?;
    v.code.mov(AHEAD, r9)?;
    v.code.sub(AHEAD, rsi)?;
    v.code.lea(rax, rdx + (scratch.words as i32 - scratch.scores as i32))?;
    v.code.push(rax)?;
    let block = COLUMNS * v.width.lanes();
    v.code.lea(r15, rcx + (block - 1))?;
    v.code.shr(r15, block.trailing_zeros())?;
    product.columns(v)?;
    v.code.add(rsp, 8)?;
    close(v, saved)?;
    bind(v, &mut few)
}

/// The same with values: arguments are those of [`integer::values`](super::values).
pub(super) fn values(v: &mut Vectors<'_>, tile: &Tile<'_>, codes: &Codes) -> Emitted {
    let scratch = tile.scratch;
    let product = Paired { codes, begin: scratch.weight_sums - scratch.factors };
    let mut few = v.code.create_label();
    v.code.cmp(r8, LEAST as i32)?;
    v.code.jl(few)?;
    let saved = open(v)?;
    v.code.mov(AHEAD, qword_ptr(rsp + 8 * (saved.len() + 1)))?;
    v.code.sub(AHEAD, rsi)?;
    v.code.lea(rax, rdx + (scratch.words as i32 - scratch.sums as i32))?;
    v.code.push(rax)?;
    product.sum_weights(v)?;
    let block = COLUMNS * v.width.lanes();
    let (whole, rest) = (tile.value_width / block, tile.value_width % block);
    if whole > 0 {
        v.code.mov(r15, whole as i64)?;
        product.columns(v)?;
    }
    if rest > 0 {
        product.all_rows(v, rest.div_ceil(v.width.lanes()))?;
    }
    v.code.add(rsp, 8)?;
    close(v, saved)?;
    bind(v, &mut few)
}

/// What the words of so many bytes of codes have with each other, subtracted from nothing, in the first
/// lane of register 0; destroys the one behind it. The four bytes behind the codes are read, too.
pub(super) fn own_of_left(v: &mut Vectors<'_>, codes: AsmRegister64, bytes: usize) -> Emitted {
    v.zero(0)?;
    for at in (0..bytes).step_by(BYTES) {
        // The words 1 and 3 of a quad come to 0 and 2; between them are products of no meaning.
        v.load(1, codes + (at + 4))?;
        v.multiply_words(1, 1, codes + at)?;
        v.sub_ints(0, 0, 1)?;
    }
    v.code.vextracti128(xmm1, ymm0, 1)?;
    v.code.vpaddd(xmm0, xmm0, xmm1)?;
    v.code.vpshufd(xmm1, xmm0, 0b01_00_11_10)?;
    v.code.vpaddd(xmm0, xmm0, xmm1)
}

impl Product for Paired<'_> {
    fn blocks(&self, _: bool) -> Blocks {
        Blocks { rows: &[4, 2, 1], columns: COLUMNS }
    }

    fn left_row(&self) -> usize {
        self.codes.left_row()
    }

    fn result_row(&self) -> usize {
        self.codes.result_row()
    }

    fn goes_on(&self) -> bool {
        self.codes.goes_on()
    }

    fn right_column(&self, column: usize) -> usize {
        self.codes.right_column(column)
    }

    fn block(&self, v: &mut Vectors<'_>, [rows, columns]: [usize; 2], _part: usize) -> Emitted {
        let begin = 2 * COLUMNS + rows * columns;
        v.code.mov(RIGHT, qword_ptr(rsp))?;
        for row in 0..rows {
            if self.goes_on() {
                v.broadcast(begin, rbx + (row * 4 + self.begin))?;
            } else {
                v.broadcast(begin, r10 + (row * self.left_row() + self.begin))?;
            }
            for column in 0..columns {
                v.add_ints(row * columns + column, begin, RIGHT + column * BYTES)?;
            }
        }
        v.code.mov(LEFT, r10)?;
        self.turns(v, &|v, quads| {
            (0..quads).try_for_each(|quad| self.quad(v, [rows, columns], quad))?;
            v.code.add(LEFT, (quads * self.codes.dots.quad_bytes()) as i32)?;
            v.code.add(RIGHT, (quads * WORDS_OF_QUAD) as i32)
        })?;
        self.codes.finish(v, [rows, columns])
    }
}

impl Paired<'_> {
    /// `r15` whole blocks of columns, all rows.
    fn columns(&self, v: &mut Vectors<'_>) -> Emitted {
        let mut again = v.code.create_label();
        bind(v, &mut again)?;
        self.all_rows(v, COLUMNS)?;
        let block = COLUMNS * v.width.lanes();
        v.code.add(rsi, self.right_column(block) as i32)?;
        v.code.add(rdx, (block * 4) as i32)?;
        v.code.dec(r15)?;
        v.code.jnz(again)
    }

    /// All rows of one block of columns.
    fn all_rows(&self, v: &mut Vectors<'_>, columns: usize) -> Emitted {
        self.words(v, columns)?;
        rows(v, self, &Blocks { columns, ..self.blocks(false) }, 0)
    }

    /// The quads of the reduction, some at a time.
    fn turns(
        &self,
        v: &mut Vectors<'_>,
        turn: &dyn Fn(&mut Vectors<'_>, usize) -> Emitted,
    ) -> Emitted {
        let Sums::Scores { quads, .. } = self.codes.sums else {
            let mut again = v.code.create_label();
            v.code.mov(STEPS, r9)?;
            bind(v, &mut again)?;
            turn(v, QUADS)?;
            v.code.dec(STEPS)?;
            return v.code.jnz(again);
        };
        known_turns(v, quads, UNROLL, turn)
    }

    /// The right side's bytes become words, and what they have with each other is summed.
    fn words(&self, v: &mut Vectors<'_>, columns: usize) -> Emitted {
        let [own, even_bytes] = [2 * COLUMNS, 3 * COLUMNS];
        let is_key = !self.goes_on();
        let step = self.codes.right_step;
        v.code.mov(LEFT, qword_ptr(rsp))?;
        v.code.mov(RIGHT, rsi)?;
        (0..columns).try_for_each(|column| v.zero(own + column))?;
        v.prepare_words(is_key, even_bytes)?;
        self.turns(v, &|v, quads| {
            for quad in 0..quads {
                v.code.prefetcht1(byte_ptr(RIGHT + AHEAD + quad * step))?;
                for column in 0..columns {
                    let (even, odd) = (2 * column, 2 * column + 1);
                    let to = LEFT + (OWN + quad * WORDS_OF_QUAD + even * BYTES);
                    v.load(
                        even,
                        RIGHT + (quad * step + self.right_column(column * v.width.lanes())),
                    )?;
                    v.words(even, odd, is_key, even_bytes)?;
                    v.store(to, even)?;
                    v.store(to + BYTES, odd)?;
                    v.multiply_words(odd, odd, even)?;
                    v.sub_ints(own + column, own + column, odd)?;
                }
            }
            let scales = if is_key { 0 } else { SCALES };
            v.code.add(LEFT, (quads * WORDS_OF_QUAD) as i32)?;
            v.code.add(RIGHT, (quads * step + scales) as i32)
        })?;
        v.code.mov(LEFT, qword_ptr(rsp))?;
        (0..columns).try_for_each(|column| v.store(LEFT + column * BYTES, own + column))
    }

    /// Adds the products of one quad to all sums of a block.
    fn quad(&self, v: &mut Vectors<'_>, [rows, columns]: [usize; 2], quad: usize) -> Emitted {
        let words = rows * columns;
        // What odd words are added to, and even ones; of the last column the sums in place.
        let [odd, even] = [words + 2 * columns, words + 2 * columns + 1];
        let aside = even + 1;
        for word in 0..2 * columns {
            v.load(words + word, RIGHT + (OWN + quad * WORDS_OF_QUAD + word * BYTES))?;
        }
        for row in 0..rows {
            let left = LEFT + (row * self.left_row() + quad * self.codes.dots.quad_bytes());
            v.broadcast(odd, left + 4)?;
            v.broadcast(even, left)?;
            let factors = |column: usize| match column + 1 == columns {
                true => [odd, even],
                false => [aside, aside + 1],
            };
            for (from, word) in [(odd, 0), (even, 1)] {
                for column in 0..columns {
                    v.add_words(factors(column)[word], from, words + 2 * column + word)?;
                }
            }
            for column in 0..columns {
                let [one, other] = factors(column);
                v.multiply_words(one, one, other)?;
            }
            for column in 0..columns {
                let sum = row * columns + column;
                v.add_ints(sum, sum, factors(column)[0])?;
            }
        }
        Ok(())
    }

    /// What the weights of each query have with each other, beside its factor.
    fn sum_weights(&self, v: &mut Vectors<'_>) -> Emitted {
        let mut again = v.code.create_label();
        v.code.mov(r10, rdi)?;
        v.code.mov(rbx, rcx)?;
        v.code.mov(r12, r8)?;
        bind(v, &mut again)?;
        // Keys that are not read have code 0.
        own_of_left(v, r10, KEY_TILE / QUAD * self.codes.dots.quad_bytes())?;
        v.store_first(rbx + self.begin, 0)?;
        v.code.add(r10, self.left_row() as i32)?;
        v.code.add(rbx, 4)?;
        v.code.dec(r12)?;
        v.code.jnz(again)
    }
}
