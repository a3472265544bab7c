//! `/v1/chat/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;

use super::generate::{Asked, Asker, check_logprobs, converse, generate, letterhead, token_texts};
use crate::serve::app::App;
use crate::serve::asked::{
    GenerationFields, MessageList, ToolFieldsOfRequest, Variables, read_messages, read_variables,
    unsupported,
};
use crate::serve::failure::Failure;
use crate::serve::forms::ChatForm;
use crate::serve::json::RequestBody;

/// Fields of a conversation besides those of every generation.
#[derive(Debug, Deserialize)]
struct ChatFields {
    messages: MessageList,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    chat_template_kwargs: Option<Variables>,
    reasoning_effort: Option<String>,
    continue_final_message: Option<bool>,
    add_generation_prompt: Option<bool>,
}

/// Answers a conversation.
pub async fn chat(
    State(app): State<Arc<App>>,
    asker: Asker,
    body: Body,
) -> Result<Response, Failure> {
    generate(&app, asker, body, read).await
}

fn read(app: &App, body: &RequestBody) -> Result<Asked, Failure> {
    let common: GenerationFields = body.parse(&app.limits)?;
    let fields: ChatFields = body.parse(&app.limits)?;
    let tools: ToolFieldsOfRequest = body.parse(&app.limits)?;
    app.check_model(common.model.as_deref())?;
    let refused = [
        ("continue_final_message", fields.continue_final_message == Some(true)),
        ("add_generation_prompt", fields.add_generation_prompt == Some(false)),
    ];
    if let Some((field, _)) = refused.into_iter().find(|(_, given)| *given) {
        return Err(unsupported(field));
    }
    let mut generation = common.resolve(&app.model)?;
    let logprobs = match (fields.logprobs.unwrap_or(false), fields.top_logprobs) {
        (true, count) => Some(count.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(_)) => {
            let message = "top_logprobs needs logprobs to be true";
            return Err(Failure::field("top_logprobs", message));
        }
    };
    check_logprobs("top_logprobs", logprobs)?;
    let template = app.model.template()?;
    let messages = read_messages(&fields.messages, template)?;
    let tools = tools.resolve(template)?;
    let mut variables = read_variables(fields.chat_template_kwargs.as_ref())?;
    if let Some(effort) = fields.reasoning_effort {
        variables.push(("reasoning_effort".to_owned(), serde_json::json!(effort).to_string()));
    }
    let (prompt, rules) = converse(app, &messages, &tools, &variables, &mut generation)?;
    let form = ChatForm::new(
        letterhead(app, "chatcmpl-"),
        generation.samples as usize,
        token_texts(app, logprobs)?,
        generation.include_usage,
        tools.forced.as_ref().is_some_and(|forced| forced.is_named),
    );
    let (form, prompts) = (Box::new(form), vec![prompt]);
    Ok(Asked { form, field: "messages", prompts, generation, logprobs, rules })
}
