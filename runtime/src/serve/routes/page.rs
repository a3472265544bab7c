//! `/`: the page to talk to the model. It needs nothing but what is served here, and the browser is told
//! to let it have nothing else.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The page.
pub async fn page() -> Response {
    let mut response = file(include_str!("page/page.html"), "text/html; charset=utf-8");
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// What it does.
pub async fn script() -> Response {
    file(include_str!("page/page.js"), "text/javascript; charset=utf-8")
}

/// What it looks like.
pub async fn style() -> Response {
    file(include_str!("page/page.css"), "text/css; charset=utf-8")
}

fn file(text: &'static str, kind: &'static str) -> Response {
    let mut response = text.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
