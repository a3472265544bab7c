//! Every version against a scalar model of the specification, bit by bit.

use weir_abi::IsaLevel;

use super::*;
use crate::emit::{POINTER, signature};
use crate::jit::{Argument, ExecutableCode};
use crate::pack::{
    Blocks, DenseRows, QuantRows, ScaleType, WeightFormat, ZeroPoint, pack_bias, pack_dense,
    pack_quantised,
};

/// Whether this machine runs a level; says so where it does not.
fn runs(level: IsaLevel) -> bool {
    let runs = match level {
        IsaLevel::Portable => is_x86_feature_detected!("fma"),
        IsaLevel::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
        IsaLevel::AvxVnni => {
            is_x86_feature_detected!("avxvnni") && is_x86_feature_detected!("f16c")
        }
        IsaLevel::Avx512 => {
            is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vnni")
        }
    };
    if !runs {
        println!("skipped: this machine has no {}", level.name());
    }
    runs
}

/// A number in -1 ..= 1 that depends on its arguments only.
fn noise(a: usize, b: usize) -> f32 {
    let mut x = (a as u32).wrapping_mul(0x9e37_79b9) ^ (b as u32).wrapping_mul(0x85eb_ca6b);
    x ^= x >> 15;
    x = x.wrapping_mul(0x2c1b_3c6d);
    x ^= x >> 12;
    (x % 20_001) as f32 / 10_000.0 - 1.0
}

struct Synthetic {
    format: WeightFormat,
}

impl DenseRows for Synthetic {
    fn row(&self, channel: usize, out: &mut [f32]) {
        for (k, value) in out.iter_mut().enumerate() {
            *value = noise(channel, k);
        }
    }
}

impl QuantRows for Synthetic {
    fn row(&self, channel: usize, codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]) {
        let levels = if matches!(self.format, WeightFormat::Int4(_)) { 16.0 } else { 256.0 };
        let whole = |x: f32| ((x + 1.0) * 0.5 * levels).min(levels - 1.0).floor();
        for (k, code) in codes.iter_mut().enumerate() {
            *code = whole(noise(channel, k)) as u8;
        }
        let float_zero = self.format.blocks().is_some_and(|blocks| blocks.zero == ZeroPoint::Float);
        for (block, scale) in scales.iter_mut().enumerate() {
            // Negative scales occur.
            *scale = noise(channel + 1000, block) / levels;
            let zero = noise(channel + 2000, block);
            zeros[block] = if float_zero { (zero + 1.0) * 0.43 * levels } else { whole(zero) };
        }
    }
}

