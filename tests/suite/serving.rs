//! `serve`: what is asked over HTTP is what the program says without it, whoever else asks; what cannot
//! be done is refused by name; nobody can hold what others need.

mod clients;
mod confined;
mod constraints;
mod described;
mod document;
mod faults;
mod odd;
mod origins;
mod page;
mod tls;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use weir_tests::places::root;
use weir_tests::server::{Response, Server, read_response};
use weir_tests::systems::{Binary, Setup};

use crate::trial;

/// A check with its name.
type Check = (&'static str, fn() -> Result<()>);

pub fn trials() -> Vec<Trial> {
    let checks: [Check; 31] = [
        ("answers", answers),
        ("streams", streams),
        ("probabilities", probabilities),
        ("mistakes", mistakes),
        ("company", company),
        ("queue", queue),
        ("gone", || faults::gone(40)),
        ("killed", faults::killed),
        ("keys", keys),
        ("limits", limits),
        ("large_bodies", large_bodies),
        ("drain", drain),
        ("overdue", overdue),
        ("notices", notices),
        ("constraints_kept", constraints::kept),
        ("constraints_in_company", constraints::in_company),
        ("constraints_refused", constraints::refused),
        ("described", described::described),
        ("described_refusals", described::described_refusals),
        ("odd", || odd::odd(2000, 1)),
        ("clients/python", clients::python),
        ("clients/javascript", clients::javascript),
        ("confined", confined::confined),
        ("replaced_keys", confined::replaced_keys),
        ("own_pages", origins::own_pages),
        ("allowed_pages", origins::allowed_pages),
        ("tls/asked", tls::asked),
        ("tls/openssl", tls::openssl),
        ("tls/replaced", tls::replaced),
        ("tls/strangers", tls::strangers),
        ("tls/given_socket", tls::given_socket),
    ];
    let mut trials: Vec<Trial> =
        (checks.into_iter()).map(|(name, check)| trial(format!("serving/{name}"), check)).collect();
    let long: [Check; 4] = [
        ("company_of_1000", || crowd(1000, 8)),
        ("gone_1000", || faults::gone(1000)),
        ("odd_100000", || odd::odd(100_000, 2)),
        ("slow_10000", || faults::slow(10_000)),
    ];
    trials.extend(
        long.into_iter()
            .map(|(name, check)| trial(format!("serving/{name}"), check).with_ignored_flag(true)),
    );
    let has_browser = page::can_run();
    if !has_browser {
        println!("no chromedriver and chromium: the tests of the page are not run");
    }
    let seen: [Check; 2] =
        [("page/conversation", page::conversation), ("page/live_view", page::live_view)];
    trials.extend(seen.into_iter().map(|(name, check)| {
        trial(format!("serving/{name}"), check).with_ignored_flag(!has_browser)
    }));
    trials
}

const PROMPT: &str = "Once upon a time";

/// A program for all checks that ask for an answer: it is compiled once.
fn program() -> Result<Arc<Binary>> {
    static PROGRAM: OnceLock<Arc<Binary>> = OnceLock::new();
    let kv = "snapstream,rows=128,sinks=4,recent=32,window=8";
    compiled(&PROGRAM, "models/tales/onnx-genai-int4", 1024, kv)
}

/// One for all checks that need an answer to take its time.
fn slow_program() -> Result<Arc<Binary>> {
    static PROGRAM: OnceLock<Arc<Binary>> = OnceLock::new();
    compiled(&PROGRAM, "models/recall/onnx", 8192, "full")
}

fn compiled(
    place: &OnceLock<Arc<Binary>>,
    model: &str,
    context: u32,
    kv: &str,
) -> Result<Arc<Binary>> {
    if let Some(program) = place.get() {
        return Ok(Arc::clone(program));
    }
    let setup = Setup {
        context,
        kv: kv.to_owned(),
        kv_dtype: None,
        compute: None,
        weights: None,
        calibrate: None,
        slots: 4,
    };
    let program = Binary::compile(&root().join(model), &setup)?;
    Ok(Arc::clone(place.get_or_init(|| Arc::new(program))))
}

fn start(options: &[&str]) -> Result<Server> {
    Server::start(program()?.as_ref(), options)
}

fn start_slow(options: &[&str]) -> Result<Server> {
    Server::start(slow_program()?.as_ref(), options)
}

/// What the program's own command writes.
fn generated(arguments: &[&str]) -> Result<Value> {
    let command = [&["generate", "--json", "--prompt", PROMPT], arguments].concat();
    Ok(serde_json::from_str(&program()?.run(&command)?)?)
}

fn completion(extra: Value) -> Value {
    let mut body = json!({"prompt": PROMPT, "max_tokens": 24, "temperature": 0});
    if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
        body.extend(extra.clone());
    }
    body
}

