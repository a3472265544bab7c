//! What cannot be done is refused by the field's name, and costs nothing.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::{completion, generated, start};

pub fn mistakes() -> Result<()> {
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
