//! Embeddings on their way to a client: some texts are computed, written, and then the next ones.
//!
//! A request may have thousands of texts, and slots are few. So what it takes of the server's memory is that
//! of a few vectors, however many it asks for and however slowly its client reads, and others have their turn
//! between its parts. All texts are checked before the first is computed: what could be wrong with the last
//! one is said in the response's status.

use std::collections::VecDeque;
use std::io::{Error, Write};
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;

use super::app::App;
use super::asked::Prompts;
use super::failure::Failure;
use super::limits::{INPUTS, INPUTS_AT_ONCE, Limits, OWN_BODY_BYTES};
use super::mailbox::Inbox;
use super::places::Answering;
use super::traces::RequestSpan;
use crate::Request;
use crate::engine::normalise;
use crate::memory::{product, sum};

/// Bytes that the longest number takes, with the comma behind it (`-1.1754944e-38,`), rounded up.
const NUMBER_BYTES: u64 = 16;

/// Bytes of token ids for each of a body's: `[1,1,…]` has two for one of four.
const ID_BYTES: u64 = 2;

/// What the embeddings that are being given take at most, and what they are made of.
pub fn memory(limits: &Limits, slots: u32, width: u32) -> u64 {
    let width = u64::from(width);
    let at_once = u64::from(slots).min(INPUTS_AT_ONCE as u64);
    // What is computed, and one that is written while another waits to be read.
    let vectors = product([width, sum([product([4, at_once]), 2 * NUMBER_BYTES])]);
    let inputs =
        sum([INPUTS as u64 * size_of::<String>() as u64, ID_BYTES * OWN_BODY_BYTES as u64]);
    let connections = product([limits.connections as u64, sum([vectors, inputs])]);
    sum([connections, product([ID_BYTES, limits.all_body_bytes as u64])])
}

/// Inputs of a part.
fn at_once(app: &App) -> usize {
    INPUTS_AT_ONCE.min(app.slots as usize)
}

/// How numbers are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// As a list.
    #[default]
    Float,
    /// Their bytes, little endian, in base64, as OpenAI's clients ask for them.
    Base64,
}

/// What is asked for.
pub struct Wanted {
    /// The texts, or their tokens.
    pub inputs: Prompts<INPUTS>,
    /// Form of the vectors.
    pub encoding: Encoding,
    /// Leading values of each, whose length is 1 then.
    pub width: usize,
    /// Whose rows in the cache may be gone on from, and how long they wait.
    pub owner: u32,
    /// See [`Request::priority`].
    pub priority: i32,
    /// Tokens of all inputs.
    pub tokens: u64,
}

/// Embeddings that are being given.
pub struct Embeddings {
    app: Arc<App>,
    wanted: Arc<Wanted>,
    /// Inputs that have been asked of the engine.
    asked: usize,
    /// Vectors that are written already.
    written: usize,
    ready: VecDeque<Vec<f32>>,
    is_over: bool,
    span: RequestSpan,
    /// Live as long as the response is written.
    _answering: Answering,
    _body: Option<OwnedSemaphorePermit>,
}

impl Wanted {
    /// Requests for some of the inputs.
    fn requests(&self, app: &App, some: std::ops::Range<usize>) -> Result<Vec<Request>, Failure> {
        let request = |prompt| Request {
            prompt,
            owner: self.owner,
            priority: self.priority,
            ..Request::default()
        };
        match &self.inputs {
            Prompts::Texts(texts) => {
                let texts = texts[some].iter();
                texts.map(|text| Ok(request(app.encode("input", text)?))).collect()
            }
            Prompts::Ids(lists) => Ok(lists[some].iter().cloned().map(request).collect()),
        }
    }

    /// Refuses what cannot be computed, and counts tokens. Gives the requests for the first part; those of
    /// the others are made anew in their turn, as ids take more memory than texts.
    pub fn check(&mut self, app: &App) -> Result<Vec<Request>, Failure> {
        let mut first = Vec::new();
        for index in 0..self.inputs.len() {
            let of_input =
                |failure: Failure| Failure { param: Some(format!("input[{index}]")), ..failure };
            let requests = self.requests(app, index..index + 1).map_err(of_input)?;
            for request in requests {
                app.rules.check(&request).map_err(|refused| of_input(refused.into()))?;
                self.tokens += request.prompt.len() as u64;
                if index < at_once(app) {
                    first.push(request);
                }
            }
        }
        Ok(first)
    }
}