fn answers() -> Result<()> {
    let server = start(&["--model-name", "tales"])?;
    let alone = generated(&["--max-tokens", "24"])?;
    let whole = server.post_ok("/v1/completions", &completion(json!({"model": "tales"})))?;
    ensure!(whole["object"] == "text_completion", "{whole}");
    ensure!(whole["choices"][0]["text"] == alone["text"], "{whole} instead of {alone}");
    ensure!(whole["choices"][0]["finish_reason"] == alone["finish_reason"], "{whole}");
    for (field, own) in [
        ("prompt_tokens", "prompt_tokens"),
        ("completion_tokens", "completion_tokens"),
        ("kv_rows_kept", "kv_rows_kept"),
        ("kv_rows_dropped", "kv_rows_dropped"),
    ] {
        ensure!(whole["usage"][field] == alone["usage"][own], "{field}: {whole} and {alone}");
    }
    // A temperature, and all that goes with it.
    let sampled = json!({
        "temperature": 0.9, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 7, "stop": ["."],
        "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1,
        "max_tokens": 60,
    });
    let whole = server.post_ok("/v1/completions", &completion(sampled))?;
    let alone = generated(&[
        "--max-tokens",
        "60",
        "--temperature",
        "0.9",
        "--top-p",
        "0.9",
        "--top-k",
        "40",
        "--min-p",
        "0.01",
        "--seed",
        "7",
        "--stop",
        ".",
        "--repetition-penalty",
        "1.1",
        "--presence-penalty",
        "0.1",
        "--frequency-penalty",
        "0.1",
    ])?;
    ensure!(whole["choices"][0]["text"] == alone["text"], "{whole} instead of {alone}");
    ensure!(whole["choices"][0]["finish_reason"] == "stop", "{whole}");
    // Several prompts, several answers to each, in texts and in tokens.
    let tokens = server.post_ok("/tokenize", &json!({"prompt": PROMPT}))?;
    let text = server.post_ok("/detokenize", &json!({"tokens": tokens["tokens"]}))?;
    ensure!(text["prompt"].as_str().is_some_and(|text| text.contains(PROMPT)), "{text}");
    let prompts = json!([tokens["tokens"], tokens["tokens"]]);
    let several = json!({"prompt": prompts, "n": 2, "temperature": 1, "seed": 3, "max_tokens": 12});
    let several = server.post_ok("/v1/completions", &completion(several))?;
    let texts: Vec<&Value> = (0..4).map(|index| &several["choices"][index]["text"]).collect();
    ensure!(texts[0] == texts[2] && texts[1] == texts[3] && texts[0] != texts[1], "{several}");
    for (sample, seed) in ["3", "4"].iter().enumerate() {
        let alone = generated(&["--max-tokens", "12", "--temperature", "1", "--seed", seed])?;
        ensure!(*texts[sample] == alone["text"], "{several} instead of {alone}");
    }
    // A bias decides.
    let token = &server
        .post_ok("/tokenize", &json!({"prompt": "dog", "add_special_tokens": false}))?["tokens"][0];
    let bias = json!({"logit_bias": {token.to_string(): 100}, "max_tokens": 3});
    let biased = server.post_ok("/v1/completions", &completion(bias))?;
    let expected = server.post_ok("/detokenize", &json!({"tokens": [token, token, token]}))?;
    ensure!(biased["choices"][0]["text"] == expected["prompt"], "{biased} and {expected}");
    // A conversation.
    let messages = json!([{"role": "user", "content": "Tell me a story about a dog."}]);
    let body = json!({"messages": messages, "max_tokens": 16, "temperature": 0});
    let chat = server.post_ok("/v1/chat/completions", &body)?;
    ensure!(chat["object"] == "chat.completion", "{chat}");
    ensure!(chat["choices"][0]["message"]["role"] == "assistant", "{chat}");
    let ids = server.post_ok("/tokenize", &json!({"messages": messages}))?;
    let same = json!({"prompt": ids["tokens"], "max_tokens": 16});
    let same = server.post_ok("/v1/completions", &completion(same))?;
    ensure!(chat["choices"][0]["message"]["content"] == same["choices"][0]["text"], "{chat}");
    // What it is.
    let models = server.get("/v1/models")?.json()?;
    ensure!(models["data"][0]["id"] == "tales", "{models}");
    ensure!(models["data"][0]["max_model_len"] == 1024, "{models}");
    ensure!(server.get("/v1/models/tales")?.status == 200, "its name");
    ensure!(server.get("/health/live")?.status == 200, "live");
    ensure!(server.get("/health/ready")?.status == 200, "ready");
    server.until("an empty server", |status| status["slots"]["running"] == 0)?;
    let metrics = server.get("/metrics")?.body;
    for name in [
        "weir:generation_tokens_total ",
        "weir:num_requests_running 0",
        "weir:time_to_first_token_seconds_count ",
        "weir:request_success_total{finished_reason=\"stop\"}",
    ] {
        ensure!(metrics.contains(name), "{name} is not in {metrics}");
    }
    let page = server.get("/")?;
    ensure!(page.status == 200 && page.header("content-security-policy").is_some(), "the page");
    Ok(())
}

