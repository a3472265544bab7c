//! Integer products of many rows in 256-bit vectors: block by block, all rows of a portion.
//!
//! Codes of a block are taken apart once for all rows, into scratch memory; the float sums of all rows
//! wait there, too, and are read and written once a block. A step computes 6 rows × 1 group: 12
//! integer sums, 2 registers of codes (both halves, so that a broadcast activation serves two
//! products), 1 activation and 1 product. With int4 in pairs of 16 bits that is, per row, half group
//! and block of 32: 8 products, 7 additions and 5 operations for the scale (4 where sums begin as floats),
//! of which the products alone are counted by the peak. Order and rounding are those of [`super::integer`].

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::integer::{self, CHUNK, Codes, Part, ahead};
use super::{Avx2, Place, Products, REGISTER, TileShape, YMM};
use crate::kernels::matmul::assembled::{
    COUNT, FURTHER_ON, INPUT, PORTION, SCRATCH, TILE_INPUT, TILE_OUTPUT, TILE_RESIDUAL,
    TILE_WEIGHTS, WEIGHTS,
};
use crate::kernels::matmul::{Activation, BEGIN, MINUS_SUM};
use crate::pack::{Blocks, GROUP, ZeroPoint};

/// Least rows for which codes are taken apart in advance.
pub(super) const FROM_ROWS: usize = 6;
/// Rows of a step; the rest of a portion is taken by four, two and one.
const STEP: usize = 6;

/// Scratch memory: wide integer sums, scales and zero points of both halves, codes of at most 64
/// elements (with their signs where they have some), the counter of blocks, and float sums.
const SCALES: usize = integer::SCRATCH_BYTES;
const ZEROS: usize = SCALES + 2 * REGISTER;
const CODES: usize = ZEROS + 2 * REGISTER;
const BLOCKS_LEFT: usize = CODES + 64 / 4 * 2 * 2 * REGISTER;
const SUMS: usize = BLOCKS_LEFT + REGISTER;
pub(super) const SCRATCH_BYTES: usize = SUMS + PORTION.most * GROUP * 4;

/// Sums of the step's first row.
const STEP_SUMS: AsmRegister64 = r11;

/// Memory of a half's codes for the activations that begin at element `first`.
fn codes_at(first: usize, half: usize) -> usize {
    CODES + (first / 4 * 2 + half) * 2 * REGISTER
}

