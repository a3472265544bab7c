//! Every version against a scalar model of the specification, bit by bit.

mod case;
mod operands;
mod random;
mod tiles;

use weir_abi::IsaLevel;

use self::case::{Case, bytes, floats, pack};
use super::*;
use crate::emit::{POINTER, signature};
use crate::jit::{Argument, ExecutableCode};
use crate::pack::{
    Blocks, DenseRows, QuantRows, ScaleType, WeightFormat, ZeroPoint, pack_dense, pack_quantised,
};

/// Whether this machine runs a level; says so where it does not.
fn runs(level: IsaLevel) -> bool {
    let runs = weir_runtime::machine::supports(level);
    if !runs {
        println!("skipped: this machine has no {}", level.name());
    }
    runs
}

fn check_all(spec: MatmulSpec) {
    spec.supported().unwrap();
    for level in IsaLevel::ALL {
        if runs(level) {
            let case = Case::new(spec.at(level), level);
            for rows in [1, 2, 3, 4, 5, 7, 8, 15, 27] {
                case.check(rows, 1);
            }
            case.check(3, 2);
            case.check(9, 3);
        }
    }
}

fn blocks(block: usize, scale: ScaleType, zero: ZeroPoint) -> Blocks {
    Blocks { block, scale, zero }
}

#[test]
fn f32_is_bit_equal_on_all_levels() {
    for (channels, reduction) in [(16, 8), (1, 1), (37, 19), (128, 33), (113, 64), (80, 7)] {
        let layout = PackedLayout { channels, reduction, format: WeightFormat::F32 };
        check_all(MatmulSpec::new(layout, Compute::F32));
    }
}

#[test]
fn halves_and_bf16_activations_are_bit_equal() {
    for format in [WeightFormat::F16, WeightFormat::Bf16, WeightFormat::F32] {
        for (channels, reduction) in [(16, 8), (37, 19), (50, 130)] {
            let layout = PackedLayout { channels, reduction, format };
            check_all(MatmulSpec::new(layout, Compute::Bf16));
            check_all(MatmulSpec::new(layout, Compute::F32));
        }
    }
}

/// The rounded rows that a plan has for all levels are, on each, those that its product reads, and have
/// room for them.
#[test]
fn rows_of_bf16_are_what_products_read() {
    for (format, paired) in [(WeightFormat::Bf16, true), (WeightFormat::F16, false)] {
        let layout = PackedLayout { channels: 16, reduction: 301, format };
        let spec = MatmulSpec::new(layout, Compute::Bf16);
        let planned = spec.activation().unwrap();
        for level in IsaLevel::ALL {
            let read = spec.at(level).activation().unwrap();
            assert_eq!(planned.at(level), read);
            assert!(read.row_bytes() <= planned.row_bytes());
            let has_pairs = paired && level >= IsaLevel::Avx512Pairs;
            let is_paired = matches!(read, Activation::Bf16 { halves: Halves::Pairs, .. });
            assert_eq!(is_paired, has_pairs, "{}", level.name());
        }
    }
}

/// Products of pairs, by the machine where it has them and in the instruction interpreter: every number of
/// rows that tiles divide otherwise, a last element without another, bias and residual, and numbers that
/// are taken for zero.
#[test]
fn pairs_of_bf16_are_bit_equal() {
    let level = IsaLevel::Avx512Pairs;
    for (channels, reduction) in [(16, 8), (37, 19), (50, 130), (70, 1)] {
        let layout = PackedLayout { channels, reduction, format: WeightFormat::Bf16 };
        let plain = MatmulSpec::new(layout, Compute::Bf16).at(level);
        assert!(plain.symbol(IsaLevel::Amx).ends_with("-avx512-pairs"));
        for spec in [plain, MatmulSpec { bias: true, residual: true, ..plain }] {
            let mut cases = vec![Case::interpreted(spec, level)];
            cases.extend(runs(level).then(|| Case::new(spec, level)));
            for mut case in cases {
                (1..=26).for_each(|rows| case.check(rows, 1));
                case.check(9, 3);
                case.hard = &[1e-39, -1e-40, 0.0, 1.2e-38, -1e-38, 3e-39];
                (1..=26).for_each(|rows| case.check(rows, 2));
            }
        }
    }
}

