//! Random operands of a product and what double precision makes of them.

use super::case::chain_of_pairs;
use crate::kernels::matmul::*;
use crate::kernels::tests::Random;
use weir_ir::quantise::{short_scale, unit_of_scales};

use crate::pack::{
    DenseRows, QuantRows, ScaleType, WeightFormat, ZeroPoint, pack_dense, pack_quantised,
};

/// u of the module's header.
const U: f64 = 1.0 / (1u64 << 24) as f64;
/// Largest error of an operation whose result is subnormal.
const TINY: f64 = 7.1e-46;
/// Room for what a first-order bound leaves out.
const FIRST_ORDER: f64 = 1.001;

/// What numbers are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    Ordinary,
    /// Subnormal ones, zeros of both signs and the least normal ones among them.
    Tiny,
    /// Up to the ends of the range among them.
    Huge,
    /// One or two infinities among them.
    Infinite,
}

impl Numbers {
    fn any(random: &mut Random) -> Numbers {
        match random.below(8) {
            0 => Numbers::Tiny,
            1 => Numbers::Huge,
            2 => Numbers::Infinite,
            _ => Numbers::Ordinary,
        }
    }

    fn fill(self, random: &mut Random, numbers: &mut [f32]) {
        const TINIES: [f32; 8] = [1e-45, -1e-40, 0.0, -0.0, 1.2e-38, 3e-39, -2e-32, 7e-31];
        const HUGES: [f32; 8] = [f32::MAX, f32::MIN, 1e30, -3e37, 1e20, -65504.0, 3.39e38, 2e38];
        for number in numbers.iter_mut() {
            *number = match self {
                Numbers::Tiny if random.below(3) > 0 => TINIES[random.below(8)],
                Numbers::Huge if random.below(9) == 0 => HUGES[random.below(8)],
                _ => random.unit() * 3.0,
            };
        }
        if self == Numbers::Infinite {
            for _ in 0..1 + random.below(2) {
                let sign = [f32::INFINITY, f32::NEG_INFINITY][random.below(2)];
                numbers[random.below(numbers.len())] = sign;
            }
        }
    }
}

/// A weight as its source has it, already in numbers that the format holds.
#[derive(Clone)]
pub(super) struct Weight {
    layout: PackedLayout,
    /// Elements of dense formats.
    elements: Vec<f32>,
    /// Codes, scales and zero points of the others.
    codes: Vec<u8>,
    scales: Vec<f32>,
    zeros: Vec<f32>,
}

impl Weight {
    pub(super) fn new(random: &mut Random, layout: PackedLayout) -> Weight {
        let PackedLayout { channels, reduction, format } = layout;
        let count = channels * reduction;
        let none = || (Vec::new(), Vec::new(), Vec::new());
        let Some(blocks) = format.blocks() else {
            let numbers = match random.below(6) {
                0 => Numbers::Tiny,
                1 => Numbers::Huge,
                _ => Numbers::Ordinary,
            };
            let mut elements = vec![0.0; count];
            numbers.fill(random, &mut elements);
            for element in &mut elements {
                let rounded = match format {
                    WeightFormat::F16 => half::f16::from_f32(*element).to_f32(),
                    WeightFormat::Bf16 => half::bf16::from_f32(*element).to_f32(),
                    _ => *element,
                };
                // A number beyond the format's range is not one that a weight has.
                *element = if rounded.is_finite() { rounded } else { 1.0 };
            }
            let (codes, scales, zeros) = none();
            return Weight { layout, elements, codes, scales, zeros };
        };
        let levels = if matches!(format, WeightFormat::Int4(_)) { 16 } else { 256 };
        let extreme = random.below(5) == 0;
        let code = |random: &mut Random| match extreme {
            true => [0, levels - 1][random.below(2)] as u8,
            false => random.below(levels) as u8,
        };
        let codes = (0..count).map(|_| code(random)).collect();
        let hard = random.below(5) == 0;
        // Of halves the least, the largest and a subnormal one; then what only singles hold.
        const HARD: [f32; 8] = [6e-8, 65504.0, -3e-6, 0.0, -0.5, 1e-40, 1e30, -2e-37];
        let few = if blocks.scale == ScaleType::F32 { 8 } else { 5 };
        let scale = |random: &mut Random| {
            // Negative scales occur.
            let scale = match hard && random.below(3) == 0 {
                true => HARD[random.below(few)],
                false => random.unit() / levels as f32,
            };
            match blocks.scale {
                ScaleType::F16 => half::f16::from_f32(scale).to_f32(),
                ScaleType::F32 => scale,
                ScaleType::Short => scale.min(63488.0),
            }
        };
        let parameters = channels * layout.block_count();
        let mut scales: Vec<f32> = (0..parameters).map(|_| scale(random)).collect();
        if blocks.scale == ScaleType::Short {
            for row in scales.chunks_mut(layout.block_count()) {
                let unit = unit_of_scales(row);
                row.iter_mut().for_each(|scale| *scale = short_scale(*scale, unit));
            }
        }
        let zero = |random: &mut Random| match blocks.zero {
            ZeroPoint::Implied => format.implied_zero(),
            ZeroPoint::Code => f32::from(code(random)),
            ZeroPoint::Float => (random.unit() + 1.0) * 0.5 * levels as f32,
        };
        let zeros = (0..parameters).map(|_| zero(random)).collect();
        Weight { layout, elements: Vec::new(), codes, scales, zeros }
    }

