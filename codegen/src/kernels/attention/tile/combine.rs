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
    let mut least = v.code.create_label();
    v.code.mov(rax, rsi)?;
    nothing(v, tile, [scratch.maxima, scratch.totals, scratch.sums], least)?;
    v.code.vzeroupper()?;
    v.code.ret()?;
    least_float(v, &mut least)
}

/// Sets the maxima of `rax` queries of the scratch at `rdi` to the float at `least`, their totals and
/// sums to 0: what they are without a key. Changes `rax`, `r8` and `r9`.
pub(super) fn nothing(
    v: &mut Vectors<'_>,
    tile: &Tile<'_>,
    [maxima, totals, sums]: [usize; 3],
    least: CodeLabel,
) -> Emitted {
    let bytes = v.bytes();
    let [mut again, mut next_query] = [(); 2].map(|()| v.code.create_label());
    v.code.lea(r8, ptr(least))?;
    v.broadcast(0, r8.into())?;
    v.zero(1)?;
    v.code.mov(r8, rdi)?;
    v.code.mov(r9, rax)?;
    bind(v, &mut again)?;
    v.store(r8 + maxima, 0)?;
    v.store(r8 + totals, 1)?;
    v.code.add(r8, bytes as i32)?;
    v.code.sub(r9, v.width.lanes() as i32)?;
    v.code.jg(again)?;
    v.code.mov(r8, rdi)?;
    bind(v, &mut next_query)?;
    for column in (0..tile.scratch.sum_row).step_by(bytes) {
        v.store(r8 + (sums + column), 1)?;
    }
    v.code.add(r8, tile.scratch.sum_row as i32)?;
    v.code.dec(rax)?;
    v.code.jnz(next_query)
}

/// The constant that [`nothing`] reads.
pub(super) fn least_float(v: &mut Vectors<'_>, label: &mut CodeLabel) -> Emitted {
    v.code.set_label(label)?;
    v.code.dd(&[f32::MIN.to_bits()])
}
