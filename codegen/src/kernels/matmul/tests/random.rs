//! Products of random shapes between pages without access, counted per level, arithmetic, format and
//! number of rows: each against double precision by the bound of the module's header, and all levels
//! bit by bit against each other.
//!
//! A level that this machine lacks, and every fourth case of the others but the portable one, runs in
//! the instruction interpreter, where nothing lies around any buffer.

use std::collections::BTreeMap;

use weir_abi::IsaLevel;
use weir_processor as processor;

use super::operands::{Activations, Oracle, Weight, inputs};
use super::*;
use crate::image::CodeImage;
use crate::kernels::matmul::{amx, assembled};
use crate::kernels::tests::Random;
use crate::kernels::tests::guard::{Guarded, Side};
use crate::pack::pack_bias;

/// Cases of a level, an arithmetic, a format and a kind of number of rows in every run, and in the
/// long one.
const FEW: usize = 5;
const MANY: usize = 200;

/// What kernels divide rows by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rows {
    One,
    Few,
    Tile,
    Many,
    /// More than a portion.
    Portions,
}

impl Rows {
    const ALL: [Rows; 5] = [Rows::One, Rows::Few, Rows::Tile, Rows::Many, Rows::Portions];

    fn count(self, random: &mut Random, spec: &MatmulSpec) -> usize {
        match self {
            Rows::One => 1,
            Rows::Few => 2 + random.below(3),
            Rows::Tile => 5 + random.below(12),
            Rows::Many => 17 + random.below(48),
            Rows::Portions => {
                let portions =
                    [amx::portion(spec), assembled::PORTION].map(|portion| portion.rows(spec));
                let most = portions[usize::from(!amx::serves(spec))];
                // Of one row, of a few, and of enough to begin a third portion of the smaller ones.
                most + 1 + random.below(24)
            }
        }
    }
}

const KINDS: [&str; 5] = ["f32", "f16", "bf16", "int8", "int4"];

fn format(random: &mut Random, kind: &str, reduction: usize) -> WeightFormat {
    // The last is a scale per channel, as far as blocks are that long.
    let channel = Blocks::size_for(usize::MAX, reduction).unwrap();
    let block = [16, 32, 32, 64, 128, channel, 48, 256][random.below(8)];
    let scales = [ScaleType::F32, ScaleType::F16, ScaleType::Short];
    let scale = scales[random.below(if kind == "int4" { 3 } else { 2 })];
    let zero = [ZeroPoint::Implied, ZeroPoint::Code, ZeroPoint::Float][random.below(3)];
    let blocks = match random.below(3) {
        // Exact in bf16.
        0 if kind == "int4" => {
            let block = [32, 32, 64, 96, 128, 256][random.below(6)];
            blocks(block, ScaleType::Short, ZeroPoint::Implied)
        }
        _ => blocks(block, scale, zero),
    };
    match kind {
        "f32" => WeightFormat::F32,
        "f16" => WeightFormat::F16,
        "bf16" => WeightFormat::Bf16,
        "int8" => WeightFormat::Int8(blocks),
        _ => WeightFormat::Int4(blocks),
    }
}

/// A specification: mostly small, so that many fit into a run, with all ways not to fill a group, a
/// unit, a block or a vector.
fn specification(random: &mut Random, kind: &str, compute: Compute, rows: Rows) -> MatmulSpec {
    let is_long = rows == Rows::Portions && random.below(3) == 0;
    let channels = match (rows, random.below(4)) {
        // Runs of them may lie apart.
        (_, 3) => 64 * (1 + random.below(3)),
        (Rows::Portions, _) => 1 + random.below(40),
        (_, 0) => 1 + random.below(16),
        (_, 1) => 16 * (1 + random.below(8)),
        _ => 1 + random.below(130),
    };
    let reduction = match (rows, random.below(4)) {
        // Rows so long that few of them are a portion.
        (Rows::Portions, _) if is_long && compute.is_integer() => 8000 + random.below(4000),
        (Rows::Portions, _) if is_long => 2000 + random.below(2000),
        (Rows::Portions, _) => 1 + random.below(90),
        (_, 0) => 1 + random.below(20),
        (_, 1) => 16 * (1 + random.below(20)),
        _ => 1 + random.below(400),
    };
    let channels = if is_long { channels.min(18) } else { channels };
    let format = format(random, kind, reduction);
    let layout = PackedLayout { channels, reduction, format };
    let beside = |random: &mut Random| random.below(2) * random.below(20);
    let spec = MatmulSpec {
        bias: random.below(3) == 0,
        residual: random.below(3) == 0,
        input_stride: reduction + beside(random),
        output_stride: channels + beside(random),
        ..MatmulSpec::new(layout, compute)
    };
    // Other levels read rows in the form for AMX as well, but for pairs of bf16.
    if random.below(4) > 0 && !spec.is_all_bf16() { spec.at(IsaLevel::Amx) } else { spec }
}

