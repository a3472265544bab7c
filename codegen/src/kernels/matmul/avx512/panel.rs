//! Integer products of many rows of int4: block by block, all rows of a portion.
//!
//! Codes of a block are taken apart once for all rows and stay in registers; the float sums of all rows
//! wait in scratch memory and are read and written once a block. Two groups share each activation,
//! without which loads are the limit (two a cycle, for four additions or products). Of a block of 32
//! registers hold 16 of codes, 2 of scales, what the channels of both groups add, integer sums of 4 rows
//! (of 3 beside zero points that are floats), and 4 factors; the mask's serves, too, between two blocks'
//! codes. A longer block is two runs, between which the integer sums of all rows wait in memory, too; with
//! few rows it has one group in one run. Order and rounding are those of [`super::integer`].
//!
//! Sums are about 8. Where zero points are codes z, `(z − 8) · −Σ a` is one product of words, whose left
//! side waits in scratch memory; the sum about z is exact as an integer and as a float, so bits are those
//! of a float's product with the zero point.
//!
//! Four rows at a time, because a row's products wait for each other: with two the four units that
//! add and multiply were idle a tenth of the time (Zen 5).

use iced_x86::IcedError;
use iced_x86::code_asm::*;

use super::integer::Block;
use super::paired::{self, Paired};
use super::{Avx512, ZMM};
use crate::kernels::matmul::Activation;
use crate::kernels::matmul::assembled::{
    COUNT, INPUT, Plan, Portion, SCRATCH, TILE_INPUT, TILE_OUTPUT, TILE_RESIDUAL, TILE_WEIGHTS,
    TileShape, WEIGHTS,
};
use crate::kernels::matmul::chunks::LINE_BYTES;
use crate::pack::{GROUP, ZeroPoint};

/// Least rows of a panel: with fewer, reading the weights is what a product waits for, and memory gives
/// one stream of them faster than two.
const FROM_ROWS: usize = 8;
/// Activations of a block whose codes of two groups are one run.
const SHORT: usize = 32;
/// Least rows for which two runs of two groups pay: with fewer, taking codes apart is much of the time.
const LONG_FROM_ROWS: usize = 32;
/// Rows of a portion whose sums and records of a block have room in the nearest cache: with 192 of them a
/// row, group and block took 4.7 cycles where it is 4.2 with 96 to 160 (Zen 5, 48 KB).
const SHORT_ROWS: usize = 128;
/// The same where there are integer sums, too.
const LONG_ROWS: usize = 64;
/// Numbers of groups that a panel has.
const GROUPS: [usize; 2] = [2, 1];
/// Rows of a turn at most; the rest of a portion is taken one by one.
const STEP: usize = 4;
/// Bytes of a group's sums of a row.
const SUMS: usize = GROUP * 4;
/// How far ahead of their use codes of a group are asked for, in bytes: sixteen blocks of 32, and at least
/// one block. They come to the second cache: the nearest is full of sums and records, and 8 rows of
/// 1b's products took 0.93 of the time so, 16 rows 0.98 (Zen 4, large pages).
const BYTES_AHEAD: usize = 4352;

/// Rows of outputs that are asked for in one block at most.
const ASKED_OUTPUTS: usize = 16;

/// Scratch memory: the counter of blocks, the next row of outputs to ask for and the end of those rows,
/// float and integer sums by row and group, and words of the block's zero points less 8 by group.
const BLOCKS_LEFT: usize = 0;
const NEXT_OUTPUT: usize = 8;
const END_OF_OUTPUTS: usize = 16;
const FIRST_SUMS: usize = 64;
const FIRST_WHOLES: usize = FIRST_SUMS + SHORT_ROWS * GROUPS[0] * SUMS;
const ZEROS: usize = FIRST_WHOLES + LONG_ROWS * GROUPS[0] * SUMS;
pub(super) const SCRATCH_BYTES: usize = ZEROS + GROUPS[0] * SUMS;

/// Sums of the turn's first row.
const STEP_SUMS: AsmRegister64 = r11;

/// Where the words of a group's zero points are.
fn zeros_of(group: usize) -> AsmMemoryOperand {
    zmmword_ptr(SCRATCH + (ZEROS + group * SUMS))
}

