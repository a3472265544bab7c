//! What all paths that are answered by the model have in common.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::ExtensionRejection;
use axum::extract::{Extension, FromRequestParts};
use axum::http::request::Parts;
use axum::response::Response;
use serde::Deserialize;
use weir_abi::HeadResult;

use crate::Request;
use crate::notation::Notation;
use crate::serve::answer::{Answers, Held};
use crate::serve::app::{App, now};
use crate::serve::asked::{Generation, Tools};
use crate::serve::failure::Failure;
use crate::serve::forms::{Form, Letterhead, TokenTexts};
use crate::serve::json::{self, RequestBody};
use crate::serve::keys::Tenant;
use crate::serve::limits::LOGPROBS;
use crate::serve::places::Place;
use crate::serve::reading::ReadingRules;
use crate::serve::traces::RequestSpan;
use crate::template::{ChatMessage, Conversation};

/// What is left to do once a request has been read.
pub(super) struct Asked {
    pub form: Box<dyn Form>,
    /// The field that the prompts come from.
    pub field: &'static str,
    pub prompts: Vec<Vec<u32>>,
    pub generation: Generation,
    pub logprobs: Option<u32>,
    pub rules: ReadingRules,
}

/// Refuses to be asked for what the model does not give.
pub(super) fn check_gives(
    app: &App,
    body: &RequestBody,
    wanted: HeadResult,
) -> Result<(), Failure> {
    #[derive(Deserialize)]
    struct Named {
        model: Option<String>,
    }
    if app.model.gives() == wanted {
        return Ok(());
    }
    let named: Named = body.parse(&app.limits)?;
    app.check_model(named.model.as_deref())?;
    let gives = match wanted {
        HeadResult::Logits => "gives embeddings and writes no text; ask /v1/embeddings",
        HeadResult::Hidden => "writes text and gives no embeddings",
    };
    let message = format!("the model {:?} {gives}", app.name);
    Err(Failure::field("model", message).coded("model_not_supported"))
}

/// The head of an answer.
pub(super) fn letterhead(app: &App, prefix: &str) -> Letterhead {
    Letterhead { id: app.ids.next(prefix), created: now(), model: app.name.clone() }
}

/// Refuses more alternatives than are reported.
pub(super) fn check_logprobs(field: &str, count: Option<u32>) -> Result<(), Failure> {
    match count {
        Some(count) if count > LOGPROBS => {
            let message = format!("{field} is {count}, but it must be {LOGPROBS} at most");
            Err(Failure::field(field, message))
        }
        _ => Ok(()),
    }
}

/// For tokens that are reported.
pub(super) fn token_texts(app: &App, logprobs: Option<u32>) -> Result<Option<TokenTexts>, Failure> {
    match logprobs {
        Some(_) => Ok(Some(TokenTexts { tokenizer: app.model.tokenizer()?.cloned() })),
        None => Ok(None),
    }
}

/// How answers are read in which nothing is told apart.
pub(super) fn plain_rules(app: &App) -> ReadingRules {
    ReadingRules {
        notation: None,
        in_thoughts: false,
        one_call: false,
        ids: Arc::clone(&app.ids),
        stops: Vec::new(),
    }
}

/// The prompt of a conversation, and how its answer is read; what the answer must show of the notation is
/// noted in `generation`.
pub(super) fn converse(
    app: &App,
    messages: &[ChatMessage],
    tools: &Tools,
    variables: &[(String, String)],
    generation: &mut Generation,
) -> Result<(Vec<u32>, ReadingRules), Failure> {
    let Notation { calls, thoughts } = app.notation;
    let has_tools = !tools.definitions.is_empty();
    if has_tools && calls.is_none() {
        let message = "tools are not supported: calls would be written in a way that this server does \
                       not know, by the model's chat template";
        return Err(Failure::field("tools", message).coded("unsupported"));
    }
    let notation = Notation { calls: calls.filter(|_| has_tools), thoughts };
    let conversation = Conversation {
        messages,
        tools: &tools.definitions,
        variables,
        add_generation_prompt: true,
    };
    let (text, ids) = app.encode_chat(&conversation)?;
    let rules = ReadingRules {
        in_thoughts: notation.opens_thoughts(&text),
        notation: Some(notation).filter(|notation| *notation != Notation::default()),
        one_call: tools.one_call,
        ..plain_rules(app)
    };
    let request = &mut generation.request;
    if let (Some(forced), Some(calls)) = (&tools.forced, notation.calls) {
        if request.constraint.is_some() {
            let message = "tool_choice wants a call, and another field gives the answer a form that is \
                           none";
            return Err(Failure::field("tool_choice", message));
        }
        request.constraint = Some(forced.grammar(&app.model, calls)?);
    }
    if let Some(marks) = thoughts.filter(|_| !notation.closes_thoughts(&text)) {
        let constraint = request.constraint.take();
        request.constraint =
            constraint.map(|grammar| grammar.behind_thoughts(marks, rules.in_thoughts));
    }
    request.shown_tokens = notation.special_tokens(app.model.need_tokenizer()?);
    Ok((ids, rules))
}

/// Who asks, and on which connection.
pub(super) struct Asker {
    pub tenant: Tenant,
    pub span: RequestSpan,
    pub place: Arc<Place>,
}

impl<S: Send + Sync> FromRequestParts<S> for Asker {
    type Rejection = ExtensionRejection;

    async fn from_request_parts(parts: &mut Parts, app: &S) -> Result<Asker, ExtensionRejection> {
        Ok(Asker {
            tenant: Extension::from_request_parts(parts, app).await?.0,
            span: Extension::from_request_parts(parts, app).await?.0,
            place: Extension::from_request_parts(parts, app).await?.0,
        })
    }
}

/// Reads a request, asks the engine and writes what it answers.
pub(super) async fn generate(
    app: &Arc<App>,
    Asker { tenant, span, place }: Asker,
    body: Body,
    read: fn(&App, &RequestBody) -> Result<Asked, Failure>,
) -> Result<Response, Failure> {
    let body = json::read(body, &app.limits, &app.body_budget).await?;
    check_gives(app, &body, HeadResult::Logits)?;
    let answering = place.answer();
    let asked = app.off_the_network(move |app| read(app, &body)).await?;
    let Asked { form, field, prompts, generation, logprobs, rules } = asked;
    let Generation { request, samples, streams, .. } = generation;
    // A request may stand back behind what its key allows it, and not push itself forward.
    let priority = request.priority.max(tenant.priority);
    let owner = tenant.owner;
    let with_prompt = |prompt| Request { prompt, logprobs, owner, priority, ..request.clone() };
    let requests: Vec<Request> = prompts.into_iter().map(with_prompt).collect();
    let answers = requests.len() * samples as usize;
    span.ask(if field == "prompt" { "text_completion" } else { "chat" }, answers, &request);
    let begun = app.ask(requests, samples, span.moments()).await;
    let (inbox, room) = begun.map_err(|failure| renamed(failure, field))?;
    let held = Held::new(room, answering);
    let answers = Answers::new(inbox, form, &rules, answers, samples as usize, span, held);
    match streams {
        true => Ok(answers.stream(app.limits.keep_alive)),
        false => answers.whole().await,
    }
}

/// What is wrong with a prompt is wrong with the field that it comes from.
pub(super) fn renamed(failure: Failure, field: &str) -> Failure {
    match failure.param.as_deref() {
        Some("messages" | "prompt") => Failure { param: Some(field.to_owned()), ..failure },
        _ => failure,
    }
}
