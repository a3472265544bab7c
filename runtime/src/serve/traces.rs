//! Traces: what each request has spent its time on, as OpenTelemetry has it, in a file.
//!
//! A line is what an exporter would send, an `ExportTraceServiceRequest` in OTLP's JSON, as the
//! [file exporter](https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/) writes it: a collector
//! beside the server reads the file, for the server makes no connection. A line has a span for the request
//! and one for each part of it (`queue`, `prompt`, `decode`). Names are those of OpenTelemetry's
//! conventions for HTTP and for generative models; nothing that was said is among them.
//!
//! Nobody waits for the file. The engine notes three moments, the connection makes the line, a thread
//! writes it; while that is behind, lines are dropped and counted. A request's `traceparent` ([W3C Trace
//! Context](https://www.w3.org/TR/trace-context/)) is continued, and not traced if it says so.

#[cfg(test)]
mod tests;

use std::collections::hash_map::RandomState;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use serde_json::{Value, json};

use super::board::Board;
use super::failure::Failure;
use super::forms::Counts;
use super::reading::Ending;
use crate::{Request, RuntimeError};

/// Lines that wait to be written, and the bytes of one, at most.
const WAITING_LINES: usize = 256;
const LINE_BYTES: usize = 16 << 10;

/// Reasons for which answers of a request ended that are told.
const REASONS: usize = 16;

/// Bytes that traces take at most.
pub const MEMORY: u64 = (WAITING_LINES * LINE_BYTES) as u64;

/// How long the end of the server waits for what is not written yet.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Kinds of spans, by the protocol's numbers.
const INTERNAL: u32 = 1;
const SERVER: u32 = 2;

/// The protocol's number for a span whose work has failed.
const FAILED: u32 = 2;

/// Opens the file: for its owner alone, and what is in it stays.
pub fn open(path: &Path) -> Result<File, RuntimeError> {
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    opened.map_err(|source| RuntimeError::File { path: path.to_owned(), source })
}

/// Where spans come together.
pub struct Traces {
    lines: SyncSender<String>,
    /// Lines that were given to the thread and are not written.
    waiting: Arc<AtomicUsize>,
    board: Arc<Board>,
    model: String,
    /// One moment by both clocks.
    origin: (Instant, SystemTime),
    random: RandomState,
    count: AtomicU64,
}

impl Traces {
    /// Spans of requests to this model, written into a file.
    pub fn start(file: File, model: &str, board: Arc<Board>) -> std::io::Result<Arc<Traces>> {
        let (lines, receiver) = sync_channel(WAITING_LINES);
        let waiting = Arc::new(AtomicUsize::new(0));
        let (left, counted) = (Arc::clone(&waiting), Arc::clone(&board));
        let thread = std::thread::Builder::new().name("traces".to_owned());
        thread.spawn(move || write(&receiver, file, &left, &counted))?;
        Ok(Arc::new(Traces {
            lines,
            waiting,
            board,
            model: model.to_owned(),
            origin: (Instant::now(), SystemTime::now()),
            random: RandomState::new(),
            count: AtomicU64::new(0),
        }))
    }

    /// A request has come.
    pub fn begin(
        self: &Arc<Traces>,
        headers: &HeaderMap,
        method: &str,
        route: &str,
    ) -> RequestSpan {
        let mut given = headers.get_all("traceparent").iter();
        let parent = match (given.next(), given.next()) {
            (Some(only), None) => only.to_str().ok().and_then(Parent::parse),
            _ => None,
        };
        if parent.is_some_and(|parent| !parent.is_sampled) {
            return RequestSpan(None);
        }
        RequestSpan(Some(Arc::new(OpenSpan {
            traces: Arc::clone(self),
            trace: parent.map_or_else(|| self.trace_id(), |parent| parent.trace),
            id: self.span_id(),
            parent: parent.map(|parent| parent.span),
            method: method.to_owned(),
            route: route.to_owned(),
            begin: Instant::now(),
            moments: Arc::default(),
            told: Mutex::default(),
        })))
    }

