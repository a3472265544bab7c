//! Exact sums of int4 codes in pairs: three quarters of a block take one product for two
//! (`matmul::quantise` has the method and its source).
//!
//! A pair's codes are kept about their middles, the second with 128 more, so that a factor is one
//! addition of bytes. What the pairs of a channel alone amount to is summed once for all rows.

use std::ops::Range;

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::integer::Block;
use super::{Avx512, MASK};
use crate::kernels::matmul::{PAIRS_BEGIN, paired_eights};
use crate::pack::ZeroPoint;

/// Elements of a unit: two quads.
const UNIT: usize = 8;
/// What is added to both codes of a pair: to the second 128 − 8, so that the factor with the first
/// activation is not negative, to the first −8. `Avx512::data` has them.
pub(super) const CENTRES: [u32; 2] = [0x7878_7878, 0xf8f8_f8f8];

/// Elements of a run whose codes the registers hold, of one group.
const RUN: usize = 64;

/// The units of a block of activations, in runs that are summed one after the other: as many as have
/// room for the codes of so many groups.
pub(super) fn runs(activations: usize, groups: usize) -> impl Iterator<Item = Range<usize>> {
    let units = activations / UNIT;
    let run = RUN / UNIT / groups;
    (0..units).step_by(run).map(move |first| first..units.min(first + run))
}

/// A run of a block and the registers of its sums.
pub(super) struct Paired<'a> {
    kernel: &'a Avx512<'a>,
    block: &'a Block<'a>,
    /// Which activations of the weight's block.
    part: usize,
    /// Which units of these activations.
    units: Range<usize>,
    groups: usize,
    /// Codes, by group and quad of the run.
    codes: &'a [AsmRegisterZmm],
    /// By group: −Σ w₁ (w₂ + 128) of its channels.
    of_channels: &'a [AsmRegisterZmm],
    /// Integer sums, by row and group.
    wholes: &'a [AsmRegisterZmm],
    /// Two registers, and two more for several groups; the mask's may be among them.
    factors: &'a [AsmRegisterZmm],
}

impl<'a> Paired<'a> {
    /// Sums of some groups of a part's units in some of the `free` registers, of as many rows at a time
    /// as they hold, `most` at most.
    pub(super) fn new(
        kernel: &'a Avx512<'a>,
        block: &'a Block<'a>,
        [part, groups, most]: [usize; 3],
        units: Range<usize>,
        free: &'a [AsmRegisterZmm],
    ) -> Self {
        let (codes, free) = free.split_at(groups * units.len() * 2);
        let (of_channels, free) = free.split_at(groups);
        let factors = if groups > 1 { 4 } else { 2 };
        let rows = most.min((free.len() - factors) / groups);
        let (wholes, free) = free.split_at(rows * groups);
        let factors = &free[..factors];
        Self { kernel, block, part, units, groups, codes, of_channels, wholes, factors }
    }

    /// Rows whose sums the registers hold.
    pub(super) fn at_once(&self) -> usize {
        self.wholes.len() / self.groups
    }

    /// Registers that [`Paired::rows`] leaves to what becomes of a sum.
    pub(super) fn free(&self) -> [AsmRegisterZmm; 2] {
        [self.factors[0], self.factors[1]]
    }

    /// Both codes of a unit.
    fn unit(&self, group: usize, unit: usize) -> (AsmRegisterZmm, AsmRegisterZmm) {
        let first = (group * self.units.len() + unit - self.units.start) * 2;
        (self.codes[first], self.codes[first + 1])
    }

    /// Those of the run's units that are paired.
    fn pairs(&self) -> Range<usize> {
        self.units.start..self.units.end.min(paired_eights(self.block.activations))
    }

    fn is_first(&self) -> bool {
        self.units.start == 0
    }

    /// Whether sums are whole behind the run.
    pub(super) fn is_last(&self) -> bool {
        self.units.end == self.block.activations / UNIT
    }

    /// Takes the codes apart, and sums what their channels add: −Σ w₁ (w₂ + 128).
    pub(super) fn take_apart(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        let sum = self.wholes[0];
        let centres = [self.wholes[1], self.factors[0]];
        for (register, centre) in centres.into_iter().zip(&self.kernel.centres) {
            code.vpbroadcastd(register, dword_ptr(*centre.borrow()))?;
        }
        for group in 0..self.groups {
            code.vpxord(sum, sum, sum)?;
            for unit in self.units.clone() {
                let (first, second) = self.unit(group, unit);
                let place = [unit, group];
                self.kernel.unit_codes(
                    code,
                    None,
                    self.block,
                    self.part,
                    place,
                    &[first, second],
                )?;
                if self.pairs().contains(&unit) {
                    code.vpaddb(second, second, centres[0])?;
                    code.vpaddb(first, first, centres[1])?;
                    code.vpdpbusd(sum, second, first)?;
                }
            }
            let of_channels = self.of_channels[group];
            code.vpxord(of_channels, of_channels, of_channels)?;
            code.vpsubd(of_channels, of_channels, sum)?;
        }
        Ok(())
    }

