//! Answers of a server that keep to a form: a schema, a choice, a regular expression, a grammar.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_tests::server::{Server, read_response};

use super::answers::joined;
use super::{calls, completion, start};

const TEXT: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 12},
            "age": {"type": "integer", "minimum": 1, "maximum": 99},
            "mood": {"enum": ["happy", "sad"]},
            "friends": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
        },
        "required": ["name", "age", "mood", "friends"],
        "additionalProperties": false,
    })
}

fn is_person(text: &str) -> Result<()> {
    let value: Value = serde_json::from_str(text).with_context(|| text.to_owned())?;
    let fields = value.as_object().context("an object")?;
    let names: Vec<&str> = fields.keys().map(String::as_str).collect();
    ensure!(names == ["name", "age", "mood", "friends"], "{text}");
    let length = |value: &Value| value.as_str().map(|text| text.chars().count());
    ensure!(length(&value["name"]).is_some_and(|length| (1..=12).contains(&length)), "{text}");
    ensure!(value["age"].as_i64().is_some_and(|age| (1..=99).contains(&age)), "{text}");
    ensure!(value["mood"] == "happy" || value["mood"] == "sad", "{text}");
    let friends = value["friends"].as_array().context("a list")?;
    ensure!(friends.len() <= 2, "{text}");
    ensure!(friends.iter().all(|name| length(name).is_some_and(|length| length <= 8)), "{text}");
    Ok(())
}

fn schema() -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "p", "strict": true, "schema": person()}})
}

fn is_greeting(text: &str) -> bool {
    let Some((name, rest)) = text.split_once(" says ") else { return false };
    let is_name = name.len() >= 3
        && name.len() <= 6
        && name.starts_with(|first: char| first.is_ascii_uppercase())
        && name[1..].chars().all(|letter| letter.is_ascii_lowercase());
    is_name && ["\"Hello!\"", "\"Bye.\""].contains(&rest)
}

/// Fields, and what they make of every answer.
type FormOfAnswer = (Value, fn(&str) -> Result<()>);

fn forms() -> Vec<FormOfAnswer> {
    fn choice(text: &str) -> Result<()> {
        ensure!(["a cat", "a dog", "a (very) big. horse"].contains(&text), "{text:?}");
        Ok(())
    }
    fn greeting(text: &str) -> Result<()> {
        ensure!(is_greeting(text), "{text:?}");
        Ok(())
    }
    let regex = r#"[A-Z][a-z]{2,5} says "(Hello!|Bye\.)""#;
    let lark =
        "start: NAME \" says \" (\"\\\"Hello!\\\"\" | \"\\\"Bye.\\\"\")\nNAME: /[A-Z][a-z]{2,5}/";
    let choices = json!(["a cat", "a dog", "a (very) big. horse"]);
    vec![
        (json!({"response_format": schema()}), is_person),
        (json!({"response_format": {"type": "json_object", "schema": person()}}), is_person),
        (json!({"guided_json": person().to_string()}), is_person),
        (json!({"guided_choice": choices}), choice),
        (json!({"structured_outputs": {"choice": choices}}), choice),
        (json!({"guided_regex": regex, "response_format": {"type": "text"}}), greeting),
        (json!({"structured_outputs": {"regex": regex}}), greeting),
        (json!({"guided_grammar": lark}), greeting),
    ]
}

fn with(fields: &Value, extra: Value) -> Value {
    let mut body = completion(json!({"max_tokens": 600}));
    for more in [fields, &extra] {
        if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
            body.extend(more.clone());
        }
    }
    body
}

