//! From a mailbox to a response: whole, or as server-sent events, in an interface's form.

#[cfg(test)]
mod tests;

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

use super::failure::Failure;
use super::forms::{Counts, Events, Form, WholeAnswer};
use super::json;
use super::mailbox::Inbox;
use super::places::Answering;
use super::reading::{Ending, Reading, ReadingRules};
use super::traces::RequestSpan;

/// Answers that are being given.
pub struct Answers {
    inbox: Inbox,
    form: Box<dyn Form>,
    readings: Vec<Reading>,
    /// Answers to each prompt.
    samples: usize,
    /// Lives as long as the answers are given.
    span: RequestSpan,
    /// Likewise.
    held: Held,
}

/// What is held until an answer has been given.
pub struct Held {
    room: Option<OwnedSemaphorePermit>,
    /// To be dropped with it.
    _answering: Answering,
}

impl Held {
    /// Memory for tokens that are reported with probabilities, where they are, and the connection.
    pub fn new(room: Option<OwnedSemaphorePermit>, answering: Answering) -> Held {
        Held { room, _answering: answering }
    }
}

impl Answers {
    /// `count` answers that come into a mailbox.
    pub fn new(
        inbox: Inbox,
        form: Box<dyn Form>,
        rules: &ReadingRules,
        count: usize,
        samples: usize,
        span: RequestSpan,
        held: Held,
    ) -> Answers {
        let readings = (0..count).map(|_| Reading::new(rules)).collect();
        Answers { inbox, form, readings, samples, span, held }
    }

    /// Waits for all answers and writes them as one object.
    pub async fn whole(mut self) -> Result<Response, Failure> {
        let mut whole = vec![WholeAnswer::default(); self.readings.len()];
        let mut bytes = vec![0; whole.len()];
        let reports_tokens = self.form.reports_tokens();
        while whole.iter().any(|answer| answer.ending.is_none()) {
            let received = self.inbox.receive().await;
            for (index, delivery) in received.iter().enumerate() {
                if let Some(failure) = delivery.end.as_ref().and_then(Failure::of_end) {
                    return Err(failure);
                }
                let answer = &mut whole[index];
                let begin = bytes[index];
                let ending = self.readings[index].take(delivery, |heard| {
                    if let Some(token) = heard.token.filter(|_| reports_tokens) {
                        let mut token = token.clone();
                        token.text_end += begin;
                        answer.tokens.push(token);
                    }
                    answer.extend(heard.spoken);
                });
                bytes[index] += delivery.text.len();
                answer.ending = answer.ending.take().or(ending);
            }
        }
        let endings: Vec<&Ending> =
            whole.iter().filter_map(|answer| answer.ending.as_ref()).collect();
        let counts = Counts::new(&endings, self.samples);
        self.span.finish(&counts, &endings);
        let text = self.form.whole(&whole, &counts);
        Ok(json::held_response(StatusCode::OK, text, self.held.room.take()))
    }

    /// Writes answers as they grow, and a sign of life at least so often.
    pub fn stream(self, keep_alive: Duration) -> Response {
        let streamed = Streamed::new(self, keep_alive);
        let events = stream::unfold(streamed, |mut streamed| async move {
            let bytes = streamed.next().await?;
            Some((Ok::<Bytes, std::convert::Infallible>(bytes), streamed))
        });
        let mut response = Response::new(Body::from_stream(events));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Proxies that buffer would hold tokens back.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }
}

/// State of a stream of events.
struct Streamed {
    answers: Answers,
    begun: Vec<bool>,
    endings: Vec<Option<Ending>>,
    keep_alive: Duration,
    is_over: bool,
}

impl Streamed {
    /// Answers of which nothing has been written.
    fn new(answers: Answers, keep_alive: Duration) -> Streamed {
        let count = answers.readings.len();
        let (begun, endings) = (vec![false; count], vec![None; count]);
        Streamed { answers, begun, endings, keep_alive, is_over: false }
    }

    /// The next events; `None` behind the last.
    async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        let Answers { inbox, form, readings, samples, span, .. } = &mut self.answers;
        // However often tokens come of which nothing can be written yet, as of a call.
        let until = Instant::now() + self.keep_alive;
        loop {
            let mut out = Events::default();
            let received = match timeout_at(until, inbox.receive()).await {
                Ok(received) => received,
                Err(_) => return Some(form.keep_alive()),
            };
            let mut failure = None;
            for (index, delivery) in received.iter().enumerate() {
                if delivery.tokens.is_empty() && delivery.end.is_none() {
                    continue;
                }
                if !std::mem::replace(&mut self.begun[index], true) {
                    form.begin(index, &mut out);
                }
                let ending =
                    readings[index].take(delivery, |heard| form.hear(index, &heard, &mut out));
                if let Some(ending) = ending {
                    form.end(index, &ending, &mut out);
                    self.endings[index] = Some(ending);
                }
                failure = failure.or(delivery.end.as_ref().and_then(Failure::of_end));
            }
            if let Some(failure) = failure {
                span.fail(&failure);
                form.fail(&failure, &mut out);
                self.is_over = true;
            } else if self.endings.iter().all(Option::is_some) {
                let endings: Vec<&Ending> = self.endings.iter().flatten().collect();
                let counts = Counts::new(&endings, *samples);
                span.finish(&counts, &endings);
                form.close(&counts, &mut out);
                self.is_over = true;
            }
            // Tokens without text of their own give nothing to write.
            if !out.is_empty() {
                return Some(out.into_bytes());
            }
        }
    }
}
