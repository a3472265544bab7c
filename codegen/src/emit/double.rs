//! Functions that need more bits on the way than their results have: sine, cosine, power.
//!
//! Each element goes through double precision and is rounded once at the end, so a result is within
//! 0.501 units of the last place of the exact value (the double is good to 2⁻⁴⁰ of itself, see each
//! function) and lanes give the bits of scalars. These functions are rare in compiled rows (angles
//! of a position, a spelled square), so they are not written for lanes.
//!
//! Argument reduction: Muller, *Elementary Functions*, chapter 11 (Cody and Waite, with fused
//! multiply-add). Special cases of `pow`: IEEE 754-2019, section 9.2.1.

use cranelift_codegen::ir::InstBuilder;
use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::types::{F64, I64};

use super::{Body, FLOAT, LANES, Value};

/// Largest |x| of sine and cosine: 2⁴⁰. The quotient by π/2 is then below 2³⁹·⁴ and within 2⁻¹² of
/// its exact value, and what the two parts of π/2 leave out is below 2³⁹·⁴ · 2⁻¹⁰⁹ < 2⁻⁶⁹, while
/// no f32 of this range is nearer than 2⁻²⁹ to a multiple of π/2 other than zero (by the continued
/// fractions of 2ᵉ · 2/π; the nearest is 10741887 · 2¹¹).
const LARGEST_ANGLE: f64 = (1u64 << 40) as f64;

/// π/2 = first + second + 2⁻¹⁰⁹ at most.
const HALF_PI: [f64; 2] = [std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17];

/// A result of `pow` is 0 or infinite in f32 well before the exponent of e leaves ±200.
const LARGEST_POWER: f64 = 200.0;

/// Bits of √½ as a double.
const ROOT_HALF: u64 = std::f64::consts::FRAC_1_SQRT_2.to_bits();

