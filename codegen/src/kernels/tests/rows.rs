//! Norms, reductions, rotation and rows by number.

use weir_ir::ops::reduce::ReduceOp;

use super::*;
use crate::kernels::norm::{NormKind, NormSpec, emit_norm};
use crate::kernels::reduce::{ReduceSpec, emit_reduce};
use crate::kernels::rotary::{RotarySpec, Rotation, emit_rotary};
use crate::kernels::rows::{RowNumbers, emit_rows};

/// Rows, groups, width of a run.
pub(super) type Shape = (usize, usize, usize);

const SHAPES: [Shape; 8] = [
    (1, 1, 1),
    (1, 1, 3),
    (1, 1, 15),
    (2, 3, 16),
    (5, 2, 17),
    (33, 1, 64),
    (7, 4, 37),
    (2, 1, 1023),
];

/// y = (x - mean) / √(variance + ε) · weight + bias.
///
/// The mean's sum of d roundings and its division give δ = (d + 1)·u·mean|x|. A centred value is off
/// by δ and its own rounding. Centred values sum to zero, so δ moves the variance in second order
/// only, by δ²; its own sum of squares and division are off by (d + 4)·u of it, half of which reaches
/// the root; ε, root and reciprocal add 3 roundings, factor, weight and bias 3.
pub(super) fn check_norm(
    random: &mut Random,
    kind: NormKind,
    bias: bool,
    (rows, groups, width): Shape,
) {
    let epsilon = 1e-5f32;
    let run = (groups * width + 3, width);
    let spec = NormSpec { kind, epsilon, bias, groups, width, x: run, y: (groups * width, width) };
    let kernel = Kernel::new(|assembly| emit_norm(assembly, &spec));
    // A common part, so that taking the mean off cancels.
    let offset = if kind == NormKind::Layer { 5.0 } else { 0.25 };
    let x: Vec<f32> = random.units(rows * run.0).iter().map(|v| v * 3.0 + offset).collect();
    let (weight, shift) = (random.units(width), random.units(width));
    let given = [
        Input::floats(&x),
        Input::floats(&weight),
        if bias { Input::floats(&shift) } else { Input::Nothing },
    ];
    let got = kernel.run(&given, rows * groups * width, rows);
    for (index, got) in got.chunks(width).enumerate() {
        let x = double(&x[index / groups * run.0 + index % groups * width..][..width]);
        let count = width as f64;
        let depth = sum_depth(width);
        let size = x.iter().map(|v| v.abs()).sum::<f64>() / count;
        let (mean, mean_error) = match kind {
            NormKind::Rms => (0.0, 0.0),
            NormKind::Layer => (x.iter().sum::<f64>() / count, (depth + 1.0) * U * size),
        };
        let square = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count + f64::from(epsilon);
        let factor = 1.0 / square.sqrt();
        let spread = (depth + 4.0) / 2.0 * U + mean_error.powi(2) / square / 2.0;
        for (k, got) in got.iter().enumerate() {
            let scale = f64::from(weight[k]);
            let scaled = (x[k] - mean) * factor * scale;
            let exact = scaled + if bias { f64::from(shift[k]) } else { 0.0 };
            let bound = (mean_error * factor * scale).abs()
                + scaled.abs() * (spread + 6.0 * U)
                + exact.abs() * U;
            within(&(kind, rows, groups, width, index, k), *got, exact, bound);
        }
    }
}

fn check_norms(kind: NormKind) {
    let mut random = Random::new(11);
    for bias in [false, true] {
        for shape in SHAPES {
            check_norm(&mut random, kind, bias, shape);
        }
    }
}

#[test]
fn layer_norm_keeps_its_bound() {
    check_norms(NormKind::Layer);
}

#[test]
fn rms_norm_keeps_its_bound() {
    check_norms(NormKind::Rms);
}

pub(super) const REDUCTIONS: [ReduceOp; 6] = [
    ReduceOp::Sum,
    ReduceOp::Mean,
    ReduceOp::SumSquare,
    ReduceOp::Max,
    ReduceOp::Min,
    ReduceOp::Product,
];

/// Sums are off by a rounding per step of their longest chain, of Σ|x|; squares and the mean's
/// division add one; a product of n factors has n - 1 roundings; extremes are exact.
pub(super) fn check_reduction(random: &mut Random, op: ReduceOp, (rows, groups, width): Shape) {
    let x_row = groups * width + 5;
    let spec = ReduceSpec { op, groups, width, x: (x_row, width), y_row: groups + 1 };
    let kernel = Kernel::new(|assembly| emit_reduce(assembly, &spec));
    let mut x = random.units(rows * x_row);
    if op == ReduceOp::Product {
        // Near 1, so that long products stay in range.
        x.iter_mut().for_each(|v| *v = 1.0 + *v * 0.125);
    }
    let got = kernel.run(&[Input::floats(&x)], rows * (groups + 1), rows);
    for (row, got) in got.chunks(groups + 1).enumerate() {
        assert_eq!(got[groups], POISON);
        for group in 0..groups {
            let x = double(&x[row * x_row + group * width..][..width]);
            let count = width as f64;
            let sizes: f64 = x.iter().map(|v| v.abs()).sum();
            let sum: f64 = x.iter().sum();
            let squares: f64 = x.iter().map(|v| v * v).sum();
            let product: f64 = x.iter().product();
            let depth = sum_depth(width);
            let (exact, bound) = match op {
                ReduceOp::Sum => (sum, depth * U * sizes),
                ReduceOp::Mean => (sum / count, (depth + 1.0) * U * sizes / count),
                ReduceOp::SumSquare => (squares, (depth + 1.0) * U * squares),
                ReduceOp::Max => (x.iter().copied().fold(f64::MIN, f64::max), 0.0),
                ReduceOp::Min => (x.iter().copied().fold(f64::MAX, f64::min), 0.0),
                ReduceOp::Product => (product, count * U * product.abs()),
            };
            within(&(op, rows, groups, width, row, group), got[group], exact, bound);
        }
    }
}

