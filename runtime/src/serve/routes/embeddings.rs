//! `/v1/embeddings`, of models that give some.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use weir_abi::HeadResult;

use super::generate::{Asker, check_gives};
use crate::serve::app::App;
use crate::serve::asked::Prompts;
use crate::serve::embeddings::{Embeddings, Encoding, Wanted};
use crate::serve::failure::Failure;
use crate::serve::json::{self, RequestBody};
use crate::serve::keys::Tenant;
use crate::serve::limits::INPUTS;

/// Fields of a request.
#[derive(Debug, Deserialize)]
struct EmbeddingFields {
    model: Option<String>,
    input: Prompts<INPUTS>,
    encoding_format: Option<Encoding>,
    dimensions: Option<u32>,
    priority: Option<i32>,
}

/// Gives texts' embeddings.
pub async fn embed(
    State(app): State<Arc<App>>,
    Asker { tenant, span, place }: Asker,
    body: Body,
) -> Result<Response, Failure> {
    let body = json::read(body, &app.limits, &app.body_budget).await?;
    check_gives(&app, &body, HeadResult::Hidden)?;
    let answering = place.answer();
    let (wanted, held) = app
        .off_the_network(move |app| {
            let mut wanted = read(app, &body, &tenant)?;
            let first = wanted.check(app)?;
            Ok(((wanted, first), body.into_held()))
        })
        .await?;
    Ok(Embeddings::begin(app, wanted, span, answering, held).await?.respond())
}

fn read(app: &App, body: &RequestBody, tenant: &Tenant) -> Result<Wanted, Failure> {
    let fields: EmbeddingFields = body.parse(&app.limits)?;
    app.check_model(fields.model.as_deref())?;
    if fields.input.len() == 0 {
        return Err(Failure::field("input", "there is no input"));
    }
    let most = app.model.compiled().header().head_width;
    let width = fields.dimensions.unwrap_or(most);
    if width == 0 || width > most {
        let message = format!("dimensions is {width}, and the model's embeddings have {most}");
        return Err(Failure::field("dimensions", message));
    }
    Ok(Wanted {
        inputs: fields.input,
        encoding: fields.encoding_format.unwrap_or_default(),
        width: width as usize,
        owner: tenant.owner,
        // A request may stand back behind what its key allows it, and not push itself forward.
        priority: fields.priority.unwrap_or(i32::MIN).max(tenant.priority),
        tokens: 0,
    })
}
