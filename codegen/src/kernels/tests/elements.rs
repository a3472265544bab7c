//! Elementwise functions, broadcast in all ways, and copies into parts of a row.

use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::unary::UnaryOp;

use super::*;
use crate::kernels::map::{MapOp, MapSpec, emit_map};

/// Applies a function to dense rows of one dimension.
fn apply(op: MapOp, operands: &[&[f32]]) -> Vec<f32> {
    let width = operands[0].len();
    let strides = vec![(width, vec![1]); operands.len() + 1];
    run(&MapSpec { op, dims: vec![width], strides }, operands, width, 1)
}

fn run(spec: &MapSpec, operands: &[&[f32]], output: usize, rows: usize) -> Vec<f32> {
    let kernel = Kernel::new(|assembly| emit_map(assembly, spec));
    let mut given: Vec<Input<'_>> = operands.iter().map(|values| Input::floats(values)).collect();
    given.resize_with(3, || Input::Nothing);
    kernel.run(&given, output, rows)
}

/// Distance in units of the last place of the exact result, which is no less than subnormal.
fn ulps(got: f32, exact: f64) -> f64 {
    let near = exact as f32;
    if got == near {
        return 0.0;
    }
    let exponent = if near.is_normal() { (near.abs().to_bits() >> 23) as i32 - 150 } else { -149 };
    (f64::from(got) - exact).abs() / 2f64.powi(exponent)
}

/// Angles as positions times frequencies make them, whole and not, up to 2²⁰; multiples of π/2
/// rounded to f32, which are as near to it as floats come; and the range's end.
fn angles() -> Vec<f32> {
    let mut random = Random::new(21);
    let mut angles: Vec<f32> = Vec::new();
    for _ in 0..100_003 {
        let position = random.below(1 << 20) as f32;
        let frequency = 10_000f32.powf(-random.unit().abs());
        angles.extend([position, position * frequency, random.unit() * 10.0]);
    }
    angles.extend((0..200_000u32).map(|k| (f64::from(k) * std::f64::consts::FRAC_PI_2) as f32));
    // The float below 2⁴⁰ that is nearest to a multiple of π/2.
    angles.push(10_741_887.0 * 2048.0);
    angles.extend((0..40).map(|n| 2f32.powi(n)));
    angles.extend((-149..0).map(|n| 2f32.powi(n)));
    angles.extend([0.0, 2f32.powi(40)]);
    let negative: Vec<f32> = angles.iter().map(|x| -x).collect();
    angles.extend(negative);
    angles
}

/// Both are rounded once from a double that is good to 2⁻⁴⁰ of itself.
#[test]
fn sine_and_cosine_keep_their_bound() {
    let x = angles();
    for (op, exact) in
        [(UnaryOp::Sin, f64::sin as fn(f64) -> f64), (UnaryOp::Cos, f64::cos as fn(f64) -> f64)]
    {
        let got = apply(MapOp::Unary(op), &[&x]);
        for (x, got) in x.iter().zip(&got) {
            let error = ulps(*got, exact(f64::from(*x)));
            assert!(error <= 0.501, "{op:?}({x}) = {got} is off by {error} ulp");
        }
        let beyond = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.1e12, f32::MIN];
        assert!(apply(MapOp::Unary(op), &[&beyond]).iter().all(|y| y.is_nan()));
    }
    let zeros = apply(MapOp::Unary(UnaryOp::Sin), &[&[0.0, -0.0]]);
    assert_eq!(zeros.iter().map(|y| y.to_bits()).collect::<Vec<_>>(), [0, 1 << 31]);
}

#[test]
fn powers_keep_their_bound() {
    let mut random = Random::new(22);
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for _ in 0..200_003 {
        // Bases of all sizes, exponents that keep the result in range, and some that do not.
        let base = (random.unit() * 88.0).exp();
        let reach = 95.0 / base.ln().abs().max(1e-3);
        x.push(base);
        y.push(random.unit() * reach.min(1e4));
        x.push(-(1.0 + random.unit()));
        y.push(random.below(41) as f32 - 20.0);
        x.push(1.0 + random.unit() * 1e-4);
        y.push(random.unit() * 1e6);
    }
    let got = apply(MapOp::Binary(BinaryOp::Pow), &[&x, &y]);
    for ((x, y), got) in x.iter().zip(&y).zip(&got) {
        let exact = f64::from(*x).powf(f64::from(*y));
        let error = if exact.abs() > f64::from(f32::MAX) * (1.0 + 2.0 * U) {
            assert!(got.is_infinite());
            0.0
        } else {
            ulps(*got, exact)
        };
        assert!(
            error <= 0.501 || exact.abs() > f64::from(f32::MAX),
            "{x}^{y} = {got}, {error} ulp"
        );
    }
}

