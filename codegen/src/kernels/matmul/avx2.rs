//! The matrix product with AVX2 and FMA: f32, and int4 weights with int8 activations.
//!
//! A group of sixteen channels is two registers ("halves"). f32 holds 6 rows × 1 group (12
//! accumulators, 2 weights, 1 activation). int4 multiplies unsigned nibbles by signed bytes with
//! `vpmaddubsw`: eight such pairs stay below 2¹⁵ (8 · 2 · 15 · 127 = 30,480), so 32 elements are
//! summed in 16 bits and widened once. With several rows a tile computes one half after the other,
//! for wider ones would not fit sixteen registers.

use std::cell::RefCell;

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::assembled::{
    COUNT, INPUT, PREFETCH, Plan, TILE_BIAS, TILE_INPUT, TILE_OUTPUT, TILE_RESIDUAL, TILE_WEIGHTS,
    TileShape, Version, WEIGHTS, assemble, over_reduction,
};
use super::{Activation, Compute, MatmulSpec};
use crate::emit::{Assembly, EmitError, FuncId};
use crate::pack::{Blocks, GROUP, ScaleType, ZeroPoint};

const YMM: [AsmRegisterYmm; 16] = [
    ymm0, ymm1, ymm2, ymm3, ymm4, ymm5, ymm6, ymm7, ymm8, ymm9, ymm10, ymm11, ymm12, ymm13, ymm14,
    ymm15,
];
/// Low nibble of every byte.
const NIBBLES: AsmRegisterYmm = ymm15;
/// Channels of a register.
const HALF: usize = GROUP / 2;
/// Elements whose products are summed in 16 bits.
const CHUNK: usize = 32;

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    spec: &MatmulSpec,
) -> Result<(), EmitError> {
    assembly.assemble(id, |code| {
        let version = Avx2 {
            spec,
            ones: RefCell::new(code.create_label()),
            tail: RefCell::new(code.create_label()),
            zero_point: RefCell::new(code.create_label()),
        };
        assemble(code, spec, &version)
    })
}

