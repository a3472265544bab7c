//! Errors as OpenAI's API writes them: `{"error": {"message", "type", "param", "code"}}`.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::mailbox::End;
use crate::{RequestError, RuntimeError};

/// Why a request is not answered as it wants.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The response's status.
    pub status: StatusCode,
    /// What is wrong and, where it can be told, what would be right.
    pub message: String,
    /// The field that is to blame.
    pub param: Option<String>,
    /// A name for programs.
    pub code: Option<&'static str>,
    /// Seconds after which it may be different.
    pub retry_after: Option<u64>,
}

impl Failure {
    /// A failure with this status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Failure {
        Failure { status, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// A field of the request is wrong.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Failure {
        Failure {
            param: Some(param.into()),
            ..Failure::new(StatusCode::BAD_REQUEST, message.into())
        }
    }

    /// The same with a name for programs.
    pub fn coded(self, code: &'static str) -> Failure {
        Failure { code: Some(code), ..self }
    }

    /// The same, to be tried again after so many seconds.
    pub fn later(self, seconds: u64) -> Failure {
        Failure { retry_after: Some(seconds), ..self }
    }

    /// There are as many requests as the queue takes.
    pub fn queue_is_full(limit: usize) -> Failure {
        let message = format!(
            "all slots are in use and {limit} requests or more wait already; try again later"
        );
        Failure::new(StatusCode::TOO_MANY_REQUESTS, message).coded("queue_full").later(1)
    }

    /// The server is about to stop.
    pub fn draining() -> Failure {
        let message = "the server is shutting down and takes no further requests";
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, message).coded("draining").later(5)
    }

    /// The request's time in the queue is over.
    pub fn waited_too_long() -> Failure {
        let message = "the request has waited for a slot for longer than the server allows";
        Failure::new(StatusCode::SERVICE_UNAVAILABLE, message).coded("queue_timeout").later(1)
    }

    /// An answer that ended otherwise than it should.
    pub fn of_end(end: &End) -> Option<Failure> {
        match end {
            End::Finished { .. } => None,
            End::WaitedTooLong => Some(Failure::waited_too_long()),
            End::Overdue => Some(
                Failure::new(
                    StatusCode::GATEWAY_TIMEOUT,
                    "the answer was not complete when the request's time was over",
                )
                .coded("deadline_exceeded"),
            ),
            End::LeftGrammar(fault) => Some(
                Failure::new(StatusCode::BAD_REQUEST, fault.to_string()).coded("constraint_failed"),
            ),
            End::Failed(reason) => {
                Some(Failure::new(StatusCode::INTERNAL_SERVER_ERROR, reason.clone()))
            }
        }
    }

    /// OpenAI's class of this status.
    fn class(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_client_error() => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The object that says so.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.class(),
            "param": self.param,
            "code": self.code,
        }})
    }
}

/// The same as Anthropic's API writes it. A field has no place of its own there.
impl Failure {
    /// The object that says so.
    pub fn anthropic_body(&self) -> Value {
        let class = match self.status {
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "api_error",
            _ => self.class(),
        };
        let message = match &self.param {
            Some(field) if !self.message.starts_with(field.as_str()) => {
                format!("{field}: {}", self.message)
            }
            _ => self.message.clone(),
        };
        json!({"type": "error", "error": {"type": class, "message": message}})
    }
}

impl From<RequestError> for Failure {
    fn from(error: RequestError) -> Failure {
        let message = error.to_string();
        match error {
            RequestError::TooLong { .. } => {
                Failure::field("messages", message).coded("context_length_exceeded")
            }
            RequestError::UnknownBias { .. } => Failure::field("logit_bias", message),
            RequestError::Sampling { option, .. } => {
                Failure::field(option.replace([' ', '-'], "_"), message)
            }
            RequestError::EmptyStop | RequestError::StopWithoutTokenizer => {
                Failure::field("stop", message)
            }
            RequestError::NoSamples | RequestError::SamplesIncremental { .. } => {
                Failure::field("n", message)
            }
            RequestError::ForeignGrammar { .. } => Failure::field("response_format", message),
            RequestError::Empty | RequestError::UnknownToken { .. } => {
                Failure::field("prompt", message)
            }
        }
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Failure {
        match error {
            RuntimeError::Request(reason) => reason.into(),
            // A template refuses conversations that it was not made for.
            RuntimeError::Part { part: "chat template", reason } => {
                Failure::field("messages", format!("the chat template refuses them: {reason}"))
            }
            // What a text holds may have no token.
            RuntimeError::Part { part: "tokenizer", reason } => {
                Failure::new(StatusCode::BAD_REQUEST, format!("the text has no tokens: {reason}"))
            }
            RuntimeError::Absent(_) | RuntimeError::Constraint(_) => {
                Failure::new(StatusCode::BAD_REQUEST, error.to_string())
            }
            _ => Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = super::json::response(self.status, &self.body());
        // For interfaces that write it otherwise.
        response.extensions_mut().insert(self.clone());
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}
