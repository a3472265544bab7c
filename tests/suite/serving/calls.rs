//! Calls that a choice of tools forces: whatever the model would have said, they are there and valid, in
//! every interface, whole and in pieces.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use weir_tests::places::root;
use weir_tests::server::Server;
use weir_tests::systems::{Binary, Setup};

use super::start;

const CHAT: &str = "/v1/chat/completions";
const MODEL: &str = "models/tales/onnx-genai-int4";

/// Templates that know tools, in two notations, and one that opens thoughts, or closes them, if it is told
/// to.
const TEMPLATES: [(&str, &str); 3] = [
    (
        "hermes",
        "{{ bos_token }}{% if tools %}<tool_call>{{ tools | tojson }}</tool_call>{% endif %}\
         {% for message in messages %}<|user|>{{ message['content'] }}{{ message.tool_calls }}<|end|>\
         {% endfor %}<|assistant|>",
    ),
    (
        "mistral",
        "{{ bos_token }}{% if tools %}[TOOL_CALLS]{{ tools | tojson }}{% endif %}\
         {% for message in messages %}<|user|>{{ message['content'] }}{{ message.tool_calls }}<|end|>\
         {% endfor %}<|assistant|>",
    ),
    (
        "thoughts",
        "{{ bos_token }}{% for message in messages %}<|user|>{{ message['content'] }}<|end|>\
         {% endfor %}<|assistant|>{% if enable_thinking is defined %}<think>\n\
         {% if not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}",
    ),
];
/// The places of those that know tools.
const WITH_TOOLS: std::ops::Range<usize> = 0..2;
/// The place of the one with thoughts.
pub(super) const THOUGHTS: usize = 2;

/// The model of all tests with another template.
pub(super) fn program(template: usize) -> Result<Arc<Binary>> {
    static PROGRAMS: [OnceLock<Arc<Binary>>; TEMPLATES.len()] =
        [const { OnceLock::new() }; TEMPLATES.len()];
    if let Some(program) = PROGRAMS[template].get() {
        return Ok(Arc::clone(program));
    }
    let (name, source) = TEMPLATES[template];
    let folder: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("calls").join(name);
    std::fs::create_dir_all(&folder)?;
    for entry in std::fs::read_dir(root().join(MODEL))? {
        let entry = entry?;
        std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    std::fs::write(folder.join("chat_template.jinja"), source)?;
    let setup = Setup {
        context: 1024,
        kv: "full".to_owned(),
        kv_dtype: None,
        compute: None,
        weights: None,
        calibrate: None,
        slots: 4,
    };
    let program = Binary::compile(&folder, &setup)?;
    Ok(Arc::clone(PROGRAMS[template].get_or_init(|| Arc::new(program))))
}

fn parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "city": {"enum": ["Riga", "Porto"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city", "days"],
        "additionalProperties": false,
    })
}

fn functions() -> Value {
    json!([
        {"type": "function", "function": {"name": "weather", "strict": true, "parameters": parameters()}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

fn chat(extra: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Who are you?"}], "tools": functions(),
        "tool_choice": "required", "max_tokens": 600,
    });
    if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
        body.extend(extra.clone());
    }
    body
}

/// The name, if name and arguments are those of a call that there may be.
fn checked<'c>(name: &'c Value, arguments: &Value) -> Result<&'c str> {
    let name = name.as_str().context("a name")?;
    let fields = arguments.as_object().with_context(|| format!("{arguments} of {name}"))?;
    match name {
        "weather" => {
            let city = ["Riga", "Porto"].map(Value::from);
            let days = arguments["days"].as_i64();
            let is_valid = fields.len() == 2
                && city.contains(&arguments["city"])
                && days.is_some_and(|days| (1..=9).contains(&days));
            ensure!(is_valid, "{arguments}");
        }
        _ => ensure!(name == "now" && fields.is_empty(), "{name} with {arguments}"),
    }
    Ok(name)
}

/// The names of the functions that calls of OpenAI's completions name.
fn names(calls: &Value) -> Result<Vec<String>> {
    let calls = calls.as_array().context("calls")?;
    let name = |call: &Value| -> Result<String> {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().context("arguments")?;
        ensure!(call["id"].as_str().is_some_and(|id| !id.is_empty()), "{call}");
        Ok(checked(&function["name"], &serde_json::from_str(arguments)?)?.to_owned())
    };
    calls.iter().map(name).collect()
}