#[test]
fn int4_with_int8_activations_is_bit_equal_on_all_levels() {
    for scale in [ScaleType::F32, ScaleType::F16, ScaleType::Short] {
        for zero in [ZeroPoint::Implied, ZeroPoint::Code, ZeroPoint::Float] {
            for (channels, reduction, block) in
                [(16, 32, 32), (37, 100, 32), (113, 64, 16), (70, 300, 128), (33, 97, 48)]
            {
                let format = WeightFormat::Int4(blocks(block, scale, zero));
                let layout = PackedLayout { channels, reduction, format };
                check_all(MatmulSpec::new(layout, Compute::Int8));
            }
        }
    }
}

#[test]
fn int8_with_int8_activations_is_bit_equal_on_all_levels() {
    for scale in [ScaleType::F32, ScaleType::F16] {
        for zero in [ZeroPoint::Implied, ZeroPoint::Code, ZeroPoint::Float] {
            for (channels, reduction, block) in
                [(16, 32, 32), (37, 100, 32), (113, 64, 16), (70, 300, 128), (33, 97, 48)]
            {
                let format = WeightFormat::Int8(blocks(block, scale, zero));
                let layout = PackedLayout { channels, reduction, format };
                check_all(MatmulSpec::new(layout, Compute::Int8));
            }
        }
    }
    let format = WeightFormat::Int8(blocks(256, ScaleType::F32, ZeroPoint::Implied));
    let layout = PackedLayout { channels: 20, reduction: 300, format };
    check_all(MatmulSpec::new(layout, Compute::Int8));
}

#[test]
fn codes_with_float_activations_are_bit_equal_on_all_levels() {
    for zero in [ZeroPoint::Implied, ZeroPoint::Code, ZeroPoint::Float] {
        for (block, scale) in [(32, ScaleType::F16), (16, ScaleType::F32), (48, ScaleType::F16)] {
            let blocks = blocks(block, scale, zero);
            for format in [WeightFormat::Int8(blocks), WeightFormat::Int4(blocks)] {
                for compute in [Compute::F32, Compute::Bf16] {
                    for (channels, reduction) in [(16, 64), (101, 37), (37, 101)] {
                        let layout = PackedLayout { channels, reduction, format };
                        check_all(MatmulSpec::new(layout, compute));
                    }
                }
            }
        }
    }
}

/// Every format with every arithmetic that it has.
fn all_products() -> Vec<(WeightFormat, Compute)> {
    let int4 = blocks(32, ScaleType::F16, ZeroPoint::Implied);
    let int8 = blocks(64, ScaleType::F32, ZeroPoint::Code);
    let mut products = Vec::new();
    for format in [
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::Bf16,
        WeightFormat::Int8(int8),
        WeightFormat::Int4(int4),
    ] {
        products.push((format, Compute::F32));
        products.push((format, Compute::Bf16));
        if format.blocks().is_some() {
            products.push((format, Compute::Int8));
            products.push((format, Compute::Int8Row));
        }
    }
    products
}

/// Rows of activations of the largest magnitude; in the last two the signs change from the first four
/// of eight to the others, as between the two factors of sums in pairs.
pub(super) const EXTREMES: [&[f32]; 4] = {
    const fn row(signs: [f32; 2]) -> [f32; 128] {
        let mut row = [0.0; 128];
        let mut at = 0;
        while at < row.len() {
            row[at] = 127.0 * signs[at / 4 % 2];
            at += 1;
        }
        row
    }
    [&row([1.0, 1.0]), &row([-1.0, -1.0]), &row([1.0, -1.0]), &row([-1.0, 1.0])]
};

