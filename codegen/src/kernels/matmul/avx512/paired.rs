//! Exact sums of int4 codes in pairs: three quarters of a block take one product for two
//! (`matmul::quantise` has the method and its source).
//!
//! A pair's codes are kept about their middles, the second with 128 more, so that a factor is one
//! addition of bytes. What the pairs of a channel alone amount to is summed once for all rows.

use std::ops::Range;

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::Avx512;
use super::integer::Block;
use crate::kernels::matmul::{PAIRS_BEGIN, paired_eights};
use crate::pack::ZeroPoint;

/// What is added to both codes of a pair: to the second 128 − 8, so that the factor with the first
/// activation is not negative, to the first −8. `Avx512::data` has them.
pub(super) const CENTRES: [u32; 2] = [0x7878_7878, 0xf8f8_f8f8];

/// A part of a block and the registers of its sums.
pub(super) struct Paired<'a> {
    kernel: &'a Avx512<'a>,
    block: &'a Block<'a>,
    /// Which activations of the weight's block.
    part: usize,
    groups: usize,
    /// Codes, by group and quad.
    codes: &'a [AsmRegisterZmm],
    /// By group: what sums begin with.
    begins: &'a [AsmRegisterZmm],
    /// Integer sums, by row and group.
    wholes: &'a [AsmRegisterZmm],
    /// Two registers, and two more for several groups.
    factors: &'a [AsmRegisterZmm],
}

impl<'a> Paired<'a> {
    /// Sums of `rows` rows at a time, in some of the `free` registers.
    pub(super) fn new(
        kernel: &'a Avx512<'a>,
        block: &'a Block<'a>,
        part: usize,
        [rows, groups]: [usize; 2],
        free: &'a [AsmRegisterZmm],
    ) -> Self {
        let (codes, free) = free.split_at(groups * block.activations / 4);
        let (begins, free) = free.split_at(groups);
        let (wholes, factors) = free.split_at(rows * groups);
        Self { kernel, block, part, groups, codes, begins, wholes, factors }
    }

    /// Registers that [`Paired::rows`] leaves to what becomes of a sum.
    pub(super) fn free(&self) -> [AsmRegisterZmm; 2] {
        [self.factors[0], self.factors[1]]
    }

    /// Both codes of a unit.
    fn unit(&self, group: usize, unit: usize) -> (AsmRegisterZmm, AsmRegisterZmm) {
        let first = group * self.block.activations / 4 + unit * 2;
        (self.codes[first], self.codes[first + 1])
    }

    fn units(&self) -> usize {
        self.block.activations / 8
    }

    /// Takes the codes apart, and begins the sums of their channels: −Σ w₁ (w₂ + 128). `tile_rows` says
    /// how soon weights are needed.
    pub(super) fn take_apart(
        &self,
        code: &mut CodeAssembler,
        tile_rows: usize,
    ) -> Result<(), IcedError> {
        let sum = self.wholes[0];
        let centres = [self.factors[0], self.factors[1]];
        for (register, centre) in centres.into_iter().zip(&self.kernel.centres) {
            code.vpbroadcastd(register, dword_ptr(*centre.borrow()))?;
        }
        for group in 0..self.groups {
            code.vpxord(sum, sum, sum)?;
            for unit in 0..self.units() {
                let (first, second) = self.unit(group, unit);
                let place = [unit, group];
                self.kernel.unit_codes(
                    code,
                    tile_rows,
                    self.block,
                    self.part,
                    place,
                    &[first, second],
                )?;
                if unit < paired_eights(self.block.activations) {
                    code.vpaddb(second, second, centres[0])?;
                    code.vpaddb(first, first, centres[1])?;
                    code.vpdpbusd(sum, second, first)?;
                }
            }
            let begin = self.begins[group];
            code.vpxord(begin, begin, begin)?;
            code.vpsubd(begin, begin, sum)?;
        }
        Ok(())
    }