    pub(super) fn packed(&self) -> Vec<u8> {
        let mut packed = vec![0; self.layout.bytes()];
        match self.layout.format.blocks() {
            Some(_) => pack_quantised(&self.layout, self, &mut packed),
            None => pack_dense(&self.layout, self, &mut packed),
        }
        .unwrap();
        packed
    }

    /// Scale and zero point of an element.
    fn parameters(&self, channel: usize, k: usize) -> Option<(f64, f64)> {
        let block = self.layout.format.blocks()?.block;
        let at = channel * self.layout.block_count() + k / block;
        Some((f64::from(self.scales[at]), f64::from(self.zeros[at])))
    }

    /// A row in double precision.
    fn exact(&self, channel: usize) -> Vec<f64> {
        let reduction = self.layout.reduction;
        let element = |k: usize| {
            let at = channel * reduction + k;
            match self.parameters(channel, k) {
                Some((scale, zero)) => (f64::from(self.codes[at]) - zero) * scale,
                None => f64::from(self.elements[at]),
            }
        };
        (0..reduction).map(element).collect()
    }
}

impl DenseRows for Weight {
    fn row(&self, channel: usize, out: &mut [f32]) {
        out.copy_from_slice(&self.elements[channel * out.len()..][..out.len()]);
    }
}

impl QuantRows for Weight {
    fn row(&self, channel: usize, codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]) {
        codes.copy_from_slice(&self.codes[channel * codes.len()..][..codes.len()]);
        let blocks = channel * scales.len()..(channel + 1) * scales.len();
        scales.copy_from_slice(&self.scales[blocks.clone()]);
        zeros.copy_from_slice(&self.zeros[blocks]);
    }
}

/// Rows of inputs, each with numbers of its own kind; between them, nothing that counts.
pub(super) fn inputs(random: &mut Random, spec: &MatmulSpec, rows: usize) -> Vec<f32> {
    let reduction = spec.layout.reduction;
    let mut inputs = vec![f32::NAN; (rows - 1) * spec.input_stride + reduction];
    for row in inputs.chunks_mut(spec.input_stride) {
        Numbers::any(random).fill(random, &mut row[..reduction]);
    }
    inputs
}

/// The activations of one row that products see, as `emit_quantise` is to write them.
pub(super) struct Activations {
    /// In double precision.
    values: Vec<f64>,
    /// Of int8: scale and sum of the codes of each block.
    blocks: Vec<(f64, f64)>,
}