/// Texts of a stream's answers, with their reasons, and the counts at its end.
fn joined(
    response: &Response,
    answers: usize,
    field: &str,
) -> Result<(Vec<(String, Value)>, Value)> {
    ensure!(response.status == 200, "{}", response.body);
    ensure!(response.header("content-type") == Some("text/event-stream"), "{response:?}");
    let mut texts = vec![(String::new(), Value::Null); answers];
    let mut usage = Value::Null;
    let events = response.events();
    ensure!(events.last() == Some(&"[DONE]"), "{events:?}");
    for event in &events[..events.len() - 1] {
        let event: Value = serde_json::from_str(event)?;
        if !event["usage"].is_null() {
            usage = event["usage"].clone();
        }
        for choice in event["choices"].as_array().context("choices")? {
            let index = choice["index"].as_u64().context("an index")? as usize;
            let text = match field {
                "delta" => &choice["delta"]["content"],
                _ => &choice[field],
            };
            texts[index].0.push_str(text.as_str().unwrap_or_default());
            if !choice["finish_reason"].is_null() {
                ensure!(texts[index].1.is_null(), "ends twice: {events:?}");
                texts[index].1 = choice["finish_reason"].clone();
            }
        }
    }
    Ok((texts, usage))
}

fn streams() -> Result<()> {
    let server = start(&[])?;
    let asked = json!({"n": 3, "temperature": 1, "seed": 11, "max_tokens": 40, "stop": ["the"]});
    let whole = server.post_ok("/v1/completions", &completion(asked.clone()))?;
    let mut body = completion(asked);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let (texts, usage) = joined(&server.post("/v1/completions", &body)?, 3, "text")?;
    for (index, (text, reason)) in texts.iter().enumerate() {
        let choice = &whole["choices"][index];
        ensure!(choice["text"] == *text && choice["finish_reason"] == *reason, "{choice} {text}");
    }
    for field in ["prompt_tokens", "completion_tokens", "total_tokens"] {
        ensure!(usage[field] == whole["usage"][field], "{usage} and {whole}");
    }
    // A conversation, in characters of several bytes.
    let messages = json!([{"role": "user", "content": "Écrivez: été ☃"}]);
    let mut body = json!({"messages": messages, "max_tokens": 30, "temperature": 0});
    let whole = server.post_ok("/v1/chat/completions", &body)?;
    body["stream"] = true.into();
    let (texts, usage) = joined(&server.post("/v1/chat/completions", &body)?, 1, "delta")?;
    ensure!(whole["choices"][0]["message"]["content"] == texts[0].0, "{whole} {texts:?}");
    ensure!(usage.is_null(), "counts that nobody asked for");
    Ok(())
}

