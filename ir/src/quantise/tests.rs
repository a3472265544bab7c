//! The stated errors against doubles, edges of the formats, and the text form of rounded constants.

use super::*;
use crate::constant::{ConstData, Constant, QuantRow};
use crate::graph::Graph;
use crate::text::{parse, parse_with, print};
use crate::types::{Element, TensorType};

fn format(bits: u8, block: u32, scale: DType, zero: ZeroPoints) -> QuantFormat {
    QuantFormat { bits, block, scale, short: false, zero }
}

/// int4 with short scales.
fn short(block: u32) -> QuantFormat {
    QuantFormat { short: true, ..format(4, block, DType::F16, ZeroPoints::Fixed(8)) }
}

fn formats() -> Vec<QuantFormat> {
    let mut formats = Vec::new();
    for block in [16, 32, 64, 128, 100] {
        for scale in [DType::F32, DType::F16, DType::BF16] {
            for (bits, middle) in [(4, 8), (8, 128)] {
                formats.push(format(bits, block, scale, ZeroPoints::Fixed(middle)));
                formats.push(format(bits, block, scale, ZeroPoints::Codes));
            }
        }
        formats.push(short(block));
    }
    formats
}

/// Numbers of about normal distribution, the same every time.
fn noise(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / f64::from(1 << 24) - 0.5
    };
    (0..count).map(|_| (0..12).map(|_| uniform()).sum::<f64>() as f32).collect()
}

/// What the header's table says of one element, and of the square root of a block's squared error.
fn allowed(format: &QuantFormat, x: &[f32]) -> (f64, f64) {
    let least = x.iter().fold(0.0f64, |least, x| least.min(f64::from(*x)));
    let greatest = x.iter().fold(0.0f64, |greatest, x| greatest.max(f64::from(*x)));
    let (m, range) = (greatest.max(-least), greatest - least);
    let h = match format.scale {
        _ if format.short => 2f64.powi(-5),
        DType::F16 => 2f64.powi(-11),
        DType::BF16 => 2f64.powi(-8),
        _ => 2f64.powi(-24),
    };
    let subnormal =
        if format.scale == DType::F16 { 2f64.powi(i32::from(format.bits) - 25) } else { 0.0 };
    // Rounding of the division and of the products, in parts of the greatest value.
    let noise = 4.0 * m * 2f64.powi(-24);
    let each = noise
        + subnormal
        + match (format.bits, format.zero) {
            (8, ZeroPoints::Fixed(_)) => m / 254.0 * (1.0 + 128.0 * h),
            (8, _) => range / 510.0 * (1.0 + 512.0 * h),
            (_, ZeroPoints::Fixed(_)) => m / 8.0 * (1.0 + 8.0 * h),
            _ => range / 30.0 * (1.0 + 32.0 * h),
        };
    (each, each * (x.len() as f64).sqrt())
}

#[test]
fn errors_are_those_of_the_table() {
    for format in formats() {
        let mut rounder = Rounder::new(&format).unwrap();
        for seed in 0..40 {
            let count = format.block as usize;
            let mut x = noise(seed, count);
            let size = 10f32.powi((seed % 7) as i32 - 3);
            x.iter_mut().for_each(|x| *x *= size);
            if seed % 3 == 0 {
                // One value far outside, as trained weights have.
                x[count / 2] = 9.0 * size * if seed % 2 == 0 { 1.0 } else { -1.0 };
            }
            let mut codes = vec![0; count];
            let unit = unit_of_row(&x);
            let (scale, zero) = rounder.round(&x, unit, &mut codes);
            assert_eq!(rounder.stored(scale, unit), scale);
            let (each, whole) = allowed(&format, &x);
            let mut square = 0.0;
            for (x, code) in x.iter().zip(&codes) {
                assert!(u32::from(*code) < 1 << format.bits);
                let value = (f64::from(*code) - f64::from(zero)) * f64::from(scale);
                let error = (f64::from(*x) - value).abs();
                square += error * error;
                // The search for 4 bits may clip.
                assert!(format.bits == 4 || error <= each, "{format:?} {x} {value} {each}");
            }
            assert!(square.sqrt() <= whole, "{format:?} {} {whole}", square.sqrt());
        }
    }
}

