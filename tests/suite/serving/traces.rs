//! The file of traces: a line for each request, whose spans belong together.

use std::fs;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{PROMPT, completion, start};

const TEXT: &str = "/v1/completions";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

/// Requests of all kinds, and what is in the file when the server has ended.
pub fn written() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("traces.jsonl");
    let server = start(&["--model-name", "tales", "--trace-file", &file.to_string_lossy()])?;
    let body = completion(json!({"max_tokens": 5}));
    let ask = |body: &Value, fields: &[&str]| -> Result<u16> {
        let fields = [fields, &["content-type: application/json"]].concat();
        Ok(server.ask("POST", TEXT, &fields, &body.to_string())?.status)
    };
    let parent = |flags: &str| format!("traceparent: 00-{TRACE}-b7ad6b7169203331-{flags}");
    ensure!(ask(&body, &[&parent("01")])? == 200, "a parent");
    ensure!(ask(&body, &[&parent("00")])? == 200, "a parent that is not sampled");
    ensure!(ask(&body, &["traceparent: 00-zz"])? == 200, "a parent that is none");
    ensure!(ask(&completion(json!({"stream": true, "n": 2})), &[])? == 200, "a stream");
    ensure!(ask(&completion(json!({"top_p": 7})), &[])? == 400, "a mistake");
    ensure!(server.get("/health/live")?.status == 200, "who watches is not traced");
    server.signal("TERM")?;
    ensure!(server.wait()?.success(), "it was told to stop");
    let text = fs::read_to_string(&file)?;
    ensure!(!text.contains(PROMPT) && text.ends_with('\n'), "{text}");
    let lines: Vec<Value> =
        text.lines().map(serde_json::from_str).collect::<Result<_, _>>().context(text.clone())?;
    ensure!(lines.len() == 4, "{text}");
    let spans = |line: usize| {
        let scope = &lines[line]["resourceSpans"][0]["scopeSpans"][0];
        scope["spans"].as_array().context("spans")
    };
    for line in 0..3 {
        let spans = spans(line)?;
        let names: Vec<&str> = spans.iter().filter_map(|span| span["name"].as_str()).collect();
        ensure!(names == ["POST /v1/completions", "queue", "prompt", "decode"], "{names:?}");
        for part in &spans[1..] {
            ensure!(part["parentSpanId"] == spans[0]["spanId"], "{part}");
            ensure!(part["traceId"] == spans[0]["traceId"], "{part}");
        }
    }
    ensure!(spans(0)?[0]["traceId"] == TRACE, "{text}");
    ensure!(spans(0)?[0]["parentSpanId"] == "b7ad6b7169203331", "{text}");
    ensure!(spans(1)?[0]["parentSpanId"].is_null() && spans(1)?[0]["traceId"] != TRACE, "{text}");
    let value = |line: usize, key: &str| -> Result<Value> {
        let attributes = spans(line)?[0]["attributes"].as_array().context("attributes")?;
        let found = attributes.iter().find(|attribute| attribute["key"] == key);
        Ok(found.map(|attribute| attribute["value"].clone()).unwrap_or_default())
    };
    ensure!(value(0, "gen_ai.usage.output_tokens")? == json!({"intValue": "5"}), "{text}");
    ensure!(value(0, "gen_ai.request.model")? == json!({"stringValue": "tales"}), "{text}");
    ensure!(value(2, "gen_ai.request.choice.count")? == json!({"intValue": "2"}), "{text}");
    ensure!(value(3, "http.response.status_code")? == json!({"intValue": "400"}), "{text}");
    ensure!(spans(3)?.len() == 1, "{text}");
    Ok(())
}
