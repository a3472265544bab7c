//! JSON in and out. What comes in is bounded in size, depth and time, and an error names its field.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::failure::Failure;
use super::limits::{Limits, OWN_BODY_BYTES};

/// Bytes that a unit of the budget for bodies stands for.
pub const BUDGET_UNIT: usize = 4096;

/// A body that was read, and its part of the memory that there is for all of them.
pub struct RequestBody {
    bytes: Vec<u8>,
    held: Option<OwnedSemaphorePermit>,
}

/// Reads a body within its limits. `budget` is what all bodies together may hold beyond what each
/// connection has room for, in [`BUDGET_UNIT`]s.
pub async fn read(
    mut body: Body,
    limits: &Limits,
    budget: &Arc<Semaphore>,
) -> Result<RequestBody, Failure> {
    let begin = Instant::now();
    let mut read = RequestBody { bytes: Vec::new(), held: None };
    loop {
        let until = (Instant::now() + limits.body_idle).min(begin + limits.body_total);
        let frame = match timeout_at(until, body.frame()).await {
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => {
                let message = format!("the body cannot be read: {error}");
                return Err(Failure::new(StatusCode::BAD_REQUEST, message));
            }
            Ok(None) => return Ok(read),
            Err(_) => return Err(too_slow(limits)),
        };
        let Ok(data) = frame.into_data() else { continue };
        read.take(&data, limits, budget)?;
    }
}

impl RequestBody {
    fn take(
        &mut self,
        data: &Bytes,
        limits: &Limits,
        budget: &Arc<Semaphore>,
    ) -> Result<(), Failure> {
        let length = self.bytes.len() + data.len();
        if length > limits.body_bytes {
            let message = format!("the body is longer than {} bytes", limits.body_bytes);
            return Err(Failure::new(StatusCode::PAYLOAD_TOO_LARGE, message));
        }
        self.hold(length, budget)?;
        self.bytes.extend_from_slice(data);
        Ok(())
    }

    /// Has part in the memory for so many bytes, or more.
    fn hold(&mut self, length: usize, budget: &Arc<Semaphore>) -> Result<(), Failure> {
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let wanted = length.saturating_sub(OWN_BODY_BYTES).div_ceil(BUDGET_UNIT);
        let more = Arc::clone(budget).try_acquire_many_owned(wanted.saturating_sub(held) as u32);
        let more = more.map_err(|_| {
            let message = "too many long requests are being read at once; try again later";
            Failure::new(StatusCode::SERVICE_UNAVAILABLE, message).coded("busy").later(1)
        })?;
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        Ok(())
    }

    /// A response with this object, which may be as long as the body or longer: it lies in the same memory,
    /// until it has been sent.
    pub fn response(
        mut self,
        value: &impl Serialize,
        budget: &Arc<Semaphore>,
    ) -> Result<Response, Failure> {
        let text = written(value);
        self.hold(text.len(), budget)?;
        Ok(held_response(StatusCode::OK, text, self.held))
    }

    /// Its part of the memory for bodies, for whoever holds on to what was read.
    pub fn into_held(self) -> Option<OwnedSemaphorePermit> {
        self.held
    }

    /// The object that the body is, or the field that is wrong.
    pub fn parse<T: DeserializeOwned>(&self, limits: &Limits) -> Result<T, Failure> {
        check_object(&self.bytes)?;
        parse(&self.bytes, limits.json_depth)
    }
}

fn too_slow(limits: &Limits) -> Failure {
    let message = format!(
        "the body did not arrive in time: {} s without a byte, or {} s in all",
        limits.body_idle.as_secs(),
        limits.body_total.as_secs()
    );
    Failure::new(StatusCode::REQUEST_TIMEOUT, message)
}

/// The value in these bytes, nested no deeper than `depth`.
pub fn parse<T: DeserializeOwned>(bytes: &[u8], depth: usize) -> Result<T, Failure> {
    check_depth(bytes, depth)?;
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let reason = error.into_inner();
        if reason.is_syntax() || reason.is_eof() {
            return Failure::new(StatusCode::BAD_REQUEST, format!("not valid JSON: {reason}"))
                .coded("invalid_json");
        }
        let message = reason.to_string();
        match (path.as_str(), absent_field(&message)) {
            (".", Some(field)) => Failure::field(field, &message),
            (".", None) => Failure::new(StatusCode::BAD_REQUEST, message),
            (outer, Some(field)) => {
                Failure::field(format!("{outer}.{field}"), format!("{outer}: {message}"))
            }
            (field, None) => Failure::field(field, format!("{field}: {message}")),
        }
    })?;
    json.end().map_err(|error| {
        let message = format!("something follows the JSON object: {error}");
        Failure::new(StatusCode::BAD_REQUEST, message).coded("invalid_json")
    })?;
    Ok(value)
}