    /// Waits a little for what is not written yet.
    pub fn finish(&self) {
        let until = Instant::now() + LAST_LINES;
        while self.waiting.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Hash keys of the standard library are random: names are guessed by nobody, and no answer's seed is
    /// drawn for them.
    fn random(&self) -> u64 {
        loop {
            let mut hasher = self.random.build_hasher();
            hasher.write_u64(self.count.fetch_add(1, Ordering::Relaxed));
            // Zero is no name.
            match hasher.finish() {
                0 => {}
                name => return name,
            }
        }
    }

    fn span_id(&self) -> [u8; 8] {
        self.random().to_be_bytes()
    }

    fn trace_id(&self) -> [u8; 16] {
        (u128::from(self.random()) << 64 | u128::from(self.random())).to_be_bytes()
    }

    /// Nanoseconds since 1970, in a text, as the protocol has numbers of 64 bits.
    fn nanoseconds(&self, moment: Instant) -> String {
        let (instant, time) = self.origin;
        let time = match moment.checked_duration_since(instant) {
            Some(later) => time + later,
            None => time - instant.duration_since(moment),
        };
        time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
    }

    fn send(&self, line: String) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        if line.len() > LINE_BYTES || self.lines.try_send(line).is_err() {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            self.board.trace_dropped();
        }
    }
}

