//! The portable version: a part's values go through the stack, then are rounded like a row's.

use super::{Parts, Rounded, Source};
use crate::emit::{Assembly, Body, EmitError, FuncId, Lanes, Value};
use crate::kernels::map::unary;
use crate::kernels::matmul::{
    Scaling, for_rows, largest_of_row, quantise_block, round_chunk, zeros_behind,
};
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
    rounded: &Rounded,
    source: Source,
) -> Result<(), EmitError> {
    let parts = rounded.parts();
    assembly.define(id, |b| {
        let [input, second, output, begin, end] = match source {
            Source::Row => {
                let [input, output, begin, end] = b.params();
                [input, input, output, begin, end]
            }
            Source::RmsNorm { .. } | Source::Gated { .. } => b.params(),
        };
        let staged = b.stack(parts.elements as u32 * 4);
        for_rows(b, [begin, end], parts.count, |b, number, [first, last]| {
            let input = b.element(input, number, parts.input_stride as i64 * 4);
            let mut row = Row { input, second, factor: None, largest: None };
            match source {
                Source::Gated { up_stride, .. } => {
                    row.second = b.element(second, number, up_stride as i64 * 4);
                }
                Source::RmsNorm { epsilon } => {
                    row.factor = Some(rms_factor(b, parts.reduction, epsilon, input));
                }
                Source::Row => {}
            }
            if matches!(rounded, Rounded::Codes(blocks) if blocks.form.scaling == Scaling::Row) {
                row.largest = Some(largest_of_row(b, parts.reduction, |b, at, lanes| {
                    element(b, source, &row, at, lanes)
                }));
            }
            let output = b.element(output, number, parts.row_bytes as i64);
            b.for_range(first, last, 1, |b, part| {
                let begin = b.mul_const(part, parts.elements as i64);
                let valid = stage(b, parts, source, &row, begin, staged);
                match rounded {
                    Rounded::Codes(blocks) => {
                        let to = b.element(output, part, parts.bytes as i64);
                        zeros_behind(b, staged, valid, parts.elements);
                        quantise_block(b, staged, to, blocks.form, row.largest);
                    }
                    Rounded::Halves(_, halves) => {
                        // Counted from the row's begin.
                        let before = b.mul_const(begin, -4);
                        let from = b.add(staged, before);
                        let end = b.add(begin, valid);
                        round_chunk(b, *halves, [from, output], [begin, end], parts.reduction);
                    }
                }
            });
        });
        b.ret(&[]);
    })
}

/// Computes the part that begins at an element; returns how many elements it has.
fn stage(
    b: &mut Body<'_>,
    parts: &Parts,
    source: Source,
    row: &Row,
    begin: Value,
    staged: Value,
) -> Value {
    let limit = b.int(parts.reduction as i64);
    let rest = b.sub(limit, begin);
    let size = b.int(parts.elements as i64);
    let valid = b.min(rest, size);
    let zero = b.int(0);
    b.for_lanes(zero, valid, |b, index, lanes| {
        let at = b.add(begin, index);
        let value = element(b, source, row, at, lanes);
        let to = b.element(staged, index, 4);
        b.store(value, to, 0);
    });
    b.max(valid, zero)
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