/// What was asked for comes out, cold and warm, whole and in pieces.
pub fn kept() -> Result<()> {
    let server = start(&[])?;
    for (fields, check) in forms() {
        for (temperature, seed) in [(0, 0), (1, 1), (1, 2)] {
            let mut body = with(&fields, json!({"temperature": temperature, "seed": seed, "n": 2}));
            let whole = server.post_ok(TEXT, &body)?;
            body["stream"] = true.into();
            let (texts, _) = joined(&server.post(TEXT, &body)?, 2, "text")?;
            for (index, (text, reason)) in texts.iter().enumerate() {
                let choice = &whole["choices"][index];
                ensure!(choice["text"] == *text, "{choice} whole, and {text:?} in pieces");
                ensure!(choice["finish_reason"] == "stop" && reason == "stop", "{choice}");
                check(text).with_context(|| fields.to_string())?;
            }
        }
    }
    // Conversations likewise. What is cut short is a beginning.
    let messages = json!([{"role": "user", "content": "Who are you?"}]);
    let body =
        json!({"messages": messages, "response_format": schema(), "max_tokens": 600, "seed": 4});
    let chat = server.post_ok(CHAT, &body)?;
    let content = chat["choices"][0]["message"]["content"].as_str().context("a text")?;
    is_person(content)?;
    let cut = server.post_ok(TEXT, &with(&forms()[0].0, json!({"max_tokens": 3})))?;
    ensure!(cut["choices"][0]["finish_reason"] == "length", "{cut}");
    let text = cut["choices"][0]["text"].as_str().unwrap_or_default();
    ensure!(text.starts_with('{') && is_person(text).is_err(), "{cut}");
    for seed in 0..4 {
        let body = with(
            &json!({"response_format": {"type": "json_object"}}),
            json!({"temperature": 1, "seed": seed, "max_tokens": 60}),
        );
        let answer = server.post_ok(TEXT, &body)?;
        let choice = &answer["choices"][0];
        let text = choice["text"].as_str().context("a text")?;
        let is_object = serde_json::from_str::<serde_json::Map<String, Value>>(text).is_ok();
        ensure!(
            text.starts_with('{') && is_object == (choice["finish_reason"] == "stop"),
            "{answer}"
        );
    }
    Ok(())
}

/// A model that thinks does so first, in no form: thoughts that its prompt has opened are cut as thoughts,
/// and where the prompt has closed them the answer is there at once. So in all interfaces.
pub fn behind_thoughts() -> Result<()> {
    let server = Server::start(calls::program(calls::THOUGHTS)?.as_ref(), &[])?;
    let messages = json!([{"role": "user", "content": "Who are you?"}]);
    let conversation = |thinks: bool, most: u32| {
        json!({
            "messages": messages, "response_format": schema(), "max_tokens": most, "seed": 4,
            "chat_template_kwargs": {"enable_thinking": thinks},
        })
    };
    let cut = server.post_ok(CHAT, &conversation(true, 20))?;
    let choice = &cut["choices"][0];
    ensure!(choice["finish_reason"] == "length", "{cut}");
    ensure!(choice["message"]["content"].as_str().unwrap_or_default().is_empty(), "{cut}");
    let thoughts = choice["message"]["reasoning_content"].as_str().context("thoughts")?;
    ensure!(!thoughts.is_empty() && !thoughts.starts_with('{'), "{cut}");
    ensure!(cut["usage"]["completion_tokens_details"]["reasoning_tokens"] == 20, "{cut}");
    let whole = server.post_ok(CHAT, &conversation(false, 600))?;
    let message = &whole["choices"][0]["message"];
    is_person(message["content"].as_str().context("a text")?)?;
    ensure!(message["reasoning_content"].is_null(), "{whole}");
    for (thinks, kind, most) in [("enabled", "thinking", 20), ("disabled", "text", 600)] {
        let format = json!({"type": "json_schema", "schema": person()});
        let thinking = match thinks {
            "enabled" => json!({"type": thinks, "budget_tokens": 1024}),
            _ => json!({"type": thinks}),
        };
        let body = json!({
            "messages": messages, "max_tokens": most, "thinking": thinking,
            "output_config": {"format": format},
        });
        let answer = server.post_ok("/v1/messages", &body)?;
        let content = answer["content"].as_array().context("content")?;
        ensure!(content.len() == 1 && content[0]["type"] == kind, "{answer}");
        if let Some(text) = content[0]["text"].as_str() {
            is_person(text)?;
        }
    }
    Ok(())
}