/// Where an output lies.
fn place(spec: &MatmulSpec, row: usize, channel: usize) -> usize {
    let run = spec.apart.map_or(spec.layout.channels, |apart| apart.groups * GROUP);
    let stride = spec.apart.map_or(0, |apart| apart.stride);
    channel / run * stride + row * spec.output_stride + channel % run
}

/// A product with its operands.
#[derive(Clone)]
struct RandomCase {
    spec: MatmulSpec,
    rows: usize,
    weight: Weight,
    packed: Vec<u8>,
    input: Vec<f32>,
    bias: Vec<f32>,
    /// The residual, and what the output holds before where it is not the residual.
    before: Vec<f32>,
    /// Whether the residual is the output itself.
    in_place: bool,
    /// Whether weights are asked for from far ahead.
    reads_far: bool,
    /// Where threads divide the groups.
    shares: Vec<usize>,
    side: Side,
}

/// How a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Machine,
    Interpreter,
}

impl RandomCase {
    fn new(random: &mut Random, mut spec: MatmulSpec, rows: usize, side: Side) -> RandomCase {
        if spec.layout.channels.is_multiple_of(64) && !spec.residual && random.below(3) > 0 {
            let run = if spec.layout.channels == 128 { 64 << random.below(2) } else { 64 };
            spec.output_stride = run + random.below(2) * random.below(20);
            spec.apart = Apart::of(run, rows * spec.output_stride + random.below(9));
            assert!(spec.apart.is_some());
        }
        spec.supported().unwrap();
        let weight = Weight::new(random, spec.layout);
        let groups = spec.groups();
        let mut shares = vec![0, groups];
        shares.extend((0..random.below(3)).map(|_| random.below(groups + 1)));
        shares.sort_unstable();
        let channels = spec.layout.channels;
        RandomCase {
            packed: weight.packed(),
            weight,
            input: inputs(random, &spec, rows),
            bias: random.units(channels),
            before: random.units(place(&spec, rows - 1, channels - 1) + 1),
            in_place: random.below(2) == 0,
            reads_far: random.below(2) == 0,
            spec,
            rows,
            shares,
            side,
        }
    }

    /// The input as the kernel reads it.
    fn activations(&self) -> Vec<u8> {
        let input = bytes(&self.input);
        let Some(activation) = self.spec.activation() else { return input };
        let mut assembly = Assembly::new().unwrap();
        emit_quantise(&mut assembly, activation).unwrap();
        let code = ExecutableCode::new(&assembly.finish().unwrap()).unwrap();
        let mut input = Guarded::new(&input, self.side);
        let room = vec![0xaa; self.rows * activation.row_bytes()];
        let mut rounded = Guarded::new(&room, self.side);
        let items = self.rows * activation.items_per_row();
        for (begin, end) in [(0, items / 3), (items / 3, items)] {
            let counts = [begin, end].map(|item| Argument::Count(item as u64));
            let [begin, end] = counts;
            let buffers = (Argument::Read(input.bytes()), Argument::Write(rounded.bytes()));
            code.call_kernel(&activation.symbol(), &mut [buffers.0, buffers.1, begin, end]);
        }
        input.finish();
        rounded.finish()
    }

    fn run(&self, activations: &[u8], level: IsaLevel, by: By) -> Vec<f32> {
        let mut assembly = Assembly::new().unwrap();
        emit_matmul(&mut assembly, &self.spec, level).unwrap();
        let image = assembly.finish().unwrap();
        let mut bias = vec![0; self.bias.len().next_multiple_of(GROUP) * 4];
        pack_bias(&self.bias, &mut bias);
        let name = self.spec.symbol(level);
        let output = match by {
            By::Machine => self.by_machine(&image, &name, activations, &bias),
            By::Interpreter => self.by_interpreter(&image, &name, activations, &bias),
        };
        let output = floats(&output);
        let mut is_beside = vec![true; output.len()];
        for row in 0..self.rows {
            for channel in 0..self.spec.layout.channels {
                is_beside[place(&self.spec, row, channel)] = false;
            }
        }
        for (is_beside, (got, before)) in is_beside.into_iter().zip(output.iter().zip(&self.before))
        {
            if is_beside {
                assert_eq!(got.to_bits(), before.to_bits(), "{name}: written between rows");
            }
        }
        output
    }

