//! The matrix product in 256-bit vectors: AVX2 and FMA, and the same with AVX-VNNI's products.
//!
//! A group of sixteen channels is two registers ("halves"). A tile's outputs are accumulated in the
//! first registers, by row, group and half; [`float`] and [`integer`] say how, and what the rest of
//! the sixteen registers holds.

mod float;
mod integer;
mod panel;

use std::cell::RefCell;
use std::ops::Range;

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::MatmulSpec;
use super::assembled::{
    COUNT, Plan, TILE_BIAS, TILE_OUTPUT, TILE_RESIDUAL, TILE_WEIGHTS, TileShape, Version, WEIGHTS,
    assemble,
};
use crate::emit::{Assembly, EmitError, FuncId};
use crate::pack::{Blocks, GROUP, ScaleType, WeightFormat, ZeroPoint};

const YMM: [AsmRegisterYmm; 16] = [
    ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11, ymm12, ymm13, ymm14,
    ymm15,
];
/// Bytes of a register.
const REGISTER: usize = 32;
/// Channels of a register.
const HALF: usize = GROUP / 2;

/// How four codes are multiplied with four activations and added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Products {
    /// In pairs of 16 bits (`vpmaddubsw`).
    Pairs,
    /// By one instruction: `vpdpbusd` of AVX-VNNI.
    Vnni,
}

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    spec: &MatmulSpec,
    products: Products,
) -> Result<(), EmitError> {
    assembly.assemble(id, |code| {
        let mut label = || RefCell::new(code.create_label());
        let version = Avx2 {
            spec,
            products,
            mask: label(),
            ones: label(),
            sign_bits: label(),
            tail: label(),
            zero_point: label(),
        };
        assemble(code, spec, &version)
    })
}

struct Avx2<'a> {
    spec: &'a MatmulSpec,
    products: Products,
    /// The constant that [`Avx2::mask`] names, eight times.
    mask: RefCell<CodeLabel>,
    /// Sixteen 16-bit ones.
    ones: RefCell<CodeLabel>,
    /// 0x80 in every byte.
    sign_bits: RefCell<CodeLabel>,
    /// Sixteen 32-bit masks: the channels of the last group.
    tail: RefCell<CodeLabel>,
    /// The implied zero point in eight lanes.
    zero_point: RefCell<CodeLabel>,
}

/// A register of outputs: which row, group and half.
#[derive(Clone, Copy)]
struct Place {
    row: usize,
    group: usize,
    half: usize,
}

impl Version for Avx2<'_> {
    fn plans(&self) -> Vec<Plan> {
        if self.spec.compute.is_integer() {
            return vec![
                Plan { from_rows: panel::FROM_ROWS, rows: &[], groups: &[1] },
                Plan { from_rows: 1, rows: &[6, 4, 2, 1], groups: &[1] },
            ];
        }
        let single: &[usize] = match self.spec.layout.format {
            // These wait for their sums, of which two groups have more; floats for memory, which gives
            // one stream fastest.
            WeightFormat::Int4(_) | WeightFormat::Int8(_) => &[2, 1],
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 => &[1],
        };
        vec![
            Plan { from_rows: 2, rows: &[6, 4, 2, 1], groups: &[1] },
            Plan { from_rows: 1, rows: &[1], groups: single },
        ]
    }

    fn scratch_bytes(&self) -> usize {
        if self.spec.compute.is_integer() { panel::SCRATCH_BYTES } else { float::SCRATCH_BYTES }
    }

    fn prepare(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.vmovups(ymm15, ymmword_ptr(*self.mask.borrow()))
    }

    fn tile(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        if self.spec.compute.is_integer() {
            self.integer_tile(code, shape)
        } else {
            self.float_tile(code, shape)
        }
    }

    fn panel(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        self.integer_panel(code, shape)
    }

    fn data(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.set_label(&mut self.mask.borrow_mut())?;
        for _ in 0..HALF {
            code.db(&self.mask().to_le_bytes())?;
        }
        code.set_label(&mut self.ones.borrow_mut())?;
        for _ in 0..2 * HALF {
            code.db(&1u16.to_le_bytes())?;
        }
        code.set_label(&mut self.sign_bits.borrow_mut())?;
        code.db(&[0x80; 16])?;
        code.db(&[0x80; 16])?;
        code.set_label(&mut self.tail.borrow_mut())?;
        for channel in 0..GROUP {
            let mask = if channel < self.spec.tail() { u32::MAX } else { 0 };
            code.db(&mask.to_le_bytes())?;
        }
        code.set_label(&mut self.zero_point.borrow_mut())?;
        for _ in 0..HALF {
            code.db(&self.spec.layout.format.implied_zero().to_le_bytes())?;
        }
        Ok(())
    }
}