impl Body<'_> {
    /// sin x for |x| ≤ 2⁴⁰; not a number beyond, for neighbouring floats are turns apart there.
    pub fn sin(&mut self, x: Value) -> Value {
        self.by_element(&[x], |b, x| {
            let angle = b.periodic(x[0], 0);
            // The reduction loses the sign of zero.
            let zero = b.float(0.0);
            let is_zero = b.fcompare(FloatCC::Equal, x[0], zero);
            b.select(is_zero, x[0], angle)
        })
    }

    /// cos x; its range is that of [`Body::sin`].
    pub fn cos(&mut self, x: Value) -> Value {
        self.by_element(&[x], |b, x| b.periodic(x[0], 1))
    }

    /// xʸ with the special cases of IEEE 754.
    pub fn pow(&mut self, x: Value, y: Value) -> Value {
        self.by_element(&[x, y], |b, operands| b.power(operands[0], operands[1]))
    }

    fn by_element(
        &mut self,
        operands: &[Value],
        function: impl Fn(&mut Self, &[Value]) -> Value,
    ) -> Value {
        let ty = self.type_of(operands[0]);
        if ty == FLOAT {
            return function(self, operands);
        }
        let mut result = self.constant(LANES, 0.0);
        for lane in 0..4 {
            let elements: Vec<Value> = operands.iter().map(|v| self.lane(*v, lane)).collect();
            let value = function(self, &elements);
            result = self.ins().insertlane(result, value, lane);
        }
        result
    }

    fn double(&mut self, value: f64) -> Value {
        self.ins().f64const(value)
    }

    /// Σ coefficients\[i\]·xⁱ of doubles in Horner form.
    fn series(&mut self, x: Value, coefficients: impl DoubleEndedIterator<Item = f64>) -> Value {
        let mut sum = self.double(0.0);
        for coefficient in coefficients.rev() {
            let coefficient = self.double(coefficient);
            sum = self.fma(sum, x, coefficient);
        }
        sum
    }

    /// sin(x + quarters · π/2) of one float.
    ///
    /// n = x · 2/π rounded, r = x - n · π/2, |r| < 0.786. x and n times the first part of π/2 are
    /// multiples of 2⁻⁵² for x ≥ 1 (and n ≤ 1 below), so the first fused step is exact and the
    /// second rounds once: r is within 2⁻⁵² of itself. Taylor's series to r¹³ and r¹² are off by
    /// less than 2⁻⁴⁰ of the result.
    fn periodic(&mut self, x: Value, quarters: i64) -> Value {
        let wide = self.ins().fpromote(F64, x);
        let per_quarter = self.double(std::f64::consts::FRAC_2_PI);
        let n = self.fmul(wide, per_quarter);
        let n = self.round(n);
        let first = self.double(-HALF_PI[0]);
        let second = self.double(-HALF_PI[1]);
        let r = self.fma(n, first, wide);
        let r = self.fma(n, second, r);
        let square = self.fmul(r, r);
        // (-1)ⁱ / (first + 2i)!
        let taylor = |first: u64, count: u64| {
            (0..count).map(move |i| {
                let factorial: f64 = (1..=first + 2 * i).map(|n| n as f64).product();
                if i % 2 == 0 { 1.0 / factorial } else { -1.0 / factorial }
            })
        };
        let sine = self.series(square, taylor(1, 7));
        let sine = self.fmul(sine, r);
        let cosine = self.series(square, taylor(0, 7));
        let n = self.ins().fcvt_to_sint_sat(I64, n);
        let quarter = self.add_const(n, quarters);
        let odd = self.ins().band_imm_s(quarter, 1);
        let result = self.ins().select(odd, cosine, sine);
        let second_half = self.ins().band_imm_s(quarter, 2);
        let negative = self.fneg(result);
        let result = self.ins().select(second_half, negative, result);
        let magnitude = self.fabs(wide);
        let largest = self.double(LARGEST_ANGLE);
        let inside = self.fcompare(FloatCC::LessThanOrEqual, magnitude, largest);
        let none = self.double(f64::NAN);
        let result = self.ins().select(inside, result, none);
        self.ins().fdemote(FLOAT, result)
    }

    /// ln x of a positive normal double, within 2⁻⁵⁰ of itself or of 1, whichever is more.
    ///
    /// x = m·2ⁿ with m in [√½, √2); ln m = 2·artanh(s), s = (m - 1) / (m + 1), |s| < 0.172; the
    /// series to s²¹ leaves out less than 2⁻⁵⁷ of it.
    fn ln_double(&mut self, x: Value) -> Value {
        let bits = self.bitcast(I64, x);
        let origin = self.int(ROOT_HALF as i64);
        let above = self.sub(bits, origin);
        let n = self.ins().sshr_imm_u(above, 52);
        let exponent = self.ins().ishl_imm_u(n, 52);
        let mantissa = self.sub(bits, exponent);
        let m = self.bitcast(F64, mantissa);
        let one = self.double(1.0);
        let numerator = self.fsub(m, one);
        let denominator = self.fadd(m, one);
        let s = self.fdiv(numerator, denominator);
        let square = self.fmul(s, s);
        let series = self.series(square, (0..11).map(|i| 2.0 / f64::from(2 * i + 1)));
        let log = self.fmul(s, series);
        let n = self.ins().fcvt_from_sint(F64, n);
        let ln2 = self.double(std::f64::consts::LN_2);
        self.fma(n, ln2, log)
    }

    /// eˣ of a double with |x| ≤ 200, within 2⁻⁴³ of itself: x = n·ln 2 + r, |r| ≤ 0.347, where the
    /// rounding of ln 2 moves r by at most 289 · 2⁻⁵⁴; Taylor's series to r¹¹ leaves out 2⁻⁴⁷.
    fn exp_double(&mut self, x: Value) -> Value {
        let per_ln2 = self.double(std::f64::consts::LOG2_E);
        let n = self.fmul(x, per_ln2);
        let n = self.round(n);
        let ln2 = self.double(-std::f64::consts::LN_2);
        let r = self.fma(n, ln2, x);
        let taylor = (0..12).map(|i| 1.0 / (1..=i).map(f64::from).product::<f64>());
        let series = self.series(r, taylor);
        let n = self.ins().fcvt_to_sint_sat(I64, n);
        let bias = self.int(1023);
        let biased = self.add(n, bias);
        let bits = self.ins().ishl_imm_u(biased, 52);
        let scale = self.bitcast(F64, bits);
        self.fmul(series, scale)
    }

    /// xʸ of floats: e^(y · ln |x|), whose exponent is off by at most 2⁻⁴⁹ · 200 < 2⁻⁴¹; then the
    /// cases that this does not cover.
    fn power(&mut self, x: Value, y: Value) -> Value {
        let (x, y) = (self.ins().fpromote(F64, x), self.ins().fpromote(F64, y));
        let [zero, one, infinity, none] =
            [0.0, 1.0, f64::INFINITY, f64::NAN].map(|value| self.double(value));
        let magnitude = self.fabs(x);
        let log = self.ln_double(magnitude);
        let is_zero = self.fcompare(FloatCC::Equal, magnitude, zero);
        let lowest = self.double(f64::NEG_INFINITY);
        let log = self.ins().select(is_zero, lowest, log);
        let is_infinite = self.fcompare(FloatCC::Equal, magnitude, infinity);
        let log = self.ins().select(is_infinite, infinity, log);
        let exponent = self.fmul(y, log);
        // ±1 to any power, infinite ones too.
        let is_unit = self.fcompare(FloatCC::Equal, magnitude, one);
        let exponent = self.ins().select(is_unit, zero, exponent);
        let [low, high] = [-LARGEST_POWER, LARGEST_POWER].map(|value| self.double(value));
        let exponent = self.fmax(exponent, low);
        let exponent = self.fmin(exponent, high);
        let power = self.exp_double(exponent);

        // A negative base: the parity of the exponent decides the sign; between whole exponents
        // there is no result.
        let whole = self.ins().floor(y);
        let is_whole = self.fcompare(FloatCC::Equal, whole, y);
        let half = self.double(0.5);
        let half = self.fmul(y, half);
        let floor = self.ins().floor(half);
        let is_odd = self.fcompare(FloatCC::NotEqual, floor, half);
        let is_odd = self.ins().band(is_whole, is_odd);
        let bits = self.bitcast(I64, x);
        let is_negative = self.compare_const(IntCC::SignedLessThan, bits, 0);
        let flips = self.ins().band(is_odd, is_negative);
        let opposite = self.fneg(power);
        let power = self.ins().select(flips, opposite, power);
        let is_below = self.fcompare(FloatCC::LessThan, x, zero);
        let is_finite = self.fcompare(FloatCC::LessThan, magnitude, infinity);
        let is_between = self.fcompare(FloatCC::NotEqual, whole, y);
        let undefined = self.ins().band(is_below, is_finite);
        let undefined = self.ins().band(undefined, is_between);
        let power = self.ins().select(undefined, none, power);

        // Not a number in, not a number out, but for x⁰ and 1ʸ.
        let either = self.fcompare(FloatCC::Unordered, x, y);
        let power = self.ins().select(either, none, power);
        let to_zero = self.fcompare(FloatCC::Equal, y, zero);
        let of_one = self.fcompare(FloatCC::Equal, x, one);
        let is_one = self.ins().bor(to_zero, of_one);
        let power = self.ins().select(is_one, one, power);
        self.ins().fdemote(FLOAT, power)
    }
}
