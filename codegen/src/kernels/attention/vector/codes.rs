//! Words for codes of 8 bits: their products, and packing them.

use iced_x86::code_asm::*;
use weir_abi::IsaLevel;

use super::{Emitted, Vectors, Width, YMM, ZMM};

/// How products of codes are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernels::attention) enum Dots {
    /// Two products of words at a time: a quad of codes takes two words of pairs, the codes 0 and 2
    /// first (AVX2).
    Pairs,
    /// Four products of bytes at a time (VNNI).
    Quads,
    /// The same, and of many queries in tiles (AMX).
    Tiles,
}

impl Dots {
    /// That of a level.
    pub(in crate::kernels::attention) fn of(level: IsaLevel) -> Dots {
        match level {
            IsaLevel::Portable | IsaLevel::Avx2 => Dots::Pairs,
            IsaLevel::AvxVnni | IsaLevel::Avx512 | IsaLevel::Avx512Pairs => Dots::Quads,
            IsaLevel::Amx => Dots::Tiles,
        }
    }

    /// Bytes of four codes on the left side of a product.
    pub(in crate::kernels::attention) fn quad_bytes(self) -> usize {
        match self {
            Dots::Pairs => 8,
            Dots::Quads | Dots::Tiles => 4,
        }
    }
}

impl Vectors<'_> {
    /// to + the four products of bytes of each lane, those of `plain` without sign.
    pub(in crate::kernels::attention) fn add_dots(
        &mut self,
        to: usize,
        plain: usize,
        signed: usize,
    ) -> Emitted {
        match self.width {
            Width::Eight => self.code.vpdpbusd(YMM[to], YMM[plain], YMM[signed]),
            Width::Sixteen => self.code.vpdpbusd(ZMM[to], ZMM[plain], ZMM[signed]),
        }
    }

    /// Bytes become words (AVX2): bytes 0 and 2 of each lane in place, 1 and 3 in `odd`; with their
    /// sign unless they are `plain`. One shift, for which there are two units. `even` is what
    /// [`prepare_words`](Self::prepare_words) made.
    pub(in crate::kernels::attention) fn words(
        &mut self,
        x: usize,
        odd: usize,
        plain: bool,
        even: usize,
    ) -> Emitted {
        let (x, odd, even) = (YMM[x], YMM[odd], YMM[even]);
        if plain {
            self.code.vpsrlw(odd, x, 8)?;
            return self.code.vpand(x, x, even);
        }
        self.code.vpsraw(odd, x, 8)?;
        // Once each byte 0 and 2, and nothing of the others.
        self.code.vpmaddubsw(x, even, x)
    }

    /// Makes ready for [`words`](Self::words).
    pub(in crate::kernels::attention) fn prepare_words(
        &mut self,
        plain: bool,
        even: usize,
    ) -> Emitted {
        let even = YMM[even];
        self.code.vpcmpeqd(even, even, even)?;
        self.code.vpsrlw(even, even, if plain { 8 } else { 15 })
    }

    /// Registers of codes that are packed together.
    pub(in crate::kernels::attention) fn packed(&self, dots: Dots) -> usize {
        match (self.width, dots) {
            (Width::Sixteen, _) => 1,
            (Width::Eight, Dots::Quads | Dots::Tiles) => 4,
            (Width::Eight, Dots::Pairs) => 2,
        }
    }

    /// Stores as many registers of codes as are [`packed`](Self::packed) together, from `first` on, as
    /// quads for products. Destroys them, and `scratch` on AVX2. `order` leads to the numbers of the
    /// words of four registers whose halves were packed side by side.
    pub(in crate::kernels::attention) fn pack(
        &mut self,
        dots: Dots,
        is_signed: bool,
        [first, scratch]: [usize; 2],
        to: AsmMemoryOperand,
        order: AsmMemoryOperand,
    ) -> Emitted {
        let code = &mut *self.code;
        if self.width == Width::Sixteen {
            return code.vpmovdb(xmmword_ptr(to), ZMM[first]);
        }
        let x = &YMM[first..];
        code.vpackssdw(x[0], x[0], x[1])?;
        match dots {
            Dots::Pairs => {
                // Words 0 and 2 of each quad, then 1 and 3; halves of both registers in order.
                code.vpshuflw(x[0], x[0], 0b11_01_10_00)?;
                code.vpshufhw(x[0], x[0], 0b11_01_10_00)?;
                code.vpermq(x[0], x[0], 0b11_01_10_00)?;
            }
            Dots::Quads | Dots::Tiles => {
                code.vpackssdw(x[2], x[2], x[3])?;
                if is_signed {
                    code.vpacksswb(x[0], x[0], x[2])?;
                } else {
                    code.vpackuswb(x[0], x[0], x[2])?;
                }
                code.vmovdqu(YMM[scratch], ymmword_ptr(order))?;
                code.vpermd(x[0], YMM[scratch], x[0])?;
            }
        }
        code.vmovdqu(ymmword_ptr(to), x[0])
    }
}
