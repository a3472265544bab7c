//! Against values of tables and of simple cases worked by hand.

use super::*;
use crate::random::Random;

fn clusters<V: AsRef<[f64]>>(values: &[V]) -> Vec<Cluster> {
    let cluster = |values: &[f64]| Cluster { count: values.len(), sum: values.iter().sum() };
    values.iter().map(|values| cluster(values.as_ref())).collect()
}

/// A mean with the ends of its interval.
#[derive(Debug, PartialEq)]
struct Estimate {
    mean: f64,
    low: f64,
    high: f64,
}

/// What has an interval, with its ends.
fn ends(mean: Mean) -> Estimate {
    let Interval { low, high } = mean.interval.expect("an interval");
    Estimate { mean: mean.value, low, high }
}

#[test]
fn quantiles_are_those_of_the_tables() {
    // Any table of Student's t, two-sided 95 %. The expansion's error at 3 is the largest.
    for (degrees, expected) in
        [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (10, 2.228), (30, 2.042), (1000, 1.962)]
    {
        let found = student(degrees);
        assert!((found - expected).abs() < 0.004, "{degrees}: {found}, not {expected}");
    }
}

#[test]
fn one_question_a_document_is_the_plain_interval() {
    // Values 0, 0, 1, 1: mean 0.5, variance 1/3, standard error sqrt(1/12), t(3) = 3.182.
    let found = ends(estimate(&clusters(&[&[0.0], &[0.0], &[1.0], &[1.0]]), (-1.0, 2.0)));
    let half = 3.182 * (1.0f64 / 12.0).sqrt();
    assert_eq!(found.mean, 0.5);
    assert!((found.high - 0.5 - half).abs() < 1e-3, "{found:?}");
    assert!((0.5 - found.low - half).abs() < 1e-3, "{found:?}");
}

#[test]
fn questions_that_agree_within_a_document_add_no_certainty() {
    let once = ends(estimate(&clusters(&[&[0.0], &[0.0], &[1.0], &[1.0]]), (-1.0, 2.0)));
    let thrice =
        ends(estimate(&clusters(&[&[0.0; 3], &[0.0; 3], &[1.0; 3], &[1.0; 3]]), (-1.0, 2.0)));
    assert!((once.high - thrice.high).abs() < 1e-12);
    assert!((once.low - thrice.low).abs() < 1e-12);
}

#[test]
fn no_difference_is_not_certainty() {
    let found = ends(estimate(&clusters(&[&[0.0, 0.0]; 100]), (-1.0, 1.0)));
    assert_eq!(found.mean, 0.0);
    assert!((found.high - 0.0362).abs() < 1e-4, "1 - 0.025^(1/100): {found:?}");
    assert_eq!(found.low, -found.high);
}

#[test]
fn intervals_stay_within_what_is_possible() {
    let all = ends(estimate(&clusters(&[&[1.0]; 3]), (0.0, 1.0)));
    assert_eq!((all.mean, all.high), (1.0, 1.0));
    assert!(all.low > 0.25 && all.low < 0.35, "0.025^(1/3) = 0.292: {all:?}");
}

#[test]
fn a_mean_of_tasks_is_narrower_than_its_parts() {
    let part = Mean { value: 0.5, interval: Some(Interval { low: 0.3, high: 0.6 }) };
    let whole = ends(mean_of(&[part; 4]));
    assert_eq!(whole.mean, 0.5);
    assert!((whole.low - 0.4).abs() < 1e-12 && (whole.high - 0.55).abs() < 1e-12, "{whole:?}");
}

/// How documents differ cannot be seen from one: neither certainty nor a width.
#[test]
fn one_document_has_a_mean_and_no_interval() {
    for values in [&[1.0][..], &[0.0, 0.0], &[0.0, 1.0, 1.0, 0.0]] {
        let value = values.iter().sum::<f64>() / values.len() as f64;
        let found = estimate(&clusters(&[values]), (0.0, 1.0));
        assert_eq!(found, Mean { value, interval: None });
        let found = Mean::of_differences([(values.len(), values.iter().sum())]);
        assert_eq!(found, Mean { value, interval: None });
    }
    let two = estimate(&clusters(&[&[0.0], &[1.0]]), (0.0, 1.0));
    assert!(two.interval.is_some());
    // One task that cannot say how sure it is leaves the mean of all without an interval.
    let one = Mean { value: 1.0, interval: None };
    assert_eq!(mean_of(&[two, one]), Mean { value: 0.75, interval: None });
}

/// Differences have no bounds, so the rule for shares says nothing about them.
#[test]
fn differences_of_rounding_have_intervals_of_rounding() {
    let found = ends(Mean::of_differences([(100, 1e-8), (100, -1e-8), (100, 2e-8)]));
    assert!(found.low < 0.0 && found.high > 0.0, "{found:?}");
    assert!(found.high - found.low < 1e-8, "{found:?}");
    let same = ends(Mean::of_differences([(100, 0.0), (100, 0.0)]));
    assert_eq!(same, Estimate { mean: 0.0, low: 0.0, high: 0.0 });
}

#[test]
fn intervals_cover_the_truth_as_often_as_they_say() {
    // 2,000 runs of 20 documents with 4 questions: a document is easy (90 %) or hard (30 %) at even
    // odds, so that the truth is 60 %. The share covered has a standard error of 0.5 points; the
    // interval is approximate for answers that are 0 or 1, so 3 points are allowed. One that took
    // questions for independent would cover 82 %: its standard error is 0.69 of the right one.
    let mut random = Random::new(7, 0);
    let mut covered = 0;
    for _ in 0..2000 {
        let mut document = || {
            let percent = *random.pick(&[90, 30]);
            let right = (0..4).filter(|_| random.below(100) < percent).count();
            Cluster { count: 4, sum: right as f64 }
        };
        let clusters: Vec<Cluster> = (0..20).map(|_| document()).collect();
        let found = ends(estimate(&clusters, (0.0, 1.0)));
        covered += usize::from(found.low <= 0.6 && 0.6 <= found.high);
    }
    assert!((1840..=1960).contains(&covered), "{covered} of 2000");
}
