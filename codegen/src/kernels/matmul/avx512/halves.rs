//! Products of bf16 with bf16 in 512-bit vectors: two of a channel at a time, by `vdpbf16ps`.
//!
//! It adds the product of the upper halves to the sum and then that of the lower ones, each by one fused
//! operation; weights and activations have the earlier element above, so the chain is that of the other
//! versions, k ascending. But it takes numbers below 2⁻¹²⁶ for zero, among inputs as among sums. Beside
//! the last of an odd number of elements stands zero times zero.
//!
//! Tiles are 12 rows × 2 groups: 24 sums, 2 weights, 1 activation; 24 products of pairs per 14 loads. A
//! single row waits for memory, which gives one stream fastest, asked for into the second cache: 1.2 times
//! as fast as four groups side by side, asked for into the first (Zen 4, from large pages).

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::{Avx512, ZMM};
use crate::kernels::matmul::assembled::{
    COUNT, FURTHER_ON, INPUT, Plan, TileShape, WEIGHTS, ahead,
};
use crate::pack::GROUP;

/// Bytes of a pair.
const PAIR: usize = 4;

/// Tile sizes.
pub(super) fn plans() -> Vec<Plan> {
    vec![
        Plan { from_rows: 6, rows: &[12, 8, 6, 4, 2, 1], groups: &[2, 1] },
        Plan { from_rows: 2, rows: &[4, 2, 1], groups: &[4, 2, 1] },
        Plan { from_rows: 1, rows: &[1], groups: &[1] },
    ]
}

impl Avx512<'_> {
    pub(super) fn pair_sums(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
    ) -> Result<(), IcedError> {
        let (sums, rest) = ZMM.split_at(shape.rows * shape.groups);
        let (weights, rest) = rest.split_at(shape.groups);
        let activation = rest[0];
        for sum in sums {
            code.vpxord(*sum, *sum, *sum)?;
        }
        let pair = |code: &mut CodeAssembler, at: usize| {
            for (group, weight) in weights.iter().enumerate() {
                let offset = self.weight_offset(group, at);
                let asked = byte_ptr(WEIGHTS + FURTHER_ON + (offset + ahead(shape.rows)));
                match shape.rows {
                    1 => code.prefetcht1(asked)?,
                    _ => code.prefetcht0(asked)?,
                }
                code.vmovups(*weight, zmmword_ptr(WEIGHTS + offset))?;
            }
            for row in 0..shape.rows {
                let from = INPUT + (row * self.spec.input_row_bytes() + at * PAIR);
                code.vpbroadcastd(activation, dword_ptr(from))?;
                for (group, weight) in weights.iter().enumerate() {
                    code.vdpbf16ps(self.sum(shape, row, group), activation, *weight)?;
                }
            }
            Ok::<(), IcedError>(())
        };
        let pairs = self.spec.layout.reduction.div_ceil(2);
        let unroll = if shape.rows == 1 { 8 } else { 2 };
        let turns = pairs / unroll;
        if turns > 0 {
            let mut again = code.create_label();
            code.mov(COUNT, turns as i64)?;
            code.set_label(&mut again)?;
            for at in 0..unroll {
                pair(code, at)?;
            }
            code.add(INPUT, (unroll * PAIR) as i32)?;
            code.add(WEIGHTS, (unroll * GROUP * PAIR) as i32)?;
            code.dec(COUNT)?;
            code.jnz(again)?;
        }
        for at in 0..pairs % unroll {
            pair(code, at)?;
        }
        Ok(())
    }
}
