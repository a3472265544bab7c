//! Against values of tables and of simple cases worked by hand.

use super::*;
use crate::random::Random;

fn clusters<V: AsRef<[f64]>>(values: &[V]) -> Vec<Cluster> {
    let cluster = |values: &[f64]| Cluster { count: values.len(), sum: values.iter().sum() };
    values.iter().map(|values| cluster(values.as_ref())).collect()
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
    let found = estimate(&clusters(&[&[0.0], &[0.0], &[1.0], &[1.0]]), (-1.0, 2.0));
    let half = 3.182 * (1.0f64 / 12.0).sqrt();
    assert_eq!(found.mean, 0.5);
    assert!((found.high - 0.5 - half).abs() < 1e-3, "{found:?}");
    assert!((0.5 - found.low - half).abs() < 1e-3, "{found:?}");
}

#[test]
fn questions_that_agree_within_a_document_add_no_certainty() {
    let once = estimate(&clusters(&[&[0.0], &[0.0], &[1.0], &[1.0]]), (-1.0, 2.0));
    let thrice = estimate(&clusters(&[&[0.0; 3], &[0.0; 3], &[1.0; 3], &[1.0; 3]]), (-1.0, 2.0));
    assert!((once.high - thrice.high).abs() < 1e-12);
    assert!((once.low - thrice.low).abs() < 1e-12);
}

#[test]
fn no_difference_is_not_certainty() {
    let found = estimate(&clusters(&[&[0.0, 0.0]; 100]), (-1.0, 1.0));
    assert_eq!(found.mean, 0.0);
    assert!((found.high - 0.0362).abs() < 1e-4, "1 - 0.025^(1/100): {found:?}");
    assert_eq!(found.low, -found.high);
}

#[test]
fn intervals_stay_within_what_is_possible() {
    let all = estimate(&clusters(&[&[1.0]; 3]), (0.0, 1.0));
    assert_eq!((all.mean, all.high), (1.0, 1.0));
    assert!(all.low > 0.25 && all.low < 0.35, "0.025^(1/3) = 0.292: {all:?}");
}

#[test]
fn a_mean_of_tasks_is_narrower_than_its_parts() {
    let part = Estimate { mean: 0.5, low: 0.3, high: 0.6 };
    let whole = mean_of(&[part; 4]);
    assert_eq!(whole.mean, 0.5);
    assert!((whole.low - 0.4).abs() < 1e-12 && (whole.high - 0.55).abs() < 1e-12, "{whole:?}");
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
        let found = estimate(&clusters, (0.0, 1.0));
        covered += usize::from(found.low <= 0.6 && 0.6 <= found.high);
    }
    assert!((1840..=1960).contains(&covered), "{covered} of 2000");
}