impl Embeddings {
    /// Asks for the first part; a full queue is an error here and not later.
    pub async fn begin(
        app: Arc<App>,
        (wanted, first): (Wanted, Vec<Request>),
        span: RequestSpan,
        answering: Answering,
        body: Option<OwnedSemaphorePermit>,
    ) -> Result<Embeddings, Failure> {
        let wanted = Arc::new(wanted);
        let mut begun = Embeddings {
            app,
            wanted,
            asked: first.len(),
            written: 0,
            ready: VecDeque::new(),
            is_over: false,
            span,
            _answering: answering,
            _body: body,
        };
        begun.span.ask("embeddings", begun.wanted.inputs.len(), &Request::default());
        let (inbox, _) = begun.app.ask(first, 1, begun.span.moments()).await?;
        begun.receive(inbox).await?;
        Ok(begun)
    }

    /// Requests for the next inputs; none behind the last.
    async fn next_requests(&mut self) -> Result<Vec<Request>, Failure> {
        let end = self.wanted.inputs.len().min(self.asked + at_once(&self.app));
        let some = self.asked..end;
        self.asked = end;
        let wanted = Arc::clone(&self.wanted);
        self.app.off_the_network(move |app| wanted.requests(app, some)).await
    }

    async fn receive(&mut self, mut inbox: Inbox) -> Result<(), Failure> {
        let mut found: Vec<Option<Vec<f32>>> = Vec::new();
        loop {
            let received = inbox.receive().await;
            found.resize_with(received.len(), || None);
            for (found, delivery) in found.iter_mut().zip(received) {
                if let Some(failure) = delivery.end.as_ref().and_then(Failure::of_end) {
                    return Err(failure);
                }
                if let Some(values) = &delivery.embedding {
                    *found = Some(values.clone());
                }
            }
            if found.iter().all(Option::is_some) {
                self.ready.extend(found.into_iter().flatten());
                return Ok(());
            }
        }
    }

    /// The response, written as vectors come.
    pub fn respond(self) -> Response {
        let parts = stream::unfold(self, |mut embeddings| async move {
            let part = embeddings.next().await.transpose()?;
            Some((part, embeddings))
        });
        let mut response = Response::new(Body::from_stream(parts));
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }

    /// The next bytes of the object; nothing behind its end. An error breaks the connection off, as
    /// nothing else can be said any more.
    async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        if self.is_over {
            return Ok(None);
        }
        if self.ready.is_empty() && self.asked < self.wanted.inputs.len() {
            let more = async {
                let requests = self.next_requests().await?;
                let inbox = self.app.ask_on(requests).await?;
                self.receive(inbox).await
            };
            if let Err(failure) = more.await {
                self.span.fail(&failure);
                self.is_over = true;
                return Err(Error::other(failure.message));
            }
        }
        let mut out = Vec::new();
        match self.ready.pop_front() {
            Some(values) => {
                out.extend_from_slice(if self.written == 0 {
                    br#"{"object":"list","data":["#
                } else {
                    b","
                });
                write_embedding(&mut out, self.written, values, &self.wanted)?;
                self.written += 1;
            }
            None => {
                let tokens = self.wanted.tokens;
                let usage = json!({"prompt_tokens": tokens, "total_tokens": tokens});
                write!(out, r#"],"model":{},"usage":{usage}}}"#, json!(self.app.name))?;
                self.is_over = true;
            }
        }
        Ok(Some(out.into()))
    }
}

/// Writes one vector as OpenAI has it.
fn write_embedding(
    out: &mut Vec<u8>,
    index: usize,
    mut values: Vec<f32>,
    wanted: &Wanted,
) -> Result<(), Error> {
    if wanted.width < values.len() {
        values.truncate(wanted.width);
        if !normalise(&mut values) {
            return Err(Error::other("the values that were asked for are all zero"));
        }
    }
    write!(out, r#"{{"object":"embedding","index":{index},"embedding":"#)?;
    match wanted.encoding {
        Encoding::Float => serde_json::to_writer(&mut *out, &values)?,
        Encoding::Base64 => {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            write!(out, "\"{}\"", STANDARD.encode(bytes))?;
        }
    }
    out.push(b'}');
    Ok(())
}
