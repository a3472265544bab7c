//! `/v1/chat/completions` and `/v1/completions`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::Request;
use crate::serve::answer;
use crate::serve::app::{App, now};
use crate::serve::asked::{
    Generation, GenerationFields, MessageFields, Prompts, read_messages, unsupported,
};
use crate::serve::failure::Failure;
use crate::serve::forms::{Form, Letterhead};
use crate::serve::json::{self, RequestBody};
use crate::serve::keys::Tenant;
use crate::serve::limits::LOGPROBS;

/// Fields of a conversation besides those of every generation.
#[derive(Debug, Deserialize)]
pub struct ChatFields {
    /// What has been said.
    pub messages: Vec<MessageFields>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
}

/// Fields of a text to be continued besides those of every generation.
#[derive(Debug, Deserialize)]
pub struct TextFields {
    /// What is continued.
    pub prompt: Prompts,
    logprobs: Option<u32>,
    echo: Option<bool>,
    suffix: Option<String>,
    best_of: Option<IgnoredAny>,
}

/// What is left to do once a request has been read.
struct Asked {
    form: Form,
    prompts: Vec<Vec<u32>>,
    generation: Generation,
    logprobs: Option<u32>,
}

/// Answers a conversation.
pub async fn chat(
    State(app): State<Arc<App>>,
    Extension(tenant): Extension<Tenant>,
    body: Body,
) -> Result<Response, Failure> {
    let body = json::read(body, &app.limits, &app.body_budget).await?;
    let asked = off_the_network(&app, move |app| read_chat(app, &body)).await?;
    serve(&app, tenant, asked).await
}

/// Continues texts.
pub async fn text(
    State(app): State<Arc<App>>,
    Extension(tenant): Extension<Tenant>,
    body: Body,
) -> Result<Response, Failure> {
    let body = json::read(body, &app.limits, &app.body_budget).await?;
    let asked = off_the_network(&app, move |app| read_text(app, &body)).await?;
    serve(&app, tenant, asked).await
}

/// Parsing, templates and tokenizers take their time, which the other connections need not wait for.
pub(super) async fn off_the_network<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce(&App) -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let app = Arc::clone(app);
    match tokio::task::spawn_blocking(move || work(&app)).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Failure::new(
            axum::http::StatusCode::INTERNAL_SERVER_ERROR,
            "reading the request has failed: a bug in the server",
        )),
    }
}

fn read_chat(app: &App, body: &RequestBody) -> Result<Asked, Failure> {
    let common: GenerationFields = body.parse(&app.limits)?;
    let fields: ChatFields = body.parse(&app.limits)?;
    app.check_model(common.model.as_deref())?;
    let generation = common.resolve(&app.model)?;
    let logprobs = match (fields.logprobs.unwrap_or(false), fields.top_logprobs) {
        (true, count) => Some(count.unwrap_or(0)),
        (false, None | Some(0)) => None,
        (false, Some(_)) => {
            let message = "top_logprobs needs logprobs to be true";
            return Err(Failure::field("top_logprobs", message));
        }
    };
    check_logprobs("top_logprobs", logprobs)?;
    let messages = read_messages(&fields.messages)?;
    let prompts = vec![app.encode_chat(&messages)?];
    Ok(Asked { form: Form::Chat, prompts, generation, logprobs })
}

fn read_text(app: &App, body: &RequestBody) -> Result<Asked, Failure> {
    let common: GenerationFields = body.parse(&app.limits)?;
    let fields: TextFields = body.parse(&app.limits)?;
    app.check_model(common.model.as_deref())?;
    let mut generation = common.resolve(&app.model)?;
    // OpenAI's default for this interface.
    generation.request.max_tokens = generation.request.max_tokens.or(Some(16));
    check_logprobs("logprobs", fields.logprobs)?;
    let refused = [
        ("echo", fields.echo == Some(true)),
        ("suffix", fields.suffix.is_some_and(|suffix| !suffix.is_empty())),
        ("best_of", fields.best_of.is_some()),
    ];
    if let Some((field, _)) = refused.into_iter().find(|(_, given)| *given) {
        return Err(unsupported(field));
    }
    let prompts = read_prompts(fields.prompt, app)?;
    Ok(Asked { form: Form::Text, prompts, generation, logprobs: fields.logprobs })
}

fn check_logprobs(field: &str, count: Option<u32>) -> Result<(), Failure> {
    match count {
        Some(count) if count > LOGPROBS => {
            let message = format!("{field} is {count}, but it must be {LOGPROBS} at most");
            Err(Failure::field(field, message))
        }
        _ => Ok(()),
    }
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

async fn serve(app: &Arc<App>, tenant: Tenant, asked: Asked) -> Result<Response, Failure> {
    let Asked { form, prompts, generation, logprobs } = asked;
    let Generation { request, samples, streams, include_usage } = generation;
    // A request may stand back behind what its key allows it, and not push itself forward.
    let priority = request.priority.max(tenant.priority);
    let owner = tenant.owner;
    let with_prompt = |prompt| Request { prompt, logprobs, owner, priority, ..request.clone() };
    let requests: Vec<Request> = prompts.into_iter().map(with_prompt).collect();
    let answers = requests.len() * samples as usize;
    let of_prompt = |failure: Failure| match form {
        Form::Text if failure.param.as_deref() == Some("messages") => {
            Failure { param: Some("prompt".into()), ..failure }
        }
        _ => failure,
    };
    let inbox = app.ask(requests, samples).map_err(of_prompt)?;
    let prefix = match form {
        Form::Chat => "chatcmpl-",
        Form::Text => "cmpl-",
    };
    let tokenizer = if logprobs.is_some() { app.model.tokenizer()?.cloned() } else { None };
    let letterhead = Letterhead {
        form,
        id: app.ids.next(prefix),
        created: now(),
        model: app.name.clone(),
        logprobs: logprobs.is_some(),
        tokenizer,
    };
    let samples = samples as usize;
    if streams {
        let keep_alive = app.limits.keep_alive;
        return Ok(answer::stream(inbox, letterhead, answers, samples, include_usage, keep_alive));
    }
    answer::whole(inbox, &letterhead, answers, samples).await
}