fn probabilities() -> Result<()> {
    let server = start(&[])?;
    let body = completion(json!({"logprobs": 3, "max_tokens": 6, "presence_penalty": 1.5}));
    let whole = server.post_ok("/v1/completions", &body)?;
    let logprobs = &whole["choices"][0]["logprobs"];
    let count = whole["usage"]["completion_tokens"].as_u64().context("a count")? as usize;
    for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let entries = logprobs[field].as_array().map(Vec::len);
        ensure!(entries == Some(count), "{field}: {logprobs}");
    }
    for (index, best) in logprobs["top_logprobs"].as_array().into_iter().flatten().enumerate() {
        let values: Vec<f64> = best
            .as_object()
            .into_iter()
            .flatten()
            .filter_map(|(_, value)| value.as_f64())
            .collect();
        let chosen = logprobs["token_logprobs"][index].as_f64().context("a number")?;
        let sum: f64 = values.iter().map(|value| value.exp()).sum();
        // Of the model's own distribution, so at most all of it, and no penalty is in it.
        ensure!(sum <= 1.0 + 1e-5 && chosen <= 0.0, "{logprobs}");
    }
    let first = logprobs["token_logprobs"][0].as_f64().context("a number")?;
    let best = logprobs["top_logprobs"][0].as_object().context("an object")?;
    // The first token is the most probable one: nothing has been said yet that a penalty would count.
    let most = best.values().filter_map(Value::as_f64).fold(f64::NEG_INFINITY, f64::max);
    ensure!(first == most, "{logprobs}");
    // The same tokens in a conversation's form, piece by piece.
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let mut body = json!({"messages": messages, "max_tokens": 5, "temperature": 0,
        "logprobs": true, "top_logprobs": 2});
    let whole = server.post_ok("/v1/chat/completions", &body)?;
    let whole = whole["choices"][0]["logprobs"]["content"].clone();
    body["stream"] = true.into();
    let streamed = server.post("/v1/chat/completions", &body)?;
    let mut pieces = Vec::new();
    for event in streamed.events().iter().filter(|event| **event != "[DONE]") {
        let event: Value = serde_json::from_str(event)?;
        let content = event["choices"][0]["logprobs"]["content"].as_array().cloned();
        pieces.extend(content.unwrap_or_default());
    }
    ensure!(whole == Value::from(pieces.clone()), "{whole} and {pieces:?}");
    ensure!(
        pieces.iter().all(|piece| piece["top_logprobs"].as_array().map(Vec::len) == Some(2)),
        "{pieces:?}"
    );
    Ok(())
}

