//! Attention on random shapes between pages without access, counted per level and number format.

use std::collections::BTreeMap;

use super::attention::{Case, PATTERNS, levels};
use super::attention_planes::Formats;
use super::guard::Side;
use super::*;
use crate::kernels::attention::CacheType;

/// Cases of a level and a format in every run, and in the long one.
const FEW: usize = 20;
const MANY: usize = 600;

/// A shape: mostly small ones, so that many fit into a run; widths that fill no register, groups
/// that do not divide a tile, and now and then what real models have.
pub(super) fn sizes(random: &mut Random) -> (usize, usize, usize, usize, usize) {
    let kv_heads = 1 + random.below(3);
    let group = [1, 1, 2, 3, 4, 7, 8, 20][random.below(8)];
    let rows = match random.below(4) {
        0 => 1,
        1 => 2 + random.below(4),
        _ => 1 + random.below(40),
    };
    let width = |random: &mut Random| match random.below(3) {
        0 => 1 + random.below(20),
        1 => 16 * (1 + random.below(5)),
        _ => 1 + random.below(130),
    };
    let (key, value) = (width(random), width(random));
    (rows, kv_heads * group, kv_heads, key, value)
}

fn run(cases: usize, seed: u64) {
    let mut counts: BTreeMap<(&str, String), usize> = BTreeMap::new();
    let mut random = Random::new(seed);
    for formats in Formats::all() {
        for index in 0..cases {
            let sizes = sizes(&mut random);
            let pattern = PATTERNS[random.below(PATTERNS.len())];
            let softcap = [0.0, 0.0, 2.5, 30.0][random.below(4)];
            let sinks = random.below(3) == 0;
            let mut case = Case::new(&mut random, sizes, formats, pattern, (sinks, softcap));
            case.side = if index % 2 == 0 { Side::Begin } else { Side::End };
            if random.below(3) == 0 {
                case.with_tiny_numbers(&mut random);
            }
            for level in levels() {
                case.check(level);
                *counts.entry((level.name(), formats.name())).or_default() += 1;
            }
        }
    }
    println!("attention: {counts:?}");
    let total: usize = counts.values().sum();
    assert_eq!(counts.len(), Formats::all().len() * levels().len());
    assert!(counts.values().all(|count| *count == cases), "{total} cases: {counts:?}");
}

#[test]
fn random_attention_keeps_its_bound() {
    run(FEW, 51);
}

#[test]
#[ignore = "the long run"]
fn much_random_attention_keeps_its_bound() {
    run(MANY, 52);
}

/// An infinite value or key is seen in the rows that read it, and changes no bit of others.
#[test]
fn infinities_stay_in_the_rows_that_read_them() {
    let mut random = Random::new(53);
    for number in CacheType::ALL {
        for pattern in PATTERNS {
            let sizes = (30, 4, 2, 20, 24);
            let mut case = Case::new(&mut random, sizes, number, pattern, (false, 0.0));
            for level in levels() {
                case.check_infinity(&mut random, level);
            }
        }
    }
}