    /// The sums of the first rows from [`INPUT`](crate::kernels::matmul::assembled::INPUT) on, each of which
    /// goes to `finish` with its row and group; `so_far` is where those of the runs before are.
    pub(super) fn rows(
        &self,
        code: &mut CodeAssembler,
        rows: usize,
        so_far: impl Fn([usize; 2]) -> AsmMemoryOperand,
        mut finish: impl FnMut(&mut CodeAssembler, [usize; 2], AsmRegisterZmm) -> Result<(), IcedError>,
    ) -> Result<(), IcedError> {
        for row in 0..rows {
            if self.is_first() {
                self.begin(code, row)?;
                continue;
            }
            for group in 0..self.groups {
                let whole = self.wholes[row * self.groups + group];
                code.vpaddd(whole, self.of_channels[group], so_far([row, group]))?;
            }
        }
        // Products alone come first: they need multipliers, while the additions of the pairs behind them,
        // which wait for nothing, are done beside them.
        let pairs = self.pairs();
        for quad in 2 * pairs.end.max(pairs.start)..2 * self.units.end {
            for row in 0..rows {
                self.single(code, row, quad)?;
            }
        }
        let last = pairs.clone().last();
        for unit in pairs {
            for row in 0..rows {
                if self.is_first() && Some(unit) == last {
                    self.add_channels(code, row)?;
                }
                self.pair(code, row, unit)?;
            }
        }
        for row in 0..rows {
            for group in 0..self.groups {
                finish(code, [row, group], self.wholes[row * self.groups + group])?;
            }
        }
        Ok(())
    }

    /// Gives back the mask, where its register was among those used.
    pub(super) fn give_back(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        if self.wholes.contains(&MASK) || self.factors.contains(&MASK) {
            self.kernel.load_mask(code)?;
        }
        Ok(())
    }

    /// What a row's sums begin with, but for the channels' part: about 0 where zero points are floats,
    /// whose products are rounded, else about 8.
    fn begin(&self, code: &mut CodeAssembler, row: usize) -> Result<(), IcedError> {
        let of_row = self.block.activations + PAIRS_BEGIN;
        let of_row = self.kernel.input(self.part, row, of_row);
        let wholes = &self.wholes[row * self.groups..][..self.groups];
        code.vpbroadcastd(wholes[0], dword_ptr(of_row))?;
        if self.block.blocks.zero == ZeroPoint::Float {
            let eight_sums = self.factors[0];
            code.vpslld(eight_sums, self.kernel.minus_sum(self.block, self.part, row), 3)?;
            code.vpsubd(wholes[0], wholes[0], eight_sums)?;
        }
        for whole in &wholes[1..] {
            code.vmovdqa32(*whole, wholes[0])?;
        }
        Ok(())
    }

    /// Adds the channels' part to a row's sums. With few rows it is not ready when these begin, and nothing
    /// should wait for it: 8 rows took 6 % longer, 16 2 % (Zen 5, weights in the second cache).
    fn add_channels(&self, code: &mut CodeAssembler, row: usize) -> Result<(), IcedError> {
        for (group, of_channels) in self.of_channels.iter().enumerate() {
            let whole = self.wholes[row * self.groups + group];
            code.vpaddd(whole, whole, *of_channels)?;
        }
        Ok(())
    }

    /// Adds four products to a row's sums.
    fn single(&self, code: &mut CodeAssembler, row: usize, quad: usize) -> Result<(), IcedError> {
        let input = self.kernel.input(self.part, row, quad * 4);
        let of_group = |group: usize| {
            let (first, second) = self.unit(group, quad / 2);
            (self.wholes[row * self.groups + group], [first, second][quad % 2])
        };
        if self.groups == 1 {
            let (whole, codes) = of_group(0);
            return code.vpdpbusd(whole, codes, dword_bcst(input));
        }
        let activations = self.factors[0];
        code.vpbroadcastd(activations, dword_ptr(input))?;
        for group in 0..self.groups {
            let (whole, codes) = of_group(group);
            code.vpdpbusd(whole, codes, activations)?;
        }
        Ok(())
    }

    /// Adds the pairs of a unit to a row's sums.
    fn pair(&self, code: &mut CodeAssembler, row: usize, unit: usize) -> Result<(), IcedError> {
        let activations = [self.factors[0], self.factors[1]];
        for (register, at) in activations.into_iter().zip([0, 4]) {
            let input = self.kernel.input(self.part, row, unit * 8 + at);
            code.vpbroadcastd(register, dword_ptr(input))?;
        }
        for group in 0..self.groups {
            let (first, second) = self.unit(group, unit);
            let is_last = group + 1 == self.groups;
            let factors = if is_last { activations } else { [self.factors[2], self.factors[3]] };
            code.vpaddb(factors[0], activations[0], second)?;
            code.vpaddb(factors[1], activations[1], first)?;
            code.vpdpbusd(self.wholes[row * self.groups + group], factors[0], factors[1])?;
        }
        Ok(())
    }
}