fn mistakes() -> Result<()> {
    let server = start(&["--model-name", "tales"])?;
    let long = "a ".repeat(4000);
    let chat = |extra: Value| {
        let mut body = json!({"messages": [{"role": "user", "content": "a"}]});
        if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
            body.extend(extra.clone());
        }
        body
    };
    let text = "/v1/completions";
    let talk = "/v1/chat/completions";
    let many: serde_json::Map<String, Value> =
        (0..1025).map(|token| (token.to_string(), 1.into())).collect();
    let wrong: Vec<(&str, Value, u16, Value)> = vec![
        (text, completion(json!({"model": "other"})), 404, "model".into()),
        (text, completion(json!({"n": 0})), 400, "n".into()),
        (text, completion(json!({"n": 9})), 400, "n".into()),
        (text, completion(json!({"n": -1})), 400, "n".into()),
        (text, completion(json!({"temperature": -1})), 400, "temperature".into()),
        (text, completion(json!({"temperature": "hot"})), 400, "temperature".into()),
        (text, completion(json!({"top_p": 0})), 400, "top_p".into()),
        (text, completion(json!({"top_k": -2})), 400, "top_k".into()),
        (text, completion(json!({"max_tokens": 0})), 400, "max_tokens".into()),
        (text, completion(json!({"stop": [""]})), 400, "stop".into()),
        (text, completion(json!({"stop": "s".repeat(257)})), 400, "stop".into()),
        (text, completion(json!({"stop": vec!["a"; 17]})), 400, "stop".into()),
        (text, completion(json!({"logit_bias": many})), 400, "logit_bias".into()),
        (text, completion(json!({"logit_bias": {"x": 1}})), 400, "logit_bias.x".into()),
        (text, completion(json!({"logit_bias": {"1": 101}})), 400, "logit_bias.1".into()),
        (text, completion(json!({"logit_bias": {"99999999": 1}})), 400, "logit_bias".into()),
        (text, completion(json!({"logprobs": 21})), 400, "logprobs".into()),
        (text, completion(json!({"echo": true})), 400, "echo".into()),
        (text, completion(json!({"suffix": "x"})), 400, "suffix".into()),
        (text, completion(json!({"prompt": []})), 400, "prompt".into()),
        (text, completion(json!({"prompt": [1, -1]})), 400, "prompt[1]".into()),
        (text, completion(json!({"prompt": [99_999_999]})), 400, "prompt".into()),
        (text, completion(json!({"prompt": long})), 400, "prompt".into()),
        (text, completion(json!({"prompt": "a".repeat(1 << 20)})), 400, "prompt".into()),
        (text, completion(json!({"prompt": vec![[1]; 65]})), 400, "prompt".into()),
        (text, completion(json!({"stream_options": {}})), 400, "stream_options".into()),
        (text, json!({}), 400, "prompt".into()),
        (text, json!([]), 400, Value::Null),
        (talk, chat(json!({"messages": []})), 400, "messages".into()),
        (
            talk,
            chat(json!({"messages": [{"role": "king", "content": "a"}]})),
            400,
            "messages[0].role".into(),
        ),
        (talk, chat(json!({"messages": [{"content": "a"}]})), 400, "messages[0].role".into()),
        (
            talk,
            chat(json!({"messages": [{"role": "user", "content": long}]})),
            400,
            "messages".into(),
        ),
        (talk, chat(json!({"top_logprobs": 2})), 400, "top_logprobs".into()),
        (talk, chat(json!({"logprobs": true, "top_logprobs": 21})), 400, "top_logprobs".into()),
        (talk, chat(json!({"tools": [{"type": "function"}]})), 400, "tools".into()),
        (
            talk,
            chat(json!({"response_format": {"type": "json_lines"}})),
            400,
            "response_format.type".into(),
        ),
        ("/tokenize", json!({}), 400, "prompt".into()),
        ("/detokenize", json!({"tokens": [99_999_999]}), 400, "tokens[0]".into()),
    ];
    for (path, body, status, param) in wrong {
        let response = server.post(path, &body)?;
        let shown: String = body.to_string().chars().take(200).collect();
        ensure!(response.status == status, "{path} {shown}: {} {}", response.status, response.body);
        let error = &response.json()?["error"];
        ensure!(error["param"] == param, "{path} {shown}: {error}");
        ensure!(error["type"] == "invalid_request_error", "{path} {shown}: {error}");
        ensure!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{error}");
    }
    let raw = [("{", "invalid_json"), ("{} {}", "invalid_json"), ("nul", "invalid_json")];
    for (body, code) in raw {
        let response = server.ask("POST", text, &[], body)?;
        let error = &response.json()?["error"];
        ensure!(response.status == 400 && error["code"] == code, "{body}: {error}");
    }
    let deep = format!("{{\"prompt\": {}1{}}}", "[".repeat(65), "]".repeat(65));
    let response = server.ask("POST", text, &[], &deep)?;
    ensure!(response.json()?["error"]["code"] == "too_deep", "{}", response.body);
    ensure!(server.get("/v1/nothing")?.status == 404, "a path that is not there");
    ensure!(server.get(text)?.status == 405, "a method that is not there");
    ensure!(server.get("/v1/models/other")?.status == 404, "a model that is not there");
    // Nothing of this has cost anything.
    server.until("an empty server", |status| status["slots"]["running"] == 0)?;
    let whole = server.post_ok(text, &completion(json!({})))?;
    ensure!(whole["choices"][0]["text"] == generated(&["--max-tokens", "24"])?["text"], "{whole}");
    Ok(())
}

