//! From a mailbox to a response: whole, or as server-sent events.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use serde_json::Value;
use tokio::time::timeout;

use super::failure::Failure;
use super::forms::{Form, Letterhead, UsageForm, WholeAnswer};
use super::json;
use super::mailbox::{Delivery, End, Inbox};
use crate::Usage;

/// What a request was answered, so far.
struct Progress {
    begun: bool,
    /// Characters of its text.
    characters: usize,
    usage: Option<Usage>,
}

/// Waits for all answers and writes them as one object.
pub async fn whole(
    mut inbox: Inbox,
    letterhead: &Letterhead,
    answers: usize,
    samples: usize,
) -> Result<Response, Failure> {
    let mut whole = vec![WholeAnswer::default(); answers];
    while whole.iter().any(|answer| answer.end.is_none()) {
        for (answer, delivery) in whole.iter_mut().zip(inbox.receive().await) {
            let begin = answer.text.len();
            answer.text.push_str(&delivery.text);
            if letterhead.logprobs {
                let tokens = delivery.tokens.iter().cloned();
                answer.tokens.extend(tokens.map(|mut token| {
                    token.text_end += begin;
                    token
                }));
            }
            match &delivery.end {
                Some(End::Finished(reason, usage)) => answer.end = Some((*reason, *usage)),
                Some(end) => return Err(Failure::of_end(end).unwrap_or_else(Failure::draining)),
                None => {}
            }
        }
    }
    let usage: Vec<Usage> = whole.iter().filter_map(|answer| answer.end).map(|end| end.1).collect();
    let usage = UsageForm::new(&usage, samples);
    Ok(json::response(StatusCode::OK, &letterhead.whole(&whole, usage)))
}

/// State of a stream of events.
struct Events {
    inbox: Inbox,
    letterhead: Arc<Letterhead>,
    progress: Vec<Progress>,
    samples: usize,
    include_usage: bool,
    keep_alive: Duration,
    is_over: bool,
}

/// Writes answers as they grow.
pub fn stream(
    inbox: Inbox,
    letterhead: Letterhead,
    answers: usize,
    samples: usize,
    include_usage: bool,
    keep_alive: Duration,
) -> Response {
    let progress = (0..answers).map(|_| Progress { begun: false, characters: 0, usage: None });
    let events = Events {
        inbox,
        letterhead: Arc::new(letterhead),
        progress: progress.collect(),
        samples,
        include_usage,
        keep_alive,
        is_over: false,
    };
    let events = stream::unfold(events, |mut events| async move {
        let bytes = events.next().await?;
        Some((Ok::<Bytes, std::convert::Infallible>(bytes), events))
    });
    let mut response = Response::new(Body::from_stream(events));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would hold tokens back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl Events {
    /// The next events; `None` behind the last.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let mut out = String::new();
        loop {
            let received = match timeout(self.keep_alive, self.inbox.receive()).await {
                Ok(received) => received,
                Err(_) => return Some(Bytes::from_static(b": keep-alive\n\n")),
            };
            let mut failure = None;
            for (index, delivery) in received.iter().enumerate() {
                let progress = &mut self.progress[index];
                write_delivery(&mut out, &self.letterhead, index, delivery, progress);
                failure = failure.or(delivery.end.as_ref().and_then(Failure::of_end));
            }
            if let Some(failure) = failure {
                push_event(&mut out, &failure.body());
                self.is_over = true;
            } else if self.progress.iter().all(|progress| progress.usage.is_some()) {
                if self.include_usage {
                    let usage: Vec<Usage> =
                        self.progress.iter().filter_map(|progress| progress.usage).collect();
                    let usage = UsageForm::new(&usage, self.samples);
                    push_event(&mut out, &self.letterhead.usage_piece(usage));
                }
                out.push_str("data: [DONE]\n\n");
                self.is_over = true;
            }
            // Tokens without text of their own give nothing to write.
            if !out.is_empty() {
                return Some(Bytes::from(out));
            }
        }
    }
}

fn push_event(out: &mut String, event: &Value) {
    out.push_str("data: ");
    out.push_str(&event.to_string());
    out.push_str("\n\n");
}

/// Writes a piece for each token that has brought text, and one for the text of the end.
fn write_delivery(
    out: &mut String,
    letterhead: &Letterhead,
    index: usize,
    delivery: &Delivery,
    progress: &mut Progress,
) {
    let is_empty = delivery.tokens.is_empty() && delivery.end.is_none();
    if letterhead.form == Form::Chat && !progress.begun && !is_empty {
        push_event(out, &letterhead.first_piece(index));
        progress.begun = true;
    }
    let mut write = |begin: usize, end: usize, tokens: &[super::mailbox::ChosenToken]| {
        let text = &delivery.text[begin..end];
        push_event(out, &letterhead.piece(index, text, progress.characters, tokens));
        progress.characters += text.chars().count();
    };
    let mut begin = 0;
    for token in &delivery.tokens {
        if token.text_end > begin || letterhead.logprobs {
            write(begin, token.text_end, std::slice::from_ref(token));
        }
        begin = token.text_end;
    }
    if begin < delivery.text.len() {
        write(begin, delivery.text.len(), &[]);
    }
    if let Some(End::Finished(reason, usage)) = delivery.end {
        progress.usage = Some(usage);
        push_event(out, &letterhead.last_piece(index, reason));
    }
}