/// Extreme codes and activations reach the ends of every sum's range: int4 15 · ±120, int8 both 0
/// and 255, whose pairs of signed products are the largest in magnitude.
#[test]
fn the_largest_sums_fit() {
    struct Extremes {
        code: u8,
    }
    impl QuantRows for Extremes {
        fn row(&self, _: usize, codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]) {
            codes.fill(self.code);
            scales.fill(1.0);
            zeros.fill(0.0);
        }
    }
    for zero in [ZeroPoint::Implied, ZeroPoint::Code, ZeroPoint::Float] {
        for block in [32, 64] {
            let blocks = blocks(block, ScaleType::F16, zero);
            for (format, codes) in
                [(WeightFormat::Int4(blocks), [0, 15]), (WeightFormat::Int8(blocks), [0, 255])]
            {
                let layout = PackedLayout { channels: 40, reduction: 128, format };
                let spec = MatmulSpec::new(layout, Compute::Int8);
                for level in IsaLevel::ALL.into_iter().filter(|level| runs(*level)) {
                    let mut case = Case::new(spec, level);
                    for code in codes {
                        pack_quantised(&layout, &Extremes { code }, &mut case.packed).unwrap();
                        for hard in EXTREMES {
                            case.hard = hard;
                            // In tiles, and in panels.
                            case.check(13, 1);
                            case.check(37, 1);
                        }
                    }
                }
            }
        }
    }
}

/// Activations that are tiny, huge or infinite follow the specification like others.
#[test]
fn hard_activations_are_treated_alike_on_all_levels() {
    const TINY: [f32; 6] = [1e-45, -1e-40, 1.2e-38, -0.0, 0.0, 3e-39];
    const HUGE: [f32; 4] = [3e38, -3e38, 1e30, 2e38];
    const INFINITE: [f32; 3] = [1.0, f32::INFINITY, -2.0];
    for (format, compute) in all_products() {
        let layout = PackedLayout { channels: 37, reduction: 70, format };
        let spec = MatmulSpec::new(layout, compute);
        for level in IsaLevel::ALL.into_iter().filter(|level| runs(*level)) {
            let mut case = Case::new(spec.at(level), level);
            for hard in [&TINY[..], &HUGE, &INFINITE] {
                case.hard = hard;
                for rows in [1, 2, 14] {
                    case.check(rows, 1);
                }
            }
        }
    }
}

/// More rows than stay in the second cache are computed in portions.
#[test]
fn rows_of_several_portions() {
    for (format, compute) in all_products() {
        let reduction = if compute.is_integer() { 16_000 } else { 4000 };
        let layout = PackedLayout { channels: 3, reduction, format };
        for level in IsaLevel::ALL.into_iter().filter(|level| runs(*level)) {
            Case::new(MatmulSpec::new(layout, compute), level).check(49, 1);
        }
    }
}

#[test]
fn bias_residual_and_strides() {
    for (format, compute) in all_products() {
        for channels in [37, 128] {
            for (bias, residual) in [(true, false), (false, true), (true, true)] {
                let layout = PackedLayout { channels, reduction: 70, format };
                check_all(MatmulSpec {
                    bias,
                    residual,
                    input_stride: 75,
                    output_stride: 141,
                    ..MatmulSpec::new(layout, compute)
                });
            }
        }
    }
}

#[test]
fn many_rows_and_channels() {
    let wide = WeightFormat::Int4(blocks(128, ScaleType::F32, ZeroPoint::Implied));
    for (format, compute) in all_products().into_iter().chain([(wide, Compute::Int8)]) {
        let layout = PackedLayout { channels: 231, reduction: 389, format };
        for level in IsaLevel::ALL.into_iter().filter(|level| runs(*level)) {
            Case::new(MatmulSpec::new(layout, compute), level).check(39, 2);
        }
    }
}

#[test]
fn the_same_specification_gives_the_same_bytes() {
    let format = WeightFormat::Int4(blocks(32, ScaleType::F16, ZeroPoint::Implied));
    let layout = PackedLayout { channels: 40, reduction: 64, format };
    let spec = MatmulSpec::new(layout, Compute::Int8);
    let emit = || {
        let mut assembly = Assembly::new().unwrap();
        for level in IsaLevel::ALL {
            let id = emit_matmul(&mut assembly, &spec, level).unwrap();
            // A second caller shares the kernel.
            assert_eq!(emit_matmul(&mut assembly, &spec, level).unwrap(), id);
        }
        assembly.finish().unwrap()
    };
    assert_eq!(emit(), emit());
}