/// Also where a subnormal scale is stored as two thirds of what it should be.
#[test]
fn symmetric_codes_of_8_bits_leave_out_0() {
    for scale in [DType::F32, DType::F16, DType::BF16] {
        let mut rounder = Rounder::new(&format(8, 32, scale, ZeroPoints::Fixed(128))).unwrap();
        for unit in [1.4 * 2f32.powi(-24), 2.4 * 2f32.powi(-24), 2f32.powi(-9), 1.0, 1.0039] {
            let x = [-127.0 * unit, 127.0 * unit, unit];
            let mut codes = [0; 3];
            rounder.round(&x, 1.0, &mut codes);
            assert!(codes[0] >= 1, "{scale:?} {unit} {codes:?}");
            // Both signs alike.
            assert_eq!(256 - u32::from(codes[0]), u32::from(codes[1]), "{scale:?} {unit}");
        }
    }
}

#[test]
fn searching_is_never_worse_and_reaches_the_stated_size() {
    let long = |block| format(4, block, DType::F16, ZeroPoints::Fixed(8));
    for format in [long(32), short(32), long(64), long(128)] {
        let block = format.block;
        let mut rounder = Rounder::new(&format).unwrap();
        let (mut searched, mut plain, mut size) = (0.0, 0.0, 0.0);
        for seed in 100..400 {
            let x = noise(seed, block as usize);
            let mut codes = vec![0; x.len()];
            let unit = unit_of_row(&x);
            let (scale, zero) = rounder.round(&x, unit, &mut codes);
            let extreme = x.iter().fold(0f32, |e, x| if x.abs() > e.abs() { *x } else { e });
            let error = |scale: f32| f64::from(rounder.error(scale, zero, 15.0));
            let first = rounder.stored(extreme / -8.0, unit);
            assert!(error(scale) <= error(first));
            searched += error(scale);
            plain += error(first);
            size += x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>();
        }
        let (searched, plain) = ((searched / size).sqrt(), (plain / size).sqrt());
        println!("{}: {plain:.4} plain, {searched:.4} searched", Element::Quant(format));
        assert!(searched < 0.96 * plain);
        let stated = (2.0 * (2.0 * f64::from(block)).ln()).sqrt() / (8.0 * 12f64.sqrt());
        assert!(plain < 1.15 * stated && plain > 0.7 * stated, "{plain} {stated}");
    }
}

#[test]
fn edges() {
    for format in formats() {
        let mut rounder = Rounder::new(&format).unwrap();
        let mut codes = [9; 5];
        let mut values = |x: [f32; 5]| {
            let (scale, zero) = rounder.round(&x, unit_of_row(&x), &mut codes);
            codes.map(|code| (f32::from(code) - zero) * scale)
        };
        assert_eq!(values([0.0; 5]), [0.0; 5]);
        assert_eq!(values([-0.0, 0.0, 0.0, 1e-40, 0.0]).map(f32::abs), [0.0; 5]);
        let found = values([1e-7, 0.0, -1e-8, 0.0, 0.0]);
        assert!((found[0] - 1e-7).abs() < 2f32.powi(-22), "{found:?}");
        // Powers of two are kept where scales are exact.
        assert_eq!(values([-1.0, 0.0, 0.0, 0.0, 0.0])[1..], [0.0; 4]);
        let alone = values([0.0, 0.0, 3.0, 0.0, 0.0])[2];
        assert!((alone - 3.0).abs() < 3.0 * 2f32.powi(-8), "{format:?} {alone}");
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(values([1.0, wrong, 0.0, 0.0, 0.0])[0].is_nan());
        }
        // Equal values of both signs: all within the table.
        let found = values([2.0, -2.0, 2.0, -2.0, 1.0]);
        assert!(found.iter().zip([2.0, -2.0, 2.0, -2.0, 1.0]).all(|(x, y)| (x - y).abs() <= 0.26));
    }
    assert!(Rounder::new(&format(4, 32, DType::F16, ZeroPoints::Fixed(7))).is_none());
    assert!(Rounder::new(&format(4, 32, DType::F16, ZeroPoints::Float)).is_none());
    assert!(Rounder::new(&format(3, 32, DType::F16, ZeroPoints::Codes)).is_none());
    assert!(Rounder::new(&format(4, 0, DType::F16, ZeroPoints::Codes)).is_none());
}