/// Completions: cold and warm, one answer and several, whole and in pieces.
pub fn forced() -> Result<()> {
    for template in WITH_TOOLS {
        let server = Server::start(program(template)?.as_ref(), &[])?;
        for (temperature, seed) in [(0, 0), (1, 1), (1, 2)] {
            let sampled = json!({"temperature": temperature, "seed": seed, "n": 2});
            let mut body = chat(sampled);
            // A model of tales may go on calling until it is cut; one call has an end.
            body["parallel_tool_calls"] = false.into();
            let whole = server.post_ok(CHAT, &body)?;
            body["stream"] = true.into();
            let events = server.post(CHAT, &body)?;
            for index in 0..2 {
                let choice = &whole["choices"][index];
                let message = &choice["message"];
                ensure!(choice["finish_reason"] == "tool_calls", "{whole}");
                ensure!(message["content"].is_null(), "{whole}");
                ensure!(names(&message["tool_calls"])?.len() == 1, "{whole}");
                let mut streamed = Vec::new();
                for event in events.events() {
                    let Ok(event) = serde_json::from_str::<Value>(event) else { continue };
                    let choice = &event["choices"][0];
                    if choice["index"] == index {
                        let calls = choice["delta"]["tool_calls"].as_array().cloned();
                        streamed.extend(calls.unwrap_or_default());
                    }
                }
                let functions: Vec<&Value> =
                    streamed.iter().map(|call| &call["function"]).collect();
                ensure!(functions == [&message["tool_calls"][0]["function"]], "{streamed:?}");
            }
        }
        // As many as the model likes, all of them valid; what was cut in the middle of one is text.
        let many = server.post_ok(CHAT, &chat(json!({"temperature": 1, "seed": 3})))?;
        let choice = &many["choices"][0];
        if choice["finish_reason"] != "length" {
            ensure!(!names(&choice["message"]["tool_calls"])?.is_empty(), "{many}");
            ensure!(choice["finish_reason"] == "tool_calls", "{many}");
        }
        // By its name, and as one of some.
        let named = json!({"type": "function", "function": {"name": "weather"}});
        let named = server.post_ok(CHAT, &chat(json!({"tool_choice": named})))?;
        let choice = &named["choices"][0];
        ensure!(names(&choice["message"]["tool_calls"])? == ["weather"], "{named}");
        ensure!(choice["finish_reason"] == "stop", "{named}");
        let tools = json!([{"type": "function", "function": {"name": "now"}}]);
        let allowed = json!({"mode": "required", "tools": tools});
        let allowed = json!({
            "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed},
            "parallel_tool_calls": false,
        });
        let allowed = server.post_ok(CHAT, &chat(allowed))?;
        ensure!(names(&allowed["choices"][0]["message"]["tool_calls"])? == ["now"], "{allowed}");
        let cut = server.post_ok(CHAT, &chat(json!({"max_tokens": 3})))?;
        ensure!(cut["choices"][0]["finish_reason"] == "length", "{cut}");
    }
    Ok(())
}

/// The other interfaces to the same.
pub fn forced_elsewhere() -> Result<()> {
    let server = Server::start(program(0)?.as_ref(), &[])?;
    let body = |choice: Value| {
        json!({
            "input": "Who are you?", "tool_choice": choice, "max_output_tokens": 600,
            "parallel_tool_calls": false, "temperature": 1, "seed": 5,
            "tools": [
                {"type": "function", "name": "weather", "parameters": parameters()},
                {"type": "function", "name": "now", "parameters": null},
            ],
        })
    };
    let named = json!({"type": "function", "name": "weather"});
    for choice in [json!("required"), named.clone()] {
        let whole = server.post_ok("/v1/responses", &body(choice.clone()))?;
        let output = whole["output"].as_array().context("output")?;
        ensure!(output.len() == 1 && output[0]["type"] == "function_call", "{whole}");
        let arguments = output[0]["arguments"].as_str().context("arguments")?;
        let name = checked(&output[0]["name"], &serde_json::from_str(arguments)?)?;
        ensure!(choice != named || name == "weather", "{whole}");
        ensure!(whole["tool_choice"] == choice && whole["status"] == "completed", "{whole}");
    }
    for mut choice in [json!({"type": "any"}), json!({"type": "tool", "name": "weather"})] {
        choice["disable_parallel_tool_use"] = true.into();
        let whole = server.post_ok(
            "/v1/messages",
            &json!({
                "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 600,
                "tool_choice": choice, "temperature": 1, "seed": 6,
                "tools": [
                    {"name": "weather", "input_schema": parameters()},
                    {"name": "now", "input_schema": {"type": "object", "additionalProperties": false}},
                ],
            }),
        )?;
        let content = whole["content"].as_array().context("content")?;
        ensure!(content.len() == 1 && content[0]["type"] == "tool_use", "{whole}");
        let name = checked(&content[0]["name"], &content[0]["input"])?;
        ensure!(choice["type"] == "any" || name == "weather", "{whole}");
        ensure!(whole["stop_reason"] == "tool_use", "{whole}");
    }
    Ok(())
}