/// 256-bit levels run where AVX-512's encoding is unknown, whose first byte is 0x62.
#[test]
fn lower_levels_are_encoded_without_avx512() {
    for (format, compute) in all_products() {
        let layout = PackedLayout { channels: 20, reduction: 100, format };
        for level in [IsaLevel::Avx2, IsaLevel::AvxVnni] {
            let mut assembly = Assembly::new().unwrap();
            emit_matmul(&mut assembly, &MatmulSpec::new(layout, compute), level).unwrap();
            let image = assembly.finish().unwrap();
            let mut products = 0;
            for instruction in &mut iced_x86::Decoder::new(64, &image.bytes, 0) {
                let first = image.bytes[instruction.ip() as usize];
                assert!(first != 0x62, "{level:?}: {:?}", instruction.code());
                products += usize::from(instruction.mnemonic() == iced_x86::Mnemonic::Vpdpbusd);
                if instruction.mnemonic() == iced_x86::Mnemonic::Ret {
                    break;
                }
            }
            let is_vnni = level == IsaLevel::AvxVnni && compute.is_integer();
            assert_eq!(products > 0, is_vnni, "{level:?} {format:?} {compute:?}");
        }
    }
}

#[test]
fn specifications_without_a_kernel_are_refused() {
    let refused = |format, compute, reduction| {
        let layout = PackedLayout { channels: 16, reduction, format };
        MatmulSpec::new(layout, compute).supported().is_err()
    };
    let block = |block| WeightFormat::Int4(blocks(block, ScaleType::F16, ZeroPoint::Implied));
    assert!(refused(WeightFormat::F32, Compute::Int8, 64));
    assert!(refused(WeightFormat::F32, Compute::Int8Row, 64));
    assert!(refused(block(40), Compute::F32, 64));
    assert!(refused(block(512), Compute::F32, 1024));
    assert!(refused(WeightFormat::F32, Compute::F32, 0));
    assert!(refused(WeightFormat::F32, Compute::F32, usize::MAX / 1024));
    assert!(!refused(block(256), Compute::Int8, 1024));
}

/// The bound of the module's header, against double precision.
#[test]
fn products_keep_their_bound() {
    const ROWS: usize = 14;
    for (format, compute) in all_products() {
        let layout = PackedLayout { channels: 48, reduction: 500, format };
        let spec = MatmulSpec::new(layout, compute);
        for level in IsaLevel::ALL.into_iter().filter(|level| runs(*level)) {
            let case = Case::new(spec, level);
            let got = case.run(ROWS, 1);
            let input = case.input(ROWS);
            for channel in 0..48 {
                let weight: Vec<f32> =
                    (0..500).map(|k| layout.value(&case.packed, channel, k)).collect();
                for (row, x) in input.chunks(500).enumerate() {
                    let terms =
                        || x.iter().zip(&weight).map(|(x, w)| f64::from(*x) * f64::from(*w));
                    let exact: f64 = terms().sum();
                    let size: f64 = terms().map(f64::abs).sum();
                    let bound = activation_error(&spec, x, &weight)
                        + 504.0 * size * f64::from(f32::EPSILON) / 2.0;
                    let error = (f64::from(got[row * 48 + channel]) - exact).abs();
                    assert!(error <= bound, "{}: {error} > {bound}", spec.symbol(level));
                }
            }
        }
    }
}