fn weight(rows: usize, columns: usize) -> Constant {
    Constant::from_f32("w", &[rows, columns], &noise(5, rows * columns))
}

#[test]
fn rounded_constants_give_rows_like_tensors() {
    let element = Element::Quant(format(4, 32, DType::F16, ZeroPoints::Fixed(8)));
    let (rows, columns) = (7, 72);
    let direct = weight(rows, columns);
    let turned = weight(columns, rows).transposed().unwrap();
    let stack = {
        let mut ty = direct.ty.clone();
        ty.shape[0] = 14usize.into();
        let data = ConstData::Stacked(vec![direct.clone(), turned.clone()]);
        Constant { name: "s".into(), ty, data }
    };
    for source in [direct, turned, stack] {
        let rounded = source.rounded(element).unwrap();
        rounded.check().unwrap();
        let all = rounded.elements_f32().unwrap();
        let count = rounded.matrix().unwrap()[0];
        let mut panel = vec![QuantRow::default(); 3];
        for first in 0..=count - 3 {
            let mut floats = vec![0.0; 3 * columns];
            assert!(rounded.rows_f32(first, &mut floats) && rounded.quant_rows(first, &mut panel));
            assert_eq!(floats, all[first * columns..][..3 * columns]);
            let mut alone = QuantRow::default();
            assert!(rounded.quant_row(first + 1, &mut alone));
            assert_eq!(alone, panel[1]);
            let value = (f32::from(alone.codes[40]) - alone.zeros[1]) * alone.scales[1];
            assert_eq!(value, floats[columns + 40]);
        }
        assert!(!rounded.rows_f32(count - 2, &mut vec![0.0; 3 * columns]));
        assert!(!rounded.quant_rows(count - 2, &mut panel));
        assert!(rounded.rounded(element).is_none());
        for (dtype, unit) in [(DType::BF16, 256.0), (DType::F16, 2048.0)] {
            let rounded = source.rounded(Element::Plain(dtype)).unwrap();
            let (ours, exact) = (rounded.elements_f32().unwrap(), source.elements_f32().unwrap());
            assert!(ours.iter().zip(&exact).all(|(x, y)| (x - y).abs() <= y.abs() / unit));
            assert!(ours != exact);
        }
        assert!(source.rounded(Element::Plain(DType::I8)).is_none());
    }
}

#[test]
fn rounded_constants_print_and_parse() {
    let mut graph = Graph::new();
    let element = Element::Quant(format(8, 32, DType::F16, ZeroPoints::Codes));
    let small = weight(2, 4).rounded(element).unwrap();
    graph.constants.push(small);
    let text = print(&graph);
    assert!(text.contains("int8<block=32, scale=f16, zero=codes>[2, 4] = rounded f32[2, 4] = ["));
    let read = parse(&text).unwrap();
    assert_eq!(print(&read), text);
    let only = |graph: &Graph| graph.constants.values().next().unwrap().elements_f32();
    assert_eq!(only(&read), only(&graph));
    graph.constants.push(weight(3, 40).rounded(Element::Plain(DType::BF16)).unwrap());
    let text = print(&graph);
    let read = parse_with(&text, &|_, _| Some(weight(3, 40))).unwrap();
    assert_eq!(print(&read), text);
    assert!(parse_with(&text, &|_, _| Some(weight(3, 41))).is_err());
}

