//! Integer arithmetic in 512-bit vectors: exact sums by `vpdpbusd`, scaled per block.
//!
//! Registers of a tile, for blocks of 32 activations (of 64):
//!
//! | rows | float sums | integer sums | codes | others |
//! |---|---|---|---|---|
//! | 1, 2, 4 | by row | by row, two in turn | 2, one unit at a time | scale, zero point, 2 free, mask |
//! | 8, 16 (8) | by row | 4 rows at a time | 8 (16): the whole block | scale, zero point, 1 free, mask |
//!
//! Many rows share a block's codes once they are taken apart; a few rows at a time are enough for
//! chains of dependent products not to wait. Integer sums begin with −zero · Σ a where the zero point
//! is implied, so that the units that multiply, bytes as well as floats, have two operations a block
//! besides the products, the scales' product and the fused addition; one where sums begin as floats (see
//! `quantise`). 80 or 89 % of the peak is then the most that blocks of 32 could have. So many rows of
//! int4 sum three quarters of a block in pairs (see `quantise`): two additions of bytes, which have
//! units of their own, and one product in place of two. That leaves seven operations of ten, or six of
//! nine: a [`super::panel`].
//!
//! Tiles of 8 rows and more are of int8 on the level in pairs alone; the other level has a
//! [`super::grid`].

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{Avx512, MASK, ManyRows, ZMM};
use crate::kernels::matmul::assembled::{COUNT, FURTHER_ON, INPUT, TileShape, WEIGHTS, ahead};
use crate::kernels::matmul::{Activation, BEGIN, MINUS_SUM, decode};
use crate::pack::{Blocks, WeightFormat, ZeroPoint};

/// Rows whose integer sums a tile of many rows holds at a time.
const AT_ONCE: usize = 4;
/// Least rows of a tile that holds the codes of a block.
pub(super) const MANY_ROWS: usize = 8;

/// Least rows that ask for a block's codes twice.
const TWICE_FROM_ROWS: usize = 4;
/// How far ahead these come to the second cache, and then to the first, in bytes.
const TO_SECOND: usize = 8192;
const TO_FIRST: usize = 2176;

/// How codes are asked for before their use.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// How many bytes further on, to which [`FURTHER_ON`] comes.
    bytes: usize,
    /// Into the first cache, not the second.
    is_near: bool,
}

/// What all rows of a tile need of a block.
pub(super) struct Block<'a> {
    pub(super) blocks: Blocks,
    /// Activations of one scale.
    pub(super) activations: usize,
    /// Scales of the channels, by group.
    pub(super) scales: &'a [AsmRegisterZmm],
    /// Zero points of the channels, by group, unless they are implied.
    pub(super) zeros: &'a [AsmRegisterZmm],
}

