//! `/v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::generate::{
    Asked, Asker, check_logprobs, generate, letterhead, plain_rules, token_texts,
};
use crate::serve::app::App;
use crate::serve::asked::{GenerationFields, Prompts, unsupported};
use crate::serve::failure::Failure;
use crate::serve::forms::TextForm;
use crate::serve::json::RequestBody;

/// Fields of a text to be continued besides those of every generation.
#[derive(Debug, Deserialize)]
struct TextFields {
    prompt: Prompts,
    logprobs: Option<u32>,
    echo: Option<bool>,
    suffix: Option<String>,
    best_of: Option<IgnoredAny>,
    tools: Option<IgnoredAny>,
    functions: Option<IgnoredAny>,
}

/// Continues texts.
pub async fn text(
    State(app): State<Arc<App>>,
    asker: Asker,
    body: Body,
) -> Result<Response, Failure> {
    generate(&app, asker, body, read).await
}

fn read(app: &App, body: &RequestBody) -> Result<Asked, Failure> {
    let common: GenerationFields = body.parse(&app.limits)?;
    let fields: TextFields = body.parse(&app.limits)?;
    app.check_model(common.model.as_deref())?;
    let mut generation = common.resolve(&app.model)?;
    generation.request.goes_on = true;
    // OpenAI's default for this interface.
    generation.request.max_tokens = generation.request.max_tokens.or(Some(16));
    let logprobs = fields.logprobs;
    check_logprobs("logprobs", logprobs)?;
    let refused = [
        ("echo", fields.echo == Some(true)),
        ("functions", fields.functions.is_some()),
        ("suffix", fields.suffix.is_some_and(|suffix| !suffix.is_empty())),
        ("best_of", fields.best_of.is_some()),
        ("tools", fields.tools.is_some()),
    ];
    if let Some((field, _)) = refused.into_iter().find(|(_, given)| *given) {
        return Err(unsupported(field));
    }
    let prompts = read_prompts(fields.prompt, app)?;
    let form = TextForm::new(
        letterhead(app, "cmpl-"),
        prompts.len() * generation.samples as usize,
        token_texts(app, logprobs)?,
        generation.include_usage,
    );
    let (form, rules) = (Box::new(form), plain_rules(app));
    Ok(Asked { form, field: "prompt", prompts, generation, logprobs, rules })
}

fn read_prompts(prompts: Prompts, app: &App) -> Result<Vec<Vec<u32>>, Failure> {
    let prompts = match prompts {
        Prompts::Texts(texts) => {
            texts.iter().map(|text| app.encode("prompt", text)).collect::<Result<_, _>>()?
        }
        Prompts::Ids(lists) => lists,
    };
    match prompts.is_empty() {
        true => Err(Failure::field("prompt", "there is no prompt")),
        false => Ok(prompts),
    }
}
