//! The fields of JSON, the lines of a table, and what is warned of.

use super::*;
use crate::traffic::outcome::{Answer, Failed, Kind, Outcome, Sent};

/// Two answers and a failure in four seconds.
fn figures(offered: Offered) -> Figures {
    let answer = |first, gap, output_tokens| Answer {
        first: Some(first),
        gaps: vec![gap; 2],
        seconds: first + 2.0 * gap,
        prompt_tokens: Some(10),
        output_tokens,
        text: None,
    };
    let failed = Failed { kind: Kind::Status(429), message: "busy".to_owned() };
    let outcomes = vec![
        Outcome { late: Some(0.002), answer: Ok(answer(0.5, 0.25, Some(3))) },
        Outcome { late: Some(0.002), answer: Ok(answer(1.0, 0.5, None)) },
        Outcome { late: Some(0.05), answer: Err(failed) },
    ];
    Figures::new(offered, Sent { outcomes, seconds: 4.0, most_at_once: 2 })
}

#[test]
fn json_has_the_names_of_other_benchmarks() {
    let object = figures(Offered::PerSecond { rate: 0.75, burstiness: 1.0 }).json("tiny");
    for (name, value) in [
        ("model_id", json!("tiny")),
        ("request_rate", json!(0.75)),
        ("burstiness", json!(1.0)),
        ("max_concurrency", Value::Null),
        ("max_concurrent_requests", json!(2)),
        ("num_prompts", json!(3)),
        ("completed", json!(2)),
        ("failed", json!(1)),
        ("failures", json!({"HTTP 429": 1})),
        ("first_failures", json!({"HTTP 429": "busy"})),
        ("duration", json!(4.0)),
        ("total_input_tokens", json!(20)),
        ("total_output_tokens", json!(6)),
        ("request_throughput", json!(0.5)),
        ("input_throughput", json!(5.0)),
        ("output_throughput", json!(1.5)),
        ("total_token_throughput", json!(6.5)),
        ("mean_ttft_ms", json!(750.0)),
        ("median_ttft_ms", json!(500.0)),
        ("std_ttft_ms", json!(250.0)),
        ("p99_ttft_ms", json!(1000.0)),
        ("mean_itl_ms", json!(375.0)),
        ("median_itl_ms", json!(250.0)),
        ("p90_itl_ms", json!(500.0)),
        ("mean_tpot_ms", json!(375.0)),
        ("p99_e2el_ms", json!(2000.0)),
        ("max_late_ms", json!(50.0)),
    ] {
        assert_eq!(object[name], value, "{name}");
    }
    let unlimited = figures(Offered::Closed { concurrency: 8 }).json("tiny");
    assert_eq!(
        (&unlimited["request_rate"], &unlimited["max_concurrency"]),
        (&json!("inf"), &json!(8))
    );
}

#[test]
fn a_table_has_a_line_for_each_figure() {
    let table = figures(Offered::PerSecond { rate: 0.75, burstiness: 1.0 }).table();
    let expected = "\
rate 0.75/s: 3 requests in 4.0 s, 2 answered, 1 failed, at most 2 at once
  answers                     0.50 /s           2
  prompt tokens               5.00 /s          20
  output tokens               1.50 /s           6
  ms                          mean         p50         p90         p99         max
  first token               750.00      500.00     1000.00     1000.00     1000.00
  between tokens            375.00      250.00      500.00      500.00      500.00
  per output token          375.00      250.00      500.00      500.00      500.00
  whole answer             1500.00     1000.00     2000.00     2000.00     2000.00
  sent late by               18.00        2.00       50.00       50.00       50.00
  1 × HTTP 429: busy
";
    assert_eq!(table, expected);
}

#[test]
fn a_generator_behind_its_schedule_says_so() {
    let warnings = figures(Offered::Trace).warnings();
    assert!(warnings[0].contains("up to 50 ms late"), "{warnings:?}");
    assert!(warnings[1].contains("did not count the tokens of 1 answers"), "{warnings:?}");
    let nothing = Figures::new(
        Offered::Unlimited,
        Sent { outcomes: Vec::new(), seconds: 0.0, most_at_once: 0 },
    );
    assert_eq!(nothing.warnings(), Vec::<String>::new());
    assert_eq!(nothing.json("m")["output_throughput"], json!(0.0));
}
