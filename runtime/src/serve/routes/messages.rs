//! `/v1/messages`: Anthropic's interface to the same answers.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;

use super::generate::{Asked, Asker, converse, generate, letterhead};
use crate::serve::app::App;
use crate::serve::asked::{AnthropicFields, GenerationFields, unsupported};
use crate::serve::failure::Failure;
use crate::serve::forms::MessagesForm;
use crate::serve::json::{RequestBody, response};

/// Answers a conversation.
pub async fn create(
    State(app): State<Arc<App>>,
    asker: Asker,
    body: Body,
) -> Result<Response, Failure> {
    generate(&app, asker, body, read).await
}

/// Writes failures as this interface has them, wherever they come from.
pub async fn in_own_words(answered: Response) -> Response {
    match answered.extensions().get::<Failure>() {
        None => answered,
        Some(failure) => {
            let mut own = response(answered.status(), &failure.anthropic_body());
            for (name, value) in answered.headers() {
                if !own.headers().contains_key(name) {
                    own.headers_mut().insert(name, value.clone());
                }
            }
            own
        }
    }
}

fn read(app: &App, body: &RequestBody) -> Result<Asked, Failure> {
    let common: GenerationFields = body.parse(&app.limits)?;
    let fields: AnthropicFields = body.parse(&app.limits)?;
    app.check_model(common.model.as_deref())?;
    fields.refuse_unsupported()?;
    if fields.max_tokens.is_none() {
        return Err(Failure::field("max_tokens", "max_tokens is needed here"));
    }
    let mut generation = common.resolve(&app.model)?;
    if generation.samples != 1 {
        return Err(unsupported("n"));
    }
    generation.request.stop = fields.stops()?;
    let request = &mut generation.request;
    request.constraint = fields.constrain(&app.model, request.constraint.take())?;
    let template = app.model.template()?;
    let tools = fields.tools(template)?;
    let messages = fields.messages(template)?;
    let (prompt, rules) = converse(app, &messages, &tools, &fields.variables(), &mut generation)?;
    let stops = generation.request.stop.clone();
    let form = MessagesForm::new(letterhead(app, "msg_"), prompt.len());
    let rules = crate::serve::reading::ReadingRules { stops, ..rules };
    let (form, prompts) = (Box::new(form), vec![prompt]);
    Ok(Asked { form, field: "messages", prompts, generation, logprobs: None, rules })
}