fn company() -> Result<()> {
    crowd(24, 4)
}

/// One greedy request among others of all kinds, again and again, is answered as if it were alone.
fn crowd(requests: usize, clients: usize) -> Result<()> {
    let server = Arc::new(start(&["--queue", "64"])?);
    let alone = generated(&["--max-tokens", "24"])?;
    let threads: Vec<_> = (0..clients)
        .map(|client| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || -> Result<Vec<Value>> {
                let mut same = Vec::new();
                for number in (client..requests).step_by(clients) {
                    let words = 1 + number * 37 % 400;
                    let other = json!({
                        "prompt": "The dog ran to the tree. ".repeat(words / 6 + 1),
                        "max_tokens": 1 + number * 13 % 40,
                        "temperature": 1,
                        "n": 1 + number % 2,
                    });
                    server.post_ok("/v1/completions", &completion(other))?;
                    let whole = server.post_ok("/v1/completions", &completion(json!({})))?;
                    same.push(whole["choices"][0]["text"].clone());
                }
                Ok(same)
            })
        })
        .collect();
    for thread in threads {
        let texts = thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        for text in texts {
            ensure!(text == alone["text"], "{text} instead of {}", alone["text"]);
        }
    }
    Ok(())
}

/// A request that takes its time.
fn long_one() -> Value {
    completion(json!({"max_tokens": 8000, "ignore_eos": true, "stream": true}))
}

fn begin(server: &Server, body: &Value) -> Result<TcpStream> {
    server.begin("POST", "/v1/completions", &[], &body.to_string())
}

fn queue() -> Result<()> {
    let server = start_slow(&["--queue", "2"])?;
    let mut streams = Vec::new();
    for _ in 0..6 {
        streams.push(begin(&server, &long_one())?);
    }
    server.until("four answers and two that wait", |status| {
        status["slots"]["running"] == 4 && status["slots"]["waiting"] == 2
    })?;
    let refused = server.post("/v1/completions", &completion(json!({})))?;
    ensure!(refused.status == 429, "{} {}", refused.status, refused.body);
    ensure!(refused.header("retry-after").is_some(), "{refused:?}");
    ensure!(refused.json()?["error"]["type"] == "rate_limit_error", "{}", refused.body);
    drop(streams);
    server.until("an empty server", |status| status["slots"]["running"] == 0)?;
    server.post_ok("/v1/completions", &completion(json!({})))?;
    Ok(())
}

fn keys() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("keys");
    std::fs::write(&file, "alice first-key # hers\n")?;
    let path = file.to_string_lossy().into_owned();
    let server = start(&["--api-key-file", &path])?;
    let status = |key: Option<&str>, path: &str| -> Result<u16> {
        let field = key.map(|key| format!("authorization: Bearer {key}"));
        let fields: Vec<&str> = field.iter().map(String::as_str).collect();
        Ok(server.ask("GET", path, &fields, "")?.status)
    };
    for path in ["/v1/models", "/metrics", "/status"] {
        ensure!(status(None, path)? == 401, "{path} without a key");
        ensure!(status(Some("first-ke"), path)? == 401, "{path} with half a key");
        ensure!(status(Some("alice"), path)? == 401, "{path} with a name");
        ensure!(status(Some("first-key"), path)? == 200, "{path} with a key");
    }
    for path in ["/health/live", "/health/ready", "/"] {
        ensure!(status(None, path)? == 200, "{path} needs no key");
    }
    let refused = server.post("/v1/completions", &completion(json!({})))?;
    ensure!(refused.json()?["error"]["type"] == "authentication_error", "{}", refused.body);
    std::fs::write(&file, "second-key\n")?;
    server.signal("HUP")?;
    let begin = std::time::Instant::now();
    while status(Some("second-key"), "/v1/models")? != 200 {
        ensure!(begin.elapsed() < Duration::from_secs(60), "the keys were not read again");
        std::thread::sleep(Duration::from_millis(10));
    }
    ensure!(status(Some("first-key"), "/v1/models")? == 401, "a key that is valid no more");
    // What cannot be read changes nothing.
    std::fs::write(&file, "too many words\n")?;
    server.signal("HUP")?;
    std::thread::sleep(Duration::from_millis(200));
    ensure!(status(Some("second-key"), "/v1/models")? == 200, "the keys were lost");
    // Where others reach it, a key is needed.
    let refused = program()?.run(&["serve", "--host", "0.0.0.0", "--port", "0"]);
    let refused = refused.err().context("it listens for everybody")?.to_string();
    ensure!(refused.contains("--api-key-file"), "{refused}");
    Ok(())
}