    /// The sums of some rows from [`INPUT`](crate::kernels::matmul::assembled::INPUT) on, each of which
    /// goes to `finish` with its row and group.
    pub(super) fn rows(
        &self,
        code: &mut CodeAssembler,
        rows: Range<usize>,
        mut finish: impl FnMut(&mut CodeAssembler, [usize; 2], AsmRegisterZmm) -> Result<(), IcedError>,
    ) -> Result<(), IcedError> {
        let whole = |row: usize, group: usize| self.wholes[row * self.groups + group];
        for (index, row) in rows.clone().enumerate() {
            self.begin(code, index, row)?;
        }
        // Pairs need adders most, single products multipliers: they take turns.
        let pairs = paired_eights(self.block.activations);
        let quads = 2 * pairs..2 * self.units();
        for turn in 0..pairs.max(quads.len()) {
            for (index, row) in rows.clone().enumerate() {
                if turn < pairs {
                    self.pair(code, index, row, turn)?;
                }
            }
            for (index, row) in rows.clone().enumerate() {
                if let Some(quad) = quads.clone().nth(turn) {
                    let input = self.kernel.input(self.block, self.part, row, quad * 4);
                    let codes = |group: usize| {
                        let (first, second) = self.unit(group, quad / 2);
                        [first, second][quad % 2]
                    };
                    if self.groups == 1 {
                        code.vpdpbusd(whole(index, 0), codes(0), dword_bcst(input))?;
                        continue;
                    }
                    let activations = self.factors[0];
                    code.vpbroadcastd(activations, dword_ptr(input))?;
                    for group in 0..self.groups {
                        code.vpdpbusd(whole(index, group), codes(group), activations)?;
                    }
                }
            }
        }
        for (index, row) in rows.enumerate() {
            for group in 0..self.groups {
                finish(code, [row, group], whole(index, group))?;
            }
        }
        Ok(())
    }

    /// What a row's sums begin with: about 8 where the zero point is implied, else about 0.
    fn begin(&self, code: &mut CodeAssembler, index: usize, row: usize) -> Result<(), IcedError> {
        let of_row = self.block.activations + PAIRS_BEGIN;
        let of_row = self.kernel.input(self.block, self.part, row, of_row);
        let shared = self.factors[1];
        if self.groups > 1 {
            code.vpbroadcastd(shared, dword_ptr(of_row))?;
        }
        for group in 0..self.groups {
            let whole = self.wholes[index * self.groups + group];
            match self.groups {
                1 => code.vpaddd(whole, self.begins[group], dword_bcst(of_row))?,
                _ => code.vpaddd(whole, self.begins[group], shared)?,
            }
            if self.block.blocks.zero != ZeroPoint::Implied {
                let eight_sums = self.factors[0];
                code.vpslld(eight_sums, self.kernel.minus_sum(self.block, self.part, row), 3)?;
                code.vpsubd(whole, whole, eight_sums)?;
            }
        }
        Ok(())
    }

    /// Adds the pairs of a unit to a row's sums.
    fn pair(
        &self,
        code: &mut CodeAssembler,
        index: usize,
        row: usize,
        unit: usize,
    ) -> Result<(), IcedError> {
        let activations = [self.factors[0], self.factors[1]];
        for (register, at) in activations.into_iter().zip([0, 4]) {
            let input = self.kernel.input(self.block, self.part, row, unit * 8 + at);
            code.vpbroadcastd(register, dword_ptr(input))?;
        }
        for group in 0..self.groups {
            let (first, second) = self.unit(group, unit);
            let is_last = group + 1 == self.groups;
            let factors = if is_last { activations } else { [self.factors[2], self.factors[3]] };
            code.vpaddb(factors[0], activations[0], second)?;
            code.vpaddb(factors[1], activations[1], first)?;
            code.vpdpbusd(self.wholes[index * self.groups + group], factors[0], factors[1])?;
        }
        Ok(())
    }
}
