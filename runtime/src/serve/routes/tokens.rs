//! `/tokenize` and `/detokenize`, as vLLM has them.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::serve::app::App;
use crate::serve::asked::{
    MessageList, ToolFieldsOfRequest, Variables, read_messages, read_variables,
};
use crate::serve::failure::Failure;
use crate::serve::json;
use crate::template::Conversation;

#[derive(Debug, Deserialize)]
struct TokenizeFields {
    model: Option<String>,
    prompt: Option<String>,
    messages: Option<MessageList>,
    chat_template_kwargs: Option<Variables>,
    add_special_tokens: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct DetokenizeFields {
    model: Option<String>,
    tokens: Vec<u32>,
}

#[derive(Debug, Serialize)]
struct Tokens {
    count: usize,
    max_model_len: u32,
    tokens: Vec<u32>,
}

/// The tokens of a text or a conversation.
pub async fn tokenize(State(app): State<Arc<App>>, body: Body) -> Result<Response, Failure> {
    let body = json::read(body, &app.limits, &app.body_budget).await?;
    app.off_the_network(move |app| {
        let fields: TokenizeFields = body.parse(&app.limits)?;
        app.check_model(fields.model.as_deref())?;
        let tokens = match (&fields.prompt, &fields.messages) {
            (Some(text), None) if fields.add_special_tokens == Some(false) => {
                app.check_text("prompt", text)?;
                app.model.encode_plain(text)?
            }
            (Some(text), None) => app.encode("prompt", text)?,
            (None, Some(messages)) => {
                let template = app.model.template()?;
                let messages = read_messages(messages, template)?;
                let tools: ToolFieldsOfRequest = body.parse(&app.limits)?;
                let conversation = Conversation {
                    messages: &messages,
                    tools: &tools.resolve(template)?.definitions,
                    variables: &read_variables(fields.chat_template_kwargs.as_ref())?,
                    add_generation_prompt: true,
                };
                app.encode_chat(&conversation)?.1
            }
            _ => return Err(Failure::field("prompt", "either prompt or messages is needed")),
        };
        let (count, max_model_len) = (tokens.len(), app.rules.context);
        body.response(&Tokens { count, max_model_len, tokens }, &app.body_budget)
    })
    .await
}

/// The text of tokens.
pub async fn detokenize(State(app): State<Arc<App>>, body: Body) -> Result<Response, Failure> {
    let body = json::read(body, &app.limits, &app.body_budget).await?;
    app.off_the_network(move |app| {
        let fields: DetokenizeFields = body.parse(&app.limits)?;
        app.check_model(fields.model.as_deref())?;
        let context = app.rules.context;
        if fields.tokens.len() > context as usize {
            let message = format!(
                "there are {} tokens, more than the context of {context}",
                fields.tokens.len()
            );
            return Err(Failure::field("tokens", message));
        }
        let vocabulary = app.rules.vocabulary;
        if let Some(index) = fields.tokens.iter().position(|token| *token >= vocabulary) {
            let message = format!(
                "token {index} is {}, and the vocabulary has {vocabulary} entries",
                fields.tokens[index]
            );
            return Err(Failure::field(format!("tokens[{index}]"), message));
        }
        let text = app.model.need_tokenizer()?.decode(&fields.tokens, false);
        body.response(&json!({"prompt": text}), &app.body_budget)
    })
    .await
}
