//! Filters, penalties and draws on small distributions.

use proptest::prelude::*;

use super::*;

fn choose_with(options: SamplingOptions, logits: &[f32], position: u32) -> Option<u32> {
    let mut sampler = Sampler::new(options, 0);
    sampler.begin(&[], logits.len());
    let mut logits = logits.to_vec();
    sampler.penalise(&mut logits);
    sampler.choose(&logits, position, &mut SamplingScratch::default())
}

/// The ids that 2,000 positions draw, with their counts.
fn counts(options: &SamplingOptions, logits: &[f32]) -> Vec<u32> {
    let mut counts = vec![0; logits.len()];
    for position in 0..2_000 {
        counts[choose_with(options.clone(), logits, position).unwrap() as usize] += 1;
    }
    counts
}

fn hot() -> SamplingOptions {
    SamplingOptions { temperature: 1.0, seed: 7, ..SamplingOptions::default() }
}

#[test]
fn greedy_takes_the_lowest_id_among_equals() {
    assert_eq!(greedy(&[1.0, 3.0, 3.0, f32::NAN]), Some(1));
    assert_eq!(greedy(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), Some(0));
    assert_eq!(greedy(&[f32::NAN]), None);
    assert_eq!(choose_with(hot(), &[f32::NAN], 0), None);
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.5_f32.ln(), 0.25_f32.ln(), 0.125_f32.ln(), 0.125_f32.ln()];
    let counts = counts(&hot(), &logits);
    for (count, share) in counts.iter().zip([0.5, 0.25, 0.125, 0.125]) {
        // Four standard deviations of a binomial with 2,000 trials are at most 90.
        assert!((f64::from(*count) - 2_000.0 * share).abs() < 90.0, "{counts:?}");
    }
}

#[test]
fn filters_keep_what_they_say() {
    let logits = [0.4_f32.ln(), 0.3_f32.ln(), 0.2_f32.ln(), 0.1_f32.ln()];
    let kept = |options: SamplingOptions| {
        counts(&options, &logits).iter().map(|count| *count > 0).collect::<Vec<_>>()
    };
    assert_eq!(kept(SamplingOptions { top_k: 2, ..hot() }), [true, true, false, false]);
    assert_eq!(kept(SamplingOptions { top_k: 9, ..hot() }), [true; 4]);
    assert_eq!(kept(SamplingOptions { top_p: 0.69, ..hot() }), [true, true, false, false]);
    assert_eq!(kept(SamplingOptions { top_p: 0.71, ..hot() }), [true, true, true, false]);
    assert_eq!(kept(SamplingOptions { top_p: 1e-6, ..hot() }), [true, false, false, false]);
    assert_eq!(kept(SamplingOptions { min_p: 0.6, ..hot() }), [true, true, false, false]);
    // Top-p counts mass after top-k: 0.4 / 0.7 is above one half.
    let both = SamplingOptions { top_k: 2, top_p: 0.5, ..hot() };
    assert_eq!(kept(both), [true, false, false, false]);
    assert_eq!(kept(SamplingOptions { temperature: 1e-9, ..hot() }), [true, false, false, false]);
}

#[test]
fn a_large_flat_vocabulary_keeps_its_mass() {
    let mut candidates: Vec<_> = (0..5_000).map(|id| (0.0, id)).collect();
    keep_mass(&mut candidates, 2_500.0, |_| 1.0);
    assert_eq!(candidates.len(), 2_500);
    assert!(candidates.iter().all(|(_, id)| *id < 2_500), "equal logits stay by id");
}

#[test]
fn penalties_count_prompt_and_answer_as_documented() {
    let options = SamplingOptions {
        repetition_penalty: 2.0,
        presence_penalty: 0.5,
        frequency_penalty: 0.25,
        ..SamplingOptions::default()
    };
    let mut sampler = Sampler::new(options, 0);
    assert!(sampler.answer_counts.is_empty(), "who waits holds no tables");
    sampler.begin(&[2], 4);
    let mut scratch = SamplingScratch::default();
    let mut logits = [3.0, 1.0, 4.0, -1.0];
    sampler.penalise(&mut logits);
    assert_eq!(sampler.choose(&logits, 0, &mut scratch), Some(0));
    assert_eq!(logits, [3.0, 1.0, 2.0, -1.0]);
    let mut logits = [4.0, 1.0, -4.0, -1.0];
    sampler.begin(&[2], 4);
    sampler.penalise(&mut logits);
    assert_eq!(sampler.choose(&logits, 1, &mut scratch), Some(0));
    assert_eq!(logits, [1.25, 1.0, -8.0, -1.0]);
    let mut logits = [2.0, 1.0, 0.0, -1.0];
    sampler.penalise(&mut logits);
    assert_eq!(sampler.choose(&logits, 2, &mut scratch), Some(1));
    assert_eq!(logits[0], 0.0);
}

