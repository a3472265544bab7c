//! Recorded cases: texts and rendered chats with the ids that the Python library gave.

use serde_json::Value;

use crate::{DATA, data, files_below, open, shared};

fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list of ids");
    list.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

fn check(name: &str, json: &[u8], cases: &[u8]) {
    let tokenizer = open(json);
    let cases: Value = serde_json::from_slice(cases).expect("cases are JSON");
    for case in cases["encode"].as_array().expect("cases") {
        let text = case["text"].as_str().expect("a text");
        let with = ids(&case["ids"]);
        assert_eq!(tokenizer.encode(text, true).unwrap(), with, "{name}: {text:?}");
        let without = ids(&case["ids_without_special"]);
        assert_eq!(tokenizer.encode(text, false).unwrap(), without, "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&without, false), case["decoded"], "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&with, true), case["decoded_skip_special"], "{name}");
    }
    for chat in cases["chat"].as_array().into_iter().flatten() {
        if let (Some(text), Some(expected)) =
            (chat["rendered"].as_str().or(chat["text"].as_str()), chat.get("ids"))
        {
            let encoded = tokenizer.encode(text, false).unwrap();
            assert_eq!(encoded, ids(expected), "{name}: {text:?}");
        }
    }
}

#[test]
fn recorded_cases_in_the_repository() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    for name in DATA {
        let cases = std::fs::read(root.join(name).join("tokenizer_cases.json")).unwrap();
        check(name, &data(name), &cases);
    }
}

#[test]
fn recorded_cases_beside_the_checkout() {
    let Some(root) = shared("fixtures/hf") else { return };
    for path in files_below(&root, "tokenizer_cases.json") {
        let json = std::fs::read(path.with_file_name("tokenizer.json")).unwrap();
        check(&path.display().to_string(), &json, &std::fs::read(&path).unwrap());
    }
}
