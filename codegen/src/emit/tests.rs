//! The vocabulary against scalar arithmetic, and the layout's promises.

use super::*;
use crate::image::CodeImage;
use crate::jit::{Argument, ExecutableCode};

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn map_image(apply: impl Fn(&mut Body<'_>, Value) -> Value) -> CodeImage {
    let mut assembly = Assembly::new().unwrap();
    let id = assembly.declare("map", signature(&[POINTER; 3], &[])).unwrap();
    assembly
        .define(id, |b| {
            let [from, to, count] = b.params();
            let zero = b.int(0);
            b.for_lanes(zero, count, |b, index, lanes| {
                let from = b.element(from, index, 4);
                let to = b.element(to, index, 4);
                let x = b.load(lanes.float(), from, 0);
                let y = apply(b, x);
                b.store(y, to, 0);
            });
            b.ret(&[]);
        })
        .unwrap();
    assembly.finish().unwrap()
}

fn map(inputs: &[f32], apply: impl Fn(&mut Body<'_>, Value) -> Value) -> Vec<f32> {
    let code = ExecutableCode::new(&map_image(apply)).unwrap();
    let mut out = vec![0u8; inputs.len() * 4];
    code.call_kernel(
        "map",
        &mut [
            Argument::Read(&bytes(inputs)),
            Argument::Write(&mut out),
            Argument::Count(inputs.len() as u64),
        ],
    );
    floats(&out)
}

/// Distance in units of the last place of the exact result.
fn ulps(got: f32, exact: f64) -> f64 {
    let near = exact as f32;
    let unit = if near.is_normal() {
        f64::from(f32::from_bits((near.to_bits() & 0x7f80_0000) + 0x0080_0000)) / f64::from(1 << 24)
    } else {
        f64::from(f32::from_bits(1))
    };
    (f64::from(got) - exact).abs() / unit
}

fn samples(low: f32, high: f32) -> Vec<f32> {
    let n = 200_003;
    let mut values: Vec<f32> =
        (0..n).map(|i| low + (high - low) * (i as f32 / (n - 1) as f32)).collect();
    values.extend((0..2_001).map(|i| (i - 1000) as f32 * 1e-6));
    values.retain(|x| (low..=high).contains(x));
    values
}

fn worst(inputs: &[f32], outputs: &[f32], error: impl Fn(f32, f32) -> f64) -> (f32, f64) {
    inputs
        .iter()
        .zip(outputs)
        .map(|(x, y)| (*x, error(*x, *y)))
        .fold((0.0, 0.0), |a, b| if b.1 > a.1 || b.1.is_nan() { b } else { a })
}

#[test]
fn exp_keeps_its_bound() {
    let x = samples(-103.0, 88.7);
    let y = map(&x, |b, x| b.exp(x));
    let (at, error) = worst(&x, &y, |x, y| ulps(y, f64::from(x).exp()));
    assert!(error <= 2.0, "exp({at}) is off by {error} ulp");
    assert_eq!(
        map(&[-1000.0, f32::NEG_INFINITY, 0.0, 100.0, f32::INFINITY], |b, x| b.exp(x)),
        [0.0, 0.0, 1.0, f32::INFINITY, f32::INFINITY]
    );
    assert!(map(&[f32::NAN], |b, x| b.exp(x))[0].is_nan());
}

#[test]
fn ln_keeps_its_bound() {
    let mut x = samples(1e-6, 4.0);
    x.retain(|x| *x > 0.0);
    x.extend([f32::MIN_POSITIVE, f32::MAX, 1e20, 1e-30, 1.0]);
    let y = map(&x, |b, x| b.ln(x));
    let (at, error) = worst(&x, &y, |x, y| {
        let exact = f64::from(x).ln();
        ulps(y, exact).min((f64::from(y) - exact).abs() / 1e-7 * 2.0)
    });
    assert!(error <= 2.0, "ln({at}) is off by {error}");
}

#[test]
fn sigmoid_and_tanh_keep_their_bounds() {
    let x = samples(-87.0, 88.0);
    let y = map(&x, |b, x| b.sigmoid(x));
    let (at, error) = worst(&x, &y, |x, y| ulps(y, 1.0 / (1.0 + (-f64::from(x)).exp())));
    assert!(error <= 4.0, "sigmoid({at}) is off by {error} ulp");
    let x = samples(-12.0, 12.0);
    let y = map(&x, |b, x| b.tanh(x));
    let (at, error) = worst(&x, &y, |x, y| ulps(y, f64::from(x).tanh()));
    assert!(error <= 4.0, "tanh({at}) is off by {error} ulp");
    assert_eq!(map(&[-200.0, 200.0], |b, x| b.tanh(x)), [-1.0, 1.0]);
}

#[test]
fn erf_keeps_its_bound() {
    // Abramowitz and Stegun, table 7.1.
    let known = [
        (0.1f32, 0.112_462_916),
        (0.5, 0.520_499_878),
        (0.99, 0.838_508_070),
        (1.0, 0.842_700_793),
        (1.01, 0.846_810_496),
        (1.5, 0.966_105_146),
        (2.0, 0.995_322_265),
    ];
    let x: Vec<f32> = known.iter().flat_map(|(x, _)| [*x, -*x]).collect();
    let y = map(&x, |b, x| b.erf(x));
    for (index, (x, exact)) in known.iter().enumerate() {
        assert!((f64::from(y[2 * index]) - exact).abs() < 2e-7, "erf({x}) = {}", y[2 * index]);
        assert_eq!(y[2 * index + 1], -y[2 * index]);
    }
    assert_eq!(map(&[0.0, 5.0, -30.0], |b, x| b.erf(x)), [0.0, 1.0, -1.0]);
}

#[test]
fn lanes_and_scalars_agree() {
    let x: Vec<f32> = (0..7).map(|i| i as f32 * 0.37 - 1.0).collect();
    let functions: [fn(&mut Body<'_>, Value) -> Value; 5] = [
        |b, x| b.exp(x),
        |b, x| b.tanh(x),
        |b, x| b.sigmoid(x),
        |b, x| b.erf(x),
        |b, x| b.polynomial(x, &[0.5, -1.0, 3.0]),
    ];
    for apply in functions {
        let whole = map(&x, apply);
        let single: Vec<f32> = x.iter().map(|x| map(&[*x], apply)[0]).collect();
        assert_eq!(whole, single);
    }
}

#[test]
fn partition_covers_everything_once() {
    let mut assembly = Assembly::new().unwrap();
    let id = assembly.declare("share", signature(&[POINTER; 4], &[])).unwrap();
    assembly
        .define(id, |b| {
            let [out, items, thread, threads] = b.params();
            let (begin, end) = b.partition(items, thread, threads);
            b.store(begin, out, 0);
            b.store(end, out, 8);
            b.ret(&[]);
        })
        .unwrap();
    let code = ExecutableCode::new(&assembly.finish().unwrap()).unwrap();
    for items in [0u64, 1, 5, 64, 1001] {
        for threads in 1..9u64 {
            let mut next = 0;
            for thread in 0..threads {
                let mut out = [0u8; 16];
                code.call_kernel(
                    "share",
                    &mut [
                        Argument::Write(&mut out),
                        Argument::Count(items),
                        Argument::Count(thread),
                        Argument::Count(threads),
                    ],
                );
                let begin = u64::from_le_bytes(out[..8].try_into().unwrap());
                assert_eq!(begin, next);
                next = u64::from_le_bytes(out[8..].try_into().unwrap());
            }
            assert_eq!(next, items);
        }
    }
}

#[test]
fn functions_call_each_other_in_any_order() {
    let mut assembly = Assembly::new().unwrap();
    assembly.keep_clif();
    let outer = assembly.declare("outer", signature(&[POINTER], &[])).unwrap();
    let inner = assembly.declare("inner", signature(&[POINTER], &[POINTER])).unwrap();
    assembly
        .define(outer, |b| {
            let [out] = b.params();
            let value = b.call(inner, &[out])[0];
            b.store(value, out, 0);
            b.ret(&[]);
        })
        .unwrap();
    assembly
        .assemble(inner, |code| {
            use iced_x86::code_asm::*;
            code.mov(rax, 42u64)?;
            code.ret()
        })
        .unwrap();
    assert!(assembly.clif(outer).unwrap().contains("call"));
    let image = assembly.finish().unwrap();
    assert!(image.symbols.iter().all(|symbol| symbol.offset % 64 == 0));
    let text = disassemble(&image, "outer").unwrap();
    assert!(text.contains("call inner"), "{text}");
    let mut out = [0u8; 8];
    ExecutableCode::new(&image).unwrap().call_kernel("outer", &mut [Argument::Write(&mut out)]);
    assert_eq!(u64::from_le_bytes(out), 42);
}

#[test]
fn mistakes_are_errors() {
    let mut assembly = Assembly::new().unwrap();
    assembly.declare("lonely", signature(&[], &[])).unwrap();
    assert!(matches!(
        assembly.declare("lonely", signature(&[], &[])),
        Err(EmitError::Redeclared(_))
    ));
    assert!(matches!(assembly.finish(), Err(EmitError::Undefined(_))));
}

#[test]
fn the_same_functions_give_the_same_bytes() {
    assert_eq!(map_image(|b, x| b.tanh(x)), map_image(|b, x| b.tanh(x)));
}

/// Stores floats narrow, loads them back, in the widths of a vector loop and its remainder.
fn narrow(
    inputs: &[f32],
    store: impl Fn(&mut Body<'_>, Value, Value),
    load: impl Fn(&mut Body<'_>, Lanes, Value) -> Value,
    width: i64,
) -> Vec<f32> {
    let mut assembly = Assembly::new().unwrap();
    let id = assembly.declare("narrow", signature(&[POINTER; 4], &[])).unwrap();
    assembly
        .define(id, |b| {
            let [from, middle, to, count] = b.params();
            let zero = b.int(0);
            b.for_lanes(zero, count, |b, index, lanes| {
                let from = b.element(from, index, 4);
                let middle = b.element(middle, index, width);
                let x = b.load(lanes.float(), from, 0);
                store(b, x, middle);
            });
            b.for_lanes(zero, count, |b, index, lanes| {
                let middle = b.element(middle, index, width);
                let to = b.element(to, index, 4);
                let x = load(b, lanes, middle);
                b.store(x, to, 0);
            });
            b.ret(&[]);
        })
        .unwrap();
    let code = ExecutableCode::new(&assembly.finish().unwrap()).unwrap();
    let mut middle = vec![0; inputs.len() * width as usize];
    let mut out = vec![0; inputs.len() * 4];
    code.call_kernel(
        "narrow",
        &mut [
            Argument::Read(&bytes(inputs)),
            Argument::Write(&mut middle),
            Argument::Write(&mut out),
            Argument::Count(inputs.len() as u64),
        ],
    );
    floats(&out)
}

/// All halves, the points between them and their neighbours, and numbers of all sizes.
fn hard_to_round() -> Vec<f32> {
    let mut values =
        vec![f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE, 65_519.996];
    for bits in 0..=u16::MAX {
        let value = half::f16::from_bits(bits).to_f32();
        let next = half::f16::from_bits(bits.wrapping_add(1)).to_f32();
        let between = (value + next) / 2.0;
        values.extend([value, between, between.next_up(), between.next_down()]);
    }
    values.extend((0..50_021u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9))));
    values.extend(values[..3].to_vec());
    values.retain(|value| !value.is_nan());
    values
}

#[test]
fn halves_round_to_nearest_even() {
    let inputs = hard_to_round();
    let got = narrow(&inputs, |b, x, at| b.store_f16(x, at, 0), |b, l, at| b.load_f16(l, at, 0), 2);
    for (x, got) in inputs.iter().zip(got) {
        assert_eq!(got.to_bits(), half::f16::from_f32(*x).to_f32().to_bits(), "{x:e}");
    }
    let nan = narrow(
        &[f32::NAN; 5],
        |b, x, at| b.store_f16(x, at, 0),
        |b, l, at| b.load_f16(l, at, 0),
        2,
    );
    assert!(nan.iter().all(|x| x.is_nan()));
}

#[test]
fn bf16_rounds_to_nearest_even() {
    let inputs = hard_to_round();
    let store = |b: &mut Body<'_>, x, at| b.store_bf16(x, at, 0);
    let load = |b: &mut Body<'_>, lanes, at| b.load_bf16(lanes, at, 0);
    for (x, got) in inputs.iter().zip(narrow(&inputs, store, load, 2)) {
        assert_eq!(got.to_bits(), half::bf16::from_f32(*x).to_f32().to_bits(), "{x:e}");
    }
    assert!(narrow(&[f32::NAN; 5], store, load, 2).iter().all(|x| x.is_nan()));
}

#[test]
fn signed_bytes_come_back() {
    let inputs: Vec<f32> = (-128..=126).map(|i| i as f32).collect();
    let store = |b: &mut Body<'_>, x, at| {
        let whole = b.to_int(x);
        b.store_i8(whole, at, 0);
    };
    let load = |b: &mut Body<'_>, lanes, at| {
        let whole = b.load_i8(lanes, at, 0);
        b.to_float(whole)
    };
    assert_eq!(narrow(&inputs, store, load, 1), inputs);
}
