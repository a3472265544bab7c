//! `/v1/embeddings`: what the program's own command gives, in OpenAI's form, for any number of texts.

use anyhow::{Context, Result, anyhow, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use weir_tests::server::Server;
use weir_tests::systems::{Binary, Setup};

use crate::embedding::{cases, close, model};

const CONTEXT: u32 = 512;

/// A program that gives embeddings.
pub fn program() -> Result<Binary> {
    Binary::compile(&model("qwen3"), &Setup { slots: 3, ..Setup::exact(CONTEXT) })
}

fn vectors(answer: &Value) -> Result<Vec<Vec<f32>>> {
    let data = answer["data"].as_array().context("data")?;
    for (index, entry) in data.iter().enumerate() {
        ensure!(entry["index"] == index && entry["object"] == "embedding", "{entry}");
    }
    let read = |entry: &Value| Ok(serde_json::from_value(entry["embedding"].clone())?);
    data.iter().map(read).collect()
}

/// Vectors are the expected ones in every form, for more texts than there are slots and places.
pub fn given() -> Result<()> {
    let server = Server::start(&program()?, &["--queue", "0"])?;
    let cases = cases(&model("qwen3"))?;
    let texts: Vec<&str> = cases.iter().map(|case| case.text.as_str()).collect();
    let ids: Vec<&Vec<u32>> = cases.iter().map(|case| &case.ids).collect();
    let answer = server.post_ok("/v1/embeddings", &json!({"input": texts}))?;
    let tokens: usize = ids.iter().map(|ids| ids.len()).sum();
    ensure!(answer["object"] == "list" && answer["model"] == "qwen3", "{answer}");
    ensure!(
        answer["usage"] == json!({"prompt_tokens": tokens, "total_tokens": tokens}),
        "{answer}"
    );
    let given = vectors(&answer)?;
    for (case, vector) in cases.iter().zip(&given) {
        close(&case.text, vector, &case.vector)?;
    }
    let answer = server.post_ok("/v1/embeddings", &json!({"input": ids}))?;
    ensure!(vectors(&answer)? == given, "token ids give other vectors");
    for input in [json!(texts[1]), json!(ids[1])] {
        let answer = server.post_ok("/v1/embeddings", &json!({"input": input}))?;
        ensure!(vectors(&answer)? == given[1..2], "{input}: {answer}");
    }
    // As OpenAI's clients ask.
    let body = json!({"input": texts, "encoding_format": "base64"});
    let answer = server.post_ok("/v1/embeddings", &body)?;
    let data = answer["data"].as_array().context("data")?;
    for (entry, vector) in data.iter().zip(&given) {
        let text = entry["embedding"].as_str().context("a text")?;
        let bytes = STANDARD.decode(text).map_err(|error| anyhow!("{text}: {error}"))?;
        let expected: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
        ensure!(bytes == expected, "{entry}");
    }
    // The beginning of a vector has length 1 by itself.
    let answer = server.post_ok("/v1/embeddings", &json!({"input": texts[1], "dimensions": 8}))?;
    let short = vectors(&answer)?.remove(0);
    let length = short.iter().map(|value| value * value).sum::<f32>().sqrt();
    let ratio = given[1][0] / short[0];
    ensure!(short.len() == 8 && (length - 1.0).abs() < 1e-6 && ratio < 1.0, "{short:?}");
    ensure!(short.iter().zip(&given[1]).all(|(x, y)| (x * ratio - y).abs() < 1e-6), "{short:?}");
    let many: Vec<String> = (0..500).map(|number| format!("text {}", number % 9)).collect();
    let answer = server.post_ok("/v1/embeddings", &json!({"input": many}))?;
    let given = vectors(&answer)?;
    ensure!(given.len() == 500 && (9..500).all(|at| given[at] == given[at % 9]), "500 texts");
    let status = server.get("/status")?.json()?;
    let slots = &status["slots"];
    ensure!(slots["running"] == 0 && slots["waiting"] == 0, "{status}");
    Ok(())
}

/// What cannot be given is refused by its field, before anything is computed.
pub fn refused() -> Result<()> {
    let server = Server::start(&program()?, &[])?;
    let long = "a b ".repeat(400);
    for (body, field) in [
        (json!({}), "input"),
        (json!({"input": []}), "input"),
        (json!({"input": 7}), "input"),
        (json!({"input": ["a", "b", long]}), "input[2]"),
        (json!({"input": [[1, 2], [3, 320]]}), "input[1]"),
        (json!({"input": [[1, 2], []]}), "input[1]"),
        (json!({"input": vec!["a"; 2049]}), "input"),
        (json!({"input": "a", "encoding_format": "int8"}), "encoding_format"),
        (json!({"input": "a", "dimensions": 0}), "dimensions"),
        (json!({"input": "a", "dimensions": 49}), "dimensions"),
    ] {
        let response = server.post("/v1/embeddings", &body)?;
        let error = response.json()?["error"].clone();
        let param = error["param"].as_str().unwrap_or_default();
        ensure!(response.status == 400 && param == field, "{body}: {} {error}", response.status);
    }
    // It writes no text.
    let messages = json!([{"role": "user", "content": "a"}]);
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/chat/completions", json!({"messages": messages})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 4})),
        ("/v1/responses", json!({"input": "a"})),
    ] {
        let response = server.post(path, &body)?;
        ensure!(response.status == 400, "{path}: {} {}", response.status, response.body);
        ensure!(response.body.contains("/v1/embeddings"), "{path}: {}", response.body);
    }
    Ok(())
}
