//! Groups of query heads that read one key/value head (section 12 of the method's document): of 1, 4
//! and 8 heads, and all heads over latent rows as models with latent attention have them.
//!
//! A latent row is 512 numbers that all heads share and 64 rotated ones behind them. Queries come with
//! the key's projection folded in, so a score is a product of 576 numbers, and what is weighed are the
//! row's own first 512. There is one selection, of the mean over all heads or their largest. Here the
//! values have a plane of their own, with the same numbers.

use weir_ir::graph::{Aggregate, Normalise, Pooling, Scoring};

use super::attention::{Case, Pattern, Sizes, levels};
use super::attention_planes::{Formats, PARTS};
use super::prompt::check_heads;
use super::*;
use crate::kernels::attention::CacheType;
use crate::kernels::observe::ScoreSource;

const GROUPS: [Sizes; 3] = [(9, 3, 3, 24, 20), (9, 8, 2, 64, 64), (9, 16, 2, 32, 40)];

/// Widths of a latent row with and without its rotated numbers.
const LATENT: [usize; 2] = [576, 512];
/// 1 / sqrt(128 + 64): widths of a head before the key's projection is folded in.
const LATENT_SCALE: f32 = 0.072_168_78;

const PATTERNS: [Pattern; 3] = [Pattern::Causal, Pattern::SinksAndWindow(90), Pattern::Random];

fn latent(rows: usize, heads: usize) -> Sizes {
    (rows, heads, 1, LATENT[0], LATENT[1])
}

#[test]
fn groups_keep_the_bound_of_attention() {
    let mut random = Random::new(71);
    for sizes in GROUPS {
        for (formats, pattern) in Formats::all().into_iter().zip(PATTERNS.into_iter().cycle()) {
            let mut case = Case::new(&mut random, sizes, formats, pattern, (false, 0.0));
            levels().into_iter().for_each(|level| case.check(level));
        }
    }
}

/// Rows of a prompt, and single rows of as many heads as large models have, of which a tile takes a
/// part. All formats have latent rows of their own among the sizes of `attention`.
#[test]
fn latent_rows_keep_the_bound_of_attention() {
    let mut random = Random::new(72);
    let mut check = |sizes: Sizes, formats: Formats, pattern: Pattern| {
        let case = Case::new(&mut random, sizes, formats, pattern, (false, 0.0));
        let mut case = case.with_values_of_keys(LATENT_SCALE);
        levels().into_iter().for_each(|level| case.check(level));
    };
    for formats in [CacheType::F32, CacheType::Bf16, CacheType::Int8] {
        check(latent(2, 16), formats.into(), Pattern::SinksAndWindow(90));
        check(latent(1, 128), formats.into(), Pattern::Window(70));
    }
}

/// Rows that are wide and compared with each other.
#[test]
fn redundancy_of_latent_rows_keeps_its_bound() {
    let mut random = Random::new(75);
    let scoring = Scoring::default();
    let source = ScoreSource::Queries { pool: 5, scoring, redundancy: 90, second: false };
    for formats in Formats::all() {
        let heads = [4, 1, LATENT[0], LATENT[1]];
        check_heads(&mut random, heads, formats, (source, LATENT_SCALE), true);
    }
}

fn scored_by(aggregate: Aggregate, normalise: Normalise, pool: usize) -> ScoreSource {
    let scoring = Scoring { aggregate, normalise, pooling: Pooling::Average };
    ScoreSource::Queries { pool, scoring, redundancy: 0, second: true }
}

/// Selection of a group is by the mean of its heads, or by the largest.
#[test]
fn groups_are_scored_and_selected_from() {
    let mut random = Random::new(73);
    for (_, heads, kv_heads, key, value) in GROUPS {
        for formats in Formats::all() {
            for aggregate in Aggregate::ALL {
                let normalise = Normalise::ALL[random.below(2)];
                let source = (scored_by(*aggregate, normalise, 5), 0.4);
                let heads = [heads, kv_heads, key, value];
                check_heads(&mut random, heads, formats, source, false);
            }
        }
    }
}

#[test]
fn latent_rows_are_scored_and_selected_from() {
    let mut random = Random::new(74);
    let mut check = |heads: usize, formats: Formats, aggregate: Aggregate| {
        let normalise = Normalise::ALL[random.below(2)];
        let source = (scored_by(aggregate, normalise, 5), LATENT_SCALE);
        check_heads(&mut random, [heads, 1, LATENT[0], LATENT[1]], formats, source, true);
    };
    for formats in Formats::all() {
        check(16, formats, Aggregate::Mean);
    }
    let [(block, ring), ..] = PARTS;
    for formats in
        [CacheType::F32.into(), CacheType::Bf16.into(), Formats { ring, block: Some(block) }]
    {
        check(16, formats, Aggregate::Max);
    }
    check(128, CacheType::F32.into(), Aggregate::Mean);
}
