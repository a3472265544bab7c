//! Schemas as people and programs write them, and as nobody should: which answers keep to them. A file has
//! cases of a name, a schema, answers that keep to it and some that do not (`good`, `bad`; `texts` are the
//! same letter by letter), or a part of the reason why it is refused.

use super::*;

const FILES: [(&str, &str); 2] = [
    ("usual.json", include_str!("schemas/usual.json")),
    ("spelled.json", include_str!("schemas/spelled.json")),
];

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    schema: Value,
    #[serde(default)]
    good: Vec<Value>,
    #[serde(default)]
    bad: Vec<Value>,
    #[serde(default)]
    texts: Texts,
    refused: Option<String>,
}

#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Texts {
    #[serde(default)]
    good: Vec<String>,
    #[serde(default)]
    bad: Vec<String>,
}

/// What is wrong with a case, if anything is.
fn faults(case: &Case) -> Vec<String> {
    let constraint = Constraint::JsonSchema(case.schema.clone());
    match (read(&constraint), &case.refused) {
        (Err(error), Some(part)) if error.to_string().contains(part) => return Vec::new(),
        (Err(error), _) => return vec![format!("is refused: {error}")],
        (Ok(_), Some(_)) => return vec!["is read".to_owned()],
        (Ok(_), None) => {}
    }
    let written = |values: &[Value], texts: &[String]| -> Vec<String> {
        values.iter().map(Value::to_string).chain(texts.iter().cloned()).collect()
    };
    let good = written(&case.good, &case.texts.good);
    let bad = written(&case.bad, &case.texts.bad);
    let refused = good.into_iter().filter(|text| !takes(&constraint, text));
    let taken = bad.into_iter().filter(|text| takes(&constraint, text));
    refused
        .map(|text| format!("does not take {text}"))
        .chain(taken.map(|text| format!("takes {text}")))
        .collect()
}

#[test]
fn answers_keep_to_schemas_as_they_are_written() {
    let mut all = Vec::new();
    for (file, source) in FILES {
        let cases: Vec<Case> = serde_json::from_str(source).unwrap();
        for case in cases {
            let expects = case.good.len() + case.bad.len() + case.texts.good.len();
            assert!(expects > 0 || case.refused.is_some(), "{file}: {} expects nothing", case.name);
            all.extend(
                faults(&case).into_iter().map(|fault| format!("{file}: {} {fault}", case.name)),
            );
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}
