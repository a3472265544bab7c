//! Integer arithmetic in 256-bit vectors: exact sums of codes times activations, scaled per block.
//!
//! * int4 in pairs: unsigned nibbles times signed bytes by `vpmaddubsw`; eight such pairs stay below
//!   2¹⁵ (8 · 2 · 15 · 120 = 28,800), so 32 elements are summed in 16 bits and widened once.
//! * int8 in pairs: a pair 2 · 255 · 120 would not fit, but with s = code − 128 the pair
//!   |s| · (± a) is at most 2 · 128 · 120 = 30,720. It is widened at once. The sum is that of
//!   (code − 128) · a.
//! * AVX-VNNI: `vpdpbusd` adds four products of either format in 32 bits.
//!
//! A tile of several rows computes one half of a group after the other: up to 6 float sums, 6 integer
//! sums, 2 registers of codes, 1 of activations, and a mask. Many rows are a [`super::panel`].

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{Avx2, Place, Products, REGISTER, YMM, places};
use crate::kernels::matmul::assembled::{
    self, COUNT, FURTHER_ON, INPUT, SCRATCH, TILE_INPUT, TILE_WEIGHTS, TileShape, WEIGHTS,
};
use crate::kernels::matmul::{Activation, MINUS_SUM};
use crate::pack::{Blocks, GROUP, WeightFormat, ZeroPoint};

/// Most registers of integer sums.
const LARGEST: usize = 12;
/// Integer sums of blocks that are widened more than once.
pub(super) const SCRATCH_BYTES: usize = LARGEST * REGISTER;
/// Elements whose products with nibbles are summed in 16 bits.
pub(super) const CHUNK: usize = 32;

/// How far ahead of their use codes are asked for, in bytes; for more rows as
/// [`assembled::ahead`].
///
/// Blocks of codes keep the processor from looking far enough ahead by itself. On Zen 3 one or two
/// rows read int4 at 0.84 (two threads) and 0.79 (one) of the read rate with 512 bytes, at 0.92 and
/// 0.90 with 1,536 or 3,072, and at 0.90 and 0.85 with 2,048 (in the middle of 101 rounds by turns).
/// f32 and bf16, a plain stream, lose a tenth by it and stay at 512. AVX-VNNI shares the number
/// without a measurement.
pub(super) const fn ahead(rows: usize) -> usize {
    match rows {
        0..=2 => 3072,
        _ => assembled::ahead(rows),
    }
}

/// A register of codes, which meet the activations that begin at element `first` of a block.
#[derive(Clone, Copy)]
pub(super) struct Codes {
    pub(super) unsigned: AsmRegisterYmm,
    /// Signs that the products take over.
    pub(super) signs: Option<AsmRegisterYmm>,
    pub(super) first: usize,
}

/// What one activation block is, and where it lies from [`INPUT`] and [`WEIGHTS`].
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// Elements.
    pub(super) block: usize,
    pub(super) input: usize,
    pub(super) first_unit: usize,
}

fn wide_at(index: usize) -> AsmMemoryOperand {
    ymmword_ptr(SCRATCH + index * REGISTER)
}

