//! Kernels of rows and prompts on random shapes between pages without access, counted. Products and
//! attention have files of their own.

use std::collections::BTreeMap;

use super::append::check_append;
use super::elements::{check_concatenation, check_gated, check_repeated};
use super::gated::check_gates;
use super::prompt::check_prompt;
use super::rounding::check_roundings;
use super::rows::{REDUCTIONS, Shape, check_norm, check_reduction, check_rotation, check_rows};
use super::turn::check_turn;
use super::*;
use crate::kernels::attention::CacheType;
use crate::kernels::norm::NormKind;

/// Turns of every run, and of the long one; each has one case of every kernel.
const FEW: usize = 6;
const MANY: usize = 150;

/// Widths that fill no vector, that fill it, and long ones.
fn width(random: &mut Random) -> usize {
    match random.below(4) {
        0 => 1 + random.below(16),
        1 => 16 * (1 + random.below(8)),
        2 => 1 + random.below(1200),
        _ => 1 + random.below(150),
    }
}

fn shape(random: &mut Random) -> Shape {
    (1 + random.below(20), 1 + random.below(5), width(random))
}

fn run(turns: usize, seed: u64) {
    let mut random = Random::new(seed);
    let random = &mut random;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for turn in 0..turns {
        let side = [Side::Begin, Side::End][turn % 2];
        let mut count = |kernel: &'static str, cases: usize| {
            *counts.entry(kernel).or_default() += cases;
        };
        for (kind, bias) in [
            (NormKind::Rms, false),
            (NormKind::Rms, true),
            (NormKind::Layer, false),
            (NormKind::Layer, true),
        ] {
            let shape = shape(random);
            check_norm(random, kind, bias, shape);
            count("norm", 1);
        }
        for op in REDUCTIONS {
            let shape = shape(random);
            check_reduction(random, op, shape);
            count("reduction", 1);
        }
        for interleaved in [false, true] {
            let rotated = 2 * (1 + random.below(40));
            let head_width = rotated + random.below(2) * random.below(20);
            let shape = [1 + random.below(20), 1 + random.below(5), head_width, rotated];
            check_rotation(random, interleaved, shape);
            count("rotation", 1);
        }
        let (rows, heads) = (1 + random.below(20), 1 + random.below(5));
        let (turned, beside) = (width(random), random.below(20));
        check_turn(random, [rows, heads, turned], beside);
        count("turn", 1);
        let chosen = width(random);
        let strides = [0; 2].map(|_| chosen + random.below(2) * random.below(20));
        let rows = 1 + random.below(40);
        check_rows(random, [rows, chosen, strides[0], strides[1]]);
        count("rows by number", 2);

        let dims: Vec<usize> = (0..1 + random.below(3)).map(|_| 1 + random.below(20)).collect();
        let repeated = random.below(1 << dims.len());
        let rows = 1 + random.below(9);
        check_repeated(random, rows, &dims, repeated);
        count("elements", 1);
        let (rows, gated) = (1 + random.below(9), width(random));
        let beside = random.below(20);
        check_gated(random, rows, gated, beside);
        count("gate", 1);
        let widths: Vec<usize> = (0..1 + random.below(4)).map(|_| 1 + random.below(40)).collect();
        let sizes = (1 + random.below(9), 1 + random.below(3));
        check_concatenation(random, sizes, &widths, side);
        count("copy", widths.len());

        for number in CacheType::ALL {
            // Widths of whole vectors by turns with any.
            let unit = [1, 8][turn / 2 % 2];
            let rotated = 2 * unit * random.below(64 / unit);
            let shape = [
                1 + random.below(30),
                1 + random.below(4),
                (rotated + unit * random.below(32 / unit)).max(unit),
                unit * (1 + random.below(130 / unit)),
                rotated,
            ];
            let interleaved = random.below(2) == 1;
            check_append(random, shape, number, interleaved, side);
            count("append", 1);
        }
        check_prompt(random, turn % 3 == 2, 1 + turn % 3, side);
        count("observe", 1);
        count("compact", 1);
        count("rounding", check_roundings(random, 1));
        count("gate in product", check_gates(random, 1, side));
    }
    let total: usize = counts.values().sum();
    println!("rows and prompts: {total} cases: {counts:?}");
    assert_eq!(counts.len(), 13);
    assert!(counts.values().all(|count| *count >= turns) && total >= 25 * turns, "{counts:?}");
}

#[test]
fn random_rows_keep_their_bounds() {
    run(FEW, 91);
}

#[test]
#[ignore = "the long run"]
fn many_random_rows_keep_their_bounds() {
    run(MANY, 92);
}