impl Activations {
    /// Checks the row that the quantiser wrote against its input, and takes it.
    pub(super) fn check(spec: &MatmulSpec, input: &[f32], rounded: &[u8]) -> Activations {
        let word = |at: usize| [0, 1, 2, 3].map(|byte| rounded[at + byte]);
        match spec.activation() {
            None => {
                let values = input.iter().map(|x| f64::from(*x)).collect();
                Activations { values, blocks: Vec::new() }
            }
            Some(Activation::Bf16 { halves, .. }) => {
                let is_paired = halves == Halves::Pairs;
                if is_paired && !input.len().is_multiple_of(2) {
                    assert_eq!(word(2 * input.len() - 2)[..2], [0, 0], "beside the last element");
                }
                let value = |(k, x): (usize, &f32)| {
                    let got = match is_paired {
                        // The first of a pair is its upper half.
                        true => {
                            u32::from_le_bytes(word(4 * (k / 2))) << (16 * (k % 2)) & 0xffff_0000
                        }
                        false => u32::from_le_bytes(word(4 * k)),
                    };
                    let got = f32::from_bits(got);
                    let expected = half::bf16::from_f32(*x).to_f32();
                    assert_eq!(got.to_bits(), expected.to_bits(), "{x:e} in bf16");
                    f64::from(got)
                };
                let values = input.iter().enumerate().map(value).collect();
                Activations { values, blocks: Vec::new() }
            }
            Some(Activation::Int8 { block, blocks, scaling, in_bf16, .. }) => {
                let mut row = Activations { values: Vec::new(), blocks: Vec::new() };
                let is_row = scaling == Scaling::Row;
                for index in 0..blocks {
                    let begin = (index * block).min(input.len());
                    let part = &input[begin..(begin + block).min(input.len())];
                    let at = index * Form { block, scaling, in_bf16 }.record_bytes();
                    let codes = &rounded[at..at + block];
                    let mut scale = f32::from_le_bytes(word(at + block));
                    let mut sums = [4, 8].map(|from| i32::from_le_bytes(word(at + block + from)));
                    if scaling == Scaling::Power {
                        // The scale's place has its anchor, 1.5 · 2²³ times as much, and sums its bits.
                        sums = sums.map(|sum| sum.wrapping_sub(scale.to_bits() as i32));
                        scale /= 1.5 * 2f32.powi(23);
                        assert_eq!(sums[0] % 8, 0, "a multiple of the zero point");
                        sums[0] /= 8;
                    }
                    let scaled = if is_row { input } else { part };
                    row.block(part, scaled, scaling, codes, scale, sums);
                    if in_bf16 {
                        check_values(codes, scale, &rounded[at + 64..at + 64 + 2 * block]);
                    }
                }
                row
            }
        }
    }

    /// A block: its scale is max |x| / 120.1 rounded, the maximum of all that is scaled alike, and each
    /// code the nearest whole number to x · 120.1 / max |x|, of which quotient and product are rounded; or
    /// the scale is a power of two and codes are nearest to x / scale, which is exact.
    /// The first sum is minus that of the codes, the second what sums in pairs begin with.
    fn block(
        &mut self,
        part: &[f32],
        scaled: &[f32],
        scaling: Scaling,
        codes: &[u8],
        scale: f32,
        [minus_sum, pairs]: [i32; 2],
    ) {
        let largest = scaled.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let codes: Vec<i32> = codes.iter().map(|code| i32::from(*code as i8)).collect();
        assert_eq!(-codes.iter().sum::<i32>(), minus_sum);
        let (paired, rest) = codes.split_at(codes.len() * 3 / 32 * 8);
        let terms = paired.chunks(8).flat_map(|unit| unit[..4].iter().zip(&unit[4..]));
        let terms = terms.map(|(first, second)| (first + 128) * second).sum::<i32>();
        assert_eq!(-terms - 8 * rest.iter().sum::<i32>(), pairs);
        assert!(codes[part.len()..].iter().all(|code| *code == 0), "behind the last activation");
        let is_power = scaling == Scaling::Power;
        let (least, limit) =
            if is_power { (2f32.powi(-80), 2f32.powi(100)) } else { (NEGLIGIBLE, f32::INFINITY) };
        let (units, noise) = match is_power {
            true => (f64::from(largest) / f64::from(scale), 0.0),
            false => (120.1, 2.0 * 120.1 * U * FIRST_ORDER),
        };
        if !is_power {
            assert_eq!(scale.to_bits(), (largest / 120.1).to_bits(), "scale of {largest:e}");
        } else if largest >= limit || largest.is_nan() {
            assert!(scale.is_nan(), "scale of {largest:e}");
        } else if largest <= least {
            assert_eq!(scale.to_bits(), 0, "scale of {largest:e}");
        } else {
            assert_eq!(scale.to_bits() << 9, 0, "{scale:e} is a power of two");
            assert!(60.25 < units && units <= 120.5, "{scale:e} is the scale of {largest:e}");
        }
        for (x, code) in part.iter().zip(&codes) {
            let quotient = match largest < limit && largest > least {
                true => f64::from(*x) * units / f64::from(largest),
                false => 0.0,
            };
            let error = (f64::from(*code) - quotient).abs();
            assert!(error <= 0.5 + noise, "{x:e} of {largest:e}: {code}");
            assert!((-120..=120).contains(code), "{x:e} of {largest:e}: {code}");
        }
        let scale = f64::from(scale);
        self.values.extend(codes[..part.len()].iter().map(|code| f64::from(*code) * scale));
        self.blocks.push((scale, f64::from(-minus_sum)));
    }
}

