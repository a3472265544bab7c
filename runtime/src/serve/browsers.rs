//! What pages that a browser has open may ask: its user's programs can reach this server, pages from
//! elsewhere must not do so through the browser.
//!
//! Every request that a page sends to another place, and every `POST`, names the page's origin (Fetch
//! Standard, 3.1). Only the server's own origin and those that it was told are let in; the latter may read
//! answers, too (CORS). And a name that somebody points at this machine makes their page's origin the
//! server's own (DNS rebinding): where neither a key nor the network keeps strangers out, the server is
//! known by this machine's names only.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::app::App;
use super::failure::Failure;

/// Seconds for which a browser remembers what it may ask.
const PREFLIGHT_SECONDS: &str = "600";

/// An origin whose pages may ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedOrigin {
    /// Each.
    Any,
    /// This one, in small letters.
    One(String),
}

impl FromStr for AllowedOrigin {
    type Err = String;

    fn from_str(text: &str) -> Result<AllowedOrigin, String> {
        if text == "*" {
            return Ok(AllowedOrigin::Any);
        }
        let origin = Uri::from_str(text).ok().and_then(|uri| {
            let origin = format!("{}://{}", uri.scheme_str()?, uri.authority()?);
            origin.eq_ignore_ascii_case(text).then(|| origin.to_ascii_lowercase())
        });
        let origin = origin.filter(|origin| !origin.contains('@'));
        origin.map(AllowedOrigin::One).ok_or_else(|| {
            format!("{text:?} is no origin, which is as in https://example.org:8443, nor \"*\"")
        })
    }
}

/// Who is let in.
#[derive(Clone, Debug, Default)]
pub struct Browsers {
    /// Origins beside the server's own.
    pub allowed: Vec<AllowedOrigin>,
    /// The address listened at, if the server is known by this machine's names only.
    pub known_as: Option<IpAddr>,
    /// Whether it speaks TLS itself, so that pages without are not its own. One that does not may have
    /// somebody in front who does.
    pub is_secure: bool,
}

impl Browsers {
    /// Whether a request was sent to a name of this server. Those without one come from no browser.
    fn is_meant(&self, headers: &HeaderMap) -> bool {
        let Some(address) = self.known_as else { return true };
        let Some(host) = headers.get(header::HOST) else { return true };
        host.to_str().is_ok_and(|host| is_local(host, address))
    }

    /// What a page of this origin may read answers under; an error if it may not ask at all, and nothing
    /// where the browser needs no permission.
    fn permission(&self, headers: &HeaderMap) -> Result<Option<HeaderValue>, Failure> {
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(None) };
        let text = origin.to_str().unwrap_or_default();
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let plain = text.strip_prefix("http://").filter(|_| !self.is_secure);
        let own = text.strip_prefix("https://").or(plain);
        if own.zip(host).is_some_and(|(own, host)| own.eq_ignore_ascii_case(host)) {
            return Ok(None);
        }
        if self.allowed.contains(&AllowedOrigin::Any) {
            return Ok(Some(HeaderValue::from_static("*")));
        }
        let asked = AllowedOrigin::One(text.to_ascii_lowercase());
        if self.allowed.contains(&asked) {
            return Ok(Some(origin.clone()));
        }
        let message = "pages of this origin may not ask here: the server was not started with \
                       --allow-origin for it";
        Err(Failure::new(StatusCode::FORBIDDEN, message).coded("origin_not_allowed"))
    }
}

/// Whether a `Host` is a name that this machine has by itself, or the address, with any port.
fn is_local(host: &str, address: IpAddr) -> bool {
    let port_begins = host.rfind(':').filter(|colon| !host[*colon..].contains(']'));
    let name = &host[..port_begins.unwrap_or(host.len())];
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let is_usual = |ip: &IpAddr| matches!(ip.to_string().as_str(), "127.0.0.1" | "::1");
    name.eq_ignore_ascii_case("localhost")
        || bare.parse().is_ok_and(|ip: IpAddr| is_usual(&ip) || ip == address)
}