fn limits() -> Result<()> {
    let server = start(&["--connections-per-address", "8"])?;
    let long = format!("{{\"prompt\": \"{}\"}}", "a".repeat(5 << 20));
    let response = server.ask("POST", "/v1/completions", &[], &long)?;
    ensure!(response.status == 413, "a long body: {}", response.status);
    let path = format!("/v1/models?{}", "a".repeat(9000));
    ensure!(server.get(&path)?.status == 414, "a long URL");
    let field = format!("x: {}", "a".repeat(20_000));
    ensure!(server.ask("GET", "/v1/models", &[&field], "")?.status == 431, "a long head");
    let fields = vec!["x: y"; 120];
    ensure!(server.ask("GET", "/v1/models", &fields, "")?.status == 431, "many fields");
    // Those who say nothing keep others of their address out, and are sent away themselves.
    let begin = std::time::Instant::now();
    let mut silent = Vec::new();
    for _ in 0..8 {
        let mut stream = server.connect()?;
        stream.write_all(b"GET / HT")?;
        silent.push(stream);
    }
    let refused = server.get("/v1/models");
    ensure!(refused.is_err(), "nine connections of one address: {refused:?}");
    for mut stream in silent {
        let mut answer = Vec::new();
        // Closed, or reset.
        let _ = stream.read_to_end(&mut answer);
    }
    ensure!(begin.elapsed() < Duration::from_secs(60), "silent connections stay");
    ensure!(server.get("/v1/models")?.status == 200, "the server is there");
    Ok(())
}

/// Bodies that become much more than they are keep below the ceiling that was printed.
fn large_bodies() -> Result<()> {
    let server = Arc::new(start(&[])?);
    let text = "/v1/completions";
    let talk = "/v1/chat/completions";
    let bodies = [
        (text, format!("{{\"prompt\": \"{}\"}}", "a ".repeat(1_900_000))),
        (text, format!("{{\"prompt\": \"{}\"}}", "\\u0041".repeat(600_000))),
        (text, format!("{{\"prompt\": [{}1]}}", "1,".repeat(1_900_000))),
        (text, format!("{{\"prompt\": [{}[1]]}}", "[1],".repeat(900_000))),
        (text, format!("{{\"prompt\": \"a\", \"stop\": [{}\"a\"]}}", "\"a\",".repeat(900_000))),
        (text, format!("{{\"prompt\": \"a\", \"tools\": [{}1]}}", "1,".repeat(1_900_000))),
        (
            talk,
            format!(
                "{{\"messages\": [{}{{}}]}}",
                "{\"role\":\"user\",\"content\":\"\"},".repeat(110_000)
            ),
        ),
        (
            talk,
            format!(
                "{{\"messages\": [{{\"role\": \"user\", \"content\": [{}{{}}]}}]}}",
                "{\"type\":\"text\",\"text\":\"\"},".repeat(130_000)
            ),
        ),
    ];
    for (path, body) in bodies {
        let body = Arc::new(body);
        let threads: Vec<_> = (0..12)
            .map(|_| {
                let (server, body) = (Arc::clone(&server), Arc::clone(&body));
                std::thread::spawn(move || server.ask("POST", path, &[], &body))
            })
            .collect();
        for thread in threads {
            let response = thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?;
            // A server that refuses closes before it has read everything, which a client may notice first.
            let Ok(response) = response else { continue };
            let refused = [400, 413, 503].contains(&response.status);
            ensure!(refused, "{path}: {} {}", response.status, response.body);
        }
    }
    let ceiling = server.get("/status")?.json()?["memory"]["ceiling_bytes"].clone();
    let ceiling = ceiling.as_u64().context("a ceiling")?;
    let most = server.memory("VmHWM")?;
    ensure!(most * 1024 <= ceiling, "{most} KiB were resident, {ceiling} bytes are the ceiling");
    Ok(())
}