/// Writes lines until nobody can send any more. What cannot be written is dropped: the disk may be full
/// now and not later.
fn write(lines: &Receiver<String>, mut file: File, waiting: &AtomicUsize, board: &Board) {
    let mut has_warned = false;
    for line in lines {
        if let Err(error) = file.write_all(line.as_bytes()) {
            board.trace_dropped();
            if !std::mem::replace(&mut has_warned, true) {
                tracing::warn!(%error, "traces cannot be written");
            }
        }
        waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What a request's `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    trace: [u8; 16],
    span: [u8; 8],
    is_sampled: bool,
}

impl Parent {
    /// Reads the field. What is not exactly as the standard has it is as good as none.
    fn parse(text: &str) -> Option<Parent> {
        let bytes = text.as_bytes();
        let (fields, further) = bytes.split_at_checked(55)?;
        let [version, trace, span, flags] =
            [fields.get(..2)?, fields.get(3..35)?, fields.get(36..52)?, fields.get(53..)?];
        let are_divided = [2, 35, 52].iter().all(|place| fields[*place] == b'-');
        let [version] = hex(version)?;
        // Later versions may go on behind another dash.
        let is_whole = match version {
            0 => further.is_empty(),
            0xff => false,
            _ => further.is_empty() || further.starts_with(b"-"),
        };
        let (trace, span, [flags]): ([u8; 16], [u8; 8], [u8; 1]) =
            (hex(trace)?, hex(span)?, hex(flags)?);
        let are_names = trace != [0; 16] && span != [0; 8];
        let is_sampled = flags & 1 == 1;
        (are_divided && is_whole && are_names).then_some(Parent { trace, span, is_sampled })
    }
}

/// Bytes of small hexadecimal digits, of which there must be as many as that takes.
fn hex<const BYTES: usize>(digits: &[u8]) -> Option<[u8; BYTES]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; BYTES];
    if digits.len() != 2 * BYTES {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A request that is traced, or one that is not. It is written when nobody holds it any more: behind the
/// last piece of a stream, or when the client has gone.
#[derive(Clone, Default)]
pub struct RequestSpan(Option<Arc<OpenSpan>>);

struct OpenSpan {
    traces: Arc<Traces>,
    trace: [u8; 16],
    id: [u8; 8],
    parent: Option<[u8; 8]>,
    method: String,
    route: String,
    begin: Instant,
    moments: Arc<Moments>,
    told: Mutex<Told>,
}

/// What the engine notes of a request, without waiting for anybody.
#[derive(Debug, Default)]
pub struct Moments {
    started: OnceLock<Instant>,
    first_token: OnceLock<Instant>,
    ended: OnceLock<Instant>,
}

/// What is known of a request besides.
#[derive(Default)]
struct Told {
    asked: Option<Instant>,
    status: Option<u16>,
    error: Option<String>,
    attributes: Vec<Value>,
}

impl Moments {
    /// An answer has a slot.
    pub fn start(&self, now: Instant) {
        let _ = self.started.set(now);
    }

    /// A token was chosen.
    pub fn token(&self, now: Instant) {
        let _ = self.first_token.set(now);
    }

    /// The last answer has ended.
    pub fn end(&self, now: Instant) {
        let _ = self.ended.set(now);
    }
}

impl RequestSpan {
    /// The request is about to wait for the engine; its answers are as many as that.
    pub fn ask(&self, operation: &str, answers: usize, request: &Request) {
        self.tell(|told| {
            told.asked = Some(Instant::now());
            let sampling = &request.sampling;
            told.attributes.extend([
                text("gen_ai.operation.name", operation),
                integer("gen_ai.request.choice.count", answers as u64),
                number("gen_ai.request.temperature", sampling.temperature),
                number("gen_ai.request.top_p", sampling.top_p),
            ]);
            let most = request.max_tokens.map(u64::from);
            told.attributes.extend(most.map(|most| integer("gen_ai.request.max_tokens", most)));
        });
    }

    /// What the engine notes, if it is traced.
    pub fn moments(&self) -> Option<Arc<Moments>> {
        self.0.as_ref().map(|span| Arc::clone(&span.moments))
    }

    /// All answers have ended as they should.
    pub fn finish(&self, counts: &Counts, endings: &[&Ending]) {
        self.tell(|told| {
            let reasons: Vec<Value> = endings
                .iter()
                .take(REASONS)
                .map(|ending| json!({"stringValue": ending.reason.name()}))
                .collect();
            told.attributes.extend([
                integer("gen_ai.usage.input_tokens", counts.prompt_tokens.into()),
                integer("gen_ai.usage.cache_read.input_tokens", counts.cached_tokens.into()),
                integer("gen_ai.usage.output_tokens", counts.completion_tokens.into()),
                json!({
                    "key": "gen_ai.response.finish_reasons",
                    "value": {"arrayValue": {"values": reasons}},
                }),
            ]);
        });
    }

    /// An answer has failed after the response has begun.
    pub fn fail(&self, failure: &Failure) {
        let name = failure.code.map_or_else(|| failure.status.as_str().to_owned(), str::to_owned);
        self.tell(|told| told.error = Some(name));
    }

    /// The response has this status.
    pub fn status(&self, status: u16) {
        self.tell(|told| told.status = Some(status));
    }

    fn tell(&self, tell: impl FnOnce(&mut Told)) {
        if let Some(span) = &self.0 {
            tell(&mut span.told());
        }
    }
}

impl OpenSpan {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The request and its parts.
    fn spans(&self) -> Vec<Value> {
        let now = Instant::now();
        let told = self.told();
        let mut attributes = vec![
            text("http.request.method", &self.method),
            text("http.route", &self.route),
            text("url.scheme", "http"),
            text("gen_ai.provider.name", "weir"),
            text("gen_ai.request.model", &self.traces.model),
        ];
        attributes
            .extend(told.status.map(|code| integer("http.response.status_code", code.into())));
        attributes.extend(told.attributes.iter().cloned());
        let status = told.status.filter(|code| *code >= 500);
        let error = told.error.clone().or(status.map(|code| code.to_string()));
        attributes.extend(error.as_deref().map(|name| text("error.type", name)));
        let mut span = self.span(
            &format!("{} {}", self.method, self.route),
            (self.id, self.parent),
            (self.begin, now),
        );
        span["kind"] = SERVER.into();
        span["attributes"] = attributes.into();
        span["status"] = if error.is_some() { json!({"code": FAILED}) } else { json!({}) };
        let mut spans = vec![span];
        let Some(asked) = told.asked else { return spans };
        let Moments { started, first_token, ended } = &*self.moments;
        let end = ended.get().copied().unwrap_or(now);
        let begins = [("queue", Some(asked)), ("prompt", started.get().copied())];
        let begins = begins.into_iter().chain([("decode", first_token.get().copied())]);
        let begins: Vec<(&str, Instant)> =
            begins.filter_map(|(name, begin)| Some((name, begin?))).collect();
        for (place, (name, begin)) in begins.iter().enumerate() {
            let end = begins.get(place + 1).map_or(end, |(_, next)| *next);
            let names = (self.traces.span_id(), Some(self.id));
            spans.push(self.span(name, names, (*begin, end.max(*begin))));
        }
        spans
    }

    fn span(
        &self,
        name: &str,
        (id, parent): ([u8; 8], Option<[u8; 8]>),
        (begin, end): (Instant, Instant),
    ) -> Value {
        let mut span = json!({
            "traceId": digits(&self.trace),
            "spanId": digits(&id),
            "name": name,
            "kind": INTERNAL,
            "startTimeUnixNano": self.traces.nanoseconds(begin),
            "endTimeUnixNano": self.traces.nanoseconds(end),
            "flags": 1,
        });
        if let Some(parent) = parent {
            span["parentSpanId"] = digits(&parent).into();
        }
        span
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        let version = env!("CARGO_PKG_VERSION");
        let resource = [text("service.name", "weir"), text("service.version", version)];
        let line = json!({"resourceSpans": [{
            "resource": {"attributes": resource},
            "scopeSpans": [{
                "scope": {"name": "weir", "version": version},
                "spans": self.spans(),
            }],
        }]});
        self.traces.send(format!("{line}\n"));
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn integer(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

fn number(key: &str, value: f32) -> Value {
    json!({"key": key, "value": {"doubleValue": value}})
}