/// What cannot be forced is refused by its field, and takes nothing from others.
pub fn refused() -> Result<()> {
    let server = Server::start(program(0)?.as_ref(), &[])?;
    let with = |parameters: Value| {
        let tool = json!({"type": "function", "function": {"name": "g", "parameters": parameters}});
        let functions = functions();
        json!({"tools": [functions[0], tool]})
    };
    let inside = "tools[1].function.parameters";
    let list = json!({"a": {"type": "array", "uniqueItems": true}});
    let wrong = [
        (with(json!({"type": "object", "properties": list})), inside),
        (with(json!({"type": "string"})), inside),
        (with(json!({"type": "object", "not": {}})), inside),
        (with(json!({"type": "object", "description": "a".repeat(64 << 10)})), "tools"),
        (json!({"tools": []}), "tool_choice"),
        (json!({"tool_choice": "always"}), "tool_choice"),
        (json!({"tool_choice": {"type": "function", "function": {"name": "g"}}}), "tool_choice"),
        (json!({"tool_choice": {"type": "custom", "name": "g"}}), "tool_choice.type"),
        (json!({"response_format": {"type": "json_object"}}), "tool_choice"),
    ];
    for (extra, param) in wrong {
        let response = server.post(CHAT, &chat(extra.clone()))?;
        let error = response.json()?["error"].clone();
        let shown: String = extra.to_string().chars().take(120).collect();
        ensure!(response.status == 400, "{shown}: {} {error}", response.status);
        ensure!(error["param"] == param, "{shown}: {error}");
    }
    // Shown, they are text and nothing else.
    let free = json!({"tool_choice": "auto", "max_tokens": 4});
    let mut body = chat(with(json!({"type": "object", "not": {}})));
    if let (Some(body), Some(free)) = (body.as_object_mut(), free.as_object()) {
        body.extend(free.clone());
    }
    server.post_ok(CHAT, &body)?;
    let one = server.post_ok(CHAT, &chat(json!({"parallel_tool_calls": false})))?;
    names(&one["choices"][0]["message"]["tool_calls"])?;
    Ok(())
}

/// Forms of the interfaces that have a field of their own for them.
pub fn forms_elsewhere() -> Result<()> {
    let server = start(&[])?;
    let format = json!({"type": "json_schema", "name": "f", "schema": parameters()});
    let body = json!({
        "input": "Who are you?", "max_output_tokens": 200, "temperature": 1, "seed": 7,
        "text": {"format": format},
    });
    let whole = server.post_ok("/v1/responses", &body)?;
    let text = whole["output"][0]["content"][0]["text"].as_str().context("a text")?;
    checked(&json!("weather"), &serde_json::from_str(text)?)?;
    ensure!(whole["text"]["format"] == format, "{whole}");
    let messages = json!([{"role": "user", "content": "Who are you?"}]);
    for (field, value) in [
        ("output_config", json!({"format": {"type": "json_schema", "schema": parameters()}})),
        ("output_format", json!({"type": "json_schema", "schema": parameters()})),
    ] {
        let mut body = json!({"messages": messages, "max_tokens": 200, "seed": 8});
        body[field] = value;
        let whole = server.post_ok("/v1/messages", &body)?;
        let text = whole["content"][0]["text"].as_str().context("a text")?;
        checked(&json!("weather"), &serde_json::from_str(text)?)?;
    }
    let json = json!({"type": "json_object"});
    for (format, extra, param) in [
        (json!({"type": "json_schema"}), json!({}), "text.format.schema"),
        (json!({"type": "yaml"}), json!({}), "text.format.type"),
        (json!({"type": "json_schema", "schema": {"not": {}}}), json!({}), "text.format.schema"),
        (json.clone(), json!({"response_format": json}), "text.format"),
    ] {
        let mut body = json!({"input": "Who are you?", "text": {"format": format}});
        if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
            body.extend(extra.clone());
        }
        let response = server.post("/v1/responses", &body)?;
        let error = response.json()?["error"].clone();
        ensure!(response.status == 400 && error["param"] == param, "{body}: {error}");
    }
    // What this model does not give at all.
    let response = server.post("/v1/embeddings", &json!({"input": "a"}))?;
    let error = response.json()?["error"].clone();
    ensure!(response.status == 400 && error["code"] == "model_not_supported", "{error}");
    Ok(())
}
