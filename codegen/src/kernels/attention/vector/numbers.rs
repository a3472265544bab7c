//! Words that load the numbers of a cache and widen them.

use iced_x86::code_asm::*;

use super::{Emitted, Vectors, Width, XMM, YMM, ZMM};
use crate::kernels::attention::cache::CacheType;

impl Vectors<'_> {
    /// Loads a register's worth of numbers of a cache, widened. Codes are floats already.
    pub(in crate::kernels::attention) fn load_as(
        &mut self,
        number: CacheType,
        to: usize,
        from: AsmMemoryOperand,
    ) -> Emitted {
        match (number, self.width) {
            (CacheType::F32 | CacheType::Int8 | CacheType::Int4, _) => self.load(to, from),
            (CacheType::F16, Width::Eight) => self.code.vcvtph2ps(YMM[to], xmmword_ptr(from)),
            (CacheType::F16, Width::Sixteen) => self.code.vcvtph2ps(ZMM[to], ymmword_ptr(from)),
            (CacheType::Bf16, width) => {
                match width {
                    Width::Eight => self.code.vpmovzxwd(YMM[to], xmmword_ptr(from))?,
                    Width::Sixteen => self.code.vpmovzxwd(ZMM[to], ymmword_ptr(from))?,
                }
                self.upper_halves(to)
            }
        }
    }

    /// Makes ready for [`load_part`](Self::load_part): `mask` holds as many ones as there are lanes
    /// to load, then zeros. AVX2 keeps it in register 15, AVX-512 in k1.
    pub(in crate::kernels::attention) fn prepare_part(
        &mut self,
        lanes: usize,
        mask: AsmMemoryOperand,
    ) -> Emitted {
        match self.width {
            Width::Eight => self.code.vmovups(ymm15, ymmword_ptr(mask)),
            Width::Sixteen => {
                self.code.mov(eax, (1 << lanes) - 1)?;
                self.code.kmovw(k1, eax)
            }
        }
    }

    /// Loads the first `lanes` numbers of a cache, touching nothing behind them; zeros in the others.
    pub(in crate::kernels::attention) fn load_part(
        &mut self,
        number: CacheType,
        lanes: usize,
        to: usize,
        from: AsmMemoryOperand,
    ) -> Emitted {
        match (number, self.width) {
            (CacheType::F32 | CacheType::Int8 | CacheType::Int4, Width::Eight) => {
                self.code.vmaskmovps(YMM[to], ymm15, ymmword_ptr(from))
            }
            (CacheType::F32 | CacheType::Int8 | CacheType::Int4, Width::Sixteen) => {
                self.code.vmovups(ZMM[to].k1().z(), zmmword_ptr(from))
            }
            (CacheType::F16, Width::Sixteen) => {
                self.code.vcvtph2ps(ZMM[to].k1().z(), ymmword_ptr(from))
            }
            (CacheType::Bf16, Width::Sixteen) => {
                self.code.vpmovzxwd(ZMM[to].k1().z(), ymmword_ptr(from))?;
                self.upper_halves(to)
            }
            (_, Width::Eight) => {
                // No mask goes by words here: by eight, four and two bytes.
                let x = XMM[to];
                let start = lanes & 4;
                if start == 4 {
                    self.code.vmovq(x, qword_ptr(from))?;
                } else if lanes & 2 == 2 {
                    self.code.vmovd(x, dword_ptr(from))?;
                } else {
                    self.code.vpxor(x, x, x)?;
                }
                if start == 4 && lanes & 2 == 2 {
                    self.code.vpinsrd(x, x, dword_ptr(from + 8), 2)?;
                }
                if lanes & 1 == 1 {
                    let last = lanes - 1;
                    self.code.vpinsrw(x, x, word_ptr(from + 2 * last), last as i32)?;
                }
                self.widen(number, to)
            }
        }
    }

    /// Words in the lower halves of the lanes become the upper ones.
    fn upper_halves(&mut self, x: usize) -> Emitted {
        match self.width {
            Width::Eight => self.code.vpslld(YMM[x], YMM[x], 16),
            Width::Sixteen => self.code.vpslld(ZMM[x], ZMM[x], 16),
        }
    }

    /// The words in the lower half of a register, one of the first sixteen, widened in place.
    fn widen(&mut self, number: CacheType, x: usize) -> Emitted {
        match (number, self.width) {
            (CacheType::F32 | CacheType::Int8 | CacheType::Int4, _) => Ok(()),
            (CacheType::F16, Width::Eight) => self.code.vcvtph2ps(YMM[x], XMM[x]),
            (CacheType::F16, Width::Sixteen) => self.code.vcvtph2ps(ZMM[x], YMM[x]),
            (CacheType::Bf16, width) => {
                match width {
                    Width::Eight => self.code.vpmovzxwd(YMM[x], XMM[x])?,
                    Width::Sixteen => self.code.vpmovzxwd(ZMM[x], YMM[x])?,
                }
                self.upper_halves(x)
            }
        }
    }
}
