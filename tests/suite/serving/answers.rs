//! Answers: what is asked over HTTP is what the program says without it, whole and streamed, with
//! probabilities.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_tests::server::Response;

use super::{PROMPT, completion, generated, start};

pub fn answers() -> Result<()> {
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
pub fn joined(
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

pub fn streams() -> Result<()> {
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

pub fn probabilities() -> Result<()> {
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