    fn by_machine(&self, image: &CodeImage, name: &str, input: &[u8], bias: &[u8]) -> Vec<u8> {
        let code = ExecutableCode::new(image).unwrap();
        let before = bytes(&self.before);
        let [mut input, mut weights, mut bias, mut output, mut residual] =
            [input, &self.packed, bias, &before, &before].map(|b| Guarded::new(b, self.side));
        let place = output.bytes().as_mut_ptr() as u64;
        for share in self.shares.windows(2) {
            let mut arguments = vec![
                Argument::Read(input.bytes()),
                Argument::Read(weights.bytes()),
                Argument::Count(place),
                if self.spec.bias { Argument::Read(bias.bytes()) } else { Argument::Null },
                match (self.spec.residual, self.in_place) {
                    (false, _) => Argument::Null,
                    (true, true) => Argument::Count(place),
                    (true, false) => Argument::Read(residual.bytes()),
                },
            ];
            let counts = [self.rows, share[0], share[1], self.reads_far.into()];
            arguments.extend(counts.map(|count| Argument::Count(count as u64)));
            code.call_kernel(name, &mut arguments);
        }
        for buffer in [input, weights, bias, residual] {
            buffer.finish();
        }
        output.finish()
    }

    fn by_interpreter(&self, image: &CodeImage, name: &str, input: &[u8], bias: &[u8]) -> Vec<u8> {
        use processor::Argument;
        let symbol = image.symbols.iter().find(|symbol| symbol.name == name).unwrap();
        let residual = bytes(&self.before);
        let mut output = residual.clone();
        for share in self.shares.windows(2) {
            let mut arguments = vec![
                Argument::Read(input),
                Argument::Read(&self.packed),
                Argument::Write(&mut output),
                if self.spec.bias { Argument::Read(bias) } else { Argument::Null },
                match (self.spec.residual, self.in_place) {
                    (false, _) => Argument::Null,
                    (true, true) => Argument::Same(2),
                    (true, false) => Argument::Read(&residual),
                },
            ];
            let counts = [self.rows, share[0], share[1], self.reads_far.into()];
            arguments.extend(counts.map(|count| Argument::Count(count as u64)));
            if let Err(fault) = processor::call(&image.bytes, symbol.offset as usize, arguments) {
                panic!("{name} with {} rows: {fault}", self.rows);
            }
        }
        output
    }

    /// Fails if an output of the level with products of pairs is not what it is to be.
    fn check_pairs(&self, level: IsaLevel, oracle: &Oracle<'_>, by: By) {
        let case = RandomCase { spec: self.spec.at(level), ..self.clone() };
        let activations = case.activations();
        let output = case.run(&activations, level, by);
        case.each_output(&activations, &output, |x, channel, added, got| {
            oracle.check_pairs(x, channel, added, got);
        });
    }

    /// Fails if an activation or an output breaks its bound.
    fn check_bounds(&self, oracle: &Oracle<'_>, activations: &[u8], output: &[f32]) {
        self.each_output(activations, output, |x, channel, added, got| {
            oracle.check(x, channel, added, got);
        });
    }

    /// Checks the activations, and calls `see` with those of an output's row, its channel, bias and
    /// residual, and itself.
    fn each_output(
        &self,
        activations: &[u8],
        output: &[f32],
        mut see: impl FnMut(&Activations, usize, [f32; 2], f32),
    ) {
        let spec = &self.spec;
        for row in 0..self.rows {
            let input = &self.input[row * spec.input_stride..][..spec.layout.reduction];
            let rounded = &activations[row * spec.input_row_bytes()..];
            let x = Activations::check(spec, input, rounded);
            for channel in 0..spec.layout.channels {
                let at = place(spec, row, channel);
                let bias = if spec.bias { self.bias[channel] } else { 0.0 };
                let residual = if spec.residual { self.before[at] } else { 0.0 };
                see(&x, channel, [bias, residual], output[at]);
            }
        }
    }
}

