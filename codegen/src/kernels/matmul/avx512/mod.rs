//! The matrix product in 512-bit vectors: AVX-512 with VNNI.
//!
//! A group of sixteen channels is one register. A tile's outputs are accumulated in the first
//! registers, by row and group; [`float`] and [`integer`] say how, and what the rest holds. Many rows of
//! codes are a [`grid`], or where bytes are added in units of their own a [`panel`].

mod float;
mod grid;
mod halves;
mod integer;
mod paired;
mod panel;

use std::cell::RefCell;

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::assembled::{
    PORTION, Plan, Portion, TILE_BIAS, TILE_OUTPUT, TILE_RESIDUAL, TILE_WEIGHTS, TileShape,
    Version, WEIGHTS, assemble,
};
use super::{Activation, MatmulSpec};
use crate::emit::{Assembly, EmitError, FuncId};
use crate::pack::{Blocks, GROUP, ScaleType, WeightFormat, ZeroPoint};

pub(super) const ZMM: [AsmRegisterZmm; 32] = [
    zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm8, zmm9, zmm10, zmm11, zmm12, zmm13, zmm14,
    zmm15, zmm16, zmm17, zmm18, zmm19, zmm20, zmm21, zmm22, zmm23, zmm24, zmm25, zmm26, zmm27,
    zmm28, zmm29, zmm30, zmm31,
];
/// What codes and halves are taken apart with; sums in pairs borrow it while they need no codes.
pub(super) const MASK: AsmRegisterZmm = zmm31;
/// Lanes of the last group.
const TAIL: AsmRegisterK = k1;

/// How integer products of many rows are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ManyRows {
    /// As they are: [`grid`].
    Single,
    /// Those of int4 in pairs: [`paired`].
    Paired,
}

/// How rows are divided.
pub(super) fn portion(spec: &MatmulSpec, many: ManyRows) -> Portion {
    match (spec.activation(), many) {
        (Some(Activation::Int8 { .. }), ManyRows::Single) => grid::ROWS,
        (Some(Activation::Int8 { block, .. }), ManyRows::Paired) => match spec.layout.format {
            WeightFormat::Int4(_) => panel::portion(block),
            _ => Portion { bytes: 512 << 10, step: 16, ..PORTION },
        },
        _ => PORTION,
    }
}

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    spec: &MatmulSpec,
    many: ManyRows,
) -> Result<(), EmitError> {
    assembly.assemble(id, |code| {
        let version = Avx512::new(code, spec, many);
        assemble(code, spec, &version)
    })
}

pub(super) struct Avx512<'a> {
    spec: &'a MatmulSpec,
    many: ManyRows,
    /// Where the channels stand in sums of f16 weights.
    order: RefCell<CodeLabel>,
    /// The lane that [`MASK`] repeats.
    mask: RefCell<CodeLabel>,
    /// [`paired::CENTRES`].
    centres: [RefCell<CodeLabel>; 2],
}

impl Version for Avx512<'_> {
    fn plans(&self) -> Vec<Plan> {
        let mut plans = self.tile_plans();
        let Some(Activation::Int8 { block, .. }) = self.spec.activation() else {
            return plans;
        };
        let many = match self.many {
            ManyRows::Single => {
                vec![Plan { from_rows: grid::FROM_ROWS, rows: &[], groups: &grid::GROUPS }]
            }
            ManyRows::Paired if self.is_int4() => panel::plans(block),
            ManyRows::Paired => Vec::new(),
        };
        plans.splice(0..0, many);
        plans
    }

    fn portion(&self) -> Portion {
        portion(self.spec, self.many)
    }

    fn scratch_bytes(&self) -> usize {
        match (self.spec.compute.is_integer(), self.many) {
            (false, _) => float::SCRATCH_BYTES,
            (true, ManyRows::Single) => grid::SCRATCH_BYTES,
            (true, ManyRows::Paired) => panel::SCRATCH_BYTES,
        }
    }

    fn panel(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        match self.many {
            ManyRows::Single => self.grid(code, shape),
            ManyRows::Paired => self.integer_panel(code, shape),
        }
    }

    fn prepare(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        if self.spec.tail() > 0 {
            code.mov(r11d, (1i32 << self.spec.tail()) - 1)?;
            code.kmovw(TAIL, r11d)?;
        }
        self.load_mask(code)
    }

    fn tile(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        if self.spec.compute.is_integer() {
            self.integer_sums(code, shape)?;
        } else if self.spec.in_bf16 {
            self.pair_sums(code, shape)?;
        } else {
            self.float_sums(code, shape)?;
        }
        self.store(code, shape)
    }

    fn data(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.set_label(&mut self.order.borrow_mut())?;
        for pair in [0u32, 2, 4, 6, 1, 3, 5, 7] {
            code.db(&(2 * pair).to_le_bytes())?;
            code.db(&(2 * pair + 1).to_le_bytes())?;
        }
        let labels = [&self.mask].into_iter().chain(&self.centres);
        let [first, second] = paired::CENTRES;
        for (label, lane) in labels.zip([self.mask_lane(), first, second]) {
            code.set_label(&mut label.borrow_mut())?;
            code.dd(&[lane])?;
        }
        Ok(())
    }
}

