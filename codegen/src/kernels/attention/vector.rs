//! A vocabulary over registers of eight or sixteen floats, so that an assembled kernel is written
//! once for AVX2 and AVX-512.
//!
//! Registers are numbers: 0 to 15 name `ymm` or `zmm` alike, 16 to 31 `zmm` only. Every word is one
//! instruction on AVX-512 and at most a few on AVX2; both give the same bits. Words of one use have
//! files of their own: codes of 8 bits (`codes`), numbers of a cache (`numbers`), bf16 and pairs of it
//! (`halves`), lanes that are folded (`folds`).

mod codes;
mod folds;
mod halves;
mod numbers;

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_abi::IsaLevel;

pub(super) use self::codes::Dots;
pub(super) use self::folds::Fold;
pub(super) use self::halves::{PAIR, PAIR_ORDER, PairOf, ROUNDING};
use super::cache::CacheType;
use crate::kernels::matmul::has_pair_products;

pub(super) const YMM: [AsmRegisterYmm; 16] = [
    ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11, ymm12, ymm13, ymm14,
    ymm15,
];
pub(super) const ZMM: [AsmRegisterZmm; 32] = [
    zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm8, zmm9, zmm10, zmm11, zmm12, zmm13, zmm14,
    zmm15, zmm16, zmm17, zmm18, zmm19, zmm20, zmm21, zmm22, zmm23, zmm24, zmm25, zmm26, zmm27,
    zmm28, zmm29, zmm30, zmm31,
];
const XMM: [AsmRegisterXmm; 16] = [
    xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7, xmm8, xmm9, xmm10, xmm11, xmm12, xmm13, xmm14,
    xmm15,
];

/// Result of a word.
pub(super) type Emitted = Result<(), IcedError>;

/// A register, or memory as wide as one.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    /// The register of this number.
    Register(usize),
    /// Memory.
    Memory(AsmMemoryOperand),
}

impl From<usize> for Operand {
    fn from(register: usize) -> Operand {
        Operand::Register(register)
    }
}

impl From<AsmMemoryOperand> for Operand {
    fn from(memory: AsmMemoryOperand) -> Operand {
        Operand::Memory(memory)
    }
}

/// Width of the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// AVX2.
    Eight,
    /// AVX-512.
    Sixteen,
}

impl Width {
    /// That of a level; the portable one has none.
    pub(super) fn of(level: IsaLevel) -> Option<Width> {
        match level {
            IsaLevel::Portable => None,
            IsaLevel::Avx2 | IsaLevel::AvxVnni => Some(Width::Eight),
            IsaLevel::Avx512 | IsaLevel::Avx512Pairs | IsaLevel::Amx => Some(Width::Sixteen),
        }
    }

    /// Floats of a register.
    pub(super) fn lanes(self) -> usize {
        match self {
            Width::Eight => 8,
            Width::Sixteen => 16,
        }
    }
}

/// What a level computes tiles of a cache with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instructions {
    pub(super) width: Width,
    /// How products of codes are summed.
    pub(super) dots: Dots,
    /// Whether products are of bf16 and made two at a time (`vdpbf16ps`).
    pub(super) is_paired: bool,
}

impl Instructions {
    /// Those of a level over a cache; the portable one has none.
    pub(super) fn of(level: IsaLevel, cache: CacheType) -> Option<Instructions> {
        let width = Width::of(level)?;
        let is_paired = cache == CacheType::Bf16 && has_pair_products(level);
        Some(Instructions { width, dots: Dots::of(level), is_paired })
    }
}

/// Writes instructions of one width.
pub(super) struct Vectors<'a> {
    pub(super) code: &'a mut CodeAssembler,
    pub(super) width: Width,
}

