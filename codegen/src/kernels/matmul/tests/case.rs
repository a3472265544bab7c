//! A product with operands, run on a level and by a scalar model of the specification.

use weir_abi::IsaLevel;
use weir_processor as processor;

use crate::image::CodeImage;
use crate::jit::{Argument, ExecutableCode};
use crate::kernels::matmul::*;
use crate::pack::{
    DenseRows, QuantRows, WeightFormat, ZeroPoint, pack_bias, pack_dense, pack_quantised,
};

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

pub(super) fn pack(layout: &PackedLayout) -> Vec<u8> {
    let rows = Synthetic { format: layout.format };
    let mut packed = vec![0; layout.bytes()];
    match layout.format.blocks() {
        Some(_) => pack_quantised(layout, &rows, &mut packed),
        None => pack_dense(layout, &rows, &mut packed),
    }
    .unwrap();
    packed
}

pub(super) fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

/// Codes, scale and code sum of one activation block, of which these have the scale.
fn quantise_model(
    x: &[f32],
    block: usize,
    scaled: &[f32],
    scaling: Scaling,
) -> (Vec<i32>, f32, f32) {
    let largest = scaled.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let (scale, inverse) = match scaling {
        Scaling::Power if largest <= 2f32.powi(-80) => (0.0, 0.0),
        Scaling::Power => {
            let power = 2f32.powi((largest / 120.5).log2().ceil() as i32);
            (power, 1.0 / power)
        }
        _ if largest > 1e-30 => (largest / 120.1, 120.1 / largest),
        _ => (largest / 120.1, 0.0),
    };
    let mut codes: Vec<i32> = x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect();
    codes.resize(block, 0);
    let sum = codes.iter().sum::<i32>() as f32;
    (codes, scale, sum)
}

/// A number as `vdpbf16ps` takes it and gives it.
fn flushed(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

/// The chain of products of pairs of bf16, k ascending. Beside the last of an odd number stands nothing
/// times nothing, which makes a sum of -0, to which only numbers that are taken for zero lead, one of 0.
pub(super) fn chain_of_pairs(factors: impl IntoIterator<Item = (f32, f32)>) -> f32 {
    let (mut sum, mut count) = (0.0f32, 0);
    for (x, w) in factors {
        sum = flushed(flushed(x).mul_add(flushed(w), sum));
        count += 1;
    }
    if count % 2 == 0 { sum } else { sum + 0.0 }
}

/// One output by the specification in the module's header.
fn model(spec: &MatmulSpec, packed: &[u8], x: &[f32], channel: usize) -> f32 {
    let layout = spec.layout;
    if spec.in_bf16 && spec.is_all_bf16() {
        let rounded = x.iter().map(|x| half::bf16::from_f32(*x).to_f32());
        let weights = (0..layout.reduction).map(|k| layout.value(packed, channel, k));
        return chain_of_pairs(rounded.zip(weights));
    }
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
        Some(Activation::Int8 { block, scaling, .. }) => {
            for (index, part) in x.chunks(block).enumerate() {
                let scaled = if scaling == Scaling::Row { x } else { part };
                let (codes, scale, code_sum) = quantise_model(part, block, scaled, scaling);
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

pub(super) struct Case {
    spec: MatmulSpec,
    pub(super) packed: Vec<u8>,
    bias: Vec<f32>,
    code: ExecutableCode,
    /// The same code, if the product is interpreted.
    interpreted: Option<CodeImage>,
    level: IsaLevel,
    /// What every row of the input begins with.
    pub(super) hard: &'static [f32],
}

/// Bytes on both sides of outputs, which no kernel may touch.
const GUARD: usize = 4096;

impl Case {
    pub(super) fn new(spec: MatmulSpec, level: IsaLevel) -> Self {
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
            interpreted: None,
            spec,
            level,
            hard: &[],
        }
    }

    /// A case whose product the instruction interpreter computes, for levels that a machine lacks.
    pub(super) fn interpreted(spec: MatmulSpec, level: IsaLevel) -> Self {
        let mut assembly = Assembly::new().unwrap();
        emit_matmul(&mut assembly, &spec, level).unwrap();
        let image = assembly.finish().unwrap();
        // The quantiser is portable code.
        Self { interpreted: Some(image), level, ..Self::new(spec, IsaLevel::Portable) }
    }

    /// The interpreted code.
    pub(super) fn image(&mut self) -> &mut CodeImage {
        self.interpreted.as_mut().unwrap()
    }

    pub(super) fn input(&self, rows: usize) -> Vec<f32> {
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
    pub(super) fn run(&self, rows: usize, threads: usize) -> Vec<f32> {
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
        let mut output = bytes(&self.output(rows));
        let mut bias = vec![0; self.bias.len().next_multiple_of(GROUP) * 4];
        pack_bias(&self.bias, &mut bias);
        let mut guarded = vec![0x5a; output.len() + 2 * GUARD];
        let inside = GUARD..GUARD + output.len();
        guarded[inside.clone()].copy_from_slice(&output);
        for thread in 0..threads {
            let share = [thread, thread + 1].map(|share| self.spec.groups() * share / threads);
            // Weights are asked for from near and from far.
            let counts = [rows, share[0], share[1], thread % 2].map(|count| count as u64);
            match &self.interpreted {
                Some(image) => self.interpret(image, &input, &mut output, &bias, counts),
                None => self.call(&input, &mut guarded[inside.clone()], &bias, counts),
            }
        }
        if self.interpreted.is_some() {
            return floats(&output);
        }
        let (before, rest) = guarded.split_at(inside.start);
        let (output, after) = rest.split_at(inside.len());
        assert!(before.iter().chain(after).all(|byte| *byte == 0x5a), "beyond the output");
        floats(output)
    }

    fn call(&self, input: &[u8], output: &mut [u8], bias: &[u8], counts: [u64; 4]) {
        let residual = output.to_vec();
        let mut arguments = vec![
            Argument::Read(input),
            Argument::Read(&self.packed),
            Argument::Write(output),
            if self.spec.bias { Argument::Read(bias) } else { Argument::Null },
            if self.spec.residual { Argument::Read(&residual) } else { Argument::Null },
        ];
        arguments.extend(counts.map(Argument::Count));
        self.code.call_kernel(&self.spec.symbol(self.level), &mut arguments);
    }

    /// Every argument is memory of its own, and an access beyond one ends the test. The residual is
    /// the output itself.
    fn interpret(
        &self,
        image: &CodeImage,
        input: &[u8],
        output: &mut [u8],
        bias: &[u8],
        counts: [u64; 4],
    ) {
        let name = self.spec.symbol(self.level);
        let symbol = image.symbols.iter().find(|symbol| symbol.name == name).unwrap();
        let null = || processor::Argument::Null;
        let mut arguments = vec![
            processor::Argument::Read(input),
            processor::Argument::Read(&self.packed),
            processor::Argument::Write(output),
            if self.spec.bias { processor::Argument::Read(bias) } else { null() },
            if self.spec.residual { processor::Argument::Same(2) } else { null() },
        ];
        arguments.extend(counts.map(processor::Argument::Count));
        if let Err(fault) = processor::call(&image.bytes, symbol.offset as usize, arguments) {
            panic!("{name} rows {}: {fault}", counts[0]);
        }
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

    pub(super) fn check(&self, rows: usize, threads: usize) {
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