/// Output registers of a tile in order: by row, group, half.
fn places(shape: TileShape, halves: Range<usize>) -> Vec<Place> {
    let mut places = Vec::new();
    for row in 0..shape.rows {
        for group in 0..shape.groups {
            places.extend(halves.clone().map(|half| Place { row, group, half }));
        }
    }
    places
}

impl Avx2<'_> {
    /// The lane that ymm15 repeats during the whole call: what the format is taken apart with.
    fn mask(&self) -> u32 {
        match (self.spec.layout.format, self.spec.compute.is_integer()) {
            (WeightFormat::Int4(_), true) => 0x0f0f_0f0f,
            (WeightFormat::Int8(_), true) => 0x0001_0001,
            (WeightFormat::Int4(_), _) => 0xf,
            (WeightFormat::Int8(_), _) => 0xff,
            (WeightFormat::Bf16, _) => 0xffff_0000,
            (WeightFormat::F16 | WeightFormat::F32, _) => 0,
        }
    }

    /// Offset of a half's 32 bytes in row `row` of the codes or values of a group.
    fn weight_offset(&self, place: Place, row: usize) -> usize {
        place.group * self.spec.layout.group_bytes() + row * GROUP * 4 + place.half * REGISTER
    }

    /// Loads scales and zero points of the current block for one half of a group.
    fn block_parameters(
        &self,
        code: &mut CodeAssembler,
        blocks: Blocks,
        place: Place,
        scale: AsmRegisterYmm,
        zero: AsmRegisterYmm,
    ) -> Result<(), IcedError> {
        let group = place.group * self.spec.layout.group_bytes();
        let at = group + place.half * HALF * blocks.scale.bytes();
        match blocks.scale {
            ScaleType::F32 => code.vmovups(scale, ymmword_ptr(WEIGHTS + at))?,
            ScaleType::F16 => code.vcvtph2ps(scale, xmmword_ptr(WEIGHTS + at))?,
            ScaleType::Short => {
                code.vpmovsxbd(scale, qword_ptr(WEIGHTS + at))?;
                code.vcvtdq2ps(scale, scale)?;
                let units = group + self.spec.layout.units_offset() + place.half * REGISTER;
                code.vmulps(scale, scale, ymmword_ptr(TILE_WEIGHTS + units))?;
            }
        }
        let at = group + self.spec.layout.zeros_offset() + place.half * HALF * blocks.zero.bytes();
        match blocks.zero {
            ZeroPoint::Implied => code.vmovups(zero, ymmword_ptr(*self.zero_point.borrow())),
            ZeroPoint::Float => code.vmovups(zero, ymmword_ptr(WEIGHTS + at)),
            ZeroPoint::Code => {
                code.vpmovzxbd(zero, qword_ptr(WEIGHTS + at))?;
                code.vcvtdq2ps(zero, zero)
            }
        }
    }

    /// Bias, residual, and the outputs of a tile, whose sums are the first registers.
    fn store(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        places: &[Place],
    ) -> Result<(), IcedError> {
        let (mask, residual) = (ymm14, ymm13);
        for (sum, place) in YMM.iter().zip(places) {
            let channel = (place.group * GROUP + place.half * HALF) * 4;
            let offset = place.row * self.spec.output_stride * 4 + channel;
            if self.spec.bias {
                code.vaddps(*sum, *sum, ymmword_ptr(TILE_BIAS + channel))?;
            }
            if !shape.is_part {
                if self.spec.residual {
                    code.vaddps(*sum, *sum, ymmword_ptr(TILE_RESIDUAL + offset))?;
                }
                code.vmovups(ymmword_ptr(TILE_OUTPUT + offset), *sum)?;
                continue;
            }
            code.lea(COUNT, ptr(*self.tail.borrow()))?;
            code.vmovups(mask, ymmword_ptr(COUNT + place.half * REGISTER))?;
            if self.spec.residual {
                code.vmaskmovps(residual, mask, ymmword_ptr(TILE_RESIDUAL + offset))?;
                code.vaddps(*sum, *sum, residual)?;
            }
            code.vmaskmovps(ymmword_ptr(TILE_OUTPUT + offset), mask, *sum)?;
        }
        Ok(())
    }
}
