//! The matrix product with AVX-512: f32, and int4 weights with int8 activations by VNNI.
//!
//! A group of sixteen channels is one register. f32 holds 6 rows × 4 groups in registers (24
//! accumulators, 4 weights, 1 activation: 24 fused operations per 10 loads); int4 holds 8 rows × 1
//! group, where one unpacked row of codes serves 16 products.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::assembled::{
    COUNT, INPUT, PREFETCH, Plan, TILE_BIAS, TILE_INPUT, TILE_OUTPUT, TILE_RESIDUAL, TILE_WEIGHTS,
    TileShape, Version, WEIGHTS, assemble, over_reduction,
};
use super::{Activation, Compute, MatmulSpec};
use crate::emit::{Assembly, EmitError, FuncId};
use crate::pack::{GROUP, ScaleType, ZeroPoint};

const ZMM: [AsmRegisterZmm; 32] = [
    zmm0, zmm1, zmm2, zmm3, zmm4, zmm5, zmm6, zmm7, zmm8, zmm9, zmm10, zmm11, zmm12, zmm13, zmm14,
    zmm15, zmm16, zmm17, zmm18, zmm19, zmm20, zmm21, zmm22, zmm23, zmm24, zmm25, zmm26, zmm27,
    zmm28, zmm29, zmm30, zmm31,
];
/// Low nibble of every byte.
const NIBBLES: AsmRegisterZmm = zmm31;
/// The implied zero point.
const ZERO_POINT: AsmRegisterZmm = zmm30;
/// Lanes of the last group.
const TAIL: AsmRegisterK = k1;

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    spec: &MatmulSpec,
) -> Result<(), EmitError> {
    assembly.assemble(id, |code| assemble(code, spec, &Avx512 { spec }))
}

struct Avx512<'a> {
    spec: &'a MatmulSpec,
}

impl Version for Avx512<'_> {
    fn plans(&self) -> Vec<Plan> {
        if self.spec.compute == Compute::Int8 {
            vec![
                Plan { from_rows: 8, rows: &[8, 4, 2, 1], groups: &[1] },
                Plan { from_rows: 3, rows: &[4, 2, 1], groups: &[2, 1] },
                Plan { from_rows: 1, rows: &[2, 1], groups: &[4, 1] },
            ]
        } else {
            vec![Plan { from_rows: 1, rows: &[6, 4, 2, 1], groups: &[4, 2, 1] }]
        }
    }

    fn prepare(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        if self.spec.tail() > 0 {
            code.mov(r11d, (1i32 << self.spec.tail()) - 1)?;
            code.kmovw(TAIL, r11d)?;
        }
        if self.spec.compute == Compute::Int8 {
            code.mov(r11d, 0x0f0f_0f0f)?;
            code.vpbroadcastd(NIBBLES, r11d)?;
            code.mov(r11d, self.spec.layout.format.implied_zero().to_bits())?;
            code.vpbroadcastd(ZERO_POINT, r11d)?;
        }
        Ok(())
    }

    fn tile(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        code.mov(INPUT, TILE_INPUT)?;
        code.mov(WEIGHTS, TILE_WEIGHTS)?;
        if self.spec.compute == Compute::Int8 {
            self.int4_sums(code, shape)?;
        } else {
            self.float_sums(code, shape)?;
        }
        self.store(code, shape)
    }

    fn data(&self, _code: &mut CodeAssembler) -> Result<(), IcedError> {
        Ok(())
    }
}

