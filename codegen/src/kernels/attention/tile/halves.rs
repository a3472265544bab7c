//! Rounding of queries over a bf16 cache.

use iced_x86::code_asm::*;

use super::Tile;
use super::blocks::bind;
use crate::kernels::attention::cache::CacheType;
use crate::kernels::attention::vector::{Emitted, PAIR, ROUNDING, Vectors};

/// Registers of [`ROUNDING`].
const MASKS: [usize; 3] = [13, 14, 15];

/// `(scratch, queries)`: queries are rounded to bf16; as pairs where these are multiplied, else as
/// floats.
pub(in crate::kernels::attention) fn round_queries(
    v: &mut Vectors<'_>,
    tile: &Tile<'_>,
) -> Emitted {
    match tile.is_paired {
        true => to_pairs(v, tile),
        false => to_floats(v, tile),
    }
}

/// Pairs are written by sixteen; beside the last of an odd number stands zero.
fn to_pairs(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let lanes = v.width.lanes();
    let mut again = v.code.create_label();
    let part = tile.key_width % lanes;
    // No mask is read here: with sixteen lanes it is a number.
    v.prepare_part(part, rdi.into())?;
    v.code.lea(r8, rdi + tile.scratch.queries)?;
    v.code.lea(r9, rdi + tile.scratch.rounded_queries)?;
    bind(v, &mut again)?;
    for pairs in 0..tile.key_width.div_ceil(2 * lanes) {
        for half in 0..2 {
            let first = (2 * pairs + half) * lanes;
            let from = r8 + first * 4;
            match tile.key_width.saturating_sub(first) {
                0 => v.zero(half)?,
                left if left < lanes => v.load_part(CacheType::F32, left, half, from)?,
                _ => v.load(half, from)?,
            }
        }
        v.store_pairs(r9 + pairs * lanes * PAIR, [0, 1])?;
    }
    v.code.add(r8, (tile.key_width * 4) as i32)?;
    v.code.add(r9, tile.scratch.rounded_row as i32)?;
    v.code.dec(rsi)?;
    v.code.jnz(again)?;
    v.code.vzeroupper()?;
    v.code.ret()
}

/// All numbers of all queries lie one after the other; what is behind the last is rounded with it, for
/// there is room for whole registers.
fn to_floats(v: &mut Vectors<'_>, tile: &Tile<'_>) -> Emitted {
    let bytes = v.bytes();
    let mut again = v.code.create_label();
    for (mask, word) in MASKS.into_iter().zip(ROUNDING) {
        v.fill(mask, f32::from_bits(word))?;
    }
    v.code.imul_3(rsi, rsi, tile.key_width as i32)?;
    bind(v, &mut again)?;
    v.load(0, rdi + tile.scratch.queries)?;
    v.round_to_bf16(0, [1, 2], MASKS)?;
    v.store(rdi + tile.scratch.rounded_queries, 0)?;
    v.code.add(rdi, bytes as i32)?;
    v.code.sub(rsi, v.width.lanes() as i32)?;
    v.code.jg(again)?;
    v.code.vzeroupper()?;
    v.code.ret()
}