/// How rows are divided. A panel asks for records long before their use, so they may come from the third
/// cache: walking the weights once more costs more. The step is the largest tile's.
pub(super) fn portion(activations: usize) -> Portion {
    let most = if activations <= SHORT { SHORT_ROWS } else { LONG_ROWS };
    Portion { bytes: 3 << 19, step: 16, most }
}

/// How many rows are panels of how many groups.
pub(super) fn plans(activations: usize) -> Vec<Plan> {
    let plan = |from_rows, groups| Plan { from_rows, rows: &[], groups };
    if activations <= SHORT {
        return vec![plan(FROM_ROWS, &GROUPS)];
    }
    vec![plan(LONG_FROM_ROWS, &GROUPS), plan(FROM_ROWS, &GROUPS[1..])]
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
        let (scales, rest) = ZMM.split_at(groups);
        let has_floats = blocks.zero == ZeroPoint::Float;
        let (zeros, rest) = if has_floats { rest.split_at(groups) } else { (scales, rest) };
        let block = Block { blocks, activations, scales, zeros };
        self.clear_sums(code, groups)?;
        code.mov(qword_ptr(SCRATCH + NEXT_OUTPUT), TILE_OUTPUT)?;
        code.imul_3(COUNT, r9, (self.spec.output_stride * 4) as i32)?;
        code.add(COUNT, TILE_OUTPUT)?;
        code.mov(qword_ptr(SCRATCH + END_OF_OUTPUTS), COUNT)?;
        code.mov(WEIGHTS, TILE_WEIGHTS)?;
        let left = qword_ptr(SCRATCH + BLOCKS_LEFT);
        code.mov(left, layout.block_count() as i32)?;
        let mut again = code.create_label();
        code.set_label(&mut again)?;
        self.ask_for_outputs(code, groups)?;
        for group in 0..groups {
            match blocks.zero {
                ZeroPoint::Code => {
                    self.keep_zeros(code, group)?;
                    self.block_scales(code, blocks, group, scales[group])?;
                }
                ZeroPoint::Implied | ZeroPoint::Float => {
                    self.block_parameters(code, blocks, group, scales[group], zeros[group])?;
                }
            }
        }
        let parts = blocks.block / activations;
        for part in 0..parts {
            self.ask_ahead(code, groups, [part, parts])?;
            for units in paired::runs(activations, groups) {
                let paired = Paired::new(self, &block, [part, groups, STEP], units, rest);
                paired.take_apart(code)?;
                self.all_rows(code, &block, part, groups, &paired)?;
                paired.give_back(code)?;
            }
        }
        code.add(TILE_INPUT, (parts * self.spec.record_bytes()) as i32)?;
        code.add(WEIGHTS, layout.block_bytes() as i32)?;
        code.dec(left)?;
        code.jnz(again)?;
        self.store_rows(code, shape)
    }

    /// Keeps the words of a group's zero points, which are codes, less 8.
    fn keep_zeros(&self, code: &mut CodeAssembler, group: usize) -> Result<(), IcedError> {
        let at = group * self.spec.layout.group_bytes() + self.spec.layout.zeros_offset();
        // Scales of two groups lie in front of this one, and codes come to it later.
        code.vpbroadcastd(xmm2, dword_ptr(*self.centres[1].borrow()))?;
        code.vpaddb(xmm2, xmm2, xmmword_ptr(WEIGHTS + at))?;
        code.vpmovsxbw(ymm2, xmm2)?;
        code.vpmovzxwd(zmm2, ymm2)?;
        code.vmovdqu32(zeros_of(group), zmm2)
    }

    /// Asks for a part of a later block, behind the last for those of the next panel: a stream that went
    /// straight on would come to the group beside, which is here already.
    fn ask_ahead(
        &self,
        code: &mut CodeAssembler,
        groups: usize,
        [part, parts]: [usize; 2],
    ) -> Result<(), IcedError> {
        let layout = self.spec.layout;
        let blocks = (BYTES_AHEAD / layout.block_bytes()).clamp(1, layout.block_count());
        let of_part = layout.block_bytes().div_ceil(parts);
        let lines = part * of_part..layout.block_bytes().min((part + 1) * of_part);
        let place = STEP_SUMS;
        let mut here = code.create_label();
        code.lea(place, ptr(WEIGHTS + blocks * layout.block_bytes()))?;
        if groups > 1 {
            code.cmp(qword_ptr(SCRATCH + BLOCKS_LEFT), blocks as i32)?;
            code.jg(here)?;
            code.add(place, ((groups - 1) * layout.group_bytes()) as i32)?;
        }
        code.set_label(&mut here)?;
        code.zero_bytes()?;
        for group in 0..groups {
            for at in lines.clone().step_by(LINE_BYTES) {
                code.prefetcht1(byte_ptr(place + group * layout.group_bytes() + at))?;
            }
        }
        Ok(())
    }

    /// Asks for the lines of some rows of outputs, to be written: those that another thread has read
    /// since are long in coming, where its caches are far away, and all stores wait for them in turn.
    fn ask_for_outputs(&self, code: &mut CodeAssembler, groups: usize) -> Result<(), IcedError> {
        let rows = SHORT_ROWS.div_ceil(self.spec.layout.block_count()).min(ASKED_OUTPUTS);
        let row_bytes = self.spec.output_stride * 4;
        let place = STEP_SUMS;
        let mut enough = code.create_label();
        code.mov(place, qword_ptr(SCRATCH + NEXT_OUTPUT))?;
        code.cmp(place, qword_ptr(SCRATCH + END_OF_OUTPUTS))?;
        code.jae(enough)?;
        for row in 0..rows {
            for group in 0..groups {
                code.prefetchw(byte_ptr(place + row * row_bytes + group * SUMS))?;
            }
        }
        code.add(place, (rows * row_bytes) as i32)?;
        code.mov(qword_ptr(SCRATCH + NEXT_OUTPUT), place)?;
        code.set_label(&mut enough)?;
        code.zero_bytes()
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
        paired: &Paired<'_>,
    ) -> Result<(), IcedError> {
        code.mov(INPUT, TILE_INPUT)?;
        code.lea(STEP_SUMS, ptr(SCRATCH + FIRST_SUMS))?;
        code.mov(COUNT, r9)?;
        for rows in [paired.at_once(), 1] {
            let [mut again, mut fewer] = [(); 2].map(|()| code.create_label());
            code.set_label(&mut again)?;
            code.cmp(COUNT, rows as i32)?;
            code.jl(fewer)?;
            // The end of the next record: from one row to the next it lies a whole row apart, which is no
            // stream for the processor's own prefetch.
            let next_end = 2 * self.spec.record_bytes() - 1;
            for row in 0..rows {
                let place = self.input(part, row, next_end);
                code.prefetcht0(byte_ptr(place))?;
            }
            let sum = |[row, group]: [usize; 2]| (row * groups + group) * SUMS;
            let so_far = |place| zmmword_ptr(STEP_SUMS + (sum(place) + FIRST_WHOLES - FIRST_SUMS));
            paired.rows(code, rows, so_far, |code, [row, group], whole| {
                if !paired.is_last() {
                    return code.vmovdqu32(so_far([row, group]), whole);
                }
                let sum = zmmword_ptr(STEP_SUMS + sum([row, group]));
                let [scale, of_row] = paired.free();
                if group == 0 {
                    self.row_scale(code, block, part, row, of_row)?;
                }
                if self.spec.is_anchored() {
                    code.vsubps(whole, whole, of_row)?;
                    code.vfmadd213ps(whole, block.scales[group], sum)?;
                    return code.vmovups(sum, whole);
                }
                if block.blocks.zero == ZeroPoint::Code {
                    code.vmovdqu32(scale, zeros_of(group))?;
                    code.vpdpwssd(whole, scale, self.minus_sum(block, part, row))?;
                    code.vcvtdq2ps(whole, whole)?;
                } else {
                    self.about_zero(code, block, part, [row, group], whole, scale)?;
                }
                code.vmulps(scale, block.scales[group], of_row)?;
                code.vfmadd213ps(whole, scale, sum)?;
                code.vmovups(sum, whole)
            })?;
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