/// The name of a field that is not there; serde's errors say it in words alone.
fn absent_field(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.split('`').next()
}

/// Serde takes lists for objects, their entries in the order of our fields, which nobody means.
fn check_object(bytes: &[u8]) -> Result<(), Failure> {
    match bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'[') => {
            let message = "the body must be a JSON object, and not a list";
            Err(Failure::new(StatusCode::BAD_REQUEST, message))
        }
        _ => Ok(()),
    }
}

/// Refuses brackets nested too deeply, before anything recursive sees them.
fn check_depth(bytes: &[u8], most: usize) -> Result<(), Failure> {
    let (mut depth, mut in_text, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        if in_text {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_text = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_text = true,
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > most {
            let message = format!("the JSON is nested more than {most} levels deep");
            return Err(Failure::new(StatusCode::BAD_REQUEST, message).coded("too_deep"));
        }
    }
    Ok(())
}

/// The text of an object.
pub fn written(value: &impl Serialize) -> Vec<u8> {
    // All that is written here are our own structures, which have a form in JSON.
    serde_json::to_vec(value).unwrap_or_default()
}

/// A response with this object.
pub fn response(status: StatusCode, value: &impl Serialize) -> Response {
    held_response(status, written(value), None)
}

/// The text of a response, and its part of a budget.
struct HeldText {
    text: Vec<u8>,
    _held: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for HeldText {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// A response with an object that has been written. What is held of a budget is given back once it has been
/// sent.
pub fn held_response(
    status: StatusCode,
    text: Vec<u8>,
    held: Option<OwnedSemaphorePermit>,
) -> Response {
    let json = HeaderValue::from_static("application/json");
    let mut response = Response::new(Body::from(Bytes::from_owner(HeldText { text, _held: held })));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Outer {
        #[serde(rename = "list")]
        _list: Vec<Inner>,
    }

    #[derive(Debug, Deserialize)]
    struct Inner {
        #[serde(rename = "count")]
        _count: u32,
    }

    fn failure(text: &str) -> Failure {
        parse::<Outer>(text.as_bytes(), 3).unwrap_err()
    }

    #[test]
    fn an_error_names_its_field() {
        assert_eq!(
            failure(r#"{"list": [{"count": 1}, {"count": -2}]}"#).param.as_deref(),
            Some("list[1].count")
        );
        assert_eq!(failure(r#"{"list": 3}"#).param.as_deref(), Some("list"));
        let absent = failure("{}");
        assert!(absent.message.contains("`list`"), "{}", absent.message);
        assert_eq!(absent.param.as_deref(), Some("list"));
        assert_eq!(failure(r#"{"list": [{}]}"#).param.as_deref(), Some("list[0].count"));
        let list = check_object(br#" [[{"count": 1}]]"#).unwrap_err();
        assert!(list.message.contains("object"), "{}", list.message);
        assert!(check_object(br#" {"list": []}"#).is_ok());
        assert_eq!(failure(r#"{"list": ["#).code, Some("invalid_json"));
        assert_eq!(failure(r#"{"list": []} x"#).code, Some("invalid_json"));
    }

    #[test]
    fn a_long_answer_has_part_in_the_budget_until_it_is_sent() {
        let budget = Arc::new(Semaphore::new(3));
        let body = || RequestBody { bytes: Vec::new(), held: None };
        let short = body().response(&vec![1_u8; OWN_BODY_BYTES / 4], &budget).unwrap();
        assert_eq!(budget.available_permits(), 3);
        let long = "a".repeat(OWN_BODY_BYTES + BUDGET_UNIT);
        let sent = body().response(&long, &budget).unwrap();
        assert_eq!(budget.available_permits(), 1);
        let refused = body().response(&long, &budget).unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (503, Some("busy")));
        drop((short, sent));
        assert_eq!(budget.available_permits(), 3);
    }

    #[test]
    fn depth_is_bounded_outside_of_texts() {
        assert!(check_depth(br#"[[["[[[[", "\"[[[["]]]"#, 3).is_ok());
        assert_eq!(check_depth(b"[[[[", 3).unwrap_err().code, Some("too_deep"));
        let deep = vec![b'['; 1 << 20];
        assert_eq!(parse::<Outer>(&deep, 64).unwrap_err().code, Some("too_deep"));
    }
}
