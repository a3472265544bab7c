//! Elementary functions on floats and lanes of floats.
//!
//! Polynomials in Horner form with fused multiply-add; every bound below holds for all finite
//! inputs and is checked by the tests beside this file against double precision. Scalars and lanes
//! give bit-equal results, so that the remainder of a vector loop follows the same function.
//!
//! Argument reduction of `exp` and `ln`: Muller, *Elementary Functions*, chapter 11 (Cody and
//! Waite). The polynomial of erfc was fitted by us at Chebyshev nodes.

use cranelift_codegen::ir::InstBuilder;
use cranelift_codegen::ir::condcodes::FloatCC;

use super::{Body, INT, INTS, LANES, Type, Value};

/// erfc(x)·exp(x²) on [1, 4] in t = 1 / (1 + x), constant term first; error below 2e-9.
const SCALED_ERFC: [f32; 8] = [
    -0.000_171_275_68,
    0.568_171_2,
    0.525_882_7,
    0.473_805_9,
    -0.770_707_3,
    -0.367_000_63,
    1.058_230_4,
    -0.502_280_1,
];

/// Arguments of exp beyond which its result is 0 and infinite.
pub(crate) const EXP_RANGE: [f32; 2] = [-104.0, 89.0];

/// ln 2 in two parts, negative: the first has few bits, so that whole numbers times it are exact.
pub(crate) const MINUS_LN2: [f32; 2] = [-0.693_359_4, 2.121_944_4e-4];

/// Taylor's polynomial of exp, constant term first.
pub(crate) const EXP_SERIES: [f32; 8] =
    [1.0, 1.0, 0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0, 1.0 / 720.0, 1.0 / 5040.0];

fn int_type(float: Type) -> Type {
    if float == LANES { INTS } else { INT }
}

