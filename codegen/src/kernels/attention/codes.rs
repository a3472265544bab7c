//! Rounding a row of one head to codes, and writing them to a cache of codes (`cache` has the layout).

use weir_ir::interpret::codes::BOUNDS;

use super::cache::{CacheShape, CacheType, GROUP, KEY_OFFSET, QUAD, RowPlace, TOP_CODE};
use crate::emit::{Body, FLOAT, FloatCC, INT, InstBuilder, IntCC, LANES, Value};
use crate::kernels::matmul::NEGLIGIBLE;

/// Scale of a row of `width` floats and what they are multiplied by to become codes.
pub(super) fn scale_of(b: &mut Body<'_>, from: Value, width: usize) -> [Value; 2] {
    let [largest, inverse] = largest_of(b, from, width);
    let top = b.float(TOP_CODE);
    [b.fdiv(largest, top), inverse]
}

/// The largest magnitude of a row of `width` floats, no number if one of them is not finite, and what
/// they are multiplied by to become codes.
fn largest_of(b: &mut Body<'_>, from: Value, width: usize) -> [Value; 2] {
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
    let inverse = b.fdiv(top, largest);
    let (negligible, zero) = (b.float(NEGLIGIBLE), b.float(0.0));
    let counts = b.fcompare(FloatCC::GreaterThan, largest, negligible);
    // Zero, or no number if the largest is infinite.
    let nothing = b.fsub(largest, largest);
    [b.fadd(largest, nothing), b.select(counts, inverse, zero)]
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
    if cache.number == CacheType::Int4 {
        return write_levels(b, width, from, scale_place, to);
    }
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

/// The same for int4, two numbers a byte.
fn write_levels(b: &mut Body<'_>, width: usize, from: Value, scale_place: Value, to: &RowPlace) {
    let [largest, inverse] = largest_of(b, from, width);
    let most = b.float(CacheType::F16.largest());
    let largest = b.fmin(largest, most);
    b.store_f16(largest, scale_place, 0);
    let whole = width / GROUP;
    let level = |b: &mut Body<'_>, numbers: Value, place: usize| {
        let x = b.load(FLOAT, numbers, place as i32 * 4);
        let code = code(b, x, inverse);
        level_of(b, code)
    };
    let byte = |b: &mut Body<'_>, index: Value, [lower, upper]: [Value; 2]| {
        let upper = b.ins().ishl_imm_u(upper, 4);
        let byte = b.ins().bor(lower, upper);
        let to = to.number(b, index);
        b.store8(byte, to, 0);
    };
    b.for_count(whole as i64, 1, |b, group| {
        let numbers = b.element(from, group, GROUP as i64 * 4);
        let first = b.mul_const(group, QUAD as i64);
        for place in 0..QUAD {
            let levels = [place, place + QUAD].map(|place| level(b, numbers, place));
            let index = b.add_const(first, place as i64);
            byte(b, index, levels);
        }
    });
    for place in 0..QUAD {
        // What lies behind the row's end is read by nobody.
        let levels = [place, place + QUAD].map(|place| {
            let place = whole * GROUP + place;
            if place < width { level(b, from, place) } else { b.int32(0) }
        });
        if whole * GROUP < width {
            let index = b.int((whole * QUAD + place) as i64);
            byte(b, index, levels);
        }
    }
}

/// The number of the level that is nearest to a code.
fn level_of(b: &mut Body<'_>, code: Value) -> Value {
    let code = b.to_int(code);
    let magnitude = b.ins().iabs(code);
    let mut level = b.int32(8);
    for bound in BOUNDS {
        let reaches = b.compare_const(IntCC::SignedGreaterThanOrEqual, magnitude, bound.into());
        let reaches = b.ins().uextend(INT, reaches);
        level = b.add(level, reaches);
    }
    // Negative ones mirror the others.
    let sign = b.ins().sshr_imm_u(code, 31);
    let mirror = b.ins().band_imm_s(sign, 0xf);
    b.ins().bxor(level, mirror)
}
