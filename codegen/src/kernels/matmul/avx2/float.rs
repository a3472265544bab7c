//! Float arithmetic in 256-bit vectors: weights of any format become f32 in registers.
//!
//! A tile is 6 rows × 1 group: 12 accumulators, 2 weights, 1 activation, and the mask that takes
//! codes and bf16 apart. A single row multiplies several groups, so that chains of sums overlap.
//! Scales and zero points of a block wait in scratch memory, as f32.
//!
//! Two f16 values of a channel lie side by side. `vcvtph2ps` of 8 such halves gives four channels'
//! pairs; of two such registers `vshufps` takes all first or all second halves, which leaves the
//! channels as 0 1 4 5 2 3 6 7: accumulators of f16 have this order until the tile is done.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{Avx2, Place, REGISTER, YMM, places};
use crate::kernels::matmul::assembled::{
    FURTHER_ON, FloatReduction, INPUT, SCRATCH, TileShape, WEIGHTS, ahead,
};
use crate::kernels::matmul::decode;
use crate::pack::WeightFormat;

/// Registers of scales and of zero points that a tile may need.
const PARAMETERS: usize = 8;
/// Scales, zero points, and the counter of blocks.
pub(super) const SCRATCH_BYTES: usize = 2 * PARAMETERS * REGISTER + 8;

fn scale_at(index: usize) -> AsmMemoryOperand {
    ymmword_ptr(SCRATCH + index * REGISTER)
}

fn zero_at(index: usize) -> AsmMemoryOperand {
    ymmword_ptr(SCRATCH + (PARAMETERS + index) * REGISTER)
}

impl Avx2<'_> {
    pub(super) fn float_tile(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
    ) -> Result<(), IcedError> {
        let places = &places(shape, 0..2);
        let (sums, rest) = YMM.split_at(places.len());
        for sum in sums {
            code.vxorps(*sum, *sum, *sum)?;
        }
        // Registers of one row; all rows use the same weights.
        let per_row = places.len() / shape.rows;
        let (activation, weights) = (rest[0], &rest[1..3]);
        let format = self.spec.layout.format;
        let per_unit = decode::unit_elements(format);

        let begin_block = |code: &mut CodeAssembler| self.keep_parameters(code, &places[..per_row]);
        let unit = |code: &mut CodeAssembler, unit: usize, elements: usize| {
            for place in places[..per_row].iter().filter(|place| place.half == 0) {
                let ahead = self.weight_offset(*place, unit) + ahead(shape.rows);
                code.prefetcht0(byte_ptr(WEIGHTS + FURTHER_ON + ahead))?;
            }
            for element in 0..elements {
                let input = |row: usize| {
                    let from = (unit * per_unit + element) * 4;
                    dword_ptr(INPUT + (row * self.spec.input_row_bytes() + from))
                };
                if shape.rows == 1 {
                    code.vbroadcastss(activation, input(0))?;
                    for (index, place) in places.iter().enumerate() {
                        let at = ymmword_ptr(WEIGHTS + self.weight_offset(*place, unit));
                        if format == WeightFormat::F32 {
                            code.vfmadd231ps(sums[index], activation, at)?;
                            continue;
                        }
                        self.decode(code, weights[0], *place, index, unit, element, weights[1])?;
                        code.vfmadd231ps(sums[index], activation, weights[0])?;
                    }
                    continue;
                }
                for (index, weight) in weights.iter().enumerate() {
                    self.decode(code, *weight, places[index], index, unit, element, activation)?;
                }
                for (row, sums) in sums.chunks(per_row).enumerate() {
                    code.vbroadcastss(activation, input(row))?;
                    for (sum, weight) in sums.iter().zip(weights) {
                        code.vfmadd231ps(*sum, activation, *weight)?;
                    }
                }
            }
            Ok(())
        };
        let unroll = if shape.rows == 1 { 8 } else { 4 };
        let unroll = (unroll / per_unit).max(1);
        let blocks_left = 2 * PARAMETERS * REGISTER;
        FloatReduction { spec: self.spec, unroll, blocks_left, begin_block, unit }.emit(code)?;

        if format == WeightFormat::F16 {
            for sum in sums {
                code.vpermq(*sum, *sum, 0b11_01_10_00)?;
            }
        }
        self.store(code, shape, places)
    }

    /// Writes scales and zero points of the block that begins at [`WEIGHTS`] to the scratch memory.
    fn keep_parameters(&self, code: &mut CodeAssembler, places: &[Place]) -> Result<(), IcedError> {
        let Some(blocks) = self.spec.layout.format.blocks() else { return Ok(()) };
        let (scale, zero) = (ymm13, ymm14);
        for (index, place) in places.iter().enumerate() {
            self.block_parameters(code, blocks, *place, scale, zero)?;
            code.vmovups(scale_at(index), scale)?;
            code.vmovups(zero_at(index), zero)?;
        }
        Ok(())
    }

    /// Element `element` of a unit for the channels of `place`, the `index`-th of its row.
    #[allow(clippy::too_many_arguments, reason = "an element's place and the registers for it")]
    fn decode(
        &self,
        code: &mut CodeAssembler,
        weight: AsmRegisterYmm,
        place: Place,
        index: usize,
        unit: usize,
        element: usize,
        free: AsmRegisterYmm,
    ) -> Result<(), IcedError> {
        let mask = ymm15;
        let offset = self.weight_offset(place, unit);
        let at = ymmword_ptr(WEIGHTS + offset);
        let format = self.spec.layout.format;
        match format {
            WeightFormat::F32 => code.vmovups(weight, at),
            WeightFormat::Bf16 if element == 1 => {
                code.vmovdqu(weight, at)?;
                code.vpslld(weight, weight, 16)
            }
            WeightFormat::Bf16 => code.vpand(weight, mask, at),
            WeightFormat::F16 => {
                code.vcvtph2ps(weight, xmmword_ptr(WEIGHTS + offset))?;
                code.vcvtph2ps(free, xmmword_ptr(WEIGHTS + (offset + REGISTER / 2)))?;
                code.vshufps(weight, weight, free, if element == 0 { 0x88 } else { 0xdd })
            }
            WeightFormat::Int8(_) | WeightFormat::Int4(_) => {
                let (shift, is_last) = decode::code_shift(format, element);
                if shift == 0 {
                    code.vpand(weight, mask, at)?;
                } else {
                    code.vmovdqu(weight, at)?;
                    code.vpsrld(weight, weight, shift as i32)?;
                    if !is_last {
                        code.vpand(weight, weight, mask)?;
                    }
                }
                code.vcvtdq2ps(weight, weight)?;
                code.vsubps(weight, weight, zero_at(index))?;
                code.vmulps(weight, weight, scale_at(index))
            }
        }
    }
}
