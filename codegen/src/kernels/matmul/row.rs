//! One output channel of a packed weight as f32: the embedding row of a tied table.

use super::decode;
use crate::emit::{Body, INT, InstBuilder, Value};
use crate::pack::{GROUP, PackedLayout};

/// Writes the K elements of output channel `channel` (an `i64` below N) to `out`: quantised ones as
/// `(code - zero) · scale`. `weights` is the address of the packed weight.
pub fn emit_unpack_row(
    b: &mut Body<'_>,
    layout: &PackedLayout,
    weights: Value,
    channel: Value,
    out: Value,
) {
    let group = b.ins().ushr_imm_u(channel, i64::from(GROUP.trailing_zeros()));
    let lane = b.ins().band_imm_s(channel, GROUP as i64 - 1);
    let base = b.element(weights, group, layout.group_bytes() as i64);
    let (block_size, block_bytes) = match layout.format.blocks() {
        Some(blocks) => (blocks.block, layout.block_bytes()),
        None => (layout.reduction, 0),
    };
    let whole = layout.reduction / block_size;
    let rest = layout.reduction % block_size;
    b.for_count(whole as i64, 1, |b, index| {
        let block = b.element(base, index, block_bytes as i64);
        let out = b.element(out, index, block_size as i64 * 4);
        unpack_block(b, layout, [base, block], lane, out, block_size);
    });
    if rest > 0 {
        let block = b.add_const(base, (whole * block_bytes) as i64);
        let out = b.add_const(out, (whole * block_size * 4) as i64);
        unpack_block(b, layout, [base, block], lane, out, rest);
    }
}

/// The first `elements` elements of a channel's block, which like its group is an address.
fn unpack_block(
    b: &mut Body<'_>,
    layout: &PackedLayout,
    [group, block]: [Value; 2],
    lane: Value,
    out: Value,
    elements: usize,
) {
    let parameters = layout
        .format
        .blocks()
        .map(|blocks| decode::channel_parameters(b, layout, blocks, [group, block], lane));
    let units = b.element(block, lane, 4);
    let units = b.add_const(units, layout.codes_offset() as i64);
    let per_unit = decode::unit_elements(layout.format);
    let unpack_unit = |b: &mut Body<'_>, index: Value, valid: usize| {
        let at = b.element(units, index, GROUP as i64 * 4);
        let to = b.element(out, index, per_unit as i64 * 4);
        let unit = b.load(INT, at, 0);
        for element in 0..valid {
            let mut value = decode::element(b, layout.format, unit, element);
            if let Some((scale, zero)) = parameters {
                let centred = b.fsub(value, zero);
                value = b.fmul(centred, scale);
            }
            b.store(value, to, element as i32 * 4);
        }
    };
    let whole = elements / per_unit;
    b.for_count(whole as i64, 1, |b, index| unpack_unit(b, index, per_unit));
    if !elements.is_multiple_of(per_unit) {
        let index = b.int(whole as i64);
        unpack_unit(b, index, elements % per_unit);
    }
}
