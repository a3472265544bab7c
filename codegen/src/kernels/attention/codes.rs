//! Rounding a row of one head to codes, and writing them to a cache of codes (`cache` has the layout).

use weir_ir::interpret::codes::{BOUNDS, LEVELS};

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
        let largest = largest_of(b, from, width);
        return write_by_largest(b, width, from, largest, to);
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

/// Codes of int8, as floats, with this scale become a row of int4.
pub(super) fn write_levels_of_codes(
    b: &mut Body<'_>,
    width: usize,
    from: Value,
    scale: Value,
    to: &RowPlace,
) {
    let top = b.float(TOP_CODE);
    let largest = b.fmul(scale, top);
    let inverse = b.float(1.0);
    write_by_largest(b, width, from, [largest, inverse], to);
}

/// A row of floats that may be levels in parts of the largest becomes a row of int4: levels stay so.
pub(super) fn write_levels_again(b: &mut Body<'_>, width: usize, from: Value, to: &RowPlace) {
    let [largest, inverse] = largest_of(b, from, width);
    let top = f32::from(LEVELS[LEVELS.len() - 1]);
    let as_level = b.float(top);
    let as_level = b.fdiv(as_level, largest);
    let none = b.int32(0);
    let others = b.fold_count(width as i64, 1, &[none], |b, index, others| {
        let x = b.element(from, index, 4);
        let x = b.load(FLOAT, x, 0);
        let code = code(b, x, as_level);
        let code = b.to_int(code);
        let magnitude = b.ins().iabs(code);
        let mut levels = b.int32(0);
        for level in LEVELS {
            let is_level = b.compare_const(IntCC::Equal, magnitude, level.into());
            let is_level = b.ins().uextend(INT, is_level);
            levels = b.add(levels, is_level);
        }
        let one = b.int32(1);
        let other = b.sub(one, levels);
        vec![b.add(others[0], other)]
    })[0];
    let are_levels = b.compare_const(IntCC::Equal, others, 0);
    let negligible = b.float(NEGLIGIBLE);
    let counts = b.fcompare(FloatCC::GreaterThan, largest, negligible);
    let are_levels = b.ins().band(are_levels, counts);
    let whole = b.float(TOP_CODE / top);
    let whole = b.fmul(largest, whole);
    let largest = b.select(are_levels, whole, largest);
    let inverse = b.select(are_levels, as_level, inverse);
    write_by_largest(b, width, from, [largest, inverse], to);
}

/// A row becomes a row of int4, two numbers a byte: with the scale for this largest magnitude, and codes
/// by this factor.
fn write_by_largest(
    b: &mut Body<'_>,
    width: usize,
    from: Value,
    [largest, inverse]: [Value; 2],
    to: &RowPlace,
) {
    let Some(scale_place) = to.scale else { return };
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
