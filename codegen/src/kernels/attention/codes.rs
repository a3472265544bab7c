//! Rounding a row of one head to codes, and writing them to a cache of int8 (`cache` has the layout).

use super::cache::{CacheShape, KEY_OFFSET, RowPlace, TOP_CODE};
use crate::emit::{Body, FLOAT, FloatCC, LANES, Value};
use crate::kernels::matmul::NEGLIGIBLE;

/// Scale of a row of `width` floats and what they are multiplied by to become codes.
pub(super) fn scale_of(b: &mut Body<'_>, from: Value, width: usize) -> [Value; 2] {
    let whole = width & !3;
    let zero = b.constant(LANES, 0.0);
    let largest = b.fold_count(whole as i64, 4, &[zero], |b, index, largest| {
        let from = b.element(from, index, 4);
        let x = b.load(LANES, from, 0);
        let magnitude = b.fabs(x);
        vec![b.fmax(largest[0], magnitude)]
    })[0];
    let mut largest = b.max_lanes(largest);
    for rest in whole..width {
        let x = b.load(FLOAT, from, rest as i32 * 4);
        let magnitude = b.fabs(x);
        largest = b.fmax(largest, magnitude);
    }
    let top = b.float(TOP_CODE);
    let scale = b.fdiv(largest, top);
    let inverse = b.fdiv(top, largest);
    // Zero, or no number if the largest is infinite.
    let nothing = b.fsub(largest, largest);
    let scale = b.fadd(scale, nothing);
    let (negligible, zero) = (b.float(NEGLIGIBLE), b.float(0.0));
    let counts = b.fcompare(FloatCC::GreaterThan, largest, negligible);
    [scale, b.select(counts, inverse, zero)]
}

/// The code of a float, as a float.
pub(super) fn code(b: &mut Body<'_>, x: Value, inverse: Value) -> Value {
    let scaled = b.fmul(x, inverse);
    b.round(scaled)
}

/// Rounds the row of `width` floats at `from` into its place in a plane.
pub(in crate::kernels) fn write(
    b: &mut Body<'_>,
    cache: &CacheShape,
    is_key: bool,
    from: Value,
    to: &RowPlace,
) {
    let Some(scale_place) = to.scale else { return };
    let width = if is_key { cache.key_width } else { cache.value_width };
    let [scale, inverse] = scale_of(b, from, width);
    b.store(scale, scale_place, 0);
    b.for_count(width as i64, 1, |b, index| {
        let from = b.element(from, index, 4);
        let x = b.load(FLOAT, from, 0);
        let code = code(b, x, inverse);
        let code = b.to_int(code);
        let code = b.add_const(code, if is_key { i64::from(KEY_OFFSET) } else { 0 });
        let to = to.number(b, index);
        b.store8(code, to, 0);
    });
}