/// `name(to, a, b)`: an instruction of three operands, the last of them a register or memory.
macro_rules! words {
    ($($(#[$doc:meta])* $name:ident = $instruction:ident;)*) => {
        $(
            $(#[$doc])*
            pub(super) fn $name(&mut self, to: usize, a: usize, b: impl Into<Operand>) -> Emitted {
                match (self.width, b.into()) {
                    (Width::Eight, Operand::Register(b)) => {
                        self.code.$instruction(YMM[to], YMM[a], YMM[b])
                    }
                    (Width::Eight, Operand::Memory(b)) => {
                        self.code.$instruction(YMM[to], YMM[a], ymmword_ptr(b))
                    }
                    (Width::Sixteen, Operand::Register(b)) => {
                        self.code.$instruction(ZMM[to], ZMM[a], ZMM[b])
                    }
                    (Width::Sixteen, Operand::Memory(b)) => {
                        self.code.$instruction(ZMM[to], ZMM[a], zmmword_ptr(b))
                    }
                }
            }
        )*
    };
}

impl Vectors<'_> {
    words! {
        /// a + b
        add = vaddps;
        /// a - b
        sub = vsubps;
        /// a · b
        mul = vmulps;
        /// The larger; b if either is no number.
        max = vmaxps;
        /// The smaller; b if either is no number.
        min = vminps;
        /// to + a · b
        multiply_add = vfmadd231ps;
        /// b + a · to
        multiply_then_add = vfmadd213ps;
        /// a · to - b
        multiply_then_subtract = vfmsub213ps;
        /// a / b
        div = vdivps;
        /// The bits that both have.
        and = vandps;
        /// The bits that either has.
        or = vorps;
    }

    words! {
        /// a + b in 32-bit integers.
        add_ints = vpaddd;
        /// a - b in 32-bit integers.
        sub_ints = vpsubd;
        /// a + b in words.
        add_words = vpaddw;
        /// The larger of a and b as integers without sign: of floats that have none the larger, or
        /// what is no number.
        largest_bits = vpmaxud;
        /// Products of words, neighbours added.
        multiply_words = vpmaddwd;
    }

    /// Whole numbers become floats.
    pub(super) fn floats_of(&mut self, to: usize, from: impl Into<Operand>) -> Emitted {
        match (self.width, from.into()) {
            (Width::Eight, Operand::Register(x)) => self.code.vcvtdq2ps(YMM[to], YMM[x]),
            (Width::Eight, Operand::Memory(x)) => self.code.vcvtdq2ps(YMM[to], ymmword_ptr(x)),
            (Width::Sixteen, Operand::Register(x)) => self.code.vcvtdq2ps(ZMM[to], ZMM[x]),
            (Width::Sixteen, Operand::Memory(x)) => self.code.vcvtdq2ps(ZMM[to], zmmword_ptr(x)),
        }
    }

    /// Floats become the nearest whole numbers, halves to even.
    pub(super) fn ints_of(&mut self, to: usize, from: usize) -> Emitted {
        match self.width {
            Width::Eight => self.code.vcvtps2dq(YMM[to], YMM[from]),
            Width::Sixteen => self.code.vcvtps2dq(ZMM[to], ZMM[from]),
        }
    }

    /// An instruction on the first lanes.
    pub(super) fn first(
        &mut self,
        emit: impl FnOnce(&mut CodeAssembler, &[AsmRegisterXmm; 16]) -> Emitted,
    ) -> Emitted {
        emit(self.code, &XMM)
    }

    /// The first lane in all lanes.
    pub(super) fn spread_first(&mut self, to: usize, from: usize) -> Emitted {
        match self.width {
            Width::Eight => self.code.vbroadcastss(YMM[to], XMM[from]),
            Width::Sixteen => self.code.vbroadcastss(ZMM[to], XMM[from]),
        }
    }

    /// x · scales where x is not zero; zero elsewhere, whatever the scale.
    pub(super) fn mul_unless_zero(
        &mut self,
        x: usize,
        scales: AsmMemoryOperand,
        zero: usize,
        scratch: usize,
    ) -> Emitted {
        // Not equal, or no number.
        const DIFFERS: i32 = 4;
        match self.width {
            Width::Eight => {
                self.code.vcmpps(YMM[scratch], YMM[x], YMM[zero], DIFFERS)?;
                self.code.vmulps(YMM[x], YMM[x], ymmword_ptr(scales))?;
                self.code.vandps(YMM[x], YMM[x], YMM[scratch])
            }
            Width::Sixteen => {
                self.code.vcmpps(k1, ZMM[x], ZMM[zero], DIFFERS)?;
                self.code.vmulps(ZMM[x].k1().z(), ZMM[x], zmmword_ptr(scales))
            }
        }
    }

    /// Bytes of a register.
    pub(super) fn bytes(&self) -> usize {
        self.width.lanes() * 4
    }

    /// Copies a register.
    pub(super) fn copy(&mut self, to: usize, from: usize) -> Emitted {
        match self.width {
            Width::Eight => self.code.vmovaps(YMM[to], YMM[from]),
            Width::Sixteen => self.code.vmovaps(ZMM[to], ZMM[from]),
        }
    }

    /// Loads a register.
    pub(super) fn load(&mut self, to: usize, from: AsmMemoryOperand) -> Emitted {
        match self.width {
            Width::Eight => self.code.vmovups(YMM[to], ymmword_ptr(from)),
            Width::Sixteen => self.code.vmovups(ZMM[to], zmmword_ptr(from)),
        }
    }

    /// Stores a register.
    pub(super) fn store(&mut self, to: AsmMemoryOperand, from: usize) -> Emitted {
        match self.width {
            Width::Eight => self.code.vmovups(ymmword_ptr(to), YMM[from]),
            Width::Sixteen => self.code.vmovups(zmmword_ptr(to), ZMM[from]),
        }
    }

    /// Stores the first lane.
    pub(super) fn store_first(&mut self, to: AsmMemoryOperand, from: usize) -> Emitted {
        self.code.vmovss(dword_ptr(to), XMM[from])
    }

    /// One float of memory in all lanes.
    pub(super) fn broadcast(&mut self, to: usize, from: AsmMemoryOperand) -> Emitted {
        match self.width {
            Width::Eight => self.code.vbroadcastss(YMM[to], dword_ptr(from)),
            Width::Sixteen => self.code.vbroadcastss(ZMM[to], dword_ptr(from)),
        }
    }

    /// A number in all lanes, through `eax`.
    pub(super) fn fill(&mut self, to: usize, number: f32) -> Emitted {
        self.code.mov(eax, number.to_bits())?;
        match self.width {
            Width::Eight => {
                self.code.vmovd(XMM[to], eax)?;
                self.code.vpbroadcastd(YMM[to], XMM[to])
            }
            Width::Sixteen => self.code.vpbroadcastd(ZMM[to], eax),
        }
    }

    /// Zeros.
    pub(super) fn zero(&mut self, to: usize) -> Emitted {
        match self.width {
            Width::Eight => self.code.vxorps(YMM[to], YMM[to], YMM[to]),
            Width::Sixteen => self.code.vpxord(ZMM[to], ZMM[to], ZMM[to]),
        }
    }

    /// Integers e·8 + j in the lowest bits of the lanes, e an exponent with its bias and j less than 8,
    /// become 2ᵉ times the power of j in the table: what its mantissa has above j at `bit`.
    pub(super) fn power_of_eighths(
        &mut self,
        x: usize,
        scratch: usize,
        table: AsmMemoryOperand,
        bit: u32,
    ) -> Emitted {
        let code = &mut *self.code;
        let bit = bit as i32;
        match self.width {
            Width::Eight => {
                code.vpermps(YMM[scratch], YMM[x], ymmword_ptr(table))?;
                code.vpslld(YMM[x], YMM[x], bit)?;
                code.vpaddd(YMM[x], YMM[x], YMM[scratch])
            }
            Width::Sixteen => {
                code.vpermps(ZMM[scratch], ZMM[x], zmmword_ptr(table))?;
                code.vpslld(ZMM[x], ZMM[x], bit)?;
                code.vpaddd(ZMM[x], ZMM[x], ZMM[scratch])
            }
        }
    }

    /// Keeps the lanes of `x` where both masks in memory are ones and takes those of `other`
    /// elsewhere.
    pub(super) fn keep(
        &mut self,
        x: usize,
        masks: [AsmMemoryOperand; 2],
        other: usize,
        scratch: usize,
    ) -> Emitted {
        self.load(scratch, masks[0])?;
        match self.width {
            Width::Eight => {
                self.code.vandps(YMM[scratch], YMM[scratch], ymmword_ptr(masks[1]))?;
                self.code.vblendvps(YMM[x], YMM[other], YMM[x], YMM[scratch])
            }
            Width::Sixteen => {
                self.code.vpandd(ZMM[scratch], ZMM[scratch], zmmword_ptr(masks[1]))?;
                // Truth table of "mask ? x : other".
                self.code.vpternlogd(ZMM[x], ZMM[scratch], ZMM[other], 0xe2)
            }
        }
    }

    /// The nearest whole number, halves to even.
    pub(super) fn round(&mut self, to: usize, from: usize) -> Emitted {
        match self.width {
            Width::Eight => self.code.vroundps(YMM[to], YMM[from], 8),
            Width::Sixteen => self.code.vrndscaleps(ZMM[to], ZMM[from], 8),
        }
    }

    /// x · 2ⁿ, rounded once, for whole n in -252 ..= 127 and x in [½, 2]. Destroys n and `scratch`.
    /// `bias` is 127 in every lane.
    pub(super) fn scale_by_power(
        &mut self,
        x: usize,
        n: usize,
        scratch: usize,
        bias: AsmMemoryOperand,
    ) -> Emitted {
        let code = &mut *self.code;
        match self.width {
            Width::Sixteen => code.vscalefps(ZMM[x], ZMM[x], ZMM[n]),
            Width::Eight => {
                // In two halves, neither of which leaves the range of the exponent; the first
                // product is exact.
                let (x, n, half) = (YMM[x], YMM[n], YMM[scratch]);
                code.vcvtps2dq(n, n)?;
                code.vpsrad(half, n, 1)?;
                code.vpsubd(n, n, half)?;
                for part in [half, n] {
                    code.vpaddd(part, part, ymmword_ptr(bias))?;
                    code.vpslld(part, part, 23)?;
                    code.vmulps(x, x, part)?;
                }
                Ok(())
            }
        }
    }
}
