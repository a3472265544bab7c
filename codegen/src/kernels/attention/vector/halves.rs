//! Words for bf16: rounding to it, and products of pairs.
//!
//! A pair is the 32 bits of a lane: the earlier of two numbers in the upper half, the later one in the
//! lower half. `vdpbf16ps` adds the product of the upper halves to a sum, then that of the lower ones.

use iced_x86::code_asm::*;

use super::{Emitted, Vectors, Width, YMM, ZMM};

/// Bytes of a pair.
pub(in crate::kernels::attention) const PAIR: usize = 4;
/// What [`round_to_bf16`](Vectors::round_to_bf16) reads, each in all lanes: the lowest bit, all bits
/// below half a unit, the upper half.
pub(in crate::kernels::attention) const ROUNDING: [u32; 3] = [1, 0x7fff, 0xffff_0000];
/// Words of thirty-two that make pairs of two times sixteen: those of the second sixteen, each with one
/// of the first above it.
pub(in crate::kernels::attention) const PAIR_ORDER: [u16; 32] = {
    let mut order = [0; 32];
    let mut lane = 0;
    while lane < 16 {
        order[2 * lane as usize] = 16 + lane;
        order[2 * lane as usize + 1] = lane;
        lane += 1;
    }
    order
};

/// The halves of pairs that are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernels::attention) enum PairOf {
    /// Both numbers.
    Both,
    /// The earlier one; zero stands for the other.
    Earlier,
    /// The later one, likewise.
    Later,
}

impl Vectors<'_> {
    /// to + the two products of each lane, the earlier numbers' first.
    pub(in crate::kernels::attention) fn add_pairs(
        &mut self,
        to: usize,
        a: usize,
        b: usize,
    ) -> Emitted {
        self.code.vdpbf16ps(ZMM[to], ZMM[a], ZMM[b])
    }

    /// Pairs of sixteen numbers at `from[0]` with those at `from[1]`, of which `part` are there unless
    /// that is 0; nothing else is touched. `order` holds [`PAIR_ORDER`]; `scratch` is destroyed.
    pub(in crate::kernels::attention) fn load_pairs(
        &mut self,
        to: usize,
        from: [AsmMemoryOperand; 2],
        halves: PairOf,
        part: usize,
        [order, scratch]: [usize; 2],
    ) -> Emitted {
        let words = |v: &mut Self, to: usize, from: AsmMemoryOperand| match part {
            0 => v.code.vpmovzxwd(ZMM[to], ymmword_ptr(from)),
            // As `prepare_part` made the mask.
            _ => v.code.vpmovzxwd(ZMM[to].k1().z(), ymmword_ptr(from)),
        };
        match halves {
            PairOf::Both if part == 0 => {
                self.code.vbroadcasti64x4(ZMM[to], ymmword_ptr(from[0]))?;
                self.code.vinserti64x4(ZMM[to], ZMM[to], ymmword_ptr(from[1]), 1)?;
                self.code.vpermw(ZMM[to], ZMM[order], ZMM[to])
            }
            PairOf::Both => {
                words(self, to, from[0])?;
                words(self, scratch, from[1])?;
                self.code.vpslld(ZMM[to], ZMM[to], 16)?;
                self.code.vpord(ZMM[to], ZMM[to], ZMM[scratch])
            }
            PairOf::Earlier => {
                words(self, to, from[0])?;
                self.code.vpslld(ZMM[to], ZMM[to], 16)
            }
            PairOf::Later => words(self, to, from[1]),
        }
    }

    /// The same where the second sixteen lie behind the first.
    pub(in crate::kernels::attention) fn load_neighbouring_pairs(
        &mut self,
        to: usize,
        from: AsmMemoryOperand,
        order: usize,
    ) -> Emitted {
        self.code.vpermw(ZMM[to], ZMM[order], zmmword_ptr(from))
    }

    /// Rounds the floats of two registers to pairs, those of `low` first, and stores them.
    pub(in crate::kernels::attention) fn store_pairs(
        &mut self,
        to: AsmMemoryOperand,
        [low, high]: [usize; 2],
    ) -> Emitted {
        self.code.vcvtne2ps2bf16(ZMM[low], ZMM[high], ZMM[low])?;
        self.code.vprold(ZMM[low], ZMM[low], 16)?;
        self.code.vmovups(zmmword_ptr(to), ZMM[low])
    }

    /// Rounds floats to the nearest bf16, halves to even. Masks are [`ROUNDING`]; the two of `scratch`
    /// are destroyed.
    pub(in crate::kernels::attention) fn round_to_bf16(
        &mut self,
        x: usize,
        [lowest, no_number]: [usize; 2],
        masks: [usize; 3],
    ) -> Emitted {
        let [one, below_half, upper] = masks;
        match self.width {
            Width::Eight => {
                self.code.vcmpunordps(YMM[no_number], YMM[x], YMM[x])?;
                self.code.vpsrld(YMM[lowest], YMM[x], 16)?;
            }
            Width::Sixteen => {
                self.code.vcmpunordps(k2, ZMM[x], ZMM[x])?;
                self.code.vpsrld(ZMM[lowest], ZMM[x], 16)?;
            }
        }
        self.and(lowest, lowest, one)?;
        self.add_ints(x, x, below_half)?;
        self.add_ints(x, x, lowest)?;
        // A carry could make a number of what is none.
        match self.width {
            Width::Eight => self.or(x, x, no_number)?,
            Width::Sixteen => self.code.vmovaps(ZMM[x].k2(), ZMM[upper])?,
        }
        self.and(x, x, upper)
    }
}