#[test]
fn sources_that_do_not_fit_are_refused() {
    let ty = |dtype, rows: usize| TensorType::new(dtype, vec![rows.into(), 4usize.into()]);
    let with = |ty, source: Constant| {
        let data = ConstData::Rounded(Box::new(source));
        Constant { name: "w".into(), ty, data }.check()
    };
    with(ty(DType::F16, 2), weight(2, 4)).unwrap();
    for (ty, source) in [
        (ty(DType::F16, 3), weight(2, 4)),
        (ty(DType::I8, 2), weight(2, 4)),
        (ty(DType::F64, 2), weight(2, 4)),
        (ty(DType::F16, 2), Constant::from_i64("w", &[2, 4], &[0; 8])),
        (ty(DType::F16, 2), weight(2, 4).rounded(Element::Plain(DType::BF16)).unwrap()),
    ] {
        assert!(with(ty, source).is_err());
    }
}

/// The short multiples of a unit, from the definition: whole, of five bits at most, 124 at most.
fn short_units() -> Vec<f32> {
    (-124i32..=124)
        .filter(|units| units.abs() >> units.unsigned_abs().trailing_zeros().min(30) < 32)
        .map(|units| units as f32)
        .collect()
}

#[test]
fn short_scales_are_the_nearest_and_codes_times_them_fit_bf16() {
    let units = short_units();
    for x in noise(7, 2000) {
        let unit = 2f32.powi((x * 1e4) as i32 % 12 - 12);
        let nearest = short_scale(x, unit);
        let distance = |units: &f32| (units * unit - x).abs();
        let least = units.iter().map(distance).fold(f32::INFINITY, f32::min);
        assert!(units.contains(&(nearest / unit)) && (nearest - x).abs() <= least, "{x} {nearest}");
        for code in -8..8 {
            let value = code as f32 * nearest;
            assert_eq!(half::bf16::from_f32(value).to_f32(), value);
        }
    }
    let greatest = 2f32.powi(10);
    assert!(short_scale(f32::NAN, 1.0).is_nan() && short_scale(1e9, greatest).is_infinite());
    // A byte has one zero.
    assert_eq!([0.0, -0.0, -0.4].map(|x| short_scale(x, 1.0).to_bits()), [0; 3]);
    for (index, of_unit) in units.iter().enumerate() {
        let expected = index as i32 - units.len() as i32 / 2;
        assert_eq!((rung(*of_unit), units_at(expected)), (expected, *of_unit));
    }
}

#[test]
fn a_row_of_short_scales_has_one_unit() {
    for (largest, unit) in
        [(0.0, LEAST_UNIT), (124.0, 1.0), (124.1, 2.0), (62.0, 0.5), (1e-9, LEAST_UNIT)]
    {
        assert_eq!(unit_of(largest), unit, "{largest}");
    }
    let mut rounder = Rounder::new(&short(32)).unwrap();
    for seed in 0..200 {
        let mut row = noise(seed, 500);
        for (index, x) in row.iter_mut().enumerate() {
            // Blocks of very different sizes, the first of them zeros.
            *x *= [0.0, 1.0, 30.0, 0.01, 1e-5][index / 32 % 5];
        }
        let (mut codes, mut scales) = (vec![0; 500], vec![0.0f32; 16]);
        rounder.row(&row, &mut codes, &mut scales, &mut [0.0; 16]);
        let unit = unit_of_scales(&scales);
        let units = short_units();
        assert!(scales.iter().all(|scale| units.contains(&(scale / unit))), "{scales:?} {unit}");
        // What is short in a row stays as it is.
        assert!(scales.iter().all(|scale| short_scale(*scale, unit) == *scale));
        // A block's error is that of its own extreme and of half a unit.
        for (block, x) in row.chunks(32).enumerate() {
            let extreme = x.iter().fold(0.0f32, |extreme, x| extreme.max(x.abs()));
            let allowed = extreme / 8.0 * 1.27 + 8.0 * unit / 2.0;
            for (x, code) in x.iter().zip(&codes[block * 32..]) {
                let value = (f32::from(*code) - 8.0) * scales[block];
                assert!((x - value).abs() <= allowed, "{x} {value}");
            }
        }
    }
}
