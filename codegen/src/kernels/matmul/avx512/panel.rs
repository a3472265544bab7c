//! Integer products of many rows of int4: block by block, all rows of a portion.
//!
//! Codes of a block are taken apart once for all rows and stay in registers; the float sums of all rows
//! wait in scratch memory and are read and written once a block. For blocks of 32 two groups share each
//! activation: registers hold 16 of codes, 2 of scales, 2 of zero points, what the sums of both groups
//! begin with, 4 integer sums (2 rows), 4 factors and the mask. Longer blocks have one group, 4 rows at
//! a time. Order and rounding are those of [`super::integer`].

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::integer::Block;
use super::paired::Paired;
use super::{Avx512, ZMM};
use crate::kernels::matmul::assembled::{
    COUNT, INPUT, PORTION, SCRATCH, TILE_INPUT, TILE_OUTPUT, TILE_RESIDUAL, TILE_WEIGHTS,
    TileShape, WEIGHTS,
};
use crate::kernels::matmul::{Activation, record_bytes};
use crate::pack::{GROUP, ZeroPoint};

/// Least rows: with fewer, memory gives one stream of weights faster than two.
pub(super) const FROM_ROWS: usize = 32;
/// Activations of a block up to which codes of two groups fit the registers.
const SHORT: usize = 32;
/// Rows of a turn; the rest of a portion is taken one by one.
const STEP: usize = 4;
/// Bytes of a group's sums of a row.
const SUMS: usize = GROUP * 4;

/// Scratch memory: the counter of blocks, and float sums by row and group.
const BLOCKS_LEFT: usize = 0;
const FIRST_SUMS: usize = 64;
pub(super) const SCRATCH_BYTES: usize = FIRST_SUMS + PORTION.most * 2 * SUMS;

/// Sums of the turn's first row.
const STEP_SUMS: AsmRegister64 = r11;

/// Numbers of groups that a panel has.
pub(super) fn groups(activations: usize) -> &'static [usize] {
    if activations <= SHORT { &[2, 1] } else { &[1] }
}

impl Avx512<'_> {
    pub(super) fn integer_panel(
        &self,
        code: &mut CodeAssembler,
        shape: TileShape,
    ) -> Result<(), IcedError> {
        let layout = self.spec.layout;
        let (Some(blocks), Some(Activation::Int8 { block: activations, .. })) =
            (layout.format.blocks(), self.spec.activation())
        else {
            return Ok(());
        };
        let groups = shape.groups;
        let has_zeros = blocks.zero != ZeroPoint::Implied;
        let (scales, rest) = ZMM[..ZMM.len() - 1].split_at(groups);
        let (zeros, rest) = if has_zeros { rest.split_at(groups) } else { (scales, rest) };
        let block = Block { blocks, activations, scales, zeros };
        let at_once = STEP / groups;
        self.clear_sums(code, groups)?;
        code.mov(WEIGHTS, TILE_WEIGHTS)?;
        let left = qword_ptr(SCRATCH + BLOCKS_LEFT);
        code.mov(left, layout.block_count() as i32)?;
        let mut again = code.create_label();
        code.set_label(&mut again)?;
        for group in 0..groups {
            self.block_parameters(code, blocks, group, scales[group], zeros[group])?;
        }
        let parts = blocks.block / activations;
        for part in 0..parts {
            let paired = Paired::new(self, &block, part, [at_once, groups], rest);
            paired.take_apart(code, FROM_ROWS)?;
            self.all_rows(code, &block, part, groups, at_once, &paired)?;
        }
        code.add(TILE_INPUT, (parts * record_bytes(activations)) as i32)?;
        code.add(WEIGHTS, layout.block_bytes() as i32)?;
        code.dec(left)?;
        code.jnz(again)?;
        self.store_rows(code, shape)
    }

    fn clear_sums(&self, code: &mut CodeAssembler, groups: usize) -> Result<(), IcedError> {
        let mut again = code.create_label();
        code.vpxord(zmm0, zmm0, zmm0)?;
        code.lea(STEP_SUMS, ptr(SCRATCH + FIRST_SUMS))?;
        code.mov(COUNT, r9)?;
        code.set_label(&mut again)?;
        for group in 0..groups {
            code.vmovups(zmmword_ptr(STEP_SUMS + group * SUMS), zmm0)?;
        }
        code.add(STEP_SUMS, (groups * SUMS) as i32)?;
        code.dec(COUNT)?;
        code.jnz(again)
    }

    /// Adds a part's products to the sums of all rows.
    fn all_rows(
        &self,
        code: &mut CodeAssembler,
        block: &Block<'_>,
        part: usize,
        groups: usize,
        at_once: usize,
        paired: &Paired<'_>,
    ) -> Result<(), IcedError> {
        code.mov(INPUT, TILE_INPUT)?;
        code.lea(STEP_SUMS, ptr(SCRATCH + FIRST_SUMS))?;
        code.mov(COUNT, r9)?;
        for rows in [STEP, 1] {
            let [mut again, mut fewer] = [(); 2].map(|()| code.create_label());
            code.set_label(&mut again)?;
            code.cmp(COUNT, rows as i32)?;
            code.jl(fewer)?;
            // The end of the next record: from one row to the next it lies a whole row apart, which is no
            // stream for the processor's own prefetch.
            let next_end = 2 * record_bytes(block.activations) - 1;
            for row in 0..rows {
                let place = self.input(block, part, row, next_end);
                code.prefetcht0(byte_ptr(place))?;
            }
            for first in (0..rows).step_by(at_once) {
                let together = first..rows.min(first + at_once);
                paired.rows(code, together, |code, [row, group], whole| {
                    let sum = zmmword_ptr(STEP_SUMS + (row * groups + group) * SUMS);
                    let [scale, of_row] = paired.free();
                    if group == 0 {
                        self.row_scale(code, block, part, row, of_row)?;
                    }
                    self.about_zero(code, block, part, [row, group], whole, scale)?;
                    code.vmulps(scale, block.scales[group], of_row)?;
                    code.vfmadd213ps(whole, scale, sum)?;
                    code.vmovups(sum, whole)
                })?;
            }
            code.add(INPUT, (rows * self.spec.input_row_bytes()) as i32)?;
            code.add(STEP_SUMS, (rows * groups * SUMS) as i32)?;
            code.sub(COUNT, rows as i32)?;
            code.jmp(again)?;
            code.set_label(&mut fewer)?;
            code.zero_bytes()?;
        }
        Ok(())
    }

    /// Bias, residual and outputs of all rows.
    fn store_rows(&self, code: &mut CodeAssembler, shape: TileShape) -> Result<(), IcedError> {
        let row_bytes = (self.spec.output_stride * 4) as i32;
        let row = TileShape { rows: 1, ..shape };
        let mut again = code.create_label();
        code.lea(STEP_SUMS, ptr(SCRATCH + FIRST_SUMS))?;
        code.mov(COUNT, r9)?;
        code.set_label(&mut again)?;
        for group in 0..shape.groups {
            let sum = self.sum(row, 0, group);
            code.vmovups(sum, zmmword_ptr(STEP_SUMS + group * SUMS))?;
        }
        self.store(code, row)?;
        code.add(STEP_SUMS, (shape.groups * SUMS) as i32)?;
        code.add(TILE_OUTPUT, row_bytes)?;
        code.add(TILE_RESIDUAL, row_bytes)?;
        code.dec(COUNT)?;
        code.jnz(again)
    }
}
