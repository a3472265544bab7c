//! Rounding of rows, norms and gated products: the bits of the separate kernels, in every version.

use weir_abi::IsaLevel;
use weir_ir::ops::unary::UnaryOp;
use weir_processor as processor;
use weir_runtime::machine;

use super::*;
use crate::kernels::map::{MapOp, MapSpec, emit_map};
use crate::kernels::matmul::{
    Activation, Compute, Halves, MatmulSpec, Scaling, emit_matmul, emit_quantise,
};
use crate::kernels::norm::{NormKind, NormSpec, emit_norm};
use crate::kernels::rounding::{RoundingSpec, Source, emit_rounding};
use crate::pack::{Blocks, PackedLayout, ScaleType, WeightFormat, ZeroPoint};

const EPSILON: f32 = 1e-5;

/// A scale per block, one per block that is a power of two, and one per row.
const SCALES: [Scales; 3] = [
    (Compute::Int8, ScaleType::F16),
    (Compute::Int8, ScaleType::Short),
    (Compute::Int8Row, ScaleType::F16),
];

/// What a block's scale is made of.
type Scales = (Compute, ScaleType);

fn product(reduction: usize, block: usize, (compute, scale): Scales) -> MatmulSpec {
    let blocks = Blocks { block, scale, zero: ZeroPoint::Implied };
    let layout = PackedLayout { channels: 16, reduction, format: WeightFormat::Int4(blocks) };
    MatmulSpec::new(layout, compute)
}

fn activation(case: &Case, block: usize, scales: Scales) -> Activation {
    let product = product(case.reduction, block, scales);
    // Where blocks of 32 have powers of two as scales, with values in bf16.
    let product = MatmulSpec { input_stride: case.stride, ..product }.at(IsaLevel::Amx);
    product.activation().unwrap()
}

/// Rows of a case, with their operands.
struct Case {
    reduction: usize,
    stride: usize,
    rows: usize,
    input: Vec<f32>,
    /// The norm's weight, or rows of up.
    second: Vec<f32>,
}

impl Case {
    /// Ordinary numbers; in the first row also those that are hard to round or to divide by.
    fn new(random: &mut Random, reduction: usize, rows: usize, source: Source) -> Case {
        let stride = reduction + 16 * random.below(3);
        let mut input: Vec<f32> = random.units(rows * stride).iter().map(|x| x * 9.0).collect();
        let hard =
            [0.0, -0.0, 1e-38, -1e-31, 1e-45, 127.5, -0.5, 3e38, -200.0, 88.9, -103.9, -88.0];
        // Near half a power of two, the greatest finite power, and the least that counts beside one.
        let of_powers = [0.346_573_6, -0.346_573_6, -88.72, -88.73, 16.6, 17.4, 84.9, 85.1];
        let hard = [&hard[..], &of_powers].concat();
        for place in 0..reduction.min(hard.len()) {
            if random.below(3) == 0 {
                input[place * reduction / hard.len()] = hard[place];
            }
        }
        // Whole blocks of zeros, and of nearly nothing.
        for value in &mut input[..reduction / 4] {
            *value *= [1.0, 0.0, 1e-32][random.below(1 + 2 * (rows % 2))];
        }
        let second = match source {
            Source::Gated { .. } => random.units(rows * stride),
            _ => random.units(reduction),
        };
        Case { reduction, stride, rows, input, second }
    }

    fn source(&self, source: Source) -> Source {
        match source {
            Source::Gated { activation, .. } => {
                Source::Gated { activation, up_stride: self.stride }
            }
            other => other,
        }
    }

    /// Values by the separate kernels, at the same stride.
    fn values(&self, source: Source) -> Vec<f32> {
        let Case { reduction, stride, rows, input, second } = self;
        let rows_of = (*stride, 0);
        let output = rows * stride;
        let operands = [Input::floats(input), Input::floats(second), Input::Nothing];
        match source {
            Source::Row => input.clone(),
            Source::RmsNorm { epsilon } => {
                let kind = NormKind::Rms;
                let (width, groups, bias) = (*reduction, 1, false);
                let spec = NormSpec { kind, epsilon, bias, groups, width, x: rows_of, y: rows_of };
                Kernel::new(|assembly| emit_norm(assembly, &spec)).run(&operands, output, *rows)
            }
            Source::Gated { activation, .. } => {
                let strides = vec![(*stride, vec![1]); 3];
                let dims = vec![*reduction];
                let spec = MapSpec { op: MapOp::Gated(activation), dims, strides };
                Kernel::new(|assembly| emit_map(assembly, &spec)).run(&operands, output, *rows)
            }
        }
    }