impl Avx2<'_> {
    pub(super) fn integer_tile(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
    ) -> Result<(), IcedError> {
        let halves_at_once = if shape.rows <= 2 { 2 } else { 1 };
        for first in (0..2).step_by(halves_at_once) {
            let places = places(shape, first..first + halves_at_once);
            if first > 0 {
                code.mov(INPUT, TILE_INPUT)?;
                code.mov(WEIGHTS, TILE_WEIGHTS)?;
            }
            self.integer_sums(code, &places)?;
            self.store(code, shape, &places)?;
        }
        Ok(())
    }

    pub(super) fn is_pairs_of_nibbles(&self) -> bool {
        self.products == Products::Pairs && !self.is_pairs_of_bytes()
    }

    pub(super) fn is_pairs_of_bytes(&self) -> bool {
        self.products == Products::Pairs && matches!(self.spec.layout.format, WeightFormat::Int8(_))
    }

    /// Sums of the places, in the first registers.
    fn integer_sums(&self, code: &mut CodeAssembler, places: &[Place]) -> Result<(), IcedError> {
        let layout = self.spec.layout;
        let (Some(blocks), Some(Activation::Int8 { block, .. })) =
            (layout.format.blocks(), self.spec.activation())
        else {
            return Ok(());
        };
        let (sums, rest) = YMM.split_at(places.len());
        let wholes = &rest[..places.len()];
        for sum in sums {
            code.vxorps(*sum, *sum, *sum)?;
        }
        let units = block / self.unit_elements();
        let mut again = code.create_label();
        code.mov(COUNT, layout.block_count() as i64)?;
        code.set_label(&mut again)?;
        for part in 0..blocks.block / block {
            let part =
                Part { block, input: part * self.spec.record_bytes(), first_unit: part * units };
            self.exact_sums(code, blocks, part, places, wholes)?;
            self.scale(code, blocks, part, places, wholes)?;
        }
        code.add(INPUT, (blocks.block / block * self.spec.record_bytes()) as i32)?;
        code.add(WEIGHTS, layout.block_bytes() as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)
    }

    pub(super) fn unit_elements(&self) -> usize {
        crate::kernels::matmul::decode::unit_elements(self.spec.layout.format)
    }

    /// Σ (code − offset) · a of a part in every register of `wholes`, as integers; the offset is 128
    /// for pairs of bytes, the implied zero point for AVX-VNNI, and else 0.
    fn exact_sums(
        &self,
        code: &mut CodeAssembler,
        blocks: Blocks,
        part: Part,
        places: &[Place],
        wholes: &[AsmRegisterYmm],
    ) -> Result<(), IcedError> {
        let (free, activation) = ([ymm12, ymm13], ymm14);
        let halves: Vec<Place> = places.iter().filter(|place| place.row == 0).copied().collect();
        if !self.is_pairs_of_nibbles() {
            let from_zero_point =
                self.products != Products::Pairs && blocks.zero == ZeroPoint::Implied;
            for (whole, place) in wholes.iter().zip(places) {
                if from_zero_point {
                    code.vpbroadcastd(*whole, self.minus_code_sum(part, *place))?;
                    if !self.spec.is_anchored() {
                        code.vpslld(*whole, *whole, self.implied_zero_shift())?;
                    }
                } else {
                    code.vpxor(*whole, *whole, *whole)?;
                }
            }
        }
        let ahead = ahead(places.iter().map(|place| place.row + 1).max().unwrap_or(1));
        let units: Vec<usize> = (0..part.block / self.unit_elements()).collect();
        let of_chunk = if self.is_pairs_of_nibbles() { CHUNK / 8 } else { units.len() };
        for (chunk_index, chunk) in units.chunks(of_chunk).enumerate() {
            for unit in chunk {
                for (half_index, half) in halves.iter().enumerate() {
                    let at = self.spec.layout.codes_offset()
                        + self.weight_offset(*half, part.first_unit + unit);
                    if half.half == 0 {
                        code.prefetcht0(byte_ptr(WEIGHTS + FURTHER_ON + (at + ahead)))?;
                    }
                    for codes in self.load_codes(code, at, *unit, free)? {
                        let of_half =
                            wholes.iter().zip(places).skip(half_index).step_by(halves.len());
                        for (whole, place) in of_half {
                            let row = place.row * self.spec.input_row_bytes() + part.input;
                            code.vpbroadcastd(activation, dword_ptr(INPUT + (row + codes.first)))?;
                            let is_first = *unit == chunk[0] && codes.first % 8 == 0;
                            let product = activation;
                            self.add_products(code, *whole, codes, activation, product, is_first)?;
                        }
                    }
                }
            }
            if self.is_pairs_of_nibbles() {
                let is_last = (chunk_index + 1) * of_chunk >= units.len();
                self.widen_pairs(code, wholes, chunk_index == 0, is_last)?;
            }
        }
        Ok(())
    }

    /// Address of −Σ a of a part; where sums begin as floats, of what they begin with.
    fn minus_code_sum(&self, part: Part, place: Place) -> AsmMemoryOperand {
        let row = place.row * self.spec.input_row_bytes();
        dword_ptr(INPUT + (row + part.input + part.block + MINUS_SUM))
    }

    /// The implied zero point is two to this.
    pub(super) fn implied_zero_shift(&self) -> i32 {
        if matches!(self.spec.layout.format, WeightFormat::Int4(_)) { 3 } else { 7 }
    }

    /// Loads one unit of half a group's codes.
    pub(super) fn load_codes(
        &self,
        code: &mut CodeAssembler,
        at: usize,
        unit: usize,
        [one, two]: [AsmRegisterYmm; 2],
    ) -> Result<Vec<Codes>, IcedError> {
        let packed = ymmword_ptr(WEIGHTS + at);
        let plain = |unsigned, first| Codes { unsigned, signs: None, first };
        if matches!(self.spec.layout.format, WeightFormat::Int4(_)) {
            let nibbles = ymm15;
            code.vmovdqu(two, packed)?;
            code.vpand(one, two, nibbles)?;
            code.vpsrld(two, two, 4)?;
            code.vpand(two, two, nibbles)?;
            return Ok(vec![plain(one, unit * 8), plain(two, unit * 8 + 4)]);
        }
        code.vmovdqu(one, packed)?;
        if self.products != Products::Pairs {
            return Ok(vec![plain(one, unit * 4)]);
        }
        code.vpxor(two, one, ymmword_ptr(*self.sign_bits.borrow()))?;
        code.vpabsb(one, two)?;
        Ok(vec![Codes { unsigned: one, signs: Some(two), first: unit * 4 }])
    }

    /// Adds four products to every lane. `is_first`: the first of a 16-bit sum. Spoils `product`.
    pub(super) fn add_products(
        &self,
        code: &mut CodeAssembler,
        whole: AsmRegisterYmm,
        codes: Codes,
        activation: AsmRegisterYmm,
        product: AsmRegisterYmm,
        is_first: bool,
    ) -> Result<(), IcedError> {
        match (self.products, codes.signs) {
            (Products::Vnni, _) => code.vpdpbusd(whole, codes.unsigned, activation),
            (Products::Pairs, None) if is_first => {
                code.vpmaddubsw(whole, codes.unsigned, activation)
            }
            (Products::Pairs, None) => {
                code.vpmaddubsw(product, codes.unsigned, activation)?;
                code.vpaddw(whole, whole, product)
            }
            (Products::Pairs, Some(signs)) => {
                let ones = ymm15;
                code.vpsignb(product, activation, signs)?;
                code.vpmaddubsw(product, codes.unsigned, product)?;
                code.vpmaddwd(product, product, ones)?;
                code.vpaddd(whole, whole, product)
            }
        }
    }

    /// Sums of neighbouring 16-bit lanes in 32 bits, added to those of the chunks before.
    pub(super) fn widen_pairs(
        &self,
        code: &mut CodeAssembler,
        wholes: &[AsmRegisterYmm],
        is_first: bool,
        is_last: bool,
    ) -> Result<(), IcedError> {
        let ones = ymm12;
        code.vmovups(ones, ymmword_ptr(*self.ones.borrow()))?;
        for (index, whole) in wholes.iter().enumerate() {
            code.vpmaddwd(*whole, *whole, ones)?;
            if !is_first {
                code.vpaddd(*whole, *whole, wide_at(index))?;
            }
            if !is_last {
                code.vmovdqu(wide_at(index), *whole)?;
            }
        }
        Ok(())
    }

    /// `sum = fma(t, weight_scale · activation_scale, sum)`, t the part's sum about the zero point; sums
    /// that begin as floats are t · activation_scale less their anchor.
    fn scale(
        &self,
        code: &mut CodeAssembler,
        blocks: Blocks,
        part: Part,
        places: &[Place],
        wholes: &[AsmRegisterYmm],
    ) -> Result<(), IcedError> {
        let (scale, zero, free) = (ymm12, ymm13, ymm14);
        let halves = places.iter().filter(|place| place.row == 0).count();
        for half_index in 0..halves {
            self.block_parameters(code, blocks, places[half_index], scale, zero)?;
            if self.is_pairs_of_bytes() && blocks.zero == ZeroPoint::Code {
                // 128 is out of the sums already. Whole numbers, so exact.
                code.vsubps(zero, zero, ymmword_ptr(*self.zero_point.borrow()))?;
            }
            let of_half = places.iter().enumerate().skip(half_index).step_by(halves);
            for (index, place) in of_half {
                let whole = wholes[index];
                let minus_sum = self.minus_code_sum(part, *place);
                let row = place.row * self.spec.input_row_bytes() + part.input;
                let of_row = dword_ptr(INPUT + (row + part.block));
                if self.spec.is_anchored() {
                    if self.is_pairs_of_nibbles() {
                        code.vpbroadcastd(free, minus_sum)?;
                        code.vpaddd(whole, whole, free)?;
                    }
                    code.vbroadcastss(free, of_row)?;
                    code.vsubps(whole, whole, free)?;
                    code.vfmadd231ps(YMM[index], whole, scale)?;
                    continue;
                }
                match blocks.zero {
                    ZeroPoint::Implied if self.is_pairs_of_nibbles() => {
                        code.vpbroadcastd(free, minus_sum)?;
                        code.vpslld(free, free, self.implied_zero_shift())?;
                        code.vpaddd(whole, whole, free)?;
                        code.vcvtdq2ps(whole, whole)?;
                    }
                    ZeroPoint::Implied => code.vcvtdq2ps(whole, whole)?,
                    ZeroPoint::Code | ZeroPoint::Float => {
                        code.vpbroadcastd(free, minus_sum)?;
                        if self.is_pairs_of_bytes() && blocks.zero == ZeroPoint::Float {
                            // The rounded term is that of the codes themselves.
                            code.vpslld(free, free, self.implied_zero_shift())?;
                            code.vpsubd(whole, whole, free)?;
                            code.vpbroadcastd(free, minus_sum)?;
                        }
                        code.vcvtdq2ps(free, free)?;
                        code.vcvtdq2ps(whole, whole)?;
                        code.vfmadd231ps(whole, zero, free)?;
                    }
                }
                code.vbroadcastss(free, of_row)?;
                code.vmulps(free, free, scale)?;
                code.vfmadd231ps(YMM[index], whole, free)?;
            }
        }
        Ok(())
    }
}

/// Rows of codes have the length that [`Avx2::weight_offset`] takes them to have.
const _: () = assert!(GROUP * 4 == 2 * REGISTER);