#[test]
fn quantiser_treats_hard_blocks() {
    let format = WeightFormat::Int4(blocks(32, ScaleType::F32, ZeroPoint::Implied));
    let layout = PackedLayout { channels: 16, reduction: 64, format };
    let activation = MatmulSpec::new(layout, Compute::Int8).activation().unwrap();
    let mut assembly = Assembly::new().unwrap();
    emit_quantise(&mut assembly, activation).unwrap();
    let code = ExecutableCode::new(&assembly.finish().unwrap()).unwrap();
    let mut x = vec![0.0f32; 64];
    x[3] = 1e-38;
    x[40] = f32::NAN;
    let mut out = vec![0xaa; activation.row_bytes()];
    code.call_kernel(
        &activation.symbol(),
        &mut [
            Argument::Read(&bytes(&x)),
            Argument::Write(&mut out),
            Argument::Count(0),
            Argument::Count(2),
        ],
    );
    assert!(out[..32].iter().all(|code| *code == 0));
    assert!(out[36..44].iter().all(|sum| *sum == 0));
    assert!(floats(&out[44 + 32..44 + 36])[0].is_nan());
}

#[test]
fn rows_unpack_to_their_values() {
    let quantised = |block, zero| blocks(block, ScaleType::F16, zero);
    for format in [
        WeightFormat::F32,
        WeightFormat::F16,
        WeightFormat::Bf16,
        WeightFormat::Int8(quantised(32, ZeroPoint::Code)),
        WeightFormat::Int4(quantised(64, ZeroPoint::Float)),
        WeightFormat::Int4(quantised(16, ZeroPoint::Implied)),
    ] {
        let layout = PackedLayout { channels: 35, reduction: 101, format };
        let packed = pack(&layout);
        let mut assembly = Assembly::new().unwrap();
        let id = assembly.declare("row", signature(&[POINTER; 3], &[])).unwrap();
        assembly
            .define(id, |b| {
                let [weights, channel, out] = b.params();
                emit_unpack_row(b, &layout, weights, channel, out);
                b.ret(&[]);
            })
            .unwrap();
        let code = ExecutableCode::new(&assembly.finish().unwrap()).unwrap();
        for channel in 0..35 {
            let mut out = vec![0; 404];
            code.call_kernel(
                "row",
                &mut [
                    Argument::Read(&packed),
                    Argument::Count(channel as u64),
                    Argument::Write(&mut out),
                ],
            );
            for (k, value) in floats(&out).into_iter().enumerate() {
                let expected = layout.value(&packed, channel, k);
                assert_eq!(value.to_bits(), expected.to_bits(), "{format:?} [{channel}, {k}]");
            }
        }
    }
}

#[test]
fn every_half_is_converted_exactly() {
    struct Halves;
    impl DenseRows for Halves {
        fn row(&self, channel: usize, out: &mut [f32]) {
            for (k, value) in out.iter_mut().enumerate() {
                // Packing refuses the others.
                let half = half::f16::from_bits((channel * 4096 + k) as u16).to_f32();
                *value = if half.is_finite() { half } else { 0.0 };
            }
        }
    }
    let layout = PackedLayout { channels: 16, reduction: 4096, format: WeightFormat::F16 };
    let mut packed = vec![0; layout.bytes()];
    pack_dense(&layout, &Halves, &mut packed).unwrap();
    let mut assembly = Assembly::new().unwrap();
    let id = assembly.declare("row", signature(&[POINTER; 3], &[])).unwrap();
    assembly
        .define(id, |b| {
            let [weights, channel, out] = b.params();
            emit_unpack_row(b, &layout, weights, channel, out);
            b.ret(&[]);
        })
        .unwrap();
    let code = ExecutableCode::new(&assembly.finish().unwrap()).unwrap();
    for channel in 0..16usize {
        let mut out = vec![0; 4096 * 4];
        code.call_kernel(
            "row",
            &mut [
                Argument::Read(&packed),
                Argument::Count(channel as u64),
                Argument::Write(&mut out),
            ],
        );
        for (k, value) in floats(&out).into_iter().enumerate() {
            let half = half::f16::from_bits((channel * 4096 + k) as u16);
            let expected = if half.is_finite() { half.to_f32() } else { 0.0 };
            assert_eq!(value.to_bits(), expected.to_bits());
        }
    }
}