impl Body<'_> {
    /// Σ coefficients\[i\]·xⁱ in Horner form.
    pub fn polynomial(&mut self, x: Value, coefficients: &[f32]) -> Value {
        let ty = self.type_of(x);
        let (last, rest) = coefficients.split_last().expect("a polynomial has a coefficient");
        let mut sum = self.constant(ty, *last);
        for coefficient in rest.iter().rev() {
            let coefficient = self.constant(ty, *coefficient);
            sum = self.fma(sum, x, coefficient);
        }
        sum
    }

    /// 2ⁿ for whole n (an integer) in -126 ..= 127.
    fn exp2_whole(&mut self, n: Value, float: Type) -> Value {
        let int = int_type(float);
        let bias = self.constant_int(int, 127);
        let biased = self.add(n, bias);
        let shift = self.int32(23);
        let bits = self.ins().ishl(biased, shift);
        self.bitcast(float, bits)
    }

    /// eˣ, within 2 units in the last place; 0 and infinity beyond the range, subnormal results
    /// within one subnormal unit.
    ///
    /// x = n·ln 2 + r with |r| ≤ ln 2 / 2; Taylor's polynomial of degree 7 in r is off by less than
    /// 6e-9. 2ⁿ is applied in two halves, so that neither leaves the range.
    pub fn exp(&mut self, x: Value) -> Value {
        let ty = self.type_of(x);
        let [low, high] = EXP_RANGE.map(|bound| self.constant(ty, bound));
        let x = self.fmax(x, low);
        let x = self.fmin(x, high);
        let per_ln2 = self.constant(ty, std::f32::consts::LOG2_E);
        let n = self.fmul(x, per_ln2);
        let n = self.round(n);
        let [ln2_high, ln2_low] = MINUS_LN2.map(|part| self.constant(ty, part));
        let r = self.fma(n, ln2_high, x);
        let r = self.fma(n, ln2_low, r);
        let series = self.polynomial(r, &EXP_SERIES);
        let n = self.to_int(n);
        let one = self.int32(1);
        let half = self.ins().sshr(n, one);
        let rest = self.sub(n, half);
        let half = self.exp2_whole(half, ty);
        let rest = self.exp2_whole(rest, ty);
        let scaled = self.fmul(series, half);
        self.fmul(scaled, rest)
    }

    /// ln x for positive normal x, within 2 units in the last place or 1e-7, whichever is more.
    ///
    /// x = m·2ⁿ with m in [√½, √2); ln m = 2·artanh(s) for s = (m - 1) / (m + 1), |s| < 0.172.
    pub fn ln(&mut self, x: Value) -> Value {
        let ty = self.type_of(x);
        let int = int_type(ty);
        let bits = self.bitcast(int, x);
        // Bits of √½, so that the exponent field counts from there.
        let origin = self.constant_int(int, 0x3f35_04f3);
        let above = self.sub(bits, origin);
        let shift = self.int32(23);
        let n = self.ins().sshr(above, shift);
        let exponent = self.ins().ishl(n, shift);
        let mantissa = self.sub(bits, exponent);
        let m = self.bitcast(ty, mantissa);
        let one = self.constant(ty, 1.0);
        let numerator = self.fsub(m, one);
        let denominator = self.fadd(m, one);
        let s = self.fdiv(numerator, denominator);
        let square = self.fmul(s, s);
        let series =
            self.polynomial(square, &[2.0, 2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0, 2.0 / 11.0]);
        let n = self.to_float(n);
        let ln2_low = self.constant(ty, -2.121_944_4e-4);
        let low = self.fmul(n, ln2_low);
        let log = self.fma(s, series, low);
        let ln2_high = self.constant(ty, 0.693_359_4);
        self.fma(n, ln2_high, log)
    }

    /// 1 / (1 + e⁻ˣ), within 4 units in the last place while it is a normal number, else 0.
    pub fn sigmoid(&mut self, x: Value) -> Value {
        let ty = self.type_of(x);
        let negative = self.fneg(x);
        let power = self.exp(negative);
        let one = self.constant(ty, 1.0);
        let denominator = self.fadd(one, power);
        self.fdiv(one, denominator)
    }

    /// tanh x, within 4 units in the last place.
    ///
    /// Below ½ Taylor's series to x¹⁵ (off by less than 3e-8), above 1 - 2 / (e²ˣ + 1).
    pub fn tanh(&mut self, x: Value) -> Value {
        let ty = self.type_of(x);
        let magnitude = self.fabs(x);
        let square = self.fmul(x, x);
        let series = self.polynomial(
            square,
            &[
                1.0,
                -1.0 / 3.0,
                2.0 / 15.0,
                -17.0 / 315.0,
                62.0 / 2835.0,
                -1382.0 / 155_925.0,
                21844.0 / 6_081_075.0,
                -929_569.0 / 638_512_875.0,
            ],
        );
        let near = self.fmul(x, series);
        let twice = self.fadd(magnitude, magnitude);
        let power = self.exp(twice);
        let one = self.constant(ty, 1.0);
        let two = self.constant(ty, 2.0);
        let denominator = self.fadd(power, one);
        let ratio = self.fdiv(two, denominator);
        let far = self.fsub(one, ratio);
        let far = self.with_sign_of(far, x);
        let half = self.constant(ty, 0.5);
        let is_near = self.fcompare(FloatCC::LessThan, magnitude, half);
        self.select(is_near, near, far)
    }

    /// erf x, within 2e-7.
    ///
    /// Below 1 Taylor's series to x²¹, above 1 - e^(-x²)·q(1 / (1 + x)).
    pub fn erf(&mut self, x: Value) -> Value {
        let ty = self.type_of(x);
        let magnitude = self.fabs(x);
        let square = self.fmul(x, x);
        let mut coefficients = [0.0f32; 11];
        let mut factorial = 1.0f64;
        for (n, coefficient) in coefficients.iter_mut().enumerate() {
            if n > 0 {
                factorial *= -(n as f64);
            }
            *coefficient =
                (std::f64::consts::FRAC_2_SQRT_PI / (factorial * (2 * n + 1) as f64)) as f32;
        }
        let series = self.polynomial(square, &coefficients);
        let near = self.fmul(x, series);
        let one = self.constant(ty, 1.0);
        let shifted = self.fadd(magnitude, one);
        let t = self.fdiv(one, shifted);
        let scaled = self.polynomial(t, &SCALED_ERFC);
        let negative = self.fneg(square);
        let decay = self.exp(negative);
        let tail = self.fmul(scaled, decay);
        let far = self.fsub(one, tail);
        let far = self.with_sign_of(far, x);
        let is_near = self.fcompare(FloatCC::LessThan, magnitude, one);
        self.select(is_near, near, far)
    }

    /// |magnitude| with the sign of `sign`.
    fn with_sign_of(&mut self, magnitude: Value, sign: Value) -> Value {
        let ty = self.type_of(sign);
        let int = int_type(ty);
        let mask = self.constant_int(int, i32::MIN);
        let sign = self.bitcast(int, sign);
        let magnitude = self.bitcast(int, magnitude);
        let sign = self.ins().band(sign, mask);
        let magnitude = self.ins().band_not(magnitude, mask);
        let bits = self.ins().bor(sign, magnitude);
        self.bitcast(ty, bits)
    }
}
