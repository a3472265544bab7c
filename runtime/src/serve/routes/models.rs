//! `/v1/models`: the one model that is here.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};

use crate::serve::app::App;
use crate::serve::failure::Failure;
use crate::serve::json::response;

fn entry(app: &App) -> Value {
    json!({
        "id": app.name,
        "object": "model",
        "created": 0,
        "owned_by": "weir",
        // As vLLM says it.
        "max_model_len": app.rules.context,
    })
}

/// All models.
pub async fn list(State(app): State<Arc<App>>) -> Response {
    response(StatusCode::OK, &json!({"object": "list", "data": [entry(&app)]}))
}

/// One by its name.
pub async fn one(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, Failure> {
    let Path(name) = name.map_err(|error| Failure::field("model", error.body_text()))?;
    app.check_model(Some(&name))?;
    Ok(response(StatusCode::OK, &entry(&app)))
}