#[test]
fn a_draw_is_a_function_of_seed_choice_and_position() {
    assert_eq!(uniform(1, 2, 3), uniform(1, 2, 3));
    assert_ne!(uniform(1, 2, 3), uniform(2, 2, 3));
    assert_ne!(uniform(1, 2, 3), uniform(1, 3, 3));
    assert_ne!(uniform(1, 2, 3), uniform(1, 2, 4));
    assert!((0..10_000).all(|p| (0.0..1.0).contains(&uniform(0, 0, p))));
    let mean = (0..10_000).map(|p| uniform(0, 0, p)).sum::<f64>() / 10_000.0;
    assert!((mean - 0.5).abs() < 0.012, "{mean}");
}

#[test]
fn options_outside_their_range_are_refused() {
    for options in [
        SamplingOptions { temperature: -1.0, ..hot() },
        SamplingOptions { temperature: f32::NAN, ..hot() },
        SamplingOptions { top_p: 0.0, ..hot() },
        SamplingOptions { min_p: 1.5, ..hot() },
        SamplingOptions { repetition_penalty: 0.0, ..hot() },
        SamplingOptions { presence_penalty: f32::INFINITY, ..hot() },
    ] {
        assert!(options.check().is_err(), "{options:?}");
    }
    assert_eq!(hot().check(), Ok(()));
}

/// Logits of several chunks, with many equal ones, some that are no numbers and some infinite.
fn logits(count: usize) -> impl Strategy<Value = Vec<f32>> {
    let logit = prop_oneof![
        8 => (-40_i32..40).prop_map(|n| n as f32 / 4.0),
        1 => Just(f32::NAN),
        1 => Just(f32::NEG_INFINITY),
        1 => Just(-0.0_f32),
    ];
    proptest::collection::vec(logit, 1..count)
}

/// The best by a search through all.
fn search(logits: &[f32]) -> Option<u32> {
    let mut best: Option<(f32, u32)> = None;
    for (id, logit) in (0_u32..).zip(logits) {
        if !logit.is_nan() && best.is_none_or(|(largest, _)| *logit > largest) {
            best = Some((*logit, id));
        }
    }
    best.map(|(_, id)| id)
}

proptest! {
    #[test]
    fn the_largest_is_that_of_a_search_through_all(logits in logits(2000)) {
        prop_assert_eq!(greedy(&logits), search(&logits));
    }

    #[test]
    fn a_draw_is_where_double_precision_has_it(
        logits in logits(2000),
        temperature in 0.1_f32..3.0,
        position in 0_u32..1000,
    ) {
        let options = SamplingOptions { temperature, ..hot() };
        let Some(chosen) = choose_with(options, &logits, position) else {
            prop_assert_eq!(search(&logits), None);
            return Ok(());
        };
        let best = logits[search(&logits).unwrap() as usize];
        let (mut sum, mut error, mut range) = (0.0, 0.0, (0.0, 0.0));
        for (id, logit) in logits.iter().enumerate() {
            let x = if *logit == best { 0.0 } else { f64::from(logit - best) / f64::from(temperature) };
            let weight = if x.is_nan() { 0.0 } else { x.exp() };
            // Three units of the power, and one of its argument.
            error += if weight > 0.0 { weight * (3.0 - x) * f64::from(f32::EPSILON) } else { 0.0 };
            if id == chosen as usize {
                range = (sum, sum + weight);
            }
            sum += weight;
        }
        // What is drawn of a sum that is off, from weights that are.
        let drawn = uniform(7, 0, position) * sum;
        let error = 2.0 * error + (-87.0_f64).exp() * logits.len() as f64;
        prop_assert!(range.0 - error <= drawn && drawn <= range.1 + error, "{drawn} in {range:?}");
    }

    #[test]
    fn the_k_best_are_among_the_candidates(logits in logits(2000), k in 0_usize..12) {
        let mut largest = LargestOfChunks::new(logits.len());
        let least = largest.least_of_best(&logits, k);
        let found: Vec<(f32, u32)> = largest.at_least(&logits, least).collect();
        let mut all: Vec<(f32, u32)> = (0_u32..)
            .zip(&logits)
            .filter(|(_, logit)| !logit.is_nan())
            .map(|(id, logit)| (*logit, id))
            .collect();
        prop_assert!(found.is_sorted_by_key(|(_, id)| *id));
        if k == 0 {
            prop_assert_eq!(found, all);
            return Ok(());
        }
        all.sort_by(by_rank);
        all.truncate(k);
        prop_assert!(all.iter().all(|best| found.contains(best)));
    }
}

#[test]
fn nothing_is_chosen_from_nothing() {
    assert_eq!(greedy(&[f32::NAN; 300]), None);
    assert_eq!(greedy(&[f32::NAN, f32::NEG_INFINITY, f32::NEG_INFINITY]), Some(1));
    let mut late = vec![f32::NAN; 600];
    late[599] = f32::NEG_INFINITY;
    assert_eq!(greedy(&late), Some(599));
}
