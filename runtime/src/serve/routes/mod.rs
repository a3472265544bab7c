//! What can be asked of a server, one file each.
//!
//! | path | file |
//! |---|---|
//! | `/`, `/page.js`, `/page.css` | `page` |
//! | `/v1/chat/completions` | `chat` |
//! | `/v1/completions` | `text` |
//! | `/v1/responses` | `responses` |
//! | `/v1/messages` | `messages` |
//! | `/v1/embeddings` | `embeddings` |
//! | `/v1/models` | `models` |
//! | `/tokenize`, `/detokenize` | `tokens` |
//! | `/health/live`, `/health/ready`, `/metrics`, `/status` | `health` |
//! | `/openapi.json` | `openapi`, which describes them all: a path is added there, too |

mod chat;
mod embeddings;
mod generate;
mod health;
mod messages;
mod models;
mod openapi;
mod page;
mod responses;
mod text;
mod tokens;

use std::sync::Arc;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::app::App;
use super::browsers::{check_host, check_origin};
use super::failure::Failure;
use super::keys::Tenant;
use super::traces::RequestSpan;

/// Everything that a server answers.
pub fn router(app: Arc<App>) -> Router {
    // Whoever watches over the process, and who only wants to see the page, has no key.
    let open = Router::new()
        .route("/", get(page::page))
        .route("/page.js", get(page::script))
        .route("/page.css", get(page::style))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        // As vLLM calls it.
        .route("/health", get(health::ready));
    let guarded = Router::new()
        .route("/v1/chat/completions", post(chat::chat))
        .route("/v1/completions", post(text::text))
        .route("/v1/responses", post(responses::create))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::one))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/metrics", get(health::metrics))
        .route("/status", get(health::status))
        .route("/openapi.json", get(openapi::document))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), authorise));
    // The same behind the same door, whose refusals are in its own words as well.
    let anthropic = Router::new()
        .route("/v1/messages", post(messages::create))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), authorise))
        .route_layer(middleware::map_response(messages::in_own_words));
    // In front of the origins, as browsers ask with a method of their own.
    let guarded = guarded
        .merge(anthropic)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), check_origin));
    open.merge(guarded)
        .method_not_allowed_fallback(no_such_method)
        .fallback(|| async { Failure::new(StatusCode::NOT_FOUND, "there is no such path here") })
        .layer(middleware::from_fn_with_state(Arc::clone(&app), check_host))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), observe))
        .with_state(app)
}

async fn no_such_method() -> Failure {
    Failure::new(StatusCode::METHOD_NOT_ALLOWED, "this path has no such method")
}

/// Finds out who asks.
async fn authorise(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    match app.tenant(request.headers()) {
        Ok(tenant) => {
            request.extensions_mut().insert::<Tenant>(tenant);
            next.run(request).await
        }
        Err(failure) => failure.into_response(),
    }
}

/// Gives every response a name, counts and logs it. Never what it says.
async fn observe(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    const REQUEST_ID: &str = "x-request-id";
    let begin = std::time::Instant::now();
    let is_plain = |id: &&HeaderValue| {
        let bytes = id.as_bytes();
        bytes.len() <= 64
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte))
    };
    let given = request.headers().get(REQUEST_ID).filter(is_plain).cloned();
    let id = given.or_else(|| HeaderValue::try_from(app.ids.next("req-")).ok());
    let path = request.extensions().get::<MatchedPath>();
    // Paths that are not ours are the clients' invention, of which there are too many to count.
    let route = path.map_or_else(|| "other".to_owned(), |path| path.as_str().to_owned());
    let method = request.method().clone();
    // Those who watch over the server ask too often to be of interest.
    let traces = app.traces.as_ref().filter(|_| route.starts_with("/v1/"));
    let span = traces.map(|traces| traces.begin(request.headers(), method.as_str(), &route));
    let span: RequestSpan = span.unwrap_or_default();
    request.extensions_mut().insert(span.clone());
    let too_long = request.uri().to_string().len() > app.limits.url_bytes;
    let mut response = if too_long {
        let message = format!("the URL is longer than {} bytes", app.limits.url_bytes);
        Failure::new(StatusCode::URI_TOO_LONG, message).into_response()
    } else {
        next.run(request).await
    };
    let status = response.status();
    app.board.answered(&route, status.as_u16());
    span.status(status.as_u16());
    let shown = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
    let milliseconds = begin.elapsed().as_secs_f64() * 1e3;
    tracing::info!(id = shown, %method, route, status = status.as_u16(), milliseconds, "answered");
    let headers = response.headers_mut();
    if let Some(id) = id {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if app.is_draining() {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