/// The same answers among others, of which some keep to nothing and some to something else.
pub fn in_company() -> Result<()> {
    let server = start(&[])?;
    let mut bodies: Vec<Value> = forms()
        .iter()
        .map(|(fields, _)| with(fields, json!({"temperature": 1, "seed": 9})))
        .collect();
    bodies.push(completion(json!({"temperature": 1, "seed": 9, "max_tokens": 60})));
    let text = |answer: &Value| answer["choices"][0]["text"].clone();
    let alone: Vec<Value> =
        bodies.iter().map(|body| Ok(text(&server.post_ok(TEXT, body)?))).collect::<Result<_>>()?;
    let mut open = Vec::new();
    for body in &bodies {
        open.push(server.begin(
            "POST",
            TEXT,
            &["content-type: application/json"],
            &body.to_string(),
        )?);
    }
    for (mut stream, alone) in open.into_iter().zip(alone) {
        let answer = read_response(&mut stream)?.json()?;
        ensure!(text(&answer) == alone, "{answer} instead of {alone}");
    }
    Ok(())
}

/// What cannot be kept to is refused by the field's name, and takes nothing from others.
pub fn refused() -> Result<()> {
    let server = start(&[])?;
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let inside = "response_format.json_schema.schema";
    let long = "a".repeat((64 << 10) + 1);
    let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let names: serde_json::Map<String, Value> =
        (0..3000).map(|name| (format!("p{name}"), json!({}))).collect();
    let patterns: Vec<Value> =
        (10..20).map(|n| json!({"pattern": format!("^(.{{{n}}})*$")})).collect();
    let wrong = [
        (json!({"response_format": {"type": "yaml"}}), "response_format.type"),
        (json!({"response_format": {"type": "json_schema"}}), inside),
        (json!({"response_format": {"type": "text", "schema": {}}}), "response_format.schema"),
        (
            json!({"response_format": {"type": "text", "json_schema": {"schema": {}}}}),
            "response_format.json_schema",
        ),
        (schema(json!({"type": "array", "uniqueItems": true})), inside),
        (schema(json!({"not": {"type": "string"}})), inside),
        (schema(json!({"$ref": "#"})), inside),
        (schema(json!({"type": "object", "properties": names})), inside),
        (schema(json!({"type": "string", "allOf": patterns})), inside),
        (schema(json!({"description": long})), inside),
        (schema(json!("{")), inside),
        (json!({"guided_json": deep}), "guided_json"),
        (json!({"guided_json": 3}), "guided_json"),
        (json!({"guided_regex": "("}), "guided_regex"),
        (json!({"guided_regex": long}), "guided_regex"),
        (json!({"guided_regex": "a?".repeat(20_000)}), "guided_regex"),
        (json!({"guided_regex": 3}), "guided_regex"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"guided_choice": ["a", ""]}), "guided_choice[1]"),
        (json!({"guided_choice": vec!["a"; 4097]}), "guided_choice"),
        (json!({"guided_grammar": "begin: \"a\""}), "guided_grammar"),
        (json!({"guided_grammar": "(".repeat(60_000)}), "guided_grammar"),
        (json!({"guided_whitespace_pattern": " "}), "guided_whitespace_pattern"),
        (
            json!({"structured_outputs": {"structural_tag": {}}}),
            "structured_outputs.structural_tag",
        ),
        (json!({"structured_outputs": {"json": {"not": {}}}}), "structured_outputs.json"),
        (
            json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}),
            "structured_outputs.choice",
        ),
        (json!({"response_format": {"type": "json_object"}, "guided_regex": "a"}), "guided_regex"),
    ];
    for (fields, param) in wrong {
        let response = server.post(TEXT, &with(&fields, json!({})))?;
        let error = response.json()?["error"].clone();
        let shown: String = fields.to_string().chars().take(120).collect();
        ensure!(response.status == 400, "{shown}: {} {error}", response.status);
        ensure!(error["param"] == param, "{shown}: {error}");
    }
    // A grammar that is too much for a later step ends its answer, and is no fault of the server's.
    let ambiguous = "start: s\ns: s s s | s s | /[a-z]+/ | \" \"";
    let heavy =
        with(&json!({"guided_grammar": ambiguous}), json!({"ignore_eos": true, "max_tokens": 900}));
    let response = server.post(TEXT, &heavy)?;
    let error = response.json()?["error"].clone();
    ensure!(response.status == 400 && error["code"] == "constraint_failed", "{error}");
    answers_still(&server)
}

fn answers_still(server: &Server) -> Result<()> {
    for (fields, check) in forms() {
        let answer = server.post_ok(TEXT, &with(&fields, json!({})))?;
        check(answer["choices"][0]["text"].as_str().context("a text")?)?;
    }
    Ok(())
}
