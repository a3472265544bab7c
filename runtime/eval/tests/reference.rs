//! Likeness of texts against the Python packages that published scores are made with: `rouge` 1.0.1
//! and the indel similarity of `rapidfuzz`, which is that of `fuzzywuzzy` with its fast backend.

use serde_json::Value;
use weir_eval::Judge;

#[test]
fn scores_are_those_of_the_packages() {
    let cases = include_str!("files/reference.jsonl");
    for line in cases.lines() {
        let case: Value = serde_json::from_str(line).expect("JSON");
        let text = |name: &str| case[name].as_str().expect("a text").to_owned();
        let truths = vec![text("truth")];
        let judge = match text("metric").as_str() {
            "rouge-l" => Judge::RougeL(truths),
            _ => Judge::CodeLine(truths),
        };
        let found = judge.score(&text("answer")).expect("a score");
        let expected = case["score"].as_f64().expect("a number");
        // `rouge` adds 1e-8 to the divisor; of several longest subsequences it may take another
        // one, with another set of distinct words, of which no text here has more than 90.
        let allowed = if text("metric") == "rouge-l" { 1.0 / 90.0 } else { 1e-9 };
        assert!((found - expected).abs() < allowed, "{found}, not {expected}: {line}");
    }
}