fn pack(layout: &PackedLayout) -> Vec<u8> {
    let rows = Synthetic { format: layout.format };
    let mut packed = vec![0; layout.bytes()];
    match layout.format.blocks() {
        Some(_) => pack_quantised(layout, &rows, &mut packed),
        None => pack_dense(layout, &rows, &mut packed),
    }
    .unwrap();
    packed
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Codes, scale and code sum of one activation block.
fn quantise_model(x: &[f32], block: usize) -> (Vec<i32>, f32, f32) {
    let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let inverse = if largest > 1e-30 { 127.0 / largest } else { 0.0 };
    let mut codes: Vec<i32> = x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect();
    codes.resize(block, 0);
    let sum = codes.iter().sum::<i32>() as f32;
    (codes, largest / 127.0, sum)
}

/// One output by the specification in the module's header.
fn model(spec: &MatmulSpec, packed: &[u8], x: &[f32], channel: usize) -> f32 {
    let layout = spec.layout;
    let mut sum = 0.0f32;
    match spec.activation() {
        None | Some(Activation::Bf16 { .. }) => {
            for (k, x) in x.iter().enumerate() {
                let x = match spec.compute {
                    Compute::Bf16 => half::bf16::from_f32(*x).to_f32(),
                    _ => *x,
                };
                sum = x.mul_add(layout.value(packed, channel, k), sum);
            }
        }
        Some(Activation::Int8 { block, .. }) => {
            for (index, part) in x.chunks(block).enumerate() {
                let (codes, scale, code_sum) = quantise_model(part, block);
                let (weight_scale, zero) = layout.parameters(packed, channel, index * block);
                let mut whole = 0i32;
                for (at, code) in codes.iter().enumerate().take(part.len()) {
                    let (offset, shift) = layout.element(channel, index * block + at);
                    let unit = u32::from_le_bytes(packed[offset..offset + 4].try_into().unwrap());
                    let mask =
                        if matches!(layout.format, WeightFormat::Int4(_)) { 15 } else { 255 };
                    whole += ((unit >> shift) & mask) as i32 * code;
                }
                let term = (-zero).mul_add(code_sum, whole as f32);
                sum = term.mul_add(weight_scale * scale, sum);
            }
        }
    }
    sum
}

struct Case {
    spec: MatmulSpec,
    packed: Vec<u8>,
    bias: Vec<f32>,
    code: ExecutableCode,
    level: IsaLevel,
    /// What every row of the input begins with.
    hard: &'static [f32],
}

/// Bytes on both sides of outputs, which no kernel may touch.
const GUARD: usize = 4096;

impl Case {
    fn new(spec: MatmulSpec, level: IsaLevel) -> Self {
        let mut assembly = Assembly::new().unwrap();
        emit_matmul(&mut assembly, &spec, level).unwrap();
        if let Some(activation) = spec.activation() {
            emit_quantise(&mut assembly, activation).unwrap();
        }
        let image = assembly.finish().unwrap();
        Self {
            packed: pack(&spec.layout),
            bias: (0..spec.layout.channels).map(|channel| noise(channel, 31)).collect(),
            code: ExecutableCode::new(&image).unwrap(),
            spec,
            level,
            hard: &[],
        }
    }

    fn input(&self, rows: usize) -> Vec<f32> {
        let stride = self.spec.input_stride;
        let ordinary = |i: usize| noise(i / stride + 77, i % stride) * 3.0;
        (0..rows * stride)
            .map(|i| self.hard.get(i % stride).copied().unwrap_or_else(|| ordinary(i)))
            .collect()
    }

    fn output(&self, rows: usize) -> Vec<f32> {
        (0..rows * self.spec.output_stride).map(|i| noise(i, 5)).collect()
    }

    /// Runs the product over an output that holds the residual, in place, by `threads` shares.
    fn run(&self, rows: usize, threads: usize) -> Vec<f32> {
        let mut input = bytes(&self.input(rows));
        if let Some(activation) = self.spec.activation() {
            let mut rounded = vec![0xaa; rows * activation.row_bytes()];
            let items = rows * activation.items_per_row();
            for thread in 0..threads {
                self.code.call_kernel(
                    &activation.symbol(),
                    &mut [
                        Argument::Read(&input),
                        Argument::Write(&mut rounded),
                        Argument::Count((items * thread / threads) as u64),
                        Argument::Count((items * (thread + 1) / threads) as u64),
                    ],
                );
            }
            input = rounded;
        }
        let residual = bytes(&self.output(rows));
        let mut guarded = vec![0x5a; residual.len() + 2 * GUARD];
        let output = GUARD..GUARD + residual.len();
        guarded[output.clone()].copy_from_slice(&residual);
        let mut bias = vec![0; self.bias.len().next_multiple_of(GROUP) * 4];
        pack_bias(&self.bias, &mut bias);
        for thread in 0..threads {
            self.code.call_kernel(
                &self.spec.symbol(self.level),
                &mut [
                    Argument::Read(&input),
                    Argument::Read(&self.packed),
                    Argument::Write(&mut guarded[output.clone()]),
                    if self.spec.bias { Argument::Read(&bias) } else { Argument::Null },
                    if self.spec.residual { Argument::Read(&residual) } else { Argument::Null },
                    Argument::Count(rows as u64),
                    Argument::Count((self.spec.groups() * thread / threads) as u64),
                    Argument::Count((self.spec.groups() * (thread + 1) / threads) as u64),
                ],
            );
        }
        let (before, rest) = guarded.split_at(output.start);
        let (output, after) = rest.split_at(output.len());
        assert!(before.iter().chain(after).all(|byte| *byte == 0x5a), "beyond the output");
        floats(output)
    }

    fn expected(&self, rows: usize) -> Vec<f32> {
        let input = self.input(rows);
        let mut output = self.output(rows);
        for row in 0..rows {
            let x = &input[row * self.spec.input_stride..][..self.spec.layout.reduction];
            for channel in 0..self.spec.layout.channels {
                let place = &mut output[row * self.spec.output_stride + channel];
                let mut value = model(&self.spec, &self.packed, x, channel);
                if self.spec.bias {
                    value += self.bias[channel];
                }
                *place = if self.spec.residual { value + *place } else { value };
            }
        }
        output
    }

    fn check(&self, rows: usize, threads: usize) {
        let got = self.run(rows, threads);
        let expected = self.expected(rows);
        for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
            let (row, channel) = (index / self.spec.output_stride, index % self.spec.output_stride);
            // One that is not a number has no specified bits.
            assert!(
                got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan()),
                "{} rows {rows} threads {threads}: [{row}, {channel}] is {got}, not {expected}",
                self.spec.symbol(self.level),
            );
        }
    }
}

fn check_all(spec: MatmulSpec) {
    spec.supported().unwrap();
    for level in IsaLevel::ALL {
        if runs(level) {
            let case = Case::new(spec, level);
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

#[test]
fn int4_with_int8_activations_is_bit_equal_on_all_levels() {
    for scale in [ScaleType::F32, ScaleType::F16] {
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
        }
    }
    products
}

/// Extreme codes and activations reach the ends of every sum's range: int4 15 · ±127, int8 both 0
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
                        for hard in [&[127.0; 128], &[-127.0; 128]] {
                            case.hard = hard;
                            case.check(13, 1);
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
            let mut case = Case::new(spec, level);
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
        let reduction = if compute == Compute::Int8 { 16_000 } else { 4000 };
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
            let is_vnni = level == IsaLevel::AvxVnni && compute == Compute::Int8;
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
    assert_eq!(floats(&out[36..40])[0], 0.0);
    assert!(floats(&out[40 + 32..40 + 36])[0].is_nan());
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
