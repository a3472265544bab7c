//! `/v1/embeddings`: refused in OpenAI's form, so that clients learn why. Models here are compiled with
//! their outputs' head and give logits; none gives the vectors that this path is for.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;

use crate::serve::app::App;
use crate::serve::failure::Failure;
use crate::serve::json;

#[derive(Debug, Deserialize)]
struct EmbeddingFields {
    model: Option<String>,
}

/// Says that the model gives none.
pub async fn refuse(State(app): State<Arc<App>>, body: Body) -> Result<Response, Failure> {
    let body = json::read(body, &app.limits, &app.body_budget).await?;
    let fields: EmbeddingFields = body.parse(&app.limits)?;
    app.check_model(fields.model.as_deref())?;
    let message = format!("the model {:?} generates text and gives no embeddings", app.name);
    Err(Failure::field("model", message).coded("model_not_supported"))
}
