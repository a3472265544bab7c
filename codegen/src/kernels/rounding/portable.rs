//! The portable version: a block's values go through the stack, then are rounded like a row's.

use super::{Blocks, Source};
use crate::emit::{Assembly, Body, EmitError, FuncId, InstBuilder, Lanes, Value};
use crate::kernels::map::unary;
use crate::kernels::matmul::{quantise_block, zeros_behind};
use crate::kernels::norm::rms_factor;

/// What the values of a row are made from.
struct Row {
    /// The first operand's row.
    input: Value,
    /// The weight, or the second operand's row.
    second: Value,
    /// The norm's factor.
    factor: Option<Value>,
}

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    blocks: &Blocks,
    source: Source,
) -> Result<(), EmitError> {
    assembly.define(id, |b| {
        let [input, second, output, begin, end] = b.params();
        let staged = b.stack(blocks.block as u32 * 4);
        let per_row = b.int(blocks.count as i64);
        let zero = b.int(0);
        let first_row = b.ins().udiv(begin, per_row);
        let behind = b.add_const(end, blocks.count as i64 - 1);
        let end_row = b.ins().udiv(behind, per_row);
        b.for_range(first_row, end_row, 1, |b, row| {
            let before = b.mul(row, per_row);
            let first = b.sub(begin, before);
            let first = b.max(first, zero);
            let last = b.sub(end, before);
            let last = b.min(last, per_row);
            let input = b.element(input, row, blocks.input_stride as i64 * 4);
            let row = match source {
                Source::Gated { up_stride, .. } => {
                    let second = b.element(second, row, up_stride as i64 * 4);
                    (row, Row { input, second, factor: None })
                }
                Source::RmsNorm { epsilon } => {
                    let factor = rms_factor(b, blocks.reduction, epsilon, input);
                    (row, Row { input, second, factor: Some(factor) })
                }
                Source::Row => (row, Row { input, second, factor: None }),
            };
            let (number, row) = row;
            let records = b.element(output, number, blocks.row_bytes as i64);
            b.for_range(first, last, 1, |b, part| {
                let to = b.element(records, part, blocks.record_bytes() as i64);
                round_block(b, blocks, source, &row, part, staged, to);
            });
        });
        b.ret(&[]);
    })
}

fn round_block(
    b: &mut Body<'_>,
    blocks: &Blocks,
    source: Source,
    row: &Row,
    part: Value,
    staged: Value,
    to: Value,
) {
    let begin = b.mul_const(part, blocks.block as i64);
    let limit = b.int(blocks.reduction as i64);
    let rest = b.sub(limit, begin);
    let size = b.int(blocks.block as i64);
    let valid = b.min(rest, size);
    let zero = b.int(0);
    b.for_lanes(zero, valid, |b, index, lanes| {
        let at = b.add(begin, index);
        let value = element(b, source, row, at, lanes);
        let to = b.element(staged, index, 4);
        b.store(value, to, 0);
    });
    let valid = b.max(valid, zero);
    zeros_behind(b, staged, valid, blocks.block);
    quantise_block(b, staged, to, blocks.block);
}

fn element(b: &mut Body<'_>, source: Source, row: &Row, at: Value, lanes: Lanes) -> Value {
    let load = |b: &mut Body<'_>, base: Value| {
        let from = b.element(base, at, 4);
        b.load(lanes.float(), from, 0)
    };
    let value = load(b, row.input);
    match (source, row.factor) {
        (Source::Gated { activation, .. }, _) => {
            let gate = unary(b, activation, value);
            let up = load(b, row.second);
            b.fmul(gate, up)
        }
        (Source::RmsNorm { .. }, Some(factor)) => {
            let factor = b.spread(lanes, factor);
            let value = b.fmul(value, factor);
            let weight = load(b, row.second);
            b.fmul(value, weight)
        }
        _ => value,
    }
}
