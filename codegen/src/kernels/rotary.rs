//! Rotates pairs of each head by the angles of the row's position: (a, b) becomes
//! (a cos - b sin, b cos + a sin). Values beyond the rotated width pass.

use std::mem::offset_of;

use weir_abi::StepContext;

use super::attention::CacheType;
use crate::emit::{Assembly, Body, EmitError, FLOAT, FuncId, POINTER, Value, signature};

/// Which values of a head make pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Rotated values.
    pub width: usize,
    /// Pairs are (2i, 2i + 1) instead of (i, i + width / 2).
    pub interleaved: bool,
}

/// Shapes of a rotation; strides count floats.
#[derive(Clone, Copy, Debug)]
pub struct RotarySpec {
    /// Heads of a row.
    pub heads: usize,
    /// Values of a head.
    pub head_width: usize,
    /// The pairs.
    pub rotation: Rotation,
    /// From row to row of x, from head to head.
    pub x: (usize, usize),
    /// From row to row of y, from head to head.
    pub y: (usize, usize),
}

/// Emits (context, x, cos, sin, y, first row, row behind the last, first head, head behind the last).
pub fn emit_rotary(assembly: &mut Assembly, spec: &RotarySpec) -> Result<FuncId, EmitError> {
    let symbol = format!(
        "rotary-{}x{}-{}{}-x{}.{}-y{}.{}",
        spec.heads,
        spec.head_width,
        spec.rotation.width,
        if spec.rotation.interleaved { "i" } else { "" },
        spec.x.0,
        spec.x.1,
        spec.y.0,
        spec.y.1
    );
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 9], &[]))?;
    assembly.define(id, |b| {
        let [context, x, cos, sin, y, begin, end, first, behind] = b.params();
        b.for_range(begin, end, 1, |b, row| {
            let angles = Angles::of(b, spec.rotation, (cos, sin), context, row);
            let x = b.element(x, row, spec.x.0 as i64 * 4);
            let y = b.element(y, row, spec.y.0 as i64 * 4);
            b.for_range(first, behind, 1, |b, head| {
                let from = b.element(x, head, spec.x.1 as i64 * 4);
                let to = b.element(y, head, spec.y.1 as i64 * 4);
                let number = CacheType::F32;
                let head = Head { from, to, width: spec.head_width, number };
                move_head(b, &head, Some(&angles));
            });
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

/// The angles of a row.
pub(super) struct Angles {
    rotation: Rotation,
    cos: Value,
    sin: Value,
}

impl Angles {
    /// Those of a row of the step in tables of cosines and sines.
    pub(super) fn of(
        b: &mut Body<'_>,
        rotation: Rotation,
        (cos, sin): (Value, Value),
        context: Value,
        row: Value,
    ) -> Angles {
        let places = b.load(POINTER, context, offset_of!(StepContext, rotary_rows) as i32);
        let place = b.element(places, row, 4);
        let place = b.load_count(place, 0);
        let bytes = rotation.width as i64 / 2 * 4;
        Angles { rotation, cos: b.element(cos, place, bytes), sin: b.element(sin, place, bytes) }
    }
}

/// A head of a row and the place that it goes to.
pub(super) struct Head {
    /// Its floats.
    pub from: Value,
    /// Where it goes.
    pub to: Value,
    /// Values.
    pub width: usize,
    /// The number format that they are rounded to.
    pub number: CacheType,
}

impl Head {
    fn store(&self, b: &mut Body<'_>, value: Value, index: Value, beyond: usize) {
        let size = self.number.bytes();
        let to = b.element(self.to, index, size as i64);
        self.number.store(b, value, to, (beyond * size) as i32);
    }
}

/// Moves a head, rotated if there are angles.
pub(super) fn move_head(b: &mut Body<'_>, head: &Head, angles: Option<&Angles>) {
    let width = angles.map_or(0, |angles| angles.rotation.width);
    if let Some(angles) = angles {
        rotate_pairs(b, head, angles);
    }
    let rest = head.width - width;
    b.for_count_lanes(rest as i64, |b, index, lanes| {
        let from = b.element(head.from, index, 4);
        let value = b.load(lanes.float(), from, width as i32 * 4);
        head.store(b, value, index, width);
    });
}

fn rotate_pairs(b: &mut Body<'_>, head: &Head, angles: &Angles) {
    let Angles { rotation, cos, sin } = *angles;
    let half = rotation.width / 2;
    let rotate = |b: &mut Body<'_>, first: Value, second: Value, c: Value, s: Value| {
        let ac = b.fmul(first, c);
        let bs = b.fmul(second, s);
        let bc = b.fmul(second, c);
        let a_s = b.fmul(first, s);
        (b.fsub(ac, bs), b.fadd(bc, a_s))
    };
    if rotation.interleaved {
        b.for_count(half as i64, 1, |b, index| {
            let from = b.element(head.from, index, 8);
            let c = b.element(cos, index, 4);
            let s = b.element(sin, index, 4);
            let (first, second) = (b.load(FLOAT, from, 0), b.load(FLOAT, from, 4));
            let (c, s) = (b.load(FLOAT, c, 0), b.load(FLOAT, s, 0));
            let (first, second) = rotate(b, first, second, c, s);
            let pair = b.mul_const(index, 2);
            head.store(b, first, pair, 0);
            head.store(b, second, pair, 1);
        });
    } else {
        b.for_count_lanes(half as i64, |b, index, lanes| {
            let from = b.element(head.from, index, 4);
            let c = b.element(cos, index, 4);
            let s = b.element(sin, index, 4);
            let ty = lanes.float();
            let (first, second) = (b.load(ty, from, 0), b.load(ty, from, half as i32 * 4));
            let (c, s) = (b.load(ty, c, 0), b.load(ty, s, 0));
            let (first, second) = rotate(b, first, second, c, s);
            head.store(b, first, index, 0);
            head.store(b, second, index, half);
        });
    }
}
