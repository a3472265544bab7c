//! What is written, and what is made of a `traceparent`.

use axum::http::{HeaderName, HeaderValue};

use super::*;
use crate::{FinishReason, Usage};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn traces(file: File) -> Arc<Traces> {
    Traces::start(file, "m", Arc::new(Board::new("m", "isa", 1, 1))).unwrap()
}

fn headers(given: &[&str]) -> HeaderMap {
    let name = HeaderName::from_static("traceparent");
    let field = |text: &&str| (name.clone(), HeaderValue::from_str(text).unwrap());
    given.iter().map(field).collect()
}

/// The spans of each line of what `trace` has had written.
fn written(trace: impl FnOnce(&Arc<Traces>)) -> Vec<Vec<Value>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("traces");
    let traces = traces(open(&path).unwrap());
    trace(&traces);
    traces.finish();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines()
        .map(|line| {
            let line: Value = serde_json::from_str(line).unwrap();
            let scope = &line["resourceSpans"][0]["scopeSpans"][0];
            scope["spans"].as_array().unwrap().clone()
        })
        .collect()
}

fn attribute<'s>(span: &'s Value, key: &str) -> Option<&'s Value> {
    let all = span["attributes"].as_array()?;
    all.iter().find(|attribute| attribute["key"] == key).map(|attribute| &attribute["value"])
}

