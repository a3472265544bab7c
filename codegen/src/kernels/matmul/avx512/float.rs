//! Float arithmetic in 512-bit vectors: weights of any format become f32 in registers.
//!
//! f32 weights: 6 rows × 4 groups (24 accumulators, 4 weights, 1 activation: 24 fused operations per
//! 10 loads). Others: 12 rows × 2 groups, so that a weight taken apart serves twelve products; two
//! registers each hold scales and zero points. A single row of floats waits for memory, which gives one
//! stream fastest; of codes it waits for its sums, of which four groups have more.
//!
//! Two f16 values of a channel lie side by side. `vcvtph2ps` of 16 such halves gives eight channels'
//! pairs; of two such registers `vshufps` takes all first or all second halves, which leaves pairs of
//! channels in the order 0 4 1 5 2 6 3 7: accumulators of f16 have it until the tile is done.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{Avx512, MASK, ManyRows, ZMM};
use crate::kernels::matmul::assembled::{
    FURTHER_ON, FloatReduction, INPUT, TileShape, WEIGHTS, ahead,
};
use crate::kernels::matmul::decode;
use crate::pack::{GROUP, WeightFormat, ZeroPoint};

/// The counter of blocks.
pub(super) const SCRATCH_BYTES: usize = 8;

/// Scales and zero points of the groups of a tile.
#[derive(Clone, Copy)]
struct Parameters<'a> {
    scales: &'a [AsmRegisterZmm],
    zeros: &'a [AsmRegisterZmm],
}

impl Avx512<'_> {
    pub(super) fn float_sums(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
    ) -> Result<(), IcedError> {
        let format = self.spec.layout.format;
        let groups = shape.groups;
        let (sums, rest) = ZMM.split_at(shape.rows * groups);
        let (weights, rest) = rest.split_at(groups);
        let (activation, rest) = (rest[0], &rest[1..]);
        let blocks = format.blocks();
        let kept = if blocks.is_some() { groups } else { 0 };
        let (scales, rest) = rest.split_at(kept);
        let implied = [rest[0]; 4];
        let zeros = match blocks.map(|blocks| blocks.zero) {
            Some(ZeroPoint::Code | ZeroPoint::Float) => &rest[..groups],
            Some(ZeroPoint::Implied) | None => &implied[..groups],
        };
        let parameters = Parameters { scales, zeros };
        for sum in sums {
            code.vpxord(*sum, *sum, *sum)?;
        }
        if blocks.is_some_and(|blocks| blocks.zero == ZeroPoint::Implied) {
            code.mov(r10d, format.implied_zero().to_bits())?;
            code.vpbroadcastd(implied[0], r10d)?;
        }
        let begin_block = |code: &mut CodeAssembler| {
            let Some(blocks) = blocks else { return Ok(()) };
            (0..groups).try_for_each(|group| {
                self.block_parameters(code, blocks, group, scales[group], zeros[group])
            })
        };
        let per_unit = decode::unit_elements(format);
        let unit = |code: &mut CodeAssembler, unit: usize, elements: usize| {
            for group in 0..groups {
                let ahead = self.weight_offset(group, unit) + ahead(shape.rows);
                let asked = byte_ptr(WEIGHTS + FURTHER_ON + ahead);
                // As with codes of integers, a single row of AMD's level.
                match (shape.rows, self.many) {
                    (1, ManyRows::Paired) => code.prefetcht1(asked)?,
                    _ => code.prefetcht0(asked)?,
                }
            }
            for element in 0..elements {
                for (group, weight) in weights.iter().enumerate() {
                    self.decode(code, *weight, group, unit, element, activation, parameters)?;
                }
                for row in 0..shape.rows {
                    let from = row * self.spec.input_row_bytes() + (unit * per_unit + element) * 4;
                    code.vbroadcastss(activation, dword_ptr(INPUT + from))?;
                    for (group, weight) in weights.iter().enumerate() {
                        code.vfmadd231ps(self.sum(shape, row, group), activation, *weight)?;
                    }
                }
            }
            Ok(())
        };
        let unroll = if shape.rows == 1 { 8 } else { 2 };
        let unroll = (unroll / per_unit).max(1);
        FloatReduction { spec: self.spec, unroll, blocks_left: 0, begin_block, unit }.emit(code)?;

        if format == WeightFormat::F16 {
            let order = weights[0];
            code.vmovups(order, zmmword_ptr(*self.order.borrow()))?;
            for sum in sums {
                code.vpermps(*sum, order, *sum)?;
            }
        }
        Ok(())
    }

    /// Element `element` of a unit of a group.
    #[allow(clippy::too_many_arguments, reason = "an element's place and the registers for it")]
    fn decode(
        &self,
        code: &mut CodeAssembler,
        weight: AsmRegisterZmm,
        group: usize,
        unit: usize,
        element: usize,
        free: AsmRegisterZmm,
        parameters: Parameters<'_>,
    ) -> Result<(), IcedError> {
        let offset = self.weight_offset(group, unit);
        let at = zmmword_ptr(WEIGHTS + offset);
        let format = self.spec.layout.format;
        match format {
            WeightFormat::F32 => code.vmovups(weight, at),
            WeightFormat::Bf16 if element == 1 => code.vpslld(weight, at, 16),
            WeightFormat::Bf16 => code.vpandd(weight, MASK, at),
            WeightFormat::F16 => {
                code.vcvtph2ps(weight, ymmword_ptr(WEIGHTS + offset))?;
                code.vcvtph2ps(free, ymmword_ptr(WEIGHTS + (offset + GROUP * 2)))?;
                code.vshufps(weight, weight, free, if element == 0 { 0x88 } else { 0xdd })
            }
            WeightFormat::Int8(_) | WeightFormat::Int4(_) => {
                let (shift, is_last) = decode::code_shift(format, element);
                if shift == 0 {
                    code.vpandd(weight, MASK, at)?;
                } else {
                    code.vpsrld(weight, at, shift as i32)?;
                    if !is_last {
                        code.vpandd(weight, weight, MASK)?;
                    }
                }
                code.vcvtdq2ps(weight, weight)?;
                code.vsubps(weight, weight, parameters.zeros[group])?;
                code.vmulps(weight, weight, parameters.scales[group])
            }
        }
    }
}