impl Avx2<'_> {
    pub(super) fn integer_panel(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
    ) -> Result<(), IcedError> {
        let layout = self.spec.layout;
        let (Some(blocks), Some(Activation::Int8 { block, .. })) =
            (layout.format.blocks(), self.spec.activation())
        else {
            return Ok(());
        };
        self.clear_sums(code)?;
        code.mov(WEIGHTS, TILE_WEIGHTS)?;
        let left = qword_ptr(SCRATCH + BLOCKS_LEFT);
        code.mov(left, layout.block_count() as i32)?;
        let mut again = code.create_label();
        code.set_label(&mut again)?;
        self.keep_block(code, blocks)?;
        let units = block / self.unit_elements();
        for part in 0..blocks.block / block {
            let part =
                Part { block, input: part * self.spec.record_bytes(), first_unit: part * units };
            self.keep_codes(code, part)?;
            self.all_steps(code, blocks, part)?;
        }
        code.add(TILE_INPUT, (blocks.block / block * self.spec.record_bytes()) as i32)?;
        code.add(WEIGHTS, layout.block_bytes() as i32)?;
        code.dec(left)?;
        code.jnz(again)?;
        self.store_rows(code, shape)?;
        // Tiles of the last rows find the mask where they expect it.
        code.vmovups(ymm15, ymmword_ptr(*self.mask.borrow()))
    }

    fn clear_sums(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        let mut again = code.create_label();
        code.vxorps(ymm0, ymm0, ymm0)?;
        code.lea(STEP_SUMS, ptr(SCRATCH + SUMS))?;
        code.mov(COUNT, r9)?;
        code.set_label(&mut again)?;
        code.vmovups(ymmword_ptr(STEP_SUMS), ymm0)?;
        code.vmovups(ymmword_ptr(STEP_SUMS + REGISTER), ymm0)?;
        code.add(STEP_SUMS, (2 * REGISTER) as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)
    }

    /// Scales and zero points of the block at [`WEIGHTS`], for all rows.
    fn keep_block(&self, code: &mut CodeAssembler, blocks: Blocks) -> Result<(), IcedError> {
        let (scale, zero) = (ymm12, ymm13);
        for half in 0..2 {
            let place = Place { row: 0, group: 0, half };
            self.block_parameters(code, blocks, place, scale, zero)?;
            if self.is_pairs_of_bytes() && blocks.zero == ZeroPoint::Code {
                // 128 is out of the sums already. Whole numbers, so exact.
                code.vsubps(zero, zero, ymmword_ptr(*self.zero_point.borrow()))?;
            }
            code.vmovups(ymmword_ptr(SCRATCH + (SCALES + half * REGISTER)), scale)?;
            code.vmovups(ymmword_ptr(SCRATCH + (ZEROS + half * REGISTER)), zero)?;
        }
        Ok(())
    }

    /// Codes of a part, taken apart for all rows.
    fn keep_codes(&self, code: &mut CodeAssembler, part: Part) -> Result<(), IcedError> {
        code.vmovups(ymm15, ymmword_ptr(*self.mask.borrow()))?;
        for unit in 0..part.block / self.unit_elements() {
            for half in 0..2 {
                let place = Place { row: 0, group: 0, half };
                let at = self.spec.layout.codes_offset()
                    + self.weight_offset(place, part.first_unit + unit);
                if half == 0 {
                    code.prefetcht0(byte_ptr(WEIGHTS + FURTHER_ON + (at + ahead(STEP))))?;
                }
                for codes in self.load_codes(code, at, unit, [ymm12, ymm13])? {
                    let to = codes_at(codes.first, half);
                    code.vmovdqu(ymmword_ptr(SCRATCH + to), codes.unsigned)?;
                    if let Some(signs) = codes.signs {
                        code.vmovdqu(ymmword_ptr(SCRATCH + (to + REGISTER)), signs)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds a part's products to the sums of all rows.
    fn all_steps(
        &self,
        code: &mut CodeAssembler,
        blocks: Blocks,
        part: Part,
    ) -> Result<(), IcedError> {
        code.mov(INPUT, TILE_INPUT)?;
        code.lea(STEP_SUMS, ptr(SCRATCH + SUMS))?;
        code.mov(COUNT, r9)?;
        for rows in [STEP, 4, 2, 1] {
            let mut again = code.create_label();
            let mut fewer = code.create_label();
            code.set_label(&mut again)?;
            code.cmp(COUNT, rows as i32)?;
            code.jl(fewer)?;
            self.step(code, blocks, part, rows)?;
            code.add(INPUT, (rows * self.spec.input_row_bytes()) as i32)?;
            code.add(STEP_SUMS, (rows * 2 * REGISTER) as i32)?;
            code.sub(COUNT, rows as i32)?;
            code.jmp(again)?;
            code.set_label(&mut fewer)?;
            code.zero_bytes()?;
        }
        Ok(())
    }

    /// One part of `rows` rows: integer sums of row and half are the first registers.
    fn step(
        &self,
        code: &mut CodeAssembler,
        blocks: Blocks,
        part: Part,
        rows: usize,
    ) -> Result<(), IcedError> {
        let wholes = &YMM[..2 * rows];
        let activation = ymm14;
        let input = |row: usize, offset: usize| {
            dword_ptr(INPUT + (row * self.spec.input_row_bytes() + part.input + offset))
        };
        let minus_sum = part.block + MINUS_SUM;
        let from_zero_point = self.products == Products::Vnni && blocks.zero == ZeroPoint::Implied;
        if !self.is_pairs_of_nibbles() {
            for (row, wholes) in wholes.chunks(2).enumerate() {
                if from_zero_point {
                    code.vpbroadcastd(wholes[0], input(row, minus_sum))?;
                    if !self.spec.is_anchored() {
                        code.vpslld(wholes[0], wholes[0], self.implied_zero_shift())?;
                    }
                    code.vmovdqa(wholes[1], wholes[0])?;
                } else {
                    for whole in wholes {
                        code.vpxor(*whole, *whole, *whole)?;
                    }
                }
            }
        }
        let of_chunk = if self.is_pairs_of_nibbles() { CHUNK } else { part.block };
        // A record's end is what no earlier block has brought.
        let mut asked = (0..rows).map(|row| input(row + rows, self.spec.record_bytes() - 1));
        if self.is_pairs_of_bytes() {
            code.vmovups(ymm15, ymmword_ptr(*self.ones.borrow()))?;
        }
        for chunk in (0..part.block).step_by(of_chunk) {
            let end = part.block.min(chunk + of_chunk);
            for first in (chunk..end).step_by(4) {
                if rows == STEP
                    && let Some(record) = asked.next()
                {
                    code.prefetcht0(record)?;
                }
                if self.is_pairs_of_bytes() {
                    self.add_signed(code, first, wholes, input)?;
                    continue;
                }
                let halves = [ymm12, ymm13];
                for (half, unsigned) in halves.into_iter().enumerate() {
                    code.vmovdqu(unsigned, ymmword_ptr(SCRATCH + codes_at(first, half)))?;
                }
                let codes = halves.map(|unsigned| Codes { unsigned, signs: None, first });
                for (row, wholes) in wholes.chunks(2).enumerate() {
                    code.vpbroadcastd(activation, input(row, first))?;
                    let products = [ymm15, activation];
                    let is_first = first == chunk;
                    self.add_halves(code, wholes, codes, activation, products, is_first)?;
                }
            }
            if self.is_pairs_of_nibbles() {
                self.widen_pairs(code, wholes, chunk == 0, end == part.block)?;
            }
        }
        self.scale_rows(code, blocks, wholes, part.block, input)
    }

    /// Adds four products to every lane of both halves of a row. `is_first`: the first of a 16-bit sum.
    /// Spoils `products`.
    fn add_halves(
        &self,
        code: &mut CodeAssembler,
        wholes: &[AsmRegisterYmm],
        codes: [Codes; 2],
        activation: AsmRegisterYmm,
        products: [AsmRegisterYmm; 2],
        is_first: bool,
    ) -> Result<(), IcedError> {
        let halves = || wholes.iter().zip(codes).zip(products);
        if self.products == Products::Pairs && !is_first {
            // Two multiplications in a row come to both units that multiply: on Zen 4 the loop gains
            // 3 % over an addition between them.
            for ((_, codes), product) in halves() {
                code.vpmaddubsw(product, codes.unsigned, activation)?;
            }
            return halves()
                .try_for_each(|((whole, _), product)| code.vpaddw(*whole, *whole, product));
        }
        halves().try_for_each(|((whole, codes), product)| {
            self.add_products(code, *whole, codes, activation, product, is_first)
        })
    }

    /// Four products of every row with codes that have signs, one half after the other.
    fn add_signed(
        &self,
        code: &mut CodeAssembler,
        first: usize,
        wholes: &[AsmRegisterYmm],
        input: impl Fn(usize, usize) -> AsmMemoryOperand,
    ) -> Result<(), IcedError> {
        let (unsigned, signs, activation) = (ymm12, ymm13, ymm14);
        for half in 0..2 {
            let at = codes_at(first, half);
            code.vmovdqu(unsigned, ymmword_ptr(SCRATCH + at))?;
            code.vmovdqu(signs, ymmword_ptr(SCRATCH + (at + REGISTER)))?;
            let codes = Codes { unsigned, signs: Some(signs), first };
            for (row, wholes) in wholes.chunks(2).enumerate() {
                code.vpbroadcastd(activation, input(row, first))?;
                self.add_products(code, wholes[half], codes, activation, activation, false)?;
            }
        }
        Ok(())
    }

    /// `sum = fma(t, weight_scale · activation_scale, sum)`, t the sum about the zero point; sums that
    /// begin as floats are t · activation_scale less their anchor.
    fn scale_rows(
        &self,
        code: &mut CodeAssembler,
        blocks: Blocks,
        wholes: &[AsmRegisterYmm],
        block: usize,
        input: impl Fn(usize, usize) -> AsmMemoryOperand,
    ) -> Result<(), IcedError> {
        let (scales, row_value, free) = ([ymm12, ymm13], ymm14, ymm15);
        for (half, scale) in scales.into_iter().enumerate() {
            code.vmovups(scale, ymmword_ptr(SCRATCH + (SCALES + half * REGISTER)))?;
        }
        let shift = self.implied_zero_shift();
        for (row, wholes) in wholes.chunks(2).enumerate() {
            if self.spec.is_anchored() {
                code.vpbroadcastd(free, input(row, block + BEGIN))?;
                code.vbroadcastss(row_value, input(row, block))?;
                for (half, whole) in wholes.iter().enumerate() {
                    let sum = ymmword_ptr(STEP_SUMS + (row * 2 + half) * REGISTER);
                    if self.is_pairs_of_nibbles() {
                        code.vpaddd(*whole, *whole, free)?;
                    }
                    code.vsubps(*whole, *whole, row_value)?;
                    code.vfmadd213ps(*whole, scales[half], sum)?;
                    code.vmovups(sum, *whole)?;
                }
                continue;
            }
            let is_implied = blocks.zero == ZeroPoint::Implied;
            if is_implied && self.is_pairs_of_nibbles() {
                code.vpbroadcastd(row_value, input(row, block + MINUS_SUM))?;
                code.vpslld(row_value, row_value, shift)?;
                for whole in wholes {
                    code.vpaddd(*whole, *whole, row_value)?;
                }
            }
            if !is_implied {
                code.vpbroadcastd(row_value, input(row, block + MINUS_SUM))?;
                if self.is_pairs_of_bytes() && blocks.zero == ZeroPoint::Float {
                    // The rounded term is that of the codes themselves.
                    code.vpslld(free, row_value, shift)?;
                    for whole in wholes {
                        code.vpsubd(*whole, *whole, free)?;
                    }
                }
                code.vcvtdq2ps(row_value, row_value)?;
            }
            for (half, whole) in wholes.iter().enumerate() {
                code.vcvtdq2ps(*whole, *whole)?;
                if !is_implied {
                    let zero = ymmword_ptr(SCRATCH + (ZEROS + half * REGISTER));
                    code.vfmadd231ps(*whole, row_value, zero)?;
                }
            }
            code.vbroadcastss(row_value, input(row, block))?;
            for (half, whole) in wholes.iter().enumerate() {
                let sum = ymmword_ptr(STEP_SUMS + (row * 2 + half) * REGISTER);
                code.vmulps(free, row_value, scales[half])?;
                code.vfmadd213ps(*whole, free, sum)?;
                code.vmovups(sum, *whole)?;
            }
        }
        Ok(())
    }

    /// Bias, residual and outputs of all rows.
    fn store_rows(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let places = super::places(TileShape { rows: 1, ..shape }, 0..2);
        let row_bytes = (self.spec.output_stride * 4) as i32;
        let mut again = code.create_label();
        code.lea(STEP_SUMS, ptr(SCRATCH + SUMS))?;
        code.mov(INPUT, r9)?;
        code.set_label(&mut again)?;
        for (half, sum) in YMM[..2].iter().enumerate() {
            code.vmovups(*sum, ymmword_ptr(STEP_SUMS + half * REGISTER))?;
        }
        self.store(code, shape, &places)?;
        code.add(STEP_SUMS, (2 * REGISTER) as i32)?;
        code.add(TILE_OUTPUT, row_bytes)?;
        code.add(TILE_RESIDUAL, row_bytes)?;
        code.dec(INPUT)?;
        code.jnz(again)
    }
}

/// A part is at most as long as its scratch memory.
const _: () = assert!(CODES + 64 / 4 * 4 * REGISTER == BLOCKS_LEFT);