impl<'a> Avx512<'a> {
    fn tile_plans(&self) -> Vec<Plan> {
        match (self.spec.layout.format, self.spec.compute.is_integer()) {
            // One group at a time keeps the weights one stream, which memory gives fastest.
            (_, true) if self.many == ManyRows::Single || self.is_int4() => {
                vec![Plan { from_rows: 1, rows: &[4, 2, 1], groups: &[1] }]
            }
            (_, true) if self.integer_rows() == 16 => {
                vec![Plan { from_rows: 1, rows: &[16, 8, 4, 2, 1], groups: &[1] }]
            }
            (_, true) => {
                vec![Plan { from_rows: 1, rows: &[8, 4, 2, 1], groups: &[1] }]
            }
            (WeightFormat::F32, _) => {
                vec![
                    Plan { from_rows: 2, rows: &[6, 4, 2, 1], groups: &[4, 2, 1] },
                    Plan { from_rows: 1, rows: &[1], groups: &[1] },
                ]
            }
            _ if self.spec.in_bf16 => halves::plans(),
            (WeightFormat::F16 | WeightFormat::Bf16, _) => vec![
                Plan { from_rows: 6, rows: &[12, 6, 4, 2, 1], groups: &[2, 1] },
                Plan { from_rows: 2, rows: &[4, 2, 1], groups: &[4, 2, 1] },
                Plan { from_rows: 1, rows: &[1], groups: &[1] },
            ],
            // The more rows share a weight, the less it costs to take it apart.
            _ => vec![
                Plan { from_rows: 6, rows: &[12, 6, 4, 2, 1], groups: &[2, 1] },
                Plan { from_rows: 1, rows: &[4, 2, 1], groups: &[4, 2, 1] },
            ],
        }
    }

    pub(super) fn new(code: &mut CodeAssembler, spec: &'a MatmulSpec, many: ManyRows) -> Self {
        let [order, mask, first, second] = [(); 4].map(|()| RefCell::new(code.create_label()));
        Self { spec, many, order, mask, centres: [first, second] }
    }

    /// Fills [`MASK`].
    fn load_mask(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.vpbroadcastd(MASK, dword_ptr(*self.mask.borrow()))
    }

    /// See [`Avx512::mask`].
    fn mask_lane(&self) -> u32 {
        match (self.spec.layout.format, self.spec.compute.is_integer()) {
            (WeightFormat::Int4(_), true) => 0x0f0f_0f0f,
            (WeightFormat::Int4(_), _) => 0xf,
            (WeightFormat::Int8(_), _) => 0xff,
            (WeightFormat::Bf16, _) => 0xffff_0000,
            (WeightFormat::F16 | WeightFormat::F32, _) => 0,
        }
    }

    fn sum(&self, shape: TileShape, row: usize, group: usize) -> AsmRegisterZmm {
        ZMM[row * shape.groups + group]
    }

    /// Offset of unit `unit` of a group's codes or values.
    fn weight_offset(&self, group: usize, unit: usize) -> usize {
        group * self.spec.layout.group_bytes() + unit * GROUP * 4
    }

    /// Loads scales and zero points of the current block for a group.
    pub(super) fn block_parameters(
        &self,
        code: &mut CodeAssembler,
        blocks: Blocks,
        group: usize,
        scale: AsmRegisterZmm,
        zero: AsmRegisterZmm,
    ) -> Result<(), IcedError> {
        self.block_scales(code, blocks, group, scale)?;
        let at = group * self.spec.layout.group_bytes() + self.spec.layout.zeros_offset();
        match blocks.zero {
            ZeroPoint::Implied => Ok(()),
            ZeroPoint::Float => code.vmovups(zero, zmmword_ptr(WEIGHTS + at)),
            ZeroPoint::Code => {
                code.vpmovzxbd(zero, xmmword_ptr(WEIGHTS + at))?;
                code.vcvtdq2ps(zero, zero)
            }
        }
    }

    /// Loads the scales alone.
    fn block_scales(
        &self,
        code: &mut CodeAssembler,
        blocks: Blocks,
        group: usize,
        scale: AsmRegisterZmm,
    ) -> Result<(), IcedError> {
        let at = group * self.spec.layout.group_bytes();
        match blocks.scale {
            ScaleType::F32 => code.vmovups(scale, zmmword_ptr(WEIGHTS + at)),
            ScaleType::F16 => code.vcvtph2ps(scale, ymmword_ptr(WEIGHTS + at)),
            ScaleType::Short => {
                code.vpmovsxbd(scale, xmmword_ptr(WEIGHTS + at))?;
                code.vcvtdq2ps(scale, scale)?;
                let units = at + self.spec.layout.units_offset();
                code.vmulps(scale, scale, zmmword_ptr(TILE_WEIGHTS + units))
            }
        }
    }

    /// Bias, residual, and the outputs of a tile, whose sums are the first registers.
    pub(super) fn store(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
    ) -> Result<(), IcedError> {
        for row in 0..shape.rows {
            for group in 0..shape.groups {
                let sum = self.sum(shape, row, group);
                let channel = group * GROUP * 4;
                let offset = row * self.spec.output_stride * 4 + channel;
                if self.spec.bias {
                    code.vaddps(sum, sum, zmmword_ptr(TILE_BIAS + channel))?;
                }
                if self.spec.residual {
                    let residual = zmmword_ptr(TILE_RESIDUAL + offset);
                    if shape.is_part {
                        code.vaddps(sum.k1(), sum, residual)?;
                    } else {
                        code.vaddps(sum, sum, residual)?;
                    }
                }
                let output = zmmword_ptr(TILE_OUTPUT + offset);
                if shape.is_part {
                    code.vmovups(output.k1(), sum)?;
                } else {
                    code.vmovups(output, sum)?;
                }
            }
        }
        Ok(())
    }
}
