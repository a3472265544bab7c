//! Words that fold the lanes of a register.

use iced_x86::code_asm::*;

use super::{Emitted, Vectors, Width, XMM, YMM, ZMM};

/// How lanes are folded.
#[derive(Clone, Copy)]
pub(in crate::kernels::attention) enum Fold {
    Sum,
    Largest,
}

impl Vectors<'_> {
    /// to becomes the larger of both in four lanes, as [`largest_bits`](Self::largest_bits).
    pub(in crate::kernels::attention) fn largest_bits_of_four(
        &mut self,
        to: usize,
        other: usize,
    ) -> Emitted {
        self.code.vpmaxud(XMM[to], XMM[to], XMM[other])
    }

    /// to becomes the sum of both in four lanes of integers.
    pub(in crate::kernels::attention) fn sum_of_four(
        &mut self,
        to: usize,
        other: usize,
    ) -> Emitted {
        self.code.vpaddd(XMM[to], XMM[to], XMM[other])
    }

    /// Folds a register to its first lane by an operation on four lanes whose order does not matter.
    pub(in crate::kernels::attention) fn fold_bits(
        &mut self,
        x: usize,
        scratch: usize,
        fold: fn(&mut Self, usize, usize) -> Emitted,
    ) -> Emitted {
        if self.width == Width::Sixteen {
            for part in [1, 2, 3] {
                self.code.vextracti32x4(XMM[scratch + part - 1], ZMM[x], part as i32)?;
            }
            for part in 0..3 {
                fold(self, x, scratch + part)?;
            }
        } else {
            self.code.vextracti128(XMM[scratch], YMM[x], 1)?;
            fold(self, x, scratch)?;
        }
        for order in [0b01_00_11_10, 0b10_11_00_01] {
            self.code.vpshufd(XMM[scratch], XMM[x], order)?;
            fold(self, x, scratch)?;
        }
        Ok(())
    }

    /// Folds a register to its first lane with `op`: halves first, then halves of the half.
    /// `high` holds what the upper eight of sixteen lanes hold and is used on AVX2 only.
    pub(in crate::kernels::attention) fn fold(
        &mut self,
        op: Fold,
        x: usize,
        high: usize,
        scratch: usize,
    ) -> Emitted {
        let code = &mut *self.code;
        match (self.width, op) {
            (Width::Eight, Fold::Sum) => code.vaddps(YMM[x], YMM[x], YMM[high])?,
            (Width::Eight, Fold::Largest) => code.vmaxps(YMM[x], YMM[x], YMM[high])?,
            (Width::Sixteen, op) => {
                code.vextractf64x4(YMM[scratch], ZMM[x], 1)?;
                match op {
                    Fold::Sum => code.vaddps(YMM[x], YMM[x], YMM[scratch])?,
                    Fold::Largest => code.vmaxps(YMM[x], YMM[x], YMM[scratch])?,
                }
            }
        }
        let (y, x, other) = (YMM[x], XMM[x], XMM[scratch]);
        let fold = |code: &mut CodeAssembler| match op {
            Fold::Sum => code.vaddps(x, x, other),
            Fold::Largest => code.vmaxps(x, x, other),
        };
        code.vextractf128(other, y, 1)?;
        fold(code)?;
        code.vmovhlps(other, x, x)?;
        fold(code)?;
        code.vmovshdup(other, x)?;
        fold(code)
    }
}