struct Avx2<'a> {
    spec: &'a MatmulSpec,
    /// Sixteen 16-bit ones.
    ones: RefCell<CodeLabel>,
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
        match self.spec.activation() {
            Some(Activation::Int8 { block, .. }) => {
                // Blocks of several chunks need registers for their 32-bit sums.
                let rows: &[usize] = if block > CHUNK { &[4, 2, 1] } else { &[6, 4, 2, 1] };
                vec![Plan { from_rows: 1, rows, groups: &[1] }]
            }
            _ => vec![
                Plan { from_rows: 2, rows: &[6, 4, 2, 1], groups: &[1] },
                Plan { from_rows: 1, rows: &[1], groups: &[4, 1] },
            ],
        }
    }

    fn prepare(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        if self.spec.compute == Compute::Int8 {
            code.mov(r11d, 0x0f0f_0f0f)?;
            code.vmovd(xmm15, r11d)?;
            code.vpbroadcastd(NIBBLES, xmm15)?;
        }
        Ok(())
    }

    fn tile(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        if self.spec.compute != Compute::Int8 {
            let places = places(shape, 0..2);
            self.float_sums(code, shape, &places)?;
            return self.store(code, shape, &places);
        }
        let halves_at_once = if shape.rows <= 2 { 2 } else { 1 };
        for first in (0..2).step_by(halves_at_once) {
            let places = places(shape, first..first + halves_at_once);
            self.int4_sums(code, &places)?;
            self.store(code, shape, &places)?;
        }
        Ok(())
    }

    fn data(&self, code: &mut CodeAssembler) -> Result<(), IcedError> {
        code.set_label(&mut self.ones.borrow_mut())?;
        for _ in 0..16 {
            code.db(&1u16.to_le_bytes())?;
        }
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
fn places(shape: TileShape, halves: std::ops::Range<usize>) -> Vec<Place> {
    let mut places = Vec::new();
    for row in 0..shape.rows {
        for group in 0..shape.groups {
            places.extend(halves.clone().map(|half| Place { row, group, half }));
        }
    }
    places
}

impl Avx2<'_> {
    /// Offset of a half's 32 bytes in row `row` of the codes or values of a group.
    fn weight_offset(&self, place: Place, row: usize) -> usize {
        place.group * self.spec.layout.group_bytes() + row * GROUP * 4 + place.half * HALF * 4
    }

    fn float_sums(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        places: &[Place],
    ) -> Result<(), IcedError> {
        code.mov(INPUT, TILE_INPUT)?;
        code.mov(WEIGHTS, TILE_WEIGHTS)?;
        for sum in &YMM[..places.len()] {
            code.vxorps(*sum, *sum, *sum)?;
        }
        let per_row = places.len() / shape.rows;
        let activation = YMM[places.len()];
        // One row multiplies straight from memory; several share the loaded weights.
        let weights = if shape.rows == 1 { &[][..] } else { &YMM[places.len() + 1..][..per_row] };
        let step = |code: &mut CodeAssembler, k: usize| -> Result<(), IcedError> {
            for place in places[..per_row].iter().filter(|place| place.half == 0) {
                let ahead = self.weight_offset(*place, k) + PREFETCH;
                code.prefetcht0(byte_ptr(WEIGHTS + ahead))?;
            }
            for (weight, place) in weights.iter().zip(places) {
                code.vmovups(*weight, ymmword_ptr(WEIGHTS + self.weight_offset(*place, k)))?;
            }
            for (row, places) in places.chunks(per_row).enumerate() {
                let from = row * self.spec.input_row_bytes() + k * 4;
                code.vbroadcastss(activation, dword_ptr(INPUT + from))?;
                for (index, place) in places.iter().enumerate() {
                    let sum = YMM[row * per_row + index];
                    match weights.get(index) {
                        Some(weight) => code.vfmadd231ps(sum, activation, *weight)?,
                        None => {
                            let at = ymmword_ptr(WEIGHTS + self.weight_offset(*place, k));
                            code.vfmadd231ps(sum, activation, at)?;
                        }
                    }
                }
            }
            Ok(())
        };
        let unroll = if shape.rows == 1 { 8 } else { 4 };
        over_reduction(code, self.spec, unroll, step)
    }

    /// Tiles of int4 have one group; all rows use the same halves.
    fn int4_sums(&self, code: &mut CodeAssembler, places: &[Place]) -> Result<(), IcedError> {
        let layout = self.spec.layout;
        let (Some(blocks), Some(Activation::Int8 { block, .. })) =
            (layout.format.blocks(), self.spec.activation())
        else {
            return Ok(());
        };
        let (sums, rest) = YMM.split_at(places.len());
        let (pairs, rest) = rest.split_at(places.len());
        let (wides, rest) = rest.split_at(if block > CHUNK { places.len() } else { 0 });
        let [low, high, activation, ..] = rest else { return Ok(()) };
        let halves: Vec<Place> = places.iter().filter(|place| place.row == 0).copied().collect();
        code.mov(INPUT, TILE_INPUT)?;
        code.mov(WEIGHTS, TILE_WEIGHTS)?;
        for sum in sums {
            code.vxorps(*sum, *sum, *sum)?;
        }
        let mut again = code.create_label();
        code.mov(COUNT, layout.block_count() as i64)?;
        code.set_label(&mut again)?;
        let parts = blocks.block / block;
        let units: Vec<usize> = (0..block / 8).collect();
        for part in 0..parts {
            let record = part * (block + 8);
            for (chunk_index, chunk) in units.chunks(CHUNK / 8).enumerate() {
                for (unit_index, unit) in chunk.iter().enumerate() {
                    for (half_index, half) in halves.iter().enumerate() {
                        let row = part * units.len() + unit;
                        let at = layout.codes_offset() + self.weight_offset(*half, row);
                        if half.half == 0 {
                            code.prefetcht0(byte_ptr(WEIGHTS + at + PREFETCH))?;
                        }
                        code.vmovdqu(*low, ymmword_ptr(WEIGHTS + at))?;
                        code.vpsrld(*high, *low, 4)?;
                        code.vpand(*low, *low, NIBBLES)?;
                        code.vpand(*high, *high, NIBBLES)?;
                        let same_half =
                            places.iter().enumerate().skip(half_index).step_by(halves.len());
                        for (index, place) in same_half {
                            let from = place.row * self.spec.input_row_bytes() + record + unit * 8;
                            code.vpbroadcastd(*activation, dword_ptr(INPUT + from))?;
                            if unit_index == 0 {
                                code.vpmaddubsw(pairs[index], *low, *activation)?;
                            } else {
                                code.vpmaddubsw(*activation, *low, *activation)?;
                                code.vpaddw(pairs[index], pairs[index], *activation)?;
                            }
                            code.vpbroadcastd(*activation, dword_ptr(INPUT + from + 4))?;
                            code.vpmaddubsw(*activation, *high, *activation)?;
                            code.vpaddw(pairs[index], pairs[index], *activation)?;
                        }
                    }
                }
                let ones = ymmword_ptr(*self.ones.borrow());
                for (index, sum) in pairs.iter().enumerate() {
                    match (wides.get(index), chunk_index) {
                        (None, _) => code.vpmaddwd(*sum, *sum, ones)?,
                        (Some(wide), 0) => code.vpmaddwd(*wide, *sum, ones)?,
                        (Some(wide), _) => {
                            code.vpmaddwd(*sum, *sum, ones)?;
                            code.vpaddd(*wide, *wide, *sum)?;
                        }
                    }
                }
            }
            // The nibbles' registers are free between blocks.
            let (scale, zero) = (*low, *high);
            for (half_index, half) in halves.iter().enumerate() {
                self.block_parameters(code, blocks, half.half, scale, zero)?;
                let same_half = places.iter().enumerate().skip(half_index).step_by(halves.len());
                for (index, place) in same_half {
                    let from = place.row * self.spec.input_row_bytes() + record + block;
                    let whole = *wides.get(index).unwrap_or(&pairs[index]);
                    code.vcvtdq2ps(whole, whole)?;
                    code.vbroadcastss(*activation, dword_ptr(INPUT + from + 4))?;
                    code.vfnmadd231ps(whole, zero, *activation)?;
                    code.vbroadcastss(*activation, dword_ptr(INPUT + from))?;
                    code.vmulps(*activation, *activation, scale)?;
                    code.vfmadd231ps(sums[index], whole, *activation)?;
                }
            }
        }
        code.add(INPUT, (parts * (block + 8)) as i32)?;
        code.add(WEIGHTS, layout.block_bytes() as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)
    }

    /// Loads scales and zero points of the current block for one half of the group.
    fn block_parameters(
        &self,
        code: &mut CodeAssembler,
        blocks: Blocks,
        half: usize,
        scale: AsmRegisterYmm,
        zero: AsmRegisterYmm,
    ) -> Result<(), IcedError> {
        let at = half * HALF * blocks.scale.bytes();
        match blocks.scale {
            ScaleType::F32 => code.vmovups(scale, ymmword_ptr(WEIGHTS + at))?,
            ScaleType::F16 => code.vcvtph2ps(scale, xmmword_ptr(WEIGHTS + at))?,
        }
        let at = self.spec.layout.zeros_offset() + half * HALF * blocks.zero.bytes();
        match blocks.zero {
            ZeroPoint::Implied => code.vmovups(zero, ymmword_ptr(*self.zero_point.borrow())),
            ZeroPoint::Float => code.vmovups(zero, ymmword_ptr(WEIGHTS + at)),
            ZeroPoint::Code => {
                code.vpmovzxbd(zero, qword_ptr(WEIGHTS + at))?;
                code.vcvtdq2ps(zero, zero)
            }
        }
    }

    fn store(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
        places: &[Place],
    ) -> Result<(), IcedError> {
        // Accumulators come first in both sums; the register before the mask of nibbles is free.
        let mask = ymm14;
        let residual = ymm13;
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
            code.vmovups(mask, ymmword_ptr(COUNT + place.half * HALF * 4))?;
            if self.spec.residual {
                code.vmaskmovps(residual, mask, ymmword_ptr(TILE_RESIDUAL + offset))?;
                code.vaddps(*sum, *sum, residual)?;
            }
            code.vmaskmovps(ymmword_ptr(TILE_OUTPUT + offset), mask, *sum)?;
        }
        Ok(())
    }
}
