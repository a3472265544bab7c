//! Attention that gives rounded rows: the bits that rounding has of what it gives otherwise.

use weir_abi::IsaLevel;

use super::attention::{Case, PATTERNS, Sizes, levels};
use super::attention_interpreted::interpret;
use super::attention_planes::Formats;
use super::*;
use crate::kernels::attention::AttendSpec;
use crate::kernels::matmul::{Activation, Halves, Scaling, emit_quantise};

/// Heads of one and more blocks, alone and in groups, units of all heads of a group and of a part; the
/// first is one row that threads may divide.
const SIZES: [Sizes; 6] = [
    (1, 3, 1, 16, 32),
    (7, 8, 2, 16, 48),
    (70, 8, 2, 64, 64),
    (3, 6, 6, 24, 128),
    (9, 71, 1, 12, 32),
    (40, 3, 3, 8, 64),
];

/// All that rows of so many heads can be rounded to head by head, `stride` floats apart.
fn activations(heads: usize, width: usize, stride: usize) -> Vec<Activation> {
    let reduction = heads * width;
    let codes = |(block, scaling, in_bf16)| Activation::Int8 {
        reduction,
        block,
        blocks: reduction / block,
        input_stride: stride,
        scaling,
        in_bf16,
    };
    let halves = |halves| Activation::Bf16 { reduction, input_stride: stride, halves };
    let forms = [
        (16, Scaling::Block, false),
        (32, Scaling::Block, false),
        (32, Scaling::Power, true),
        (64, Scaling::Block, false),
    ];
    let all =
        forms.map(codes).into_iter().chain([Halves::Floats, Halves::FloatsOrPairs].map(halves));
    all.filter(|rows| rows.is_of_parts(heads, width)).collect()
}

/// The case with rows rounded so, as a level has them.
fn rounded(case: &mut Case, rows: Activation, level: IsaLevel) {
    let output_row = rows.at(level).row_bytes() / 4;
    case.spec = AttendSpec { rounded: Some(rows), output_row, ..case.spec };
}

/// Rows by the quantiser alone.
fn quantised(values: &[f32], rows: Activation, count: usize) -> Vec<u32> {
    let kernel = Kernel::new(|assembly| emit_quantise(assembly, rows));
    let (words, items) = (rows.row_bytes() / 4, rows.items_per_row());
    bits(&kernel.run(&[Input::floats(values)], count * words, count * items))
}

#[test]
fn rounded_means_have_the_bits_of_rounding_alone() {
    let mut random = Random::new(41);
    let mut count = 0;
    for sizes in SIZES {
        for pattern in PATTERNS {
            let (rows, heads, _, _, width) = sizes;
            let formats = Formats::all();
            let formats = formats[random.below(formats.len())];
            let mut case = Case::new(&mut random, sizes, formats, pattern, (true, 0.0));
            let plain = case.spec;
            for level in levels() {
                let means = case.run_all(level);
                for to in activations(heads, width, plain.output_row) {
                    let expected = quantised(&means, to.at(level), rows);
                    rounded(&mut case, to, level);
                    for threads in [1, 2, 3] {
                        let kernel = case.kernel(level);
                        let got = case.run(&kernel, 0..rows, threads);
                        let same = bits(&got) == expected;
                        assert!(same, "{level:?} {sizes:?} {formats:?} {to:?}, {threads} threads");
                        count += 1;
                    }
                    case.spec = plain;
                }
            }
        }
    }
    println!("rounded attention: {count} cases");
}

/// The same of levels that this machine may lack.
#[test]
fn interpreted_means_are_rounded_alike() {
    let mut random = Random::new(42);
    for level in [IsaLevel::Avx2, IsaLevel::Avx512, IsaLevel::Avx512Pairs, IsaLevel::Amx] {
        for sizes in [(1, 3, 1, 16, 32), (5, 4, 2, 16, 64)] {
            let (rows, heads, _, _, width) = sizes;
            let formats = Formats::all();
            let formats = formats[random.below(formats.len())];
            let mut case = Case::new(&mut random, sizes, formats, PATTERNS[1], (false, 0.0));
            let plain = case.spec;
            let (means, _) = interpret(&case, level, 1);
            for to in activations(heads, width, plain.output_row) {
                // Rows of bf16 that are floats are rounded by instructions that are not interpreted.
                let is_float = matches!(to.at(level), Activation::Bf16 { halves, .. }
                    if halves != Halves::Pairs);
                if is_float {
                    continue;
                }
                let expected = quantised(&means, to.at(level), rows);
                rounded(&mut case, to, level);
                for threads in [1, 2] {
                    let (got, _) = interpret(&case, level, threads);
                    assert!(bits(&got) == expected, "{level:?} {sizes:?} {formats:?} {to:?}");
                }
                case.spec = plain;
            }
        }
    }
}