impl Avx512<'_> {
    fn sum(&self, shape: TileShape, row: usize, group: usize) -> AsmRegisterZmm {
        ZMM[row * shape.groups + group]
    }

    fn float_sums(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let sums = shape.rows * shape.groups;
        for sum in &ZMM[..sums] {
            code.vpxord(*sum, *sum, *sum)?;
        }
        let weights = &ZMM[sums..sums + shape.groups];
        let activation = ZMM[sums + shape.groups];
        let step = |code: &mut CodeAssembler, k: usize| -> Result<(), IcedError> {
            for (group, weight) in weights.iter().enumerate() {
                let at = group * self.spec.layout.group_bytes() + k * GROUP * 4;
                code.prefetcht0(byte_ptr(WEIGHTS + at + PREFETCH))?;
                code.vmovups(*weight, zmmword_ptr(WEIGHTS + at))?;
            }
            for row in 0..shape.rows {
                let at = row * self.spec.input_row_bytes() + k * 4;
                code.vbroadcastss(activation, dword_ptr(INPUT + at))?;
                for (group, weight) in weights.iter().enumerate() {
                    code.vfmadd231ps(self.sum(shape, row, group), activation, *weight)?;
                }
            }
            Ok(())
        };
        let unroll = if shape.rows == 1 { 8 } else { 2 };
        over_reduction(code, self.spec, unroll, step)
    }

    fn int4_sums(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let layout = self.spec.layout;
        let (Some(blocks), Some(Activation::Int8 { block, .. })) =
            (layout.format.blocks(), self.spec.activation())
        else {
            return Ok(());
        };
        let sums = shape.rows * shape.groups;
        // Few sums leave room to keep the products of low and high nibbles apart, so that chains of
        // dependent products are half as long.
        let chains = if sums <= 4 { 2 } else { 1 };
        let mut next = sums;
        let mut take = |count: usize| {
            next += count;
            &ZMM[next - count..next]
        };
        let wholes = take(sums * chains);
        let scales = take(shape.groups);
        let zeros = match blocks.zero {
            ZeroPoint::Implied => vec![ZERO_POINT; shape.groups],
            ZeroPoint::Code | ZeroPoint::Float => take(shape.groups).to_vec(),
        };
        let [low, high, float, scale] = take(4) else { return Ok(()) };
        for sum in &ZMM[..sums] {
            code.vpxord(*sum, *sum, *sum)?;
        }
        let mut again = code.create_label();
        code.mov(COUNT, layout.block_count() as i64)?;
        code.set_label(&mut again)?;
        for group in 0..shape.groups {
            let at = group * layout.group_bytes();
            match blocks.scale {
                ScaleType::F32 => code.vmovups(scales[group], zmmword_ptr(WEIGHTS + at))?,
                ScaleType::F16 => code.vcvtph2ps(scales[group], ymmword_ptr(WEIGHTS + at))?,
            }
            let at = at + layout.zeros_offset();
            match blocks.zero {
                ZeroPoint::Implied => {}
                ZeroPoint::Float => code.vmovups(zeros[group], zmmword_ptr(WEIGHTS + at))?,
                ZeroPoint::Code => {
                    code.vpmovzxbd(zeros[group], xmmword_ptr(WEIGHTS + at))?;
                    code.vcvtdq2ps(zeros[group], zeros[group])?;
                }
            }
        }
        let parts = blocks.block / block;
        let units = block / 8;
        for part in 0..parts {
            for whole in wholes {
                code.vpxord(*whole, *whole, *whole)?;
            }
            for unit in 0..units {
                for group in 0..shape.groups {
                    let at = group * layout.group_bytes()
                        + layout.codes_offset()
                        + (part * units + unit) * GROUP * 4;
                    code.prefetcht0(byte_ptr(WEIGHTS + at + PREFETCH))?;
                    code.vmovdqu32(*low, zmmword_ptr(WEIGHTS + at))?;
                    code.vpsrld(*high, *low, 4)?;
                    code.vpandd(*low, *low, NIBBLES)?;
                    code.vpandd(*high, *high, NIBBLES)?;
                    for row in 0..shape.rows {
                        let from =
                            row * self.spec.input_row_bytes() + part * (block + 8) + unit * 8;
                        let place = (row * shape.groups + group) * chains;
                        code.vpdpbusd(wholes[place], *low, dword_bcst(INPUT + from))?;
                        let place = place + chains - 1;
                        code.vpdpbusd(wholes[place], *high, dword_bcst(INPUT + from + 4))?;
                    }
                }
            }
            for row in 0..shape.rows {
                let from = row * self.spec.input_row_bytes() + part * (block + 8) + block;
                for group in 0..shape.groups {
                    let place = (row * shape.groups + group) * chains;
                    if chains == 2 {
                        code.vpaddd(wholes[place], wholes[place], wholes[place + 1])?;
                    }
                    code.vcvtdq2ps(*float, wholes[place])?;
                    code.vfnmadd231ps(*float, zeros[group], dword_bcst(INPUT + from + 4))?;
                    code.vmulps(*scale, scales[group], dword_bcst(INPUT + from))?;
                    code.vfmadd231ps(self.sum(shape, row, group), *float, *scale)?;
                }
            }
        }
        code.add(INPUT, (parts * (block + 8)) as i32)?;
        code.add(WEIGHTS, layout.block_bytes() as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)
    }

    fn store(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
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