impl Avx512<'_> {
    /// Most rows of a tile: as many as leave room for the codes of a block.
    pub(super) fn integer_rows(&self) -> usize {
        match self.spec.activation() {
            Some(Activation::Int8 { block, .. }) if block > 32 => 8,
            _ => 16,
        }
    }

    pub(super) fn integer_sums(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
    ) -> Result<(), IcedError> {
        let layout = self.spec.layout;
        let (Some(blocks), Some(Activation::Int8 { block: activations, .. })) =
            (layout.format.blocks(), self.spec.activation())
        else {
            return Ok(());
        };
        let (sums, rest) = ZMM.split_at(shape.rows * shape.groups);
        let (scales, rest) = rest.split_at(shape.groups);
        let has_zeros = blocks.zero != ZeroPoint::Implied;
        let (zeros, rest) = if has_zeros { rest.split_at(shape.groups) } else { (scales, rest) };
        let block = Block { blocks, activations, scales, zeros };
        // A single row of AMD's level asks for the second cache: from large pages it reads up to a
        // fifteenth faster so, two rows a twentieth slower (Zen 4).
        let is_near = shape.rows > 1 || self.many == ManyRows::Single;
        let asks_twice = shape.rows >= TWICE_FROM_ROWS && self.many == ManyRows::Paired;
        let ahead = (!asks_twice).then_some(Ahead { bytes: ahead(shape.rows), is_near });
        for sum in sums {
            code.vpxord(*sum, *sum, *sum)?;
        }
        let mut again = code.create_label();
        code.mov(COUNT, layout.block_count() as i64)?;
        code.set_label(&mut again)?;
        for group in 0..shape.groups {
            self.block_parameters(code, blocks, group, scales[group], zeros[group])?;
        }
        for part in 0..blocks.block / activations {
            if asks_twice {
                self.ask_twice(code, shape, &block, part)?;
            }
            if shape.rows < MANY_ROWS {
                self.few_rows(code, shape, ahead, &block, part, rest)?;
            } else {
                self.many_rows(code, shape, &block, part, rest)?;
            }
        }
        code.add(INPUT, (blocks.block / activations * self.spec.record_bytes()) as i32)?;
        code.add(WEIGHTS, layout.block_bytes() as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)
    }

    /// Asks for the codes of a later block twice, far ahead into the second cache and near into the
    /// first: the first waits for few lines at a time, and those that come from memory take long. Beside
    /// the first cache alone, 4096 bytes ahead (2048 for 4 rows), 8 rows of int8 are 1.38 and 1.18 times
    /// as fast, 16 rows 1.18 and 1.10 (1b and 110m on Zen 4), 4 rows of int4 1.12 (1b). Where weights are
    /// asked for further away this was not measured, and it stays with one.
    fn ask_twice(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        block: &Block<'_>,
        part: usize,
    ) -> Result<(), IcedError> {
        let units = block.activations / decode::unit_elements(self.spec.layout.format);
        let places: Vec<usize> = (0..shape.groups)
            .flat_map(|group| (0..units).map(move |unit| self.codes_at(block, part, [unit, group])))
            .collect();
        let [mut is_far, mut done] = [(); 2].map(|()| code.create_label());
        code.test(FURTHER_ON, FURTHER_ON)?;
        code.jnz(is_far)?;
        for at in &places {
            code.prefetcht1(byte_ptr(WEIGHTS + (at + TO_SECOND)))?;
        }
        for at in &places {
            code.prefetcht0(byte_ptr(WEIGHTS + (at + TO_FIRST)))?;
        }
        code.jmp(done)?;
        code.set_label(&mut is_far)?;
        for at in &places {
            code.prefetcht0(byte_ptr(WEIGHTS + FURTHER_ON + (at + ahead(shape.rows))))?;
        }
        code.set_label(&mut done)?;
        code.zero_bytes()
    }

    /// One block of activations, whose codes serve all rows as soon as they are taken apart.
    fn few_rows(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        ahead: Option<Ahead>,
        block: &Block<'_>,
        part: usize,
        free: &[AsmRegisterZmm],
    ) -> Result<(), IcedError> {
        // Few sums leave room to add into two registers in turn, so that chains of dependent products
        // are half as long.
        let chains = 2;
        let (wholes, free) = free.split_at(shape.rows * shape.groups * chains);
        let (codes, free) = free.split_at(2);
        for row in 0..shape.rows {
            for group in 0..shape.groups {
                let pair = &wholes[(row * shape.groups + group) * chains..][..chains];
                self.begin_sum(code, block, part, row, pair[0])?;
                code.vpxord(pair[1], pair[1], pair[1])?;
            }
        }
        let per_unit = decode::unit_elements(self.spec.layout.format);
        for unit in 0..block.activations / per_unit {
            for group in 0..shape.groups {
                let used = self.unit_codes(code, ahead, block, part, [unit, group], codes)?;
                for row in 0..shape.rows {
                    for (index, codes) in codes[..used].iter().enumerate() {
                        let chain = (unit + index) % chains;
                        let whole = wholes[(row * shape.groups + group) * chains + chain];
                        let first = unit * per_unit + index * 4;
                        code.vpdpbusd(whole, *codes, dword_bcst(self.input(part, row, first)))?;
                    }
                }
            }
        }
        for row in 0..shape.rows {
            for group in 0..shape.groups {
                let pair = &wholes[(row * shape.groups + group) * chains..][..chains];
                code.vpaddd(pair[0], pair[0], pair[1])?;
                self.add_block(code, shape, block, part, [row, group], pair[0], free[0])?;
            }
        }
        Ok(())
    }

    /// One block of activations, whose codes are all held: some rows after others, one group.
    fn many_rows(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        block: &Block<'_>,
        part: usize,
        free: &[AsmRegisterZmm],
    ) -> Result<(), IcedError> {
        let per_unit = decode::unit_elements(self.spec.layout.format);
        let (codes, free) = free.split_at(block.activations / 4);
        let (wholes, free) = free.split_at(AT_ONCE);
        for unit in 0..block.activations / per_unit {
            let codes = &codes[unit * per_unit / 4..];
            self.unit_codes(code, None, block, part, [unit, 0], codes)?;
        }
        for first in (0..shape.rows).step_by(AT_ONCE) {
            let rows = first..first + AT_ONCE;
            for (row, whole) in rows.clone().zip(wholes) {
                self.begin_sum(code, block, part, row, *whole)?;
            }
            for (index, codes) in codes.iter().enumerate() {
                for (row, whole) in rows.clone().zip(wholes) {
                    code.vpdpbusd(*whole, *codes, dword_bcst(self.input(part, row, index * 4)))?;
                }
            }
            for (row, whole) in rows.zip(wholes) {
                self.add_block(code, shape, block, part, [row, 0], *whole, free[0])?;
            }
        }
        Ok(())
    }

    /// Four bytes of a row's record: activations from `offset` on, then their scale and sums.
    pub(super) fn input(&self, part: usize, row: usize, offset: usize) -> AsmMemoryOperand {
        let record = row * self.spec.input_row_bytes() + part * self.spec.record_bytes();
        INPUT + (record + offset)
    }

    /// −Σ a of a row's block.
    pub(super) fn minus_sum(&self, block: &Block<'_>, part: usize, row: usize) -> AsmMemoryOperand {
        dword_bcst(self.input(part, row, block.activations + MINUS_SUM))
    }

    /// What a row's sums begin with, where they begin as floats.
    fn begin(&self, block: &Block<'_>, part: usize, row: usize) -> AsmMemoryOperand {
        self.input(part, row, block.activations + BEGIN)
    }

    pub(super) fn is_int4(&self) -> bool {
        matches!(self.spec.layout.format, WeightFormat::Int4(_))
    }

    /// What a row's integer sum begins with: −zero · Σ a of a zero point that is implied, 8 or 128, as
    /// bits of a float where those of the record are.
    fn begin_sum(
        &self,
        code: &mut CodeAssembler,
        block: &Block<'_>,
        part: usize,
        row: usize,
        whole: AsmRegisterZmm,
    ) -> Result<(), IcedError> {
        if self.spec.is_anchored() {
            return code.vpbroadcastd(whole, dword_ptr(self.begin(block, part, row)));
        }
        if block.blocks.zero != ZeroPoint::Implied {
            return code.vpxord(whole, whole, whole);
        }
        code.vpslld(whole, self.minus_sum(block, part, row), self.log_zero())
    }

    /// The logarithm of a zero point that is implied.
    pub(super) fn log_zero(&self) -> i32 {
        if self.is_int4() { 3 } else { 7 }
    }

    /// Where the codes of a unit of a part lie behind the first group's.
    fn codes_at(&self, block: &Block<'_>, part: usize, [unit, group]: [usize; 2]) -> usize {
        let layout = self.spec.layout;
        let unit = part * block.activations / decode::unit_elements(layout.format) + unit;
        layout.codes_offset() + self.weight_offset(group, unit)
    }

    /// Takes a unit's codes apart into the first registers, and asks for those further on; returns of
    /// how many.
    pub(super) fn unit_codes(
        &self,
        code: &mut CodeAssembler,
        ahead: Option<Ahead>,
        block: &Block<'_>,
        part: usize,
        place: [usize; 2],
        codes: &[AsmRegisterZmm],
    ) -> Result<usize, IcedError> {
        let at = self.codes_at(block, part, place);
        if let Some(ahead) = ahead {
            let asked = byte_ptr(WEIGHTS + FURTHER_ON + (at + ahead.bytes));
            if ahead.is_near {
                code.prefetcht0(asked)?;
            } else {
                code.prefetcht1(asked)?;
            }
        }
        let packed = zmmword_ptr(WEIGHTS + at);
        if !self.is_int4() {
            code.vmovdqu32(codes[0], packed)?;
            return Ok(1);
        }
        let (low, high) = (codes[0], codes[1]);
        code.vmovdqu32(high, packed)?;
        code.vpandd(low, high, MASK)?;
        code.vpsrld(high, high, 4)?;
        code.vpandd(high, high, MASK)?;
        Ok(2)
    }

    /// An integer sum becomes t, about the zero point.
    pub(super) fn about_zero(
        &self,
        code: &mut CodeAssembler,
        block: &Block<'_>,
        part: usize,
        [row, group]: [usize; 2],
        whole: AsmRegisterZmm,
        free: AsmRegisterZmm,
    ) -> Result<(), IcedError> {
        code.vcvtdq2ps(whole, whole)?;
        if block.blocks.zero != ZeroPoint::Implied {
            code.vcvtdq2ps(free, self.minus_sum(block, part, row))?;
            code.vfmadd231ps(whole, block.zeros[group], free)?;
        }
        Ok(())
    }

    /// The scale of a row's block, or its anchor, in all lanes.
    pub(super) fn row_scale(
        &self,
        code: &mut CodeAssembler,
        block: &Block<'_>,
        part: usize,
        row: usize,
        scale: AsmRegisterZmm,
    ) -> Result<(), IcedError> {
        code.vbroadcastss(scale, dword_ptr(self.input(part, row, block.activations)))
    }

    /// `sum = fma(t, weight_scale · activation_scale, sum)`, t about the zero point; sums that begin as
    /// floats are t · activation_scale less their anchor.
    #[allow(clippy::too_many_arguments, reason = "an integer sum's place and the registers for it")]
    fn add_block(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        block: &Block<'_>,
        part: usize,
        [row, group]: [usize; 2],
        whole: AsmRegisterZmm,
        free: AsmRegisterZmm,
    ) -> Result<(), IcedError> {
        let of_row = dword_bcst(self.input(part, row, block.activations));
        if self.spec.is_anchored() {
            code.vsubps(whole, whole, of_row)?;
            return code.vfmadd231ps(self.sum(shape, row, group), whole, block.scales[group]);
        }
        self.about_zero(code, block, part, [row, group], whole, free)?;
        code.vmulps(free, block.scales[group], of_row)?;
        code.vfmadd231ps(self.sum(shape, row, group), whole, free)
    }
}
