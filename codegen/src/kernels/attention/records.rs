//! Means become rows that are rounded for the product that reads them, while they are in the nearest cache:
//! no row of floats is written, read by other threads, and waited for. The kernel is the one that rounds
//! whole rows, called for the heads that a unit has, so its bits and bounds are that kernel's.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use weir_abi::IsaLevel;

use super::AttendSpec;
use crate::emit::{Assembly, Body, EmitError, FuncId, POINTER, Value, signature};
use crate::kernels::rounding::{RoundingSpec, Source, emit_rounding};

/// How the means of some heads, dense, are rounded.
#[derive(Clone, Copy)]
pub(super) struct Records {
    rounding: FuncId,
    /// Bytes of a rounded row, and of one head in it.
    row_bytes: i64,
    head_bytes: i64,
    /// Items of the heads in a row.
    items: i64,
    /// What asks for their lines, to be written; the portable version does not.
    ask: Option<FuncId>,
}

/// Bytes of a cache line.
const LINE: usize = 64;

impl Records {
    /// Emits the rounding of `heads` heads together, if their means are to be rounded.
    pub(super) fn emit(
        assembly: &mut Assembly,
        spec: &AttendSpec,
        level: IsaLevel,
        heads: usize,
    ) -> Result<Option<Records>, EmitError> {
        let Some(rows) = spec.rounded.map(|rows| rows.at(level)) else { return Ok(None) };
        let width = heads * spec.cache.value_width;
        let rounding = RoundingSpec::of_part(rows, Source::Row, width, width);
        let items = rounding.activation.items_per_row();
        let head_bytes = items / heads * rows.item_bytes();
        let ask = match level {
            IsaLevel::Portable => None,
            _ => Some(emit_ask(assembly, heads * head_bytes, rows.row_bytes())?),
        };
        Ok(Some(Records {
            rounding: emit_rounding(assembly, &rounding, level)?,
            row_bytes: rows.row_bytes() as i64,
            head_bytes: head_bytes as i64,
            items: items as i64,
            ask,
        }))
    }

    /// Where the heads from `head` on begin in a row.
    fn place(&self, b: &mut Body<'_>, output: Value, row: Value, head: Value) -> Value {
        let output = b.element(output, row, self.row_bytes);
        b.element(output, head, self.head_bytes)
    }

    /// Asks for the lines that [`Records::write`] writes. All threads have read them since they were
    /// written last, and each writing waits until the others have given its line up: if only then, what
    /// the thread writes behind it would wait, too.
    pub(super) fn ask(
        &self,
        b: &mut Body<'_>,
        output: Value,
        [row, count]: [Value; 2],
        head: Value,
    ) {
        if let Some(ask) = self.ask {
            let place = self.place(b, output, row, head);
            b.call(ask, &[place, count]);
        }
    }

    /// Rounds the means of `count` rows from `row` on, of the heads from `head` on.
    pub(super) fn write(
        &self,
        b: &mut Body<'_>,
        means: Value,
        output: Value,
        [row, count]: [Value; 2],
        head: Value,
    ) {
        let place = self.place(b, output, row, head);
        let zero = b.int(0);
        let items = b.mul_const(count, self.items);
        b.call(self.rounding, &[means, place, zero, items]);
    }
}

/// Emits (place, rows): asks for the lines of so many bytes of each row, to be written.
fn emit_ask(assembly: &mut Assembly, bytes: usize, row_bytes: usize) -> Result<FuncId, EmitError> {
    let symbol = format!("ask-{bytes}of{row_bytes}");
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 2], &[]))?;
    assembly.assemble(id, |code| -> Result<(), IcedError> {
        let mut again = code.create_label();
        code.set_label(&mut again)?;
        for at in (0..bytes).step_by(LINE).chain([bytes - 1]) {
            code.prefetchw(byte_ptr(rdi + at))?;
        }
        code.add(rdi, row_bytes as i32)?;
        code.dec(rsi)?;
        code.jnz(again)?;
        code.ret()
    })?;
    Ok(id)
}
