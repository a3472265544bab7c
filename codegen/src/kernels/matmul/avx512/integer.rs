//! Integer arithmetic in 512-bit vectors: exact sums by `vpdpbusd`, scaled per block.
//!
//! A tile of many rows has 12 rows × 1 group: 12 float sums, 12 integer sums, 2 registers of codes,
//! scale, zero point, 2 free ones and a mask. Twelve rows share the codes once they are taken apart.
//! Integer sums begin with −zero · Σ a where the zero point is implied (a shift of the block's
//! −Σ a), so that floating-point units, which also multiply bytes, have three operations a block.

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{Avx512, MASK, ZMM};
use crate::kernels::matmul::Activation;
use crate::kernels::matmul::assembled::{COUNT, INPUT, PREFETCH, TileShape, WEIGHTS};
use crate::kernels::matmul::decode;
use crate::pack::{WeightFormat, ZeroPoint};

impl Avx512<'_> {
    pub(super) fn integer_sums(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
    ) -> Result<(), IcedError> {
        let layout = self.spec.layout;
        let (Some(blocks), Some(Activation::Int8 { block, .. })) =
            (layout.format.blocks(), self.spec.activation())
        else {
            return Ok(());
        };
        let sums = shape.rows * shape.groups;
        // Few sums leave room to add into two registers in turn, so that chains of dependent products
        // are half as long.
        let chains = if sums <= 4 { 2 } else { 1 };
        let mut next = sums;
        let mut take = |count: usize| {
            next += count;
            &ZMM[next - count..next]
        };
        let wholes = take(sums * chains);
        let scales = take(shape.groups);
        let zeros = match blocks.zero {
            ZeroPoint::Implied => scales,
            ZeroPoint::Code | ZeroPoint::Float => take(shape.groups),
        };
        let &[one, two, code_sum, scale] = take(4) else { return Ok(()) };
        for sum in &ZMM[..sums] {
            code.vpxord(*sum, *sum, *sum)?;
        }
        let per_unit = decode::unit_elements(layout.format);
        let units = block / per_unit;
        let mut again = code.create_label();
        code.mov(COUNT, layout.block_count() as i64)?;
        code.set_label(&mut again)?;
        for group in 0..shape.groups {
            self.block_parameters(code, blocks, group, scales[group], zeros[group])?;
        }
        for part in 0..blocks.block / block {
            let input = |row: usize, offset: usize| {
                let record = row * self.spec.input_row_bytes() + part * (block + 8);
                dword_bcst(INPUT + (record + offset))
            };
            let (scale_at, minus_sum_at) = (block, block + 4);
            for row in 0..shape.rows {
                for (index, whole) in wholes[row * shape.groups * chains..][..shape.groups * chains]
                    .iter()
                    .enumerate()
                {
                    if blocks.zero == ZeroPoint::Implied && index % chains == 0 {
                        let log_zero = if per_unit == 8 { 3 } else { 7 };
                        code.vpslld(*whole, input(row, minus_sum_at), log_zero)?;
                    } else {
                        code.vpxord(*whole, *whole, *whole)?;
                    }
                }
            }
            for unit in 0..units {
                for group in 0..shape.groups {
                    let at = layout.codes_offset() + self.weight_offset(group, part * units + unit);
                    code.prefetcht0(byte_ptr(WEIGHTS + at + PREFETCH))?;
                    let packed = zmmword_ptr(WEIGHTS + at);
                    let codes = if matches!(layout.format, WeightFormat::Int4(_)) {
                        code.vmovdqu32(two, packed)?;
                        code.vpandd(one, two, MASK)?;
                        code.vpsrld(two, two, 4)?;
                        code.vpandd(two, two, MASK)?;
                        vec![one, two]
                    } else {
                        code.vmovdqu32(one, packed)?;
                        vec![one]
                    };
                    for row in 0..shape.rows {
                        for (index, codes) in codes.iter().enumerate() {
                            let chain = (unit + index) % chains;
                            let whole = wholes[(row * shape.groups + group) * chains + chain];
                            let first = unit * per_unit + index * 4;
                            code.vpdpbusd(whole, *codes, input(row, first))?;
                        }
                    }
                }
            }
            // `sum = fma(t, weight_scale · activation_scale, sum)`, t about the zero point.
            for row in 0..shape.rows {
                if blocks.zero != ZeroPoint::Implied {
                    code.vcvtdq2ps(code_sum, input(row, minus_sum_at))?;
                }
                for group in 0..shape.groups {
                    let at = (row * shape.groups + group) * chains;
                    let whole = wholes[at];
                    if chains == 2 {
                        code.vpaddd(whole, whole, wholes[at + 1])?;
                    }
                    code.vcvtdq2ps(whole, whole)?;
                    if blocks.zero != ZeroPoint::Implied {
                        code.vfmadd231ps(whole, zeros[group], code_sum)?;
                    }
                    code.vmulps(scale, scales[group], input(row, scale_at))?;
                    code.vfmadd231ps(self.sum(shape, row, group), whole, scale)?;
                }
            }
        }
        code.add(INPUT, (blocks.block / block * (block + 8)) as i32)?;
        code.add(WEIGHTS, layout.block_bytes() as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)
    }
}
