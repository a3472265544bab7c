//! `/v1/responses`: OpenAI's newer interface. Nothing is kept, so every request brings its conversation.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;

use super::generate::{Asked, Asker, converse, generate, letterhead, renamed};
use crate::serve::app::App;
use crate::serve::asked::{GenerationFields, ResponsesFields, unsupported};
use crate::serve::failure::Failure;
use crate::serve::forms::{ResponseFields, ResponsesForm};
use crate::serve::json::RequestBody;

/// Answers an input.
pub async fn create(
    State(app): State<Arc<App>>,
    asker: Asker,
    body: Body,
) -> Result<Response, Failure> {
    generate(&app, asker, body, read).await
}

fn read(app: &App, body: &RequestBody) -> Result<Asked, Failure> {
    let common: GenerationFields = body.parse(&app.limits)?;
    let fields: ResponsesFields = body.parse(&app.limits)?;
    app.check_model(common.model.as_deref())?;
    fields.refuse_unsupported()?;
    let mut generation = common.resolve(&app.model)?;
    if generation.samples != 1 {
        return Err(unsupported("n"));
    }
    if fields.max_output_tokens == Some(0) {
        return Err(Failure::field("max_output_tokens", "at least one token must be allowed"));
    }
    generation.request.max_tokens = fields.max_output_tokens;
    let request = &mut generation.request;
    request.constraint = fields.constrain(&app.model, request.constraint.take())?;
    let template = app.model.template()?;
    let tools = fields.tools(template)?;
    let in_input = |failure| renamed(failure, "input");
    let messages = fields.messages(template)?;
    let (prompt, rules) =
        converse(app, &messages, &tools, &fields.variables(), &mut generation).map_err(in_input)?;
    let sampling = &generation.request.sampling;
    let form = ResponsesForm::new(
        letterhead(app, "resp_"),
        ResponseFields {
            instructions: fields.instructions.clone(),
            max_output_tokens: fields.max_output_tokens,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            tools: fields.shown_tools(),
            tool_choice: fields.shown_choice(),
            text_format: fields.shown_format(),
            parallel_tool_calls: fields.parallel_tool_calls.unwrap_or(true),
        },
    );
    let (form, prompts) = (Box::new(form), vec![prompt]);
    Ok(Asked { form, field: "input", prompts, generation, logprobs: None, rules })
}
