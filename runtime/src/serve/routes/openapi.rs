//! `/openapi.json`: what can be asked of this server, and what it answers, for programs.
//!
//! A file per group of paths, each with the schemas that only it needs; together they are the document.
//! What the model does not give is described as refused: a server is what it says of itself.
//! No two files have an entry of one name, and every path of the router is in one of them: tests hold
//! both, and that the limits that are named here are those that hold.

use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Map, Value};
use weir_abi::HeadResult;

use crate::serve::app::App;
use crate::serve::failure::Failure;

/// The frame, to which the others add.
const FRAME: &str = include_str!("openapi/document.json");

/// Documents with `paths` and `components.schemas` alone.
const PARTS: [&str; 10] = [
    include_str!("openapi/generation.json"),
    include_str!("openapi/chat.json"),
    include_str!("openapi/completions.json"),
    include_str!("openapi/responses.json"),
    include_str!("openapi/messages.json"),
    include_str!("openapi/embeddings.json"),
    include_str!("openapi/models.json"),
    include_str!("openapi/tokens.json"),
    include_str!("openapi/health.json"),
    include_str!("openapi/page.json"),
];

/// What only models that write text are asked for, and what only those that give embeddings are.
const TEXT_PATHS: [&str; 4] =
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];
const EMBEDDING_PATHS: [&str; 1] = ["/v1/embeddings"];

/// The document, or what is wrong with it.
type Document = LazyLock<Result<Bytes, String>>;

/// The document.
pub async fn document(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    static OF_TEXT: Document = LazyLock::new(|| text(HeadResult::Logits));
    static OF_EMBEDDINGS: Document = LazyLock::new(|| text(HeadResult::Hidden));
    let text = match app.model.gives() {
        HeadResult::Logits => &OF_TEXT,
        HeadResult::Hidden => &OF_EMBEDDINGS,
    };
    let text = text.as_ref().map_err(|reason| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("a bug in the document: {reason}"))
    })?;
    let mut response = text.clone().into_response();
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    Ok(response)
}

fn text(gives: HeadResult) -> Result<Bytes, String> {
    let mut whole = put_together()?;
    let refused: &[&str] = match gives {
        HeadResult::Logits => &EMBEDDING_PATHS,
        HeadResult::Hidden => &TEXT_PATHS,
    };
    for path in refused {
        let operation = &mut whole["paths"][path]["post"];
        operation["summary"] = "Refused with the code model_not_supported.".into();
        let responses = operation["responses"].as_object_mut().ok_or("a path without responses")?;
        // What follows from being answered.
        for status in ["200", "429", "504"] {
            responses.remove(status);
        }
    }
    Ok(Bytes::from(whole.to_string()))
}

/// The frame with all parts in it.
fn put_together() -> Result<Value, String> {
    let mut whole: Value = read(FRAME)?;
    whole["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    for part in PARTS {
        let mut part = read(part)?;
        add(&mut whole["paths"], part["paths"].take())?;
        add(&mut whole["components"]["schemas"], part["components"]["schemas"].take())?;
    }
    Ok(whole)
}

fn read(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn add(entries: &mut Value, further: Value) -> Result<(), String> {
    let Value::Object(further) = further else { return Ok(()) };
    let entries: &mut Map<String, Value> = entries.as_object_mut().ok_or("no place for entries")?;
    for (name, entry) in further {
        if entries.contains_key(&name) {
            return Err(format!("{name} is there twice"));
        }
        entries.insert(name, entry);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