fn drain() -> Result<()> {
    let server = start_slow(&[])?;
    let mut body = completion(json!({"max_tokens": 4000, "ignore_eos": true, "stream": true}));
    let mut stream = begin(&server, &body)?;
    body["stream"] = false.into();
    server.until("an answer that is being given", |status| status["slots"]["running"] == 1)?;
    server.signal("TERM")?;
    let started = std::time::Instant::now();
    loop {
        // Until the last answer is given it says that it takes no more.
        match server.get("/health/ready") {
            Ok(response) if response.status == 503 => {
                let refused = server.post("/v1/completions", &body);
                if let Ok(refused) = refused {
                    ensure!(refused.status == 503, "{} {}", refused.status, refused.body);
                }
                break;
            }
            Ok(_) => {}
            Err(_) => break,
        }
        ensure!(started.elapsed() < Duration::from_secs(60), "it goes on as if nothing were");
    }
    let (texts, _) = joined(&read_response(&mut stream)?, 1, "text")?;
    ensure!(texts[0].1 == "length", "the answer was cut: {texts:?}");
    let status = server.wait()?;
    ensure!(status.success(), "{status}");
    // One that takes too long is cut.
    let server = start_slow(&["--drain", "0"])?;
    let mut stream = begin(&server, &long_one())?;
    server.until("an answer that is being given", |status| status["slots"]["running"] == 1)?;
    server.signal("INT")?;
    ensure!(server.wait()?.success(), "it was told to stop");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    if String::from_utf8_lossy(&rest).contains("[DONE]") {
        bail!("the answer of 8000 tokens was given in no time");
    }
    Ok(())
}

fn overdue() -> Result<()> {
    let options = ["--slots", "1", "--request-timeout", "1", "--queue", "1", "--threads", "1"];
    let server = start_slow(&options)?;
    let mut body = long_one();
    body["stream"] = false.into();
    // Two answers in one slot: the second begins when the first has ended.
    body["n"] = 2.into();
    let response = server.post("/v1/completions", &body)?;
    ensure!(response.status == 504, "{} {}", response.status, response.body);
    ensure!(response.json()?["error"]["code"] == "deadline_exceeded", "{}", response.body);
    server.until("an empty server", |status| status["slots"]["running"] == 0)?;
    Ok(())
}

/// A service manager hears when the server listens and when it drains; a key comes from the environment.
fn notices() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("notify");
    let manager = std::os::unix::net::UnixDatagram::bind(&path)?;
    manager.set_read_timeout(Some(Duration::from_secs(60)))?;
    let environment = [("NOTIFY_SOCKET", path.as_os_str()), ("WEIR_API_KEY", "key".as_ref())];
    let server = Server::start_in(program()?.as_ref(), &[], &environment)?;
    let hear = || -> Result<String> {
        let mut bytes = [0; 256];
        let length = manager.recv(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes[..length]).trim().to_owned())
    };
    ensure!(hear()? == "READY=1", "it did not say that it listens");
    ensure!(server.get("/v1/models")?.status == 401, "without the key");
    let field = "authorization: Bearer key";
    ensure!(server.ask("GET", "/v1/models", &[field], "")?.status == 200, "with the key");
    server.signal("TERM")?;
    ensure!(hear()? == "STOPPING=1", "it did not say that it stops");
    ensure!(server.wait()?.success(), "it was told to stop");
    Ok(())
}
