//! `/health/live`, `/health/ready`, `/metrics` and `/status`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use weir_abi::HeadResult;

use crate::serve::app::App;
use crate::serve::asked::served_defaults;
use crate::serve::failure::Failure;
use crate::serve::json::response;

/// Whether the process answers at all.
pub async fn live() -> Response {
    response(StatusCode::OK, &json!({"status": "live"}))
}

/// Whether requests are welcome.
pub async fn ready(State(app): State<Arc<App>>) -> Response {
    match app.is_draining() {
        false => response(StatusCode::OK, &json!({"status": "ready"})),
        true => Failure::draining().into_response(),
    }
}

/// All numbers, for Prometheus.
pub async fn metrics(State(app): State<Arc<App>>) -> Result<Response, Failure> {
    let text = app.board.metrics().map_err(|error| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, format!("metrics: {error}"))
    })?;
    let mut response = text.into_response();
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

/// What the page shows.
pub async fn status(State(app): State<Arc<App>>) -> Response {
    let running = app.board.running();
    let waiting = app.places_taken().saturating_sub(running);
    let view = app.board.slots();
    let rows = app.rows_of_slot;
    let cache: Vec<_> = view
        .slots
        .iter()
        .map(|slot| {
            json!({
                "slot": slot.slot,
                "rows": rows,
                "kept": slot.kept,
                "dropped": slot.dropped,
            })
        })
        .collect();
    let sampling = served_defaults(&app.model);
    let status = json!({
        "model": app.name,
        "version": env!("CARGO_PKG_VERSION"),
        "isa": app.isa,
        "threads": app.threads,
        "context": app.rules.context,
        "gives": match app.model.compiled().head_result() {
            HeadResult::Logits => "text",
            HeadResult::Hidden => "embeddings",
        },
        "has_chat": !app.model.compiled().chat_template().is_empty(),
        "slots": {"total": app.slots, "running": running, "waiting": waiting},
        "cache": cache,
        "tokens_per_second": view.speed,
        "memory": {
            "resident_bytes": app.residence.bytes(),
            "ceiling_bytes": app.ceiling.total(),
        },
        "draining": app.is_draining(),
        "sampling": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
        },
    });
    response(StatusCode::OK, &status)
}