#[test]
fn a_request_has_a_span_and_its_parts_lie_within() {
    let lines = written(|traces| {
        let span = traces.begin(&headers(&[PARENT]), "POST", "/v1/completions");
        let request = Request { max_tokens: Some(5), ..Request::default() };
        span.ask("text_completion", 2, &request);
        let moments = span.moments().unwrap();
        moments.start(Instant::now());
        moments.token(Instant::now());
        // Later tokens, and those of other answers, change nothing.
        moments.token(Instant::now() + Duration::from_secs(60));
        let usage = Usage { prompt_tokens: 3, completion_tokens: 4, ..Usage::default() };
        let reason = FinishReason::Length;
        let ending = Ending { reason, usage, thought_tokens: 0, called: false, stop: None };
        span.finish(&Counts::new(&[&ending, &ending], 2), &[&ending, &ending]);
        moments.end(Instant::now());
        span.status(200);
        let stream = span.clone();
        drop(span);
        drop(stream);
    });
    assert_eq!(lines.len(), 1);
    let names: Vec<&str> = lines[0].iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["POST /v1/completions", "queue", "prompt", "decode"]);
    let request = &lines[0][0];
    assert_eq!(request["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(request["parentSpanId"], "b7ad6b7169203331");
    assert_eq!((&request["kind"], &request["status"]), (&json!(2), &json!({})));
    for (key, value) in [
        ("http.request.method", json!({"stringValue": "POST"})),
        ("http.response.status_code", json!({"intValue": "200"})),
        ("gen_ai.request.model", json!({"stringValue": "m"})),
        ("gen_ai.request.max_tokens", json!({"intValue": "5"})),
        ("gen_ai.usage.input_tokens", json!({"intValue": "3"})),
        ("gen_ai.usage.output_tokens", json!({"intValue": "8"})),
    ] {
        assert_eq!(attribute(request, key), Some(&value), "{key}");
    }
    let moment =
        |span: &Value, name: &str| -> u64 { span[name].as_str().unwrap().parse().unwrap() };
    let bounds =
        |span: &Value| (moment(span, "startTimeUnixNano"), moment(span, "endTimeUnixNano"));
    let (begin, end) = bounds(request);
    let mut names = std::collections::BTreeSet::from([request["spanId"].to_string()]);
    for part in &lines[0][1..] {
        assert_eq!(part["traceId"], request["traceId"]);
        assert_eq!(part["parentSpanId"], request["spanId"]);
        let (from, to) = bounds(part);
        assert!(begin <= from && from <= to && to <= end, "{part} in {request}");
        assert!(names.insert(part["spanId"].to_string()));
    }
}

#[test]
fn what_is_refused_or_fails_says_so() {
    let lines = written(|traces| {
        traces.begin(&headers(&[]), "POST", "/v1/completions").status(400);
        let span = traces.begin(&headers(&[]), "POST", "/v1/completions");
        span.ask("chat", 1, &Request::default());
        span.status(200);
        span.fail(&Failure::draining());
    });
    let (refused, failed) = (&lines[0], &lines[1]);
    assert_eq!((refused.len(), &refused[0]["status"]), (1, &json!({})));
    assert_eq!(refused[0].get("parentSpanId"), None);
    assert_eq!(failed[0]["status"], json!({"code": 2}));
    assert_eq!(attribute(&failed[0], "error.type"), Some(&json!({"stringValue": "draining"})));
    // It has waited and nothing else.
    assert_eq!((failed.len(), &failed[1]["name"]), (2, &json!("queue")));
    assert_ne!(refused[0]["traceId"], failed[0]["traceId"]);
}

#[test]
fn a_parent_is_as_the_standard_has_it_or_none() {
    let parent = Parent::parse(PARENT).unwrap();
    assert!(parent.is_sampled && parent.trace[0] == 0x0a && parent.span[7] == 0x31);
    let later = format!("cc{}-what-comes", &PARENT[2..]);
    assert_eq!(Parent::parse(&later), Some(parent));
    assert!(!Parent::parse(&PARENT.replace("-01", "-00")).unwrap().is_sampled);
    assert!(Parent::parse(&PARENT.replace("-01", "-09")).unwrap().is_sampled);
    let wrong = [
        String::new(),
        "00".to_owned(),
        PARENT[..54].to_owned(),
        format!("{PARENT}-"),
        format!("{PARENT} "),
        format!(" {PARENT}"),
        format!("ff{}", &PARENT[2..]),
        format!("cc{}x", &PARENT[2..]),
        format!("0g{}", &PARENT[2..]),
        PARENT.to_uppercase(),
        PARENT.replace('-', "_"),
        "00-00000000000000000000000000000000-b7ad6b7169203331-01".to_owned(),
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01".to_owned(),
        "00-0af7651916cd43dd8448eb211c8031-9c-b7ad6b7169203331-01".to_owned(),
        "ü".repeat(30),
        "0".repeat(8000),
    ];
    for text in wrong {
        assert_eq!(Parent::parse(&text), None, "{text}");
    }
}

#[test]
fn who_asks_not_to_be_traced_is_not_and_two_parents_are_none() {
    let unsampled = PARENT.replace("-01", "-00");
    let lines = written(|traces| {
        traces.begin(&headers(&[&unsampled]), "POST", "/v1/completions").status(200);
        traces.begin(&headers(&[PARENT, PARENT]), "POST", "/v1/completions").status(200);
    });
    assert_eq!(lines.len(), 1);
    assert_ne!(lines[0][0]["traceId"], "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(lines[0][0].get("parentSpanId"), None);
}

#[test]
fn a_file_that_takes_nothing_stops_nobody_and_what_is_lost_is_counted() {
    let (reader, writer) = std::io::pipe().unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(writer));
    let board = Arc::new(Board::new("m", "isa", 1, 1));
    let traces = Traces::start(file, "m", Arc::clone(&board)).unwrap();
    let begin = Instant::now();
    for _ in 0..4 * WAITING_LINES {
        traces.begin(&headers(&[]), "POST", "/v1/completions").status(200);
    }
    assert!(begin.elapsed() < Duration::from_secs(30));
    let lost = |board: &Board| -> usize {
        let metrics = board.metrics().unwrap();
        let line = metrics.lines().find(|line| line.starts_with("weir:trace_lines_dropped_total"));
        line.unwrap().split(' ').next_back().unwrap().parse().unwrap()
    };
    // A pipe holds 64 KiB, the queue its lines.
    let before = lost(&board);
    assert!(before >= WAITING_LINES, "{before}");
    drop(reader);
    traces.finish();
    assert!(lost(&board) > before);
}
