//! One request and what comes back.
//!
//! Every request has a connection of its own, so none finds one that the server is about to close, and
//! making it is part of the time to the first token.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use super::answer::Reading;
use super::events::{Events, TooLong};
use super::said::said;
use super::server::Server;
use crate::traffic::outcome::{Answer, Failed, Kind};

/// Most bytes of an answer that is no stream: lists of models, and what is said about an error.
const MOST_TEXT: usize = 1 << 20;

/// How long the end of a stream may take behind its last event, which is the end of the answer.
const REST: Duration = Duration::from_secs(1);

impl Failed {
    /// An answer that is none.
    pub fn stream(message: impl Into<String>) -> Failed {
        Failed { kind: Kind::Stream, message: message.into() }
    }

    /// The library says what it was doing, and its cause what went wrong.
    fn connection(error: &dyn Error) -> Failed {
        Failed { kind: Kind::Connection, message: with_causes(error) }
    }
}

impl From<TooLong> for Failed {
    fn from(_: TooLong) -> Failed {
        Failed::stream("the server sent an event without end")
    }
}

fn with_causes(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// How every request of a run is sent.
#[derive(Debug)]
pub struct Client {
    /// Where to.
    pub server: Server,
    /// Time after which an answer is given up.
    pub timeout: Duration,
    /// Whether texts of answers are kept.
    pub keep_text: bool,
}

impl Client {
    /// The first model that the server lists.
    pub async fn first_model(&self) -> Result<String, Failed> {
        let listing = tokio::time::timeout(self.timeout, async {
            let request = self.request("GET", "models", String::new())?;
            let (response, _connection) = self.send(request).await?;
            let text = whole(response).await?;
            let models: Value = serde_json::from_str(&text)
                .map_err(|error| Failed::stream(format!("the list of models: {error}")))?;
            Ok::<_, Failed>(models)
        });
        let models = listing.await.map_err(|_| self.too_late())??;
        let name = models["data"][0]["id"].as_str();
        let name = name.ok_or_else(|| Failed::stream("the list of models names none"))?;
        Ok(name.to_owned())
    }

    /// Sends a request and reads its answer, which may have about so many tokens.
    pub async fn ask(
        self: Arc<Client>,
        endpoint: &'static str,
        body: String,
        tokens: u32,
    ) -> Result<Answer, Failed> {
        let answer = tokio::time::timeout(self.timeout, self.answer(endpoint, body, tokens));
        answer.await.unwrap_or_else(|_| Err(self.too_late()))
    }

    fn too_late(&self) -> Failed {
        let message = format!("no whole answer in {} s", self.timeout.as_secs_f64());
        Failed { kind: Kind::Timeout, message }
    }

    async fn answer(&self, endpoint: &str, body: String, tokens: u32) -> Result<Answer, Failed> {
        let mut reading = Reading::new(tokens, self.keep_text);
        let request = self.request("POST", endpoint, body)?;
        let (response, _connection) = self.send(request).await?;
        let mut body = response.into_body();
        let mut events = Events::default();
        while !reading.is_done() {
            match piece(&mut body).await {
                Some(bytes) => events.feed(&bytes?, |data| reading.read(data))?,
                None => {
                    events.finish(|data| reading.read(data))?;
                    break;
                }
            }
        }
        let answer = reading.end()?;
        // A server that still has the end of the stream to send would take us for gone.
        let rest = async { while let Some(Ok(_)) = piece(&mut body).await {} };
        let _ = tokio::time::timeout(REST, rest).await;
        Ok(answer)
    }

    fn request(
        &self,
        method: &str,
        endpoint: &str,
        body: String,
    ) -> Result<Request<String>, Failed> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}/{endpoint}", self.server.path))
            .header(HOST, &self.server.authority);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(key) = &self.server.authorization {
            request = request.header(AUTHORIZATION, key);
        }
        request.body(body).map_err(|error| Failed::connection(&error))
    }

    /// The answer's head, if the server accepts the request, and what keeps the connection.
    async fn send(
        &self,
        request: Request<String>,
    ) -> Result<(Response<Incoming>, http1::SendRequest<String>), Failed> {
        let stream = TcpStream::connect(&self.server.addresses[..]).await;
        let stream = stream.map_err(|error| Failed::connection(&error))?;
        // A request goes out at once, not when the system has collected more.
        stream.set_nodelay(true).map_err(|error| Failed::connection(&error))?;
        let handshake = http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| Failed::connection(&error))?;
        // What breaks the connection is told to the request and to its body.
        tokio::spawn(connection);
        let response = sender.send_request(request).await;
        let response = response.map_err(|error| Failed::connection(&error))?;
        if response.status() == StatusCode::OK {
            return Ok((response, sender));
        }
        let kind = Kind::Status(response.status().as_u16());
        // The status counts, whatever becomes of the text behind it.
        let text = whole(response).await.unwrap_or_default();
        Err(Failed { kind, message: said(&text) })
    }
}

/// The next bytes of an answer; nothing at its end.
async fn piece(body: &mut Incoming) -> Option<Result<Bytes, Failed>> {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        match frame {
            // What is no data is a trailer and says nothing to us.
            Ok(frame) => match frame.into_data() {
                Ok(bytes) => return Some(Ok(bytes)),
                Err(_) => continue,
            },
            Err(error) => return Some(Err(Failed::stream(with_causes(&error)))),
        }
    }
}

/// An answer that is no stream, as far as it is of use.
async fn whole(response: Response<Incoming>) -> Result<String, Failed> {
    let mut body = response.into_body();
    let mut bytes = Vec::new();
    while let Some(piece) = piece(&mut body).await {
        bytes.extend_from_slice(&piece?);
        if bytes.len() > MOST_TEXT {
            return Err(Failed::stream("the answer has no end"));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
