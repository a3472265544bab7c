//! Percentiles and sums of answers whose figures are known.

use super::*;
use crate::traffic::outcome::{Failed, Outcome};

#[test]
fn percentiles_are_values_at_their_nearest_rank() {
    let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
    let all = Distribution::of(values).expect("values");
    assert_eq!(
        (all.mean, all.median, all.p90, all.p99, all.max),
        (100.5, 100.0, 180.0, 198.0, 200.0)
    );
    // (n² - 1) / 12 is the variance of 1 to n.
    assert!((all.deviation - (39_999_f64 / 12.0).sqrt()).abs() < 1e-9);
    let five = Distribution::of(vec![35.0, 20.0, 15.0, 50.0, 40.0]).expect("values");
    assert_eq!((five.median, five.p90, five.p99, five.max), (35.0, 50.0, 50.0, 50.0));
    let one = Distribution::of(vec![3.0]).expect("a value");
    assert_eq!((one.median, one.p99, one.deviation), (3.0, 3.0, 0.0));
    assert_eq!(Distribution::of(Vec::new()), None);
}

fn answer(first: f64, gaps: &[f64], output_tokens: Option<u64>) -> Outcome {
    let seconds = first + gaps.iter().sum::<f64>();
    let answer = Answer {
        first: Some(first),
        gaps: gaps.to_vec(),
        seconds,
        prompt_tokens: Some(10),
        output_tokens,
        text: None,
    };
    Outcome { late: Some(0.001), answer: Ok(answer) }
}

#[test]
fn answers_are_summed_and_failures_counted_by_kind() {
    let failed = |kind, message: &str| {
        let message = message.to_owned();
        Outcome { late: None, answer: Err(Failed { kind, message }) }
    };
    let outcomes = vec![
        answer(0.5, &[0.1, 0.3], Some(5)),
        failed(Kind::Status(429), "one"),
        failed(Kind::Status(429), "two"),
        failed(Kind::Timeout, "three"),
        answer(0.7, &[], None),
    ];
    let sent = Sent { outcomes, seconds: 2.0, most_at_once: 3 };
    let figures = Figures::new(Offered::Unlimited, sent);
    assert_eq!((figures.sent, figures.completed, figures.failed()), (5, 2, 3));
    let busy = Failures { count: 2, example: "one".to_owned() };
    assert_eq!(figures.failures[&Kind::Status(429)], busy);
    assert_eq!(figures.failures[&Kind::Timeout].count, 1);
    assert_eq!((figures.prompt_tokens, figures.output_tokens), (Some(20), 6));
    assert_eq!((figures.uncounted, figures.per_second(6)), (1, 3.0));
    let per_token = figures.per_token.expect("an answer of several tokens");
    assert!((per_token.max - 0.1).abs() < 1e-12);
    assert_eq!(figures.gaps.map(|gaps| gaps.max), Some(0.3));
}
