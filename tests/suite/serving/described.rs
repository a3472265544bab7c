//! What a server answers is what its OpenAPI document says: every example, every error, whole and in
//! pieces.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_tests::server::{Server, read_response};

use super::document::{Document, Operation};
use super::{begin, completion, embeddings, long_one, start, start_slow};

/// Every operation with each of its examples, of both kinds of model.
pub fn described() -> Result<()> {
    is_described(&start(&["--model-name", "a/name"])?)?;
    is_described(&Server::start(&embeddings::program()?, &["--model-name", "a/name"])?)
}

fn is_described(server: &Server) -> Result<()> {
    let document = Document::of(server)?;
    let operations = document.operations()?;
    for operation in &operations {
        let path = operation.path.replace("{name}", "a/name");
        if operation.method == "GET" {
            let response = server.get(&path)?;
            ensure!(response.status == 200, "{path}: {response:?}");
            document.check(operation, &response)?;
            continue;
        }
        ensure!(!operation.examples.is_empty(), "{path} has no example");
        for example in &operation.examples {
            ensure!(document.allows(operation, example)?, "{path}: {example} is not allowed");
            for streams in [false, true] {
                let mut body = example.clone();
                if operation.path.starts_with("/v1/") {
                    body["stream"] = streams.into();
                    let options = streams.then(|| json!({"include_usage": true}));
                    body["stream_options"] = json!(options);
                }
                let response = server.post(&path, &body)?;
                let expected = if operation.is_answered { 200 } else { 400 };
                ensure!(response.status == expected, "{path} {body}: {response:?}");
                document.check(operation, &response)?;
            }
        }
        let wrong = [
            (400, "{".to_owned()),
            (400, json!({"messages": 3, "prompt": 3, "tokens": 3}).to_string()),
            (404, with(&operation.examples[0], "model", "other".into()).to_string()),
            (413, format!("\"{}\"", "a".repeat(5 << 20))),
        ];
        for (status, body) in wrong {
            let response = server.ask("POST", &path, &[], &body)?;
            ensure!(response.status == status, "{path}: {response:?} instead of {status}");
            document.check(operation, &response)?;
        }
    }
    no_other_methods(&operations, |method, path| {
        let response = server.ask(method, path, &[], "")?;
        ensure!(response.status == 405, "{method} {path}: {response:?}");
        document.check_error(&response)
    })?;
    let nowhere = server.get("/v1/nowhere")?;
    ensure!(nowhere.status == 404, "{nowhere:?}");
    document.check_error(&nowhere)
}

fn with(example: &Value, field: &str, value: Value) -> Value {
    let mut body = example.clone();
    body[field] = value;
    body
}

/// Asks every path for what it does not have.
fn no_other_methods(
    operations: &[Operation],
    check: impl Fn(&str, &str) -> Result<()>,
) -> Result<()> {
    for path in operations.iter().map(|operation| &operation.path) {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
            let is_there =
                operations.iter().any(|other| other.path == *path && other.method == method);
            if !is_there {
                check(method, &path.replace("{name}", "a"))?;
            }
        }
    }
    Ok(())
}

/// Refusals that depend on how the server is, not on what is asked.
pub fn described_refusals() -> Result<()> {
    let open = start(&[])?;
    let document = Document::of(&open)?;
    let operations = document.operations()?;
    drop(open);
    let guarded = start(&["--api-key", "a-key"])?;
    for operation in &operations {
        let path = operation.path.replace("{name}", "a");
        let response = guarded.ask(&operation.method, &path, &[], "")?;
        let expected = if operation.is_open { 200 } else { 401 };
        ensure!(response.status == expected, "{path} without a key: {response:?}");
        document.check(operation, &response)?;
    }
    drop(guarded);
    let find = |path: &str| {
        operations.iter().find(|operation| operation.path == path).context("an operation")
    };
    let (text, ready) = (find("/v1/completions")?, find("/health/ready")?);
    let server = Arc::new(start_slow(&["--slots", "1", "--queue", "0"])?);
    let mut stream = begin(&server, &completion(json!({"max_tokens": 2000, "ignore_eos": true})))?;
    server.until("an answer that is being given", |status| status["slots"]["running"] == 1)?;
    let full = server.post(&text.path, &completion(json!({})))?;
    ensure!(full.status == 429, "{full:?}");
    document.check(text, &full)?;
    server.signal("TERM")?;
    // Nothing tells when the signal has been heard but the answers themselves.
    let mut draining = server.get(&ready.path)?;
    while draining.status == 200 {
        draining = server.get(&ready.path)?;
    }
    document.check(ready, &draining)?;
    let refused = server.post(&text.path, &completion(json!({})))?;
    ensure!(refused.status == 503, "{refused:?}");
    document.check(text, &refused)?;
    let answer = read_response(&mut stream)?;
    ensure!(answer.status == 200, "{answer:?}");
    document.check(text, &answer)?;
    let server = start_slow(&["--request-timeout", "1"])?;
    let overdue = server.post(&text.path, &with(&long_one(), "stream", false.into()))?;
    ensure!(overdue.status == 504, "{overdue:?}");
    document.check(text, &overdue)
}