/// A block's values in bf16 are its codes times its scale, each eight of them in their order.
fn check_values(codes: &[u8], scale: f32, values: &[u8]) {
    for (eight, values) in codes.chunks(8).zip(values.chunks(16)) {
        for (element, value) in [4, 6, 1, 3, 5, 7, 2, 0].into_iter().zip(values.chunks(2)) {
            let exact = f32::from(eight[element] as i8) * scale;
            let value = half::bf16::from_le_bytes([value[0], value[1]]).to_f32();
            assert!(value.to_bits() == exact.to_bits() || value.is_nan() && scale.is_nan());
        }
    }
}

/// What is added to a product: bias and residual, each 0 if the specification has none.
pub(super) type Added = [f32; 2];

/// Channels of a weight in double precision.
pub(super) struct Oracle<'a> {
    /// The kernel whose outputs are checked.
    pub(super) name: String,
    spec: &'a MatmulSpec,
    weight: &'a Weight,
    rows: Vec<Vec<f64>>,
}

impl Oracle<'_> {
    pub(super) fn new<'a>(spec: &'a MatmulSpec, weight: &'a Weight) -> Oracle<'a> {
        let rows = (0..spec.layout.channels).map(|channel| weight.exact(channel)).collect();
        Oracle { name: String::new(), spec, weight, rows }
    }

    /// Fails if an output is not the chain of products of pairs.
    pub(super) fn check_pairs(&self, x: &Activations, channel: usize, added: Added, got: f32) {
        let factors = x.values.iter().zip(&self.rows[channel]);
        let sum = chain_of_pairs(factors.map(|(x, w)| (*x as f32, *w as f32)));
        let [bias, residual] = added;
        let expected = if self.spec.bias { sum + bias } else { sum };
        let expected = if self.spec.residual { expected + residual } else { expected };
        let is_equal = got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan());
        assert!(is_equal, "{}: channel {channel} is {got:e}, not {expected:e}", self.name);
    }

    /// Fails if an output is not what the module's header says of these activations. Where a sum may
    /// leave the range of f32 nothing is said.
    pub(super) fn check(&self, x: &Activations, channel: usize, added: Added, got: f32) {
        let reduction = self.spec.layout.reduction;
        let is_quantised = self.spec.layout.format.blocks().is_some();
        let (mut exact, mut size, mut finite) = (0.0, 0.0, 0.0);
        for (x, w) in x.values.iter().zip(&self.rows[channel]) {
            let term = x * w;
            exact += term;
            size += term.abs();
            finite += if x.is_finite() { term.abs() } else { 0.0 };
        }
        for term in added.map(f64::from) {
            exact += term;
            size += term.abs();
            finite += term.abs();
        }
        let (mut roundings, mut tiny) = (reduction as f64 + 2.0, reduction as f64 + 2.0);
        // A float zero point's own error; and products of scales, which may leave the range, too.
        let mut zeros = 0.0;
        if let Some(Activation::Int8 { block, .. }) = self.spec.activation() {
            roundings = x.blocks.len() as f64 + 4.0;
            // No code is further than 512 from its zero point, no activation above 120.
            tiny += 65_536.0 * reduction as f64;
            for (index, (scale, sum)) in x.blocks.iter().enumerate() {
                let Some((weight_scale, zero)) = self.weight.parameters(channel, index * block)
                else {
                    continue;
                };
                let scales = (weight_scale * scale).abs();
                zeros += (zero * sum * scales).abs();
                finite += if scales.is_finite() { scales } else { 0.0 };
            }
        } else if is_quantised {
            roundings += 2.0;
            tiny += x.values.iter().map(|x| x.abs()).sum::<f64>();
        }
        if finite > 0.99 * f64::from(f32::MAX) {
            return;
        }
        let what = || format!("{}: channel {channel} is {got:e}, exactly {exact:e}", self.name);
        if exact.is_nan() {
            assert!(got.is_nan(), "{}", what());
        } else if exact.is_infinite() {
            assert_eq!(f64::from(got), exact, "{}", what());
        } else {
            let bound = (roundings * size + zeros) * U * FIRST_ORDER + tiny * TINY;
            let error = (f64::from(got) - exact).abs();
            assert!(error <= bound, "{} within {bound:e}, is off by {error:e}", what());
        }
    }
}
