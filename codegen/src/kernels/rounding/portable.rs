//! The portable version: a block's values go through the stack, then are rounded like a row's.

use super::{Blocks, Source};
use crate::emit::{Assembly, Body, EmitError, FuncId, Lanes, Value};
use crate::kernels::map::unary;
use crate::kernels::matmul::{Scaling, for_rows, largest_of_row, quantise_block, zeros_behind};
use crate::kernels::norm::rms_factor;

/// What the values of a row are made from.
struct Row {
    /// The first operand's row.
    input: Value,
    /// The weight, or the second operand's row.
    second: Value,
    /// The norm's factor.
    factor: Option<Value>,
    /// The largest magnitude of its values, where they have one scale.
    largest: Option<Value>,
}

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    blocks: &Blocks,
    source: Source,
) -> Result<(), EmitError> {
    assembly.define(id, |b| {
        let [input, second, output, begin, end] = b.params();
        let staged = b.stack(blocks.form.block as u32 * 4);
        for_rows(b, [begin, end], blocks.count, |b, number, [first, last]| {
            let input = b.element(input, number, blocks.input_stride as i64 * 4);
            let mut row = Row { input, second, factor: None, largest: None };
            match source {
                Source::Gated { up_stride, .. } => {
                    row.second = b.element(second, number, up_stride as i64 * 4);
                }
                Source::RmsNorm { epsilon } => {
                    row.factor = Some(rms_factor(b, blocks.reduction, epsilon, input));
                }
                Source::Row => {}
            }
            if blocks.form.scaling == Scaling::Row {
                row.largest = Some(largest_of_row(b, blocks.reduction, |b, at, lanes| {
                    element(b, source, &row, at, lanes)
                }));
            }
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
    let begin = b.mul_const(part, blocks.form.block as i64);
    let limit = b.int(blocks.reduction as i64);
    let rest = b.sub(limit, begin);
    let size = b.int(blocks.form.block as i64);
    let valid = b.min(rest, size);
    let zero = b.int(0);
    b.for_lanes(zero, valid, |b, index, lanes| {
        let at = b.add(begin, index);
        let value = element(b, source, row, at, lanes);
        let to = b.element(staged, index, 4);
        b.store(value, to, 0);
    });
    let valid = b.max(valid, zero);
    zeros_behind(b, staged, valid, blocks.form.block);
    quantise_block(b, staged, to, blocks.form, row.largest);
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
