//! Rotates pairs of each head by the angles of the row's position: (a, b) becomes
//! (a cos - b sin, b cos + a sin). Values beyond the rotated width pass.

use std::mem::offset_of;

use weir_abi::StepContext;

use crate::emit::{Assembly, Body, EmitError, FLOAT, FuncId, POINTER, Value, signature};

/// Shapes of a rotation; strides count floats.
#[derive(Clone, Copy, Debug)]
pub struct RotarySpec {
    /// Heads of a row.
    pub heads: usize,
    /// Values of a head.
    pub head_width: usize,
    /// Rotated values.
    pub width: usize,
    /// Pairs are (2i, 2i + 1) instead of (i, i + width / 2).
    pub interleaved: bool,
    /// From row to row of x, from head to head.
    pub x: (usize, usize),
    /// From row to row of y, from head to head.
    pub y: (usize, usize),
}

/// Emits (context, x, cos, sin, y, first row, row behind the last).
pub fn emit_rotary(assembly: &mut Assembly, spec: &RotarySpec) -> Result<FuncId, EmitError> {
    let symbol = format!(
        "rotary-{}x{}-{}{}-x{}.{}-y{}.{}",
        spec.heads,
        spec.head_width,
        spec.width,
        if spec.interleaved { "i" } else { "" },
        spec.x.0,
        spec.x.1,
        spec.y.0,
        spec.y.1
    );
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 7], &[]))?;
    let half = spec.width as i64 / 2;
    assembly.define(id, |b| {
        let [context, x, cos, sin, y, begin, end] = b.params();
        let places = b.load(POINTER, context, offset_of!(StepContext, rotary_rows) as i32);
        b.for_range(begin, end, 1, |b, row| {
            let place = b.element(places, row, 4);
            let place = b.load_count(place, 0);
            let cos = b.element(cos, place, half * 4);
            let sin = b.element(sin, place, half * 4);
            let x = b.element(x, row, spec.x.0 as i64 * 4);
            let y = b.element(y, row, spec.y.0 as i64 * 4);
            b.for_count(spec.heads as i64, 1, |b, head| {
                let x = b.element(x, head, spec.x.1 as i64 * 4);
                let y = b.element(y, head, spec.y.1 as i64 * 4);
                rotate_head(b, spec, x, cos, sin, y);
            });
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

fn rotate_head(b: &mut Body<'_>, spec: &RotarySpec, x: Value, cos: Value, sin: Value, y: Value) {
    let half = spec.width as i64 / 2;
    let rotate = |b: &mut Body<'_>, first: Value, second: Value, c: Value, s: Value| {
        let ac = b.fmul(first, c);
        let bs = b.fmul(second, s);
        let bc = b.fmul(second, c);
        let a_s = b.fmul(first, s);
        (b.fsub(ac, bs), b.fadd(bc, a_s))
    };
    if spec.interleaved {
        b.for_count(half, 1, |b, index| {
            let from = b.element(x, index, 8);
            let to = b.element(y, index, 8);
            let c = b.element(cos, index, 4);
            let s = b.element(sin, index, 4);
            let (first, second) = (b.load(FLOAT, from, 0), b.load(FLOAT, from, 4));
            let (c, s) = (b.load(FLOAT, c, 0), b.load(FLOAT, s, 0));
            let (first, second) = rotate(b, first, second, c, s);
            b.store(first, to, 0);
            b.store(second, to, 4);
        });
    } else {
        b.for_count_lanes(half, |b, index, lanes| {
            let from = b.element(x, index, 4);
            let to = b.element(y, index, 4);
            let c = b.element(cos, index, 4);
            let s = b.element(sin, index, 4);
            let ty = lanes.float();
            let (first, second) = (b.load(ty, from, 0), b.load(ty, from, half as i32 * 4));
            let (c, s) = (b.load(ty, c, 0), b.load(ty, s, 0));
            let (first, second) = rotate(b, first, second, c, s);
            b.store(first, to, 0);
            b.store(second, to, half as i32 * 4);
        });
    }
    let rest = spec.head_width - spec.width;
    b.for_count_lanes(rest as i64, |b, index, lanes| {
        let from = b.element(x, index, 4);
        let to = b.element(y, index, 4);
        let value = b.load(lanes.float(), from, spec.width as i32 * 4);
        b.store(value, to, spec.width as i32 * 4);
    });
}
