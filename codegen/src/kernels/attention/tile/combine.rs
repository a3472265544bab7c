//! The sums of a chunk: how they begin, and how they go into those of all chunks.

use iced_x86::code_asm::*;

use super::Tile;
use super::blocks::bind;
use super::weigh::{CONSTANTS, exp2, exp2_numbers};
use crate::kernels::attention::vector::{Emitted, Vectors};

/// `(scratch, queries)`. A chunk without a key of a query has the least maximum, no total and no sums:
/// it changes nothing.
pub(in crate::kernels::attention) fn combine(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let bytes = v.bytes();
    let [mut constants, mut again, mut next_query] = [(); 3].map(|()| v.code.create_label());
    // Per query: what its sums are multiplied by, and the chunk's. The tiles are done with these two.
    let [of_all, of_chunk] = [scratch.factors, scratch.tile_totals];
    v.code.lea(CONSTANTS, ptr(constants))?;
    v.code.mov(r8, rdi)?;
    v.code.mov(rdx, rsi)?;
    bind(v, &mut again)?;
    v.load(2, r8 + scratch.all_maxima)?;
    v.load(3, r8 + scratch.maxima)?;
    v.max(12, 2, 3)?;
    v.store(r8 + scratch.all_maxima, 12)?;
    v.sub(0, 2, 12)?;
    v.sub(1, 3, 12)?;
    exp2(v, 2, [0, 4, 8], 13)?;
    v.store(r8 + of_all, 8)?;
    v.store(r8 + of_chunk, 9)?;
    v.mul(10, 9, r8 + scratch.totals)?;
    v.load(11, r8 + scratch.all_totals)?;
    v.multiply_then_add(11, 8, 10)?;
    v.store(r8 + scratch.all_totals, 11)?;
    v.code.add(r8, bytes as i32)?;
    v.code.sub(rdx, v.width.lanes() as i32)?;
    v.code.jg(again)?;

    v.code.mov(r8, rdi)?;
    v.code.mov(r9, rdi)?;
    bind(v, &mut next_query)?;
    v.broadcast(8, r8 + of_all)?;
    v.broadcast(9, r8 + of_chunk)?;
    for column in (0..scratch.sum_row).step_by(bytes) {
        let at = r9 + column;
        v.mul(0, 9, at + scratch.sums)?;
        v.load(1, at + scratch.all_sums)?;
        v.multiply_then_add(1, 8, 0)?;
        v.store(at + scratch.all_sums, 1)?;
    }
    v.code.add(r8, 4)?;
    v.code.add(r9, scratch.sum_row as i32)?;
    v.code.dec(rsi)?;
    v.code.jnz(next_query)?;
    v.code.vzeroupper()?;
    v.code.ret()?;
    v.code.set_label(&mut constants)?;
    exp2_numbers(v)
}

/// `(scratch, queries)`: a chunk begins without weights.
pub(in crate::kernels::attention) fn begin(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let bytes = v.bytes();
    let [mut least, mut again, mut next_query] = [(); 3].map(|()| v.code.create_label());
    v.code.lea(rcx, ptr(least))?;
    v.broadcast(0, rcx.into())?;
    v.zero(1)?;
    v.code.mov(r8, rdi)?;
    v.code.mov(rdx, rsi)?;
    bind(v, &mut again)?;
    v.store(r8 + scratch.maxima, 0)?;
    v.store(r8 + scratch.totals, 1)?;
    v.code.add(r8, bytes as i32)?;
    v.code.sub(rdx, v.width.lanes() as i32)?;
    v.code.jg(again)?;
    bind(v, &mut next_query)?;
    for column in (0..scratch.sum_row).step_by(bytes) {
        v.store(rdi + (scratch.sums + column), 1)?;
    }
    v.code.add(rdi, scratch.sum_row as i32)?;
    v.code.dec(rsi)?;
    v.code.jnz(next_query)?;
    v.code.vzeroupper()?;
    v.code.ret()?;
    v.code.set_label(&mut least)?;
    v.code.dd(&[f32::MIN.to_bits()])
}
