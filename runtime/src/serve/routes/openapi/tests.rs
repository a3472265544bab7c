//! The document says what the router and the limits say.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::put_together;
use crate::serve::limits::{
    BIASES, INPUTS, LOGPROBS, Limits, MESSAGES, PROMPTS, SAMPLES, STOP_BYTES, STOP_TOKENS, STOPS,
};

/// Paths with their methods, as the router's source adds them.
fn routes() -> BTreeSet<(String, String)> {
    let source = include_str!("../mod.rs");
    let mut routes = BTreeSet::new();
    for call in source.split(".route(\"").skip(1) {
        let (path, rest) = call.split_once("\", ").expect("a path and a method");
        let (method, _) = rest.split_once('(').expect("a method of axum");
        // A path's rest is a parameter like any other to OpenAPI.
        routes.insert((path.replace("{*", "{"), method.to_owned()));
    }
    routes
}

#[test]
fn every_route_is_in_the_document_and_nothing_else() {
    let whole = put_together().unwrap();
    let paths = whole["paths"].as_object().unwrap();
    let documented: BTreeSet<(String, String)> = paths
        .iter()
        .flat_map(|(path, item)| {
            let methods = item.as_object().unwrap().keys();
            methods.map(|method| (path.clone(), method.clone()))
        })
        .collect();
    assert!(routes().len() > 10, "the router's source is read otherwise than it is written");
    assert_eq!(documented, routes());
}

#[test]
fn references_lead_somewhere() {
    fn visit(value: &Value, whole: &Value, seen: &mut usize) {
        match value {
            Value::Object(entries) => {
                if let Some(Value::String(target)) = entries.get("$ref") {
                    let place = target.strip_prefix('#').expect("within the document");
                    assert!(whole.pointer(place).is_some(), "{target}");
                    *seen += 1;
                }
                entries.values().for_each(|entry| visit(entry, whole, seen));
            }
            Value::Array(items) => items.iter().for_each(|item| visit(item, whole, seen)),
            _ => {}
        }
    }
    let whole = put_together().unwrap();
    let mut seen = 0;
    visit(&whole, &whole, &mut seen);
    assert!(seen > 50, "{seen} references");
}

#[test]
fn limits_are_those_that_hold() {
    let whole = put_together().unwrap();
    let schemas = &whole["components"]["schemas"];
    let common = &schemas["Generation"]["properties"];
    assert_eq!(common["n"]["maximum"], json!(SAMPLES));
    assert_eq!(common["stop"]["anyOf"][2]["maxItems"], json!(STOPS));
    assert_eq!(schemas["StopText"]["maxLength"], json!(STOP_BYTES));
    assert_eq!(common["stop_token_ids"]["maxItems"], json!(STOP_TOKENS));
    assert_eq!(common["logit_bias"]["maxProperties"], json!(BIASES));
    assert_eq!(schemas["Messages"]["maxItems"], json!(MESSAGES));
    let chat = &schemas["ChatRequest"]["allOf"][1]["properties"];
    assert_eq!(chat["top_logprobs"]["maximum"], json!(LOGPROBS));
    let text = &schemas["CompletionRequest"]["allOf"][1]["properties"];
    assert_eq!(text["logprobs"]["maximum"], json!(LOGPROBS));
    assert_eq!(text["prompt"]["anyOf"][1]["maxItems"], json!(PROMPTS));
    assert_eq!(text["prompt"]["anyOf"][3]["maxItems"], json!(PROMPTS));
    let input = &schemas["EmbeddingRequest"]["properties"]["input"]["anyOf"];
    assert_eq!([&input[1]["maxItems"], &input[3]["maxItems"]], [INPUTS; 2]);
    let Limits {
        body_bytes,
        json_depth,
        head_bytes,
        headers,
        url_bytes,
        body_idle,
        body_total,
        ..
    } = Limits::default();
    let said = whole["info"]["description"].as_str().unwrap();
    for part in [
        format!("{} MiB and {json_depth} levels", body_bytes >> 20),
        format!("{} KiB and {headers} fields", head_bytes >> 10),
        format!("URL {} KiB", url_bytes >> 10),
    ] {
        assert!(said.contains(&part), "{part} is not in {said}");
    }
    let said = whole["components"]["responses"]["TooSlow"]["description"].as_str().unwrap();
    let part = format!("{} s without a byte, or {} s", body_idle.as_secs(), body_total.as_secs());
    assert!(said.contains(&part), "{part} is not in {said}");
    let said = whole["components"]["responses"]["TooLong"]["description"].as_str().unwrap();
    assert!(said.contains(&format!("{} MiB", body_bytes >> 20)), "{said}");
}

#[test]
fn an_entry_may_be_there_once() {
    let mut entries = json!({"/status": 1});
    assert!(super::add(&mut entries, json!({"/other": 2})).is_ok());
    assert!(super::add(&mut entries, json!({"/status": 3})).is_err());
    assert_eq!(entries, json!({"/status": 1, "/other": 2}));
}
