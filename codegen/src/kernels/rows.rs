//! Whole rows fetched by number: embedding rows by token, table rows by position, hidden rows for
//! the head.

use std::mem::offset_of;

use weir_abi::{Fault, StepContext};

use super::matmul::emit_unpack_row;
use crate::emit::{Assembly, Body, EmitError, FuncId, IntCC, Lanes, POINTER, Value, signature};
use crate::pack::PackedLayout;

/// Emits (context, table, output, first row, row behind the last): rows of a packed table by token.
/// A token beyond the table is a fault and gives zeros.
pub fn emit_embed(
    assembly: &mut Assembly,
    layout: &PackedLayout,
    output_stride: usize,
) -> Result<FuncId, EmitError> {
    let symbol = format!(
        "embed-{}-{}x{}-y{output_stride}",
        layout.format.name(),
        layout.channels,
        layout.reduction
    );
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 5], &[]))?;
    assembly.define(id, |b| {
        let [context, table, output, begin, end] = b.params();
        let tokens = b.load(POINTER, context, offset_of!(StepContext, tokens) as i32);
        b.for_range(begin, end, 1, |b, row| {
            let token = b.element(tokens, row, 4);
            let token = b.load_count(token, 0);
            let output = b.element(output, row, output_stride as i64 * 4);
            let known = b.compare_const(IntCC::SignedLessThan, token, layout.channels as i64);
            b.if_else(
                known,
                |b| {
                    emit_unpack_row(b, layout, table, token, output);
                    Vec::new()
                },
                |b| {
                    b.fault(context, Fault::TokenOutOfRange, row);
                    b.for_count_lanes(layout.reduction as i64, |b, index, lanes| {
                        let zero = b.constant(lanes.float(), 0.0);
                        let to = b.element(output, index, 4);
                        b.store(zero, to, 0);
                    });
                    Vec::new()
                },
            );
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

/// Where the number of a row stands in the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowNumbers {
    /// The row's absolute position.
    Positions,
    /// The hidden row that the head is asked for.
    HeadRows,
}

/// Emits (context, table, output, first row, row behind the last): rows of f32 by number.
pub fn emit_rows(
    assembly: &mut Assembly,
    numbers: RowNumbers,
    width: usize,
    table_stride: usize,
    output_stride: usize,
) -> Result<FuncId, EmitError> {
    let (name, offset) = match numbers {
        RowNumbers::Positions => ("table_rows", offset_of!(StepContext, positions)),
        RowNumbers::HeadRows => ("head_rows", offset_of!(StepContext, head_rows)),
    };
    let symbol = format!("{name}-{width}-x{table_stride}-y{output_stride}");
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 5], &[]))?;
    assembly.define(id, |b| {
        let [context, table, output, begin, end] = b.params();
        let numbers = b.load(POINTER, context, offset as i32);
        b.for_range(begin, end, 1, |b, row| {
            let number = b.element(numbers, row, 4);
            let number = b.load_count(number, 0);
            let from = b.element(table, number, table_stride as i64 * 4);
            let to = b.element(output, row, output_stride as i64 * 4);
            copy_floats(b, from, to, width);
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

/// Copies a known number of floats.
pub(super) fn copy_floats(b: &mut Body<'_>, from: Value, to: Value, count: usize) {
    b.for_count_lanes(count as i64, |b, index, lanes: Lanes| {
        let from = b.element(from, index, 4);
        let to = b.element(to, index, 4);
        let value = b.load(lanes.float(), from, 0);
        b.store(value, to, 0);
    });
}