/// Cases by level, arithmetic, format and number of rows.
type Counts = BTreeMap<(&'static str, &'static str, &'static str, Rows), usize>;

fn run(cases: usize, seed: u64) -> usize {
    let mut counts = Counts::new();
    let (mut interpreted, mut cells) = (0, 0);
    let mut random = Random::new(seed);
    for kind in KINDS {
        for compute in [Compute::F32, Compute::Bf16, Compute::Int8, Compute::Int8Row] {
            if compute.is_integer() && !kind.starts_with("int") {
                continue;
            }
            for rows in Rows::ALL {
                cells += 1;
                for index in 0..cases {
                    let mut spec = specification(&mut random, kind, compute, rows);
                    // Tiles serve most blocks: at least in half of the cases.
                    while compute.is_integer() && index % 2 == 0 && !amx::serves(&spec) {
                        spec = specification(&mut random, kind, compute, rows);
                    }
                    let count = rows.count(&mut random, &spec);
                    let side = [Side::Begin, Side::End][random.below(2)];
                    let case = RandomCase::new(&mut random, spec, count, side);
                    let activations = case.activations();
                    let mut oracle = Oracle::new(&spec, &case.weight);
                    let mut expected = None;
                    for level in IsaLevel::ALL {
                        let name = spec.symbol(level);
                        if !name.ends_with(&format!("-{}", level.name())) {
                            // Another level's code.
                            continue;
                        }
                        let lacks = !weir_runtime::machine::supports(level);
                        let checks = level != IsaLevel::Portable && index % 4 == 2;
                        let by = if lacks || checks { By::Interpreter } else { By::Machine };
                        interpreted += usize::from(by == By::Interpreter);
                        let output = case.run(&activations, level, by);
                        oracle.name = format!("{name} with {count} rows by the {by:?}");
                        case.check_bounds(&oracle, &activations, &output);
                        let bits: Vec<u32> = output.iter().map(|y| canonical(*y)).collect();
                        let expected = expected.get_or_insert_with(|| bits.clone());
                        assert!(*expected == bits, "{} differs from the portable one", oracle.name);
                        let cell = (level.name(), compute.name(), kind, rows);
                        *counts.entry(cell).or_default() += 1;
                    }
                    let level = IsaLevel::Avx512Pairs;
                    if spec.is_all_bf16() {
                        let lacks = !weir_runtime::machine::supports(level);
                        let by =
                            if lacks || index % 4 == 2 { By::Interpreter } else { By::Machine };
                        interpreted += usize::from(by == By::Interpreter);
                        oracle.name = format!("pairs of bf16 with {count} rows by the {by:?}");
                        case.check_pairs(level, &oracle, by);
                        *counts.entry((level.name(), compute.name(), kind, rows)).or_default() += 1;
                    }
                }
            }
        }
    }
    let total: usize = counts.values().sum();
    let mut levels: BTreeMap<(&str, &str, &str), usize> = BTreeMap::new();
    for ((level, compute, kind, _), count) in &counts {
        *levels.entry((level, compute, kind)).or_default() += count;
    }
    println!("products: {total} cases, {interpreted} of them interpreted: {levels:?}");
    for (cell @ (level, ..), count) in &counts {
        let least = if *level == IsaLevel::Amx.name() { cases.div_ceil(2) } else { cases };
        assert!((least..=cases).contains(count), "{cell:?}: {count} cases");
    }
    // Portable, AVX2 and AVX-512 compute all of them; AVX-VNNI, AVX-512 in pairs and AMX those of both
    // kinds of int8, and the second of these bf16 with bf16.
    assert_eq!((cells, counts.len()), (70, 3 * 70 + (3 * 2 * 2 + 1) * Rows::ALL.len()));
    total
}

/// A result's bits; those of what is no number are not specified.
fn canonical(y: f32) -> u32 {
    if y.is_nan() { f32::NAN.to_bits() } else { y.to_bits() }
}

#[test]
fn random_products_keep_their_bounds() {
    assert!(run(FEW, 81) >= 500);
}

#[test]
#[ignore = "the long run"]
fn many_random_products_keep_their_bounds() {
    assert!(run(MANY, 82) >= 10_000);
}