#[test]
fn reductions_keep_their_bounds() {
    let mut random = Random::new(12);
    for op in REDUCTIONS {
        for shape in SHAPES {
            check_reduction(&mut random, op, shape);
        }
    }
}

/// Rows are copied bit by bit from the places that the numbers name, in any order and repeatedly.
pub(super) fn check_rows(
    random: &mut Random,
    [rows, width, table_stride, output_stride]: [usize; 4],
) {
    let places = 19;
    let table = random.units(places * table_stride);
    let chosen: Vec<u32> = (0..rows).map(|_| random.below(places) as u32).collect();
    let positions = StepContext { positions: chosen.as_ptr(), ..context() };
    let head_rows = StepContext { head_rows: chosen.as_ptr(), ..context() };
    for (numbers, context) in
        [(RowNumbers::Positions, positions), (RowNumbers::HeadRows, head_rows)]
    {
        let kernel = Kernel::new(|assembly| {
            emit_rows(assembly, numbers, width, table_stride, output_stride)
        });
        let given = [Input::Context(&context), Input::floats(&table)];
        let got = kernel.run(&given, rows * output_stride, rows);
        for (row, got) in got.chunks(output_stride).enumerate() {
            let from = chosen[row] as usize * table_stride;
            assert_eq!(got[..width], table[from..from + width]);
            assert!(got[width..].iter().all(|value| *value == POISON));
        }
    }
}

#[test]
fn rows_come_by_number() {
    let mut random = Random::new(13);
    for shape in [[1, 1, 1, 1], [1, 5, 5, 8], [6, 4, 7, 4], [40, 33, 33, 48], [3, 130, 131, 130]] {
        check_rows(&mut random, shape);
    }
}

/// a·cos - b·sin has two products and a sum: off by 2·u·(|a·cos| + |b·sin|). What is not rotated
/// passes bit by bit.
pub(super) fn check_rotation(
    random: &mut Random,
    interleaved: bool,
    [rows, heads, head_width, width]: [usize; 4],
) {
    let half = width / 2;
    let places = 11;
    let x_row = heads * head_width + 1;
    let y_row = heads * head_width;
    let spec = RotarySpec {
        heads,
        head_width,
        rotation: Rotation { width, interleaved },
        x: (x_row, head_width),
        y: (y_row, head_width),
    };
    let kernel = Kernel::new(|assembly| emit_rotary(assembly, &spec));
    let x = random.units(rows * x_row);
    let angles: Vec<f32> =
        random.units(places * half).iter().map(|v| v * std::f32::consts::PI).collect();
    let cos: Vec<f32> = angles.iter().map(|angle| angle.cos()).collect();
    let sin: Vec<f32> = angles.iter().map(|angle| angle.sin()).collect();
    let chosen: Vec<u32> = (0..rows).map(|_| random.below(places) as u32).collect();
    let context = StepContext { rotary_rows: chosen.as_ptr(), ..context() };
    let given =
        [Input::Context(&context), Input::floats(&x), Input::floats(&cos), Input::floats(&sin)];
    let got = kernel.run_heads(&given, rows * y_row, [rows, heads]);
    for (index, got) in got.chunks(head_width).enumerate() {
        let (row, head) = (index / heads, index % heads);
        let x = &x[row * x_row + head * head_width..][..head_width];
        for pair in 0..half {
            let (first, second) =
                if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + half) };
            let (a, b) = (f64::from(x[first]), f64::from(x[second]));
            let at = chosen[row] as usize * half + pair;
            let (c, s) = (f64::from(cos[at]), f64::from(sin[at]));
            let what = (interleaved, rows, head_width, width, index, pair);
            let bound = |p: f64, q: f64| 2.0 * U * (p.abs() + q.abs());
            within(&what, got[first], a * c - b * s, bound(a * c, b * s));
            within(&what, got[second], b * c + a * s, bound(b * c, a * s));
        }
        assert_eq!(got[width..], x[width..]);
    }
}

#[test]
fn rotations_keep_their_bound() {
    let mut random = Random::new(14);
    for interleaved in [false, true] {
        for shape in [[1, 1, 2, 2], [1, 3, 10, 6], [5, 2, 16, 16], [9, 4, 37, 26], [3, 1, 130, 128]]
        {
            check_rotation(&mut random, interleaved, shape);
        }
    }
}
