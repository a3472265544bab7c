//! What is no ordinary arithmetic: tokens beyond the table, and numbers that are none.
//!
//! A row that holds a NaN or an infinity may spoil itself and nothing beside it.

use std::sync::{Mutex, PoisonError};

use weir_abi::Fault;
use weir_ir::ops::unary::UnaryOp;

use super::*;
use crate::kernels::map::{MapOp, MapSpec, emit_map};
use crate::kernels::matmul::{Compute, MatmulSpec, emit_quantise};
use crate::kernels::norm::{NormKind, NormSpec, emit_norm};
use crate::kernels::rows::emit_embed;
use crate::pack::{
    Blocks, DenseRows, PackedLayout, ScaleType, WeightFormat, ZeroPoint, pack_dense,
};

/// Faults of the one test that lets a kernel report them.
static REPORTED: Mutex<Vec<(u32, u32)>> = Mutex::new(Vec::new());

extern "C" fn record(_: *const c_void, fault: u32, detail: u32) {
    REPORTED.lock().unwrap_or_else(PoisonError::into_inner).push((fault, detail));
}

struct Table;

impl DenseRows for Table {
    fn row(&self, channel: usize, out: &mut [f32]) {
        out.iter_mut().enumerate().for_each(|(k, value)| *value = (channel * 100 + k) as f32);
    }
}

#[test]
fn tokens_beyond_the_table_are_reported_and_give_zeros() {
    let layout = PackedLayout { channels: 21, reduction: 37, format: WeightFormat::F32 };
    let mut packed = vec![0; layout.bytes()];
    pack_dense(&layout, &Table, &mut packed).unwrap();
    let kernel = Kernel::new(|assembly| emit_embed(assembly, &layout, 40));
    let tokens = [0u32, 20, 21, 7, u32::MAX, 1 << 31];
    let context = StepContext { tokens: tokens.as_ptr(), fault: record, ..context() };
    let given = [Input::Context(&context), Input::Floats(packed)];
    let got = kernel.run(&given, tokens.len() * 40, tokens.len());
    for (row, got) in got.chunks(40).enumerate() {
        let expected: Vec<f32> = match tokens[row] {
            token @ 0..21 => (0..37).map(|k| (token * 100 + k) as f32).collect(),
            _ => vec![0.0; 37],
        };
        assert_eq!(got[..37], expected);
        assert_eq!(got[37..], [POISON; 3]);
    }
    let fault = Fault::TokenOutOfRange as u32;
    let reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    // The kernel ran twice.
    assert_eq!(*reported, [(fault, 2), (fault, 4), (fault, 5)].repeat(2));
}

#[test]
fn what_is_no_number_stays_in_its_row() {
    let (rows, width) = (3, 37);
    let dense = (width, vec![1]);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut x = Random::new(41).units(rows * width);
        let clean = x.clone();
        x[width + 20] = bad;
        let spec = NormSpec {
            kind: NormKind::Layer,
            epsilon: 1e-5,
            bias: false,
            groups: 1,
            width,
            x: (width, width),
            y: (width, width),
        };
        let norm = Kernel::new(|assembly| emit_norm(assembly, &spec));
        let weight = vec![1.0; width];
        let run = |x: &[f32]| {
            let given = [Input::floats(x), Input::floats(&weight), Input::Nothing];
            norm.run(&given, rows * width, rows)
        };
        let (got, expected) = (run(&x), run(&clean));
        assert_eq!(got[..width], expected[..width]);
        assert_eq!(got[2 * width..], expected[2 * width..]);
        assert!(got[width..2 * width].iter().all(|y| y.is_nan()), "{bad}");

        for op in [UnaryOp::Exp, UnaryOp::Silu, UnaryOp::Tanh, UnaryOp::Sin, UnaryOp::Gelu] {
            let strides = vec![dense.clone(); 2];
            let spec = MapSpec { op: MapOp::Unary(op), dims: vec![width], strides };
            let map = Kernel::new(|assembly| emit_map(assembly, &spec));
            let run = |x: &[f32]| {
                let given = [Input::floats(x), Input::Nothing, Input::Nothing];
                map.run(&given, rows * width, rows)
            };
            let (got, expected) = (run(&x), run(&clean));
            for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
                if index != width + 20 {
                    assert_eq!(got.to_bits(), expected.to_bits());
                } else if bad.is_nan() {
                    assert!(got.is_nan(), "{op:?}({bad}) = {got}");
                }
            }
        }
    }
}

/// The scale of a block with a NaN is NaN, so that every product of the row is; an infinity gives
/// one as well. Blocks beside it are as they were, or, where a row has one scale, like it; other rows
/// are as they were.
#[test]
fn what_has_no_scale_is_marked() {
    for compute in [Compute::Int8, Compute::Int8Row] {
        check_marks(compute);
    }
}

fn check_marks(compute: Compute) {
    let blocks = Blocks { block: 32, scale: ScaleType::F16, zero: ZeroPoint::Implied };
    let layout = PackedLayout { channels: 16, reduction: 70, format: WeightFormat::Int4(blocks) };
    let activation = MatmulSpec::new(layout, compute).activation().unwrap();
    let kernel = Kernel::new(|assembly| emit_quantise(assembly, activation));
    /// Bytes of a record: codes, scale, two sums.
    const RECORD: usize = 32 + 4 + 4 + 4;
    let items = 2 * activation.items_per_row();
    let run = |x: &[f32]| {
        let words = 2 * activation.row_bytes() / 4;
        bytes(&kernel.run(&[Input::floats(x)], words, items))
    };
    let records = |rows: &[u8]| -> Vec<Vec<u8>> {
        let rows = rows.chunks_exact(activation.row_bytes());
        rows.flat_map(|row| row.chunks(RECORD).take(3).map(<[u8]>::to_vec)).collect()
    };
    let clean = Random::new(42).units(140);
    let expected = records(&run(&clean));
    for place in [0, 40, 69, 70, 139] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = clean.clone();
            x[place] = bad;
            let (row, block) = (place / 70, place % 70 / 32);
            for (index, (got, expected)) in records(&run(&x)).iter().zip(&expected).enumerate() {
                let is_marked = match compute {
                    Compute::Int8Row => index / 3 == row,
                    _ => index == row * 3 + block,
                };
                if is_marked {
                    let scale = floats(&got[32..36])[0];
                    assert!(!scale.is_finite(), "{bad} gives the scale {scale}");
                    assert!(got[..32].iter().chain(&got[36..]).all(|byte| *byte == 0));
                } else {
                    assert_eq!(got, expected);
                }
            }
        }
    }
}