    /// Records by the quantiser alone.
    fn expected(&self, spec: &RoundingSpec) -> Vec<u32> {
        let values = self.values(spec.source);
        let kernel = Kernel::new(|assembly| emit_quantise(assembly, spec.activation));
        let (words, items) = self.sizes(spec);
        bits(&kernel.run(&[Input::floats(&values)], words, items))
    }

    fn sizes(&self, spec: &RoundingSpec) -> (usize, usize) {
        let activation = spec.activation;
        (self.rows * activation.row_bytes() / 4, self.rows * activation.items_per_row())
    }

    fn operands(&self, spec: &RoundingSpec) -> Vec<Input<'static>> {
        let mut operands = vec![Input::floats(&self.input)];
        if spec.has_second() {
            operands.push(Input::floats(&self.second));
        }
        operands
    }

    fn by_machine(&self, spec: &RoundingSpec, level: IsaLevel) -> Vec<u32> {
        let kernel = Kernel::new(|assembly| emit_rounding(assembly, spec, level));
        let (words, items) = self.sizes(spec);
        bits(&kernel.run(&self.operands(spec), words, items))
    }

    fn by_interpreter(&self, spec: &RoundingSpec, level: IsaLevel) -> Vec<u32> {
        let mut assembly = Assembly::new().unwrap();
        emit_rounding(&mut assembly, spec, level).unwrap();
        let image = assembly.finish().unwrap();
        let symbol = image.symbols.iter().find(|s| s.name == spec.symbol(level)).unwrap();
        let (words, items) = self.sizes(spec);
        let mut output = bytes(&vec![POISON; words]);
        let (input, second) = (bytes(&self.input), bytes(&self.second));
        for share in [[0, items / 2], [items / 2, items]] {
            let mut arguments = vec![processor::Argument::Read(&input)];
            if spec.has_second() {
                arguments.push(processor::Argument::Read(&second));
            }
            arguments.push(processor::Argument::Write(&mut output));
            arguments.extend(share.map(|count| processor::Argument::Count(count as u64)));
            if let Err(fault) = processor::call(&image.bytes, symbol.offset as usize, arguments) {
                panic!("{}: {fault}", symbol.name);
            }
        }
        bits(&floats(&output))
    }
}

const SOURCES: [Source; 4] = [
    Source::Row,
    Source::RmsNorm { epsilon: EPSILON },
    Source::Gated { activation: UnaryOp::Silu, up_stride: 0 },
    Source::Gated { activation: UnaryOp::GeluTanh, up_stride: 0 },
];

fn specs(random: &mut Random, cases: usize) -> impl Iterator<Item = (RoundingSpec, Case)> {
    let all: Vec<_> = (0..cases)
        .flat_map(|_| {
            let scales = SCALES[random.below(3)];
            SOURCES.map(|source| {
                let block = 16 << random.below(4);
                // One in four ends within a block.
                let rest = if random.below(4) == 0 { random.below(block) } else { 0 };
                let reduction = block * (1 + random.below(6)) + rest;
                let rows = 1 + random.below(5);
                let case = Case::new(random, reduction, rows, source);
                let activation = activation(&case, block, scales);
                (RoundingSpec::new(activation, case.source(source)), case)
            })
        })
        .collect();
    all.into_iter()
}

/// Rounds `cases` random rows of each source in every version; gives their number.
pub(super) fn check_roundings(random: &mut Random, cases: usize) -> usize {
    let mut count = 0;
    for (spec, case) in specs(random, cases) {
        let expected = case.expected(&spec);
        for level in IsaLevel::ALL.into_iter().filter(|level| machine::supports(*level)) {
            let got = case.by_machine(&spec, level);
            assert!(got == expected, "{} with {} rows", spec.symbol(level), case.rows);
        }
        count += 1;
    }
    count
}

#[test]
fn every_version_gives_the_bits_of_the_separate_kernels() {
    assert_eq!(check_roundings(&mut Random::new(71), 40), 160);
}

#[test]
fn the_interpreter_gives_the_same_bits() {
    let mut random = Random::new(72);
    let mut cases = [0; 2];
    for (spec, case) in specs(&mut random, 16) {
        let versions = [(IsaLevel::Avx2, "-wide"), (IsaLevel::Avx512, "-avx512")];
        for ((level, version), cases) in versions.into_iter().zip(&mut cases) {
            if spec.symbol(level).ends_with(version) {
                *cases += 1;
                assert!(case.by_interpreter(&spec, level) == case.expected(&spec), "{spec:?}");
            }
        }
    }
    assert!(cases[0] >= 6 && cases[1] >= 2, "{cases:?} cases for the assembled versions");
}

/// Halves of numbers below 2⁻¹²⁶ as zeros: products of pairs take them for it.
fn without_tiny_halves(words: Vec<u32>) -> Vec<u32> {
    let half = |half: u32| if half & 0x7f80 == 0 { half & 0x8000 } else { half };
    words.into_iter().map(|word| half(word >> 16) << 16 | half(word & 0xffff)).collect()
}