/// Refuses requests to names that are not the server's.
pub async fn check_host(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    if app.browsers.is_meant(request.headers()) {
        return next.run(request).await;
    }
    let message = "this server is known as localhost, 127.0.0.1 or [::1] only: give it an API key, or \
                   start it with --allow-anyone";
    Failure::new(StatusCode::FORBIDDEN, message).coded("host_not_allowed").into_response()
}

/// Refuses requests of pages from elsewhere, and lets the others read their answers.
pub async fn check_origin(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let permission = match app.browsers.permission(request.headers()) {
        Ok(None) => return next.run(request).await,
        Ok(Some(permission)) => permission,
        Err(failure) => return failure.into_response(),
    };
    let wanted = header::ACCESS_CONTROL_REQUEST_METHOD;
    // A browser asks first, and without the key.
    let mut response =
        if request.method() == Method::OPTIONS && request.headers().contains_key(wanted) {
            preflight(request.headers())
        } else {
            next.run(request).await
        };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, permission);
    let exposed = HeaderValue::from_static("x-request-id, retry-after");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    response
}

fn preflight(asked: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    let methods = HeaderValue::from_static("GET, POST");
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    // Whatever a client's library adds: fields that are not known are ignored.
    if let Some(fields) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, fields.clone());
    }
    let seconds = HeaderValue::from_static(PREFLIGHT_SECONDS);
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, seconds);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(host: &str, origin: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        headers.insert(header::ORIGIN, origin.parse().unwrap());
        headers
    }

    #[test]
    fn origins_are_written_as_browsers_write_them() {
        let parse = |text: &str| text.parse::<AllowedOrigin>();
        assert_eq!(parse("*"), Ok(AllowedOrigin::Any));
        let one = |origin: &str| Ok(AllowedOrigin::One(origin.into()));
        assert_eq!(parse("https://App.Example:8443"), one("https://app.example:8443"));
        assert_eq!(parse("http://[::1]:3000"), one("http://[::1]:3000"));
        assert_eq!(parse("tauri://localhost"), one("tauri://localhost"));
        for wrong in ["", "null", "example.org", "https://a/", "https://a/b", "https://u@a", "//a"]
        {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn the_own_origin_and_those_allowed_are_let_in() {
        let allowed = vec!["https://app.example".parse().unwrap()];
        let browsers = Browsers { allowed, ..Browsers::default() };
        let ask = |host, origin| browsers.permission(&headers(host, origin));
        assert_eq!(ask("a:8080", "http://a:8080"), Ok(None));
        assert_eq!(ask("models.example", "https://Models.example"), Ok(None));
        let permitted = Ok(Some(HeaderValue::from_static("https://app.example")));
        assert_eq!(ask("a:8080", "https://app.example"), permitted);
        for other in ["http://a:8081", "http://app.example", "null", "ftp://a:8080", "a:8080", ""] {
            assert!(ask("a:8080", other).is_err(), "{other:?}");
        }
        let any = Browsers { allowed: vec![AllowedOrigin::Any], ..Browsers::default() };
        let everybody = Ok(Some(HeaderValue::from_static("*")));
        assert_eq!(any.permission(&headers("a", "null")), everybody);
        assert_eq!(browsers.permission(&HeaderMap::new()), Ok(None));
        let secure = Browsers { is_secure: true, ..Browsers::default() };
        assert_eq!(secure.permission(&headers("a:8080", "https://a:8080")), Ok(None));
        assert!(secure.permission(&headers("a:8080", "http://a:8080")).is_err());
    }

    #[test]
    fn names_of_this_machine_are_few() {
        let bound = "127.0.0.5".parse().unwrap();
        for host in ["localhost", "LocalHost:80", "127.0.0.1:8080", "[::1]", "[::1]:9", "127.0.0.5"]
        {
            assert!(is_local(host, bound), "{host:?}");
        }
        for host in ["", "evil.example", "localhost.evil:80", "127.0.0.2", "[::2]:80", "[::1", "::"]
        {
            assert!(!is_local(host, bound), "{host:?}");
        }
        let local = Browsers { known_as: Some(bound), ..Browsers::default() };
        assert!(local.is_meant(&HeaderMap::new()));
        assert!(!local.is_meant(&headers("evil.example", "http://evil.example")));
    }
}