/// All pairs of special operands give what IEEE 754 (and so Rust's `powf`) says, signs included.
#[test]
fn powers_of_special_operands() {
    let special = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        2.0,
        -2.0,
        3.0,
        -3.0,
        1.5,
        -1.5,
        1e-45,
        -1e-45,
        1e-40,
        3e38,
        -3e38,
        8_388_609.0,
        -8_388_609.0,
        16_777_216.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    let pairs: Vec<(f32, f32)> =
        special.iter().flat_map(|x| special.iter().map(|y| (*x, *y))).collect();
    let (x, y): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
    let got = apply(MapOp::Binary(BinaryOp::Pow), &[&x, &y]);
    for ((x, y), got) in pairs.iter().zip(&got) {
        let exact = f64::from(*x).powf(f64::from(*y)) as f32;
        let same = got.to_bits() == exact.to_bits() || got.is_nan() && exact.is_nan();
        assert!(same, "{x}^{y} = {got}, expected {exact}");
    }
}

/// Truth values are 1 and 0; comparisons with NaN do not hold.
#[test]
fn truth_values() {
    let x = [1.0, 2.0, f32::NAN, 0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY];
    let y = [2.0, 2.0, 1.0, -0.0, 0.0, f32::INFINITY, f32::NAN];
    let binary = |op, a: &[f32], b: &[f32]| apply(MapOp::Binary(op), &[a, b]);
    let unary = |op, a: &[f32]| apply(MapOp::Unary(op), &[a]);
    assert_eq!(binary(BinaryOp::Equal, &x, &y), [0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
    assert_eq!(binary(BinaryOp::Less, &x, &y), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(binary(BinaryOp::LessOrEqual, &x, &y), [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
    assert_eq!(binary(BinaryOp::Greater, &y, &x), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(binary(BinaryOp::GreaterOrEqual, &y, &x), [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
    assert_eq!(unary(UnaryOp::IsNan, &x), [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(unary(UnaryOp::IsInf, &x), [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
    let (a, b) = ([0.0, 0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0, 0.0]);
    assert_eq!(binary(BinaryOp::And, &a, &b), [0.0, 0.0, 0.0, 1.0, 0.0]);
    assert_eq!(binary(BinaryOp::Or, &a, &b), [0.0, 1.0, 1.0, 1.0, 0.0]);
    assert_eq!(binary(BinaryOp::Xor, &a, &b), [0.0, 1.0, 1.0, 0.0, 0.0]);
    assert_eq!(unary(UnaryOp::Not, &a), [1.0, 1.0, 0.0, 0.0, 1.0]);
    // The side that is not chosen does not matter, even where it is no number.
    let none = [f32::NAN; 5];
    assert_eq!(apply(MapOp::Select, &[&a, &b, &[9.0; 5]]), [9.0, 9.0, 0.0, 1.0, 9.0]);
    assert_eq!(apply(MapOp::Select, &[&[1.0; 5], &b, &none]), b);
}

/// a·b + nothing: one rounding, whatever repeats: rows, dimensions, single elements.
pub(super) fn check_repeated(random: &mut Random, rows: usize, dims: &[usize], repeated: usize) {
    let count: usize = dims.iter().product();
    let dense = |sizes: &[usize]| {
        let mut strides = vec![1; sizes.len()];
        for index in (1..sizes.len()).rev() {
            strides[index - 1] = strides[index] * sizes[index];
        }
        strides
    };
    // The second operand repeats the chosen dimensions and, in odd cases, the rows.
    let sizes: Vec<usize> = dims
        .iter()
        .enumerate()
        .map(|(index, size)| if repeated >> index & 1 == 1 { 1 } else { *size })
        .collect();
    let mut strides = dense(&sizes);
    for (index, stride) in strides.iter_mut().enumerate() {
        if repeated >> index & 1 == 1 {
            *stride = 0;
        }
    }
    let inner: usize = sizes.iter().product();
    let row = if repeated % 2 == 1 { 0 } else { inner };
    let a = random.units(rows * count);
    let b = random.units(rows * inner);
    let spec = MapSpec {
        op: MapOp::Binary(BinaryOp::Mul),
        dims: dims.to_vec(),
        strides: vec![(count, dense(dims)), (row, strides.clone()), (count, dense(dims))],
    };
    let got = run(&spec, &[&a, &b], rows * count, rows);
    for (flat, got) in got.iter().enumerate() {
        let (of_row, mut rest) = (flat / count, flat % count);
        let mut at = of_row * row;
        for (size, stride) in dims.iter().zip(&strides).rev() {
            at += rest % size * stride;
            rest /= size;
        }
        let exact = f64::from(a[flat]) * f64::from(b[at]);
        within(&(&dims, repeated, rows, flat), *got, exact, U * exact.abs());
    }
}

#[test]
fn operands_repeat_by_strides() {
    let mut random = Random::new(23);
    for rows in [1, 2, 9] {
        for dims in [&[1usize][..], &[7], &[3, 5], &[2, 1, 17], &[2, 3, 4]] {
            for repeated in 0..1usize << dims.len() {
                check_repeated(&mut random, rows, dims, repeated);
            }
        }
    }
}

/// silu(x)·y: the sigmoid is within 4 ulp, at most 8u of itself, and both products round.
pub(super) fn check_gated(random: &mut Random, rows: usize, width: usize, beside: usize) {
    let stride = width + beside;
    let x: Vec<f32> = random.units((rows - 1) * stride + width).iter().map(|v| v * 20.0).collect();
    let y = random.units((rows - 1) * stride + width);
    let spec = MapSpec {
        op: MapOp::Gated(UnaryOp::Silu),
        dims: vec![width],
        strides: vec![(stride, vec![1]); 3],
    };
    let got = run(&spec, &[&x, &y], (rows - 1) * stride + width, rows);
    for (at, got) in got.iter().enumerate() {
        if at % stride >= width {
            assert_eq!(*got, POISON);
            continue;
        }
        let (gate, up) = (f64::from(x[at]), f64::from(y[at]));
        let exact = gate / (1.0 + (-gate).exp()) * up;
        within(&("gated", rows, width, at), *got, exact, 10.0 * U * exact.abs());
    }
}

/// Parts of any width, spaced as their sources are, lie side by side in the result, bit by bit, and
/// nothing else of it is written.
pub(super) fn check_concatenation(
    random: &mut Random,
    (rows, outer): (usize, usize),
    widths: &[usize],
    side: Side,
) {
    let total: usize = widths.iter().sum();
    let row = outer * total + 2;
    let mut joined = vec![POISON; rows * row];
    let mut expected = joined.clone();
    let mut start = 0;
    for width in widths.iter().copied() {
        let source_row = outer * (width + 1);
        let source = random.units(rows * source_row);
        let spec = MapSpec {
            op: MapOp::Copy,
            dims: vec![outer, width],
            strides: vec![(source_row, vec![width + 1, 1]), (row, vec![total, 1])],
        };
        let kernel = Kernel::new(|assembly| emit_map(assembly, &spec));
        let mut out = Guarded::new(&bytes(&joined), side);
        let mut from = Guarded::new(&bytes(&source), side);
        let place = out.bytes()[start * 4..].as_mut_ptr() as u64;
        kernel.code.call_kernel(
            &kernel.name,
            &mut [
                Argument::Read(from.bytes()),
                Argument::Null,
                Argument::Null,
                Argument::Count(place),
                Argument::Count(0),
                Argument::Count(rows as u64),
            ],
        );
        from.finish();
        joined = floats(&out.finish());
        for index in 0..rows * outer {
            let to = index / outer * row + index % outer * total + start;
            let from = index * (width + 1);
            expected[to..to + width].copy_from_slice(&source[from..from + width]);
        }
        start += width;
    }
    assert_eq!(joined, expected);
}

#[test]
fn concatenation_is_copies_into_parts() {
    let mut random = Random::new(24);
    for (rows, outer, widths) in
        [(1, 1, &[1, 1][..]), (3, 1, &[5, 16, 2]), (4, 3, &[1, 7]), (17, 2, &[33, 4, 1])]
    {
        for side in [Side::Begin, Side::End] {
            check_concatenation(&mut random, (rows, outer), widths, side);
        }
    }
}