/// Rows of bf16, as floats or in pairs, by the machine where it has the level and in the interpreter.
#[test]
fn rows_of_bf16_have_the_bits_of_the_separate_kernels() {
    let mut random = Random::new(74);
    let mut assembled = 0;
    for source in [SOURCES; 10].as_flattened() {
        // Parts are of 64 elements; one in three rows ends within one.
        let rest = if random.below(3) == 0 { 1 + random.below(63) } else { 0 };
        let reduction = 64 * (1 + random.below(4)) + rest;
        let rows = 1 + random.below(5);
        let case = Case::new(&mut random, reduction, rows, *source);
        for halves in [Halves::Floats, Halves::FloatsOrPairs] {
            let activation = Activation::Bf16 { reduction, input_stride: case.stride, halves };
            let spec = RoundingSpec::new(activation, case.source(*source));
            for level in IsaLevel::ALL {
                let spec = spec.at(level);
                let is_paired =
                    matches!(spec.activation, Activation::Bf16 { halves: Halves::Pairs, .. });
                let comparable = |words| if is_paired { without_tiny_halves(words) } else { words };
                let expected = comparable(case.expected(&spec));
                let what = (spec, level);
                if machine::supports(level) {
                    assert!(comparable(case.by_machine(&spec, level)) == expected, "{what:?}");
                }
                if spec.symbol(level).ends_with("-avx512") {
                    assembled += 1;
                    assert!(comparable(case.by_interpreter(&spec, level)) == expected, "{what:?}");
                }
            }
        }
    }
    assert!(assembled >= 20, "{assembled} cases of the assembled version");
}

/// A block with a NaN or an infinity has a scale that is not finite and codes 0, and where a row has
/// one scale all blocks of its row have.
#[test]
fn blocks_that_are_no_numbers_are_marked() {
    let mut random = Random::new(73);
    let reduction = 128;
    for (source, scales) in SOURCES.into_iter().flat_map(|s| SCALES.map(|c| (s, c))) {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut case = Case::new(&mut random, reduction, 2, source);
            case.input.iter_mut().for_each(|x| *x = x.clamp(-8.0, 8.0));
            let rounded = activation(&case, 32, scales);
            let spec = RoundingSpec::new(rounded, case.source(source));
            let clean = case.by_machine(&spec, IsaLevel::Portable);
            case.input[case.stride + 40] = bad;
            let levels = [IsaLevel::Portable, IsaLevel::Avx2, IsaLevel::Avx512];
            for level in levels.into_iter().filter(|level| machine::supports(*level)) {
                let got = case.by_machine(&spec, level);
                let words = spec.activation.row_bytes() / 4;
                // In words, of a block of 32.
                let record = if scales.1 == ScaleType::Short { 32 } else { 11 };
                assert_eq!(got[..words], clean[..words], "the row before");
                let is_gate_closed =
                    matches!(source, Source::Gated { .. }) && bad == f32::NEG_INFINITY;
                for (number, block) in got[words..].chunks_exact(record).take(4).enumerate() {
                    let scale = f32::from_bits(block[8]);
                    let is_marked = number == 1 || scales.0 == Compute::Int8Row;
                    let is_right = !is_marked || !scale.is_finite() || is_gate_closed;
                    assert!(is_right, "{spec:?}: {bad} gives {scale} in block {number}");
                    if !scale.is_finite() {
                        assert!(block[..8].iter().all(|codes| *codes == 0), "{spec:?}");
                        // Where sums begin as floats they begin as this one.
                        let is_anchored = spec.activation.form().unwrap().scaling == Scaling::Power;
                        let begin = if is_anchored { block[8] } else { 0 };
                        assert_eq!(block[9..11], [begin; 2]);
                    }
                }
            }
        }
    }
}

/// Both ways to take scales are in one binary side by side, and one product serves them.
#[test]
fn scales_of_rows_and_of_blocks_share_products() {
    let mut assembly = Assembly::new().unwrap();
    let [blocks, _, rows] = SCALES.map(|scales| product(64, 32, scales));
    for level in IsaLevel::ALL {
        let products = [blocks, rows].map(|spec| emit_matmul(&mut assembly, &spec, level).unwrap());
        assert_eq!(products[0], products[1], "{level:?}");
        for source in SOURCES {
            let roundings = [blocks, rows].map(|product| {
                let activation = product.activation().unwrap();
                emit_rounding(&mut assembly, &RoundingSpec::new(activation, source), level).unwrap()
            });
            assert_ne!(roundings[0], roundings[1], "{source:?} {level:?}");
        }
    }
}
