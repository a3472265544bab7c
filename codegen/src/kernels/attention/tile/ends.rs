//! How a tile of queries begins and how it ends: queries go to the scratch, means to the output.

use iced_x86::code_asm::*;

use super::Tile;
use super::blocks::bind;
use super::combine::{least_float, nothing};
use crate::kernels::attention::vector::{Emitted, Vectors, Width};

/// Bytes from one row, or head, to the next.
pub(in crate::kernels::attention) struct Strides {
    /// From row to row of the query.
    pub(in crate::kernels::attention) query_row: usize,
    /// From head to head of it.
    pub(in crate::kernels::attention) query_head: usize,
    /// From row to row of the output, whose heads are dense.
    pub(in crate::kernels::attention) output_row: usize,
}

/// `(scratch, rows, queries of the first row)`: copies the queries, and their sums of all chunks begin
/// with no key.
pub(in crate::kernels::attention) fn take(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let (scratch, strides) = (tile.scratch, &tile.strides);
    let mut least = v.code.create_label();
    let key_bytes = tile.key_width * 4;
    v.code.imul_3(rax, rsi, tile.group as i32)?;
    let begin = [scratch.all_maxima, scratch.all_totals, scratch.all_sums];
    nothing(v, tile, begin, least)?;
    each_head(v, tile.group, [strides.query_row, strides.query_head], |v| {
        for (offset, bytes) in pieces(v, key_bytes) {
            load(v, 0, rcx + offset, bytes)?;
            store(v, rdi + (scratch.queries + offset), 0, bytes)?;
        }
        v.code.add(rdi, key_bytes as i32)
    })?;
    least_float(v, &mut least)
}

/// `(scratch, rows, output of the first row)`: writes sums over totals.
pub(in crate::kernels::attention) fn means(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let scratch = tile.scratch;
    let value_bytes = tile.value_width * 4;
    let total = 1;
    v.code.mov(r8, rdi)?;
    each_head(v, tile.group, [tile.strides.output_row, value_bytes], |v| {
        v.broadcast(total, r8 + scratch.all_totals)?;
        for (offset, bytes) in pieces(v, value_bytes) {
            load(v, 0, rdi + (scratch.all_sums + offset), bytes)?;
            divide(v, 0, total, bytes)?;
            store(v, rcx + offset, 0, bytes)?;
        }
        v.code.add(rdi, scratch.sum_row as i32)?;
        v.code.add(r8, 4)
    })
}

/// For each of `rsi` rows from `rdx` on, and each of its heads, `body` at `rcx`; then the step returns.
/// Strides are from row to row and from head to head. Changes `rax`, `rcx`, `rdx` and `rsi`.
fn each_head(
    v: &mut Vectors<'_>,
    heads: usize,
    [row, head]: [usize; 2],
    body: impl FnOnce(&mut Vectors<'_>) -> Emitted,
) -> Emitted {
    let [mut next_row, mut next_head] = [(); 2].map(|()| v.code.create_label());
    bind(v, &mut next_row)?;
    v.code.mov(rcx, rdx)?;
    v.code.mov(eax, heads as i32)?;
    bind(v, &mut next_head)?;
    body(v)?;
    v.code.add(rcx, head as i32)?;
    v.code.dec(eax)?;
    v.code.jnz(next_head)?;
    v.code.add(rdx, row as i32)?;
    v.code.dec(rsi)?;
    v.code.jnz(next_row)?;
    v.code.vzeroupper()?;
    v.code.ret()
}

/// Offsets and lengths of the pieces that a row of bytes is moved in: whole registers, then smaller
/// ones, down to a single float.
fn pieces(v: &Vectors<'_>, bytes: usize) -> Vec<(usize, usize)> {
    let mut offset = 0;
    let mut pieces = Vec::new();
    for piece in [64, 32, 16, 4].into_iter().filter(|piece| *piece <= v.bytes()) {
        while bytes - offset >= piece {
            pieces.push((offset, piece));
            offset += piece;
        }
    }
    pieces
}

/// The words over registers of eight floats, of which those of sixteen have the first half.
fn half<'a>(v: &'a mut Vectors<'_>) -> Vectors<'a> {
    Vectors { code: v.code, width: Width::Eight }
}

fn load(v: &mut Vectors<'_>, to: usize, from: AsmMemoryOperand, bytes: usize) -> Emitted {
    match bytes {
        4 => v.first(|code, xmm| code.vmovss(xmm[to], dword_ptr(from))),
        16 => v.first(|code, xmm| code.vmovups(xmm[to], xmmword_ptr(from))),
        32 => half(v).load(to, from),
        _ => v.load(to, from),
    }
}

fn store(v: &mut Vectors<'_>, to: AsmMemoryOperand, from: usize, bytes: usize) -> Emitted {
    match bytes {
        4 => v.store_first(to, from),
        16 => v.first(|code, xmm| code.vmovups(xmmword_ptr(to), xmm[from])),
        32 => half(v).store(to, from),
        _ => v.store(to, from),
    }
}

/// x becomes x / by.
fn divide(v: &mut Vectors<'_>, x: usize, by: usize, bytes: usize) -> Emitted {
    match bytes {
        4 => v.first(|code, xmm| code.vdivss(xmm[x], xmm[x], xmm[by])),
        16 => v.first(|code, xmm| code.vdivps(xmm[x], xmm[x], xmm[by])),
        32 => half(v).div(x, x, by),
        _ => v.div(x, x, by),
    }
}
