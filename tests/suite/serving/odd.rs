//! Thousands of requests that no client means, made from the OpenAPI document: a server refuses what the
//! document does not allow, says which field is to blame, and answers the next one as if nothing were.
//!
//! Each request follows from the seed and its number alone, so one that fails can be made again.

mod making;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::Shutdown;
use std::sync::OnceLock;

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::{Value, json};
use weir_tests::server::{Response, Server, read_response};
use weir_tests::systems::Binary;

use self::making::{Asked, Expected, Maker};
use super::document::Document;
use super::{PROMPT, compiled, completion};

/// How many times each status was answered; 0 where the connection was closed without an answer.
type Counts = BTreeMap<u16, usize>;

/// Clients that ask at once.
const CLIENTS: usize = 4;

/// Asks that many requests of a program with a context so small that no answer is long.
pub fn odd(requests: usize, seed: u64) -> Result<()> {
    static PROGRAM: OnceLock<std::sync::Arc<Binary>> = OnceLock::new();
    let program = compiled(&PROGRAM, "models/tales/onnx-genai-int4", 128, "full")?;
    // Room for as many prompts and answers as the clients may ask for at once: 64 and 8 each.
    let server = Server::start(&program, &["--queue", "2048"])?;
    let document = Document::of(&server)?;
    let maker = Maker::new(&document, seed)?;
    let alone: Value = serde_json::from_str(&program.run(&[
        "generate",
        "--json",
        "--prompt",
        PROMPT,
        "--max-tokens",
        "24",
    ])?)?;
    let ask_some = |client: usize| -> Result<Counts> {
        let mut counts = Counts::new();
        for number in (client..requests).step_by(CLIENTS) {
            let asked = maker.make(number as u64)?;
            let response = ask(&server, &asked);
            let status = judge(&document, &asked, response)
                .with_context(|| format!("request {number} of seed {seed}: {asked}"))?;
            *counts.entry(status).or_default() += 1;
        }
        Ok(counts)
    };
    let counts = std::thread::scope(|scope| -> Result<Counts> {
        let clients: Vec<_> =
            (0..CLIENTS).map(|client| scope.spawn(move || ask_some(client))).collect();
        let mut all = Counts::new();
        for client in clients {
            for (status, count) in client.join().map_err(|_| anyhow!("a client panicked"))?? {
                *all.entry(status).or_default() += count;
            }
        }
        Ok(all)
    })?;
    // Were nearly all of one kind, not much would have been asked.
    for status in [200, 400] {
        let count = counts.get(&status).copied().unwrap_or(0);
        ensure!(count * 10 > requests, "{count} of {requests} had status {status}: {counts:?}");
    }
    server.until("an empty server", |status| {
        status["slots"]["running"] == 0 && status["slots"]["waiting"] == 0
    })?;
    let said = server.said();
    let panic = said.iter().find(|line| line.contains("panicked"));
    ensure!(panic.is_none(), "{panic:?}");
    let whole = server.post_ok("/v1/completions", &completion(json!({})))?;
    ensure!(whole["choices"][0]["text"] == alone["text"], "{whole} instead of {alone}");
    Ok(())
}

/// The response, or nothing where the server closed the connection without one.
fn ask(server: &Server, asked: &Asked) -> Result<Option<Response>> {
    let mut stream = server.connect()?;
    // A server that refuses may close before it has read everything.
    let _ = stream.write_all(&asked.bytes);
    if asked.is_cut {
        let _ = stream.shutdown(Shutdown::Write);
    }
    Ok(read_response(&mut stream).ok())
}

/// The status, if the response is what there must be.
fn judge(document: &Document, asked: &Asked, response: Result<Option<Response>>) -> Result<u16> {
    let Some(response) = response? else {
        ensure!(asked.is_cut || asked.operation.is_none(), "there was no answer");
        return Ok(0);
    };
    let status = response.status;
    let shown = || format!("{status}: {}", response.body);
    ensure!(status < 500 || status == 503, "{}", shown());
    match &asked.operation {
        Some(operation) if ![405, 414].contains(&status) => document.check(operation, &response)?,
        // Heads that cannot be read are refused without words, and so is whoever asks for a head alone.
        _ if [400, 405, 431].contains(&status) && response.body.is_empty() => {}
        _ if [100, 200].contains(&status) => {}
        // What was cut may have been meant for any interface.
        _ => document.check_any_error(&response)?,
    }
    match &asked.expected {
        Expected::Anything => {}
        Expected::Status(expected) => ensure!(status == *expected, "{}", shown()),
        Expected::Refusal(field) => {
            ensure!(
                (400..500).contains(&status),
                "it is not allowed, and was answered {}",
                shown()
            );
            let error = response.json()?["error"].clone();
            let message = error["message"].as_str().unwrap_or_default();
            // Anthropic's form has no place for the field, so its message begins with it.
            let param = error["param"].as_str().unwrap_or(message);
            let first = param.split(['.', '[', ':', ' ']).next().unwrap_or_default();
            // JSON that is none, or too deep, has no fields.
            let is_json = !["not valid JSON", "the JSON is nested"]
                .iter()
                .any(|begin| message.starts_with(begin));
            // What is tokenized is one field or the other, so that the first is missing where both are.
            let is_either = message == "either prompt or messages is needed";
            ensure!(!is_json || is_either || first == field, "{field} is to blame: {error}");
        }
    }
    Ok(status)
}
