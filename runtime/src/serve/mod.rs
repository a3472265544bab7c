//! A compiled model behind an HTTP server that speaks OpenAI's API.
//!
//! Two sides, joined by a bounded channel and mailboxes. The engine's thread plans and runs steps with
//! the compute team (`worker`); one thread with a few helpers reads requests, applies templates and
//! tokenizers, and writes answers. Neither waits for the other but where there is nothing to do.
//!
//! A request passes: connection (`connections`) → route (`routes`) → fields (`asked`) → a place in
//! the queue (`app`) → engine (`worker`) → mailbox (`mailbox`) → what it means (`reading`) → answer (`answer`,
//! `forms`). Embeddings go from their mailbox to the client by themselves (`embeddings`), some at a time.

mod answer;
mod app;
mod asked;
mod board;
mod browsers;
mod confinement;
mod connections;
mod embeddings;
mod failure;
mod forms;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod json;
mod keys;
mod limits;
mod mailbox;
mod places;
mod queue;
mod reading;
mod reported;
mod routes;
mod socket;
mod tls;
mod traces;
mod worker;

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Semaphore, mpsc, watch};
use weir_abi::HeadResult;

use app::{App, Ids};
use board::Board;
pub use browsers::AllowedOrigin;
use browsers::Browsers;
pub use confinement::Confinement;
use connections::{Connections, raise_file_limit};
pub use keys::Keys;
pub use limits::Limits;
use limits::READERS;
use mailbox::ChosenToken;
use queue::RequestPlaces;
use reported::ReportedRoom;
use tls::Tls;
pub use tls::TlsFiles;
use traces::Traces;
use worker::Worker;

use crate::forward::StepModel;
use crate::machine::Residence;
use crate::memory::{MemoryCeiling, product, sum};
use crate::scheduler::QueueLimit;
use crate::{Model, RuntimeError, RuntimeOptions, cores};

/// How a server runs.
#[derive(Debug)]
pub struct ServerOptions {
    /// Where it listens.
    pub address: SocketAddr,
    /// A socket that listens already, in place of that.
    pub listener: Option<std::net::TcpListener>,
    /// How the model runs.
    pub runtime: RuntimeOptions,
    /// The name by which requests call the model; the model's own if absent.
    pub name: Option<String>,
    /// A file of API keys, read again on `SIGHUP`.
    pub key_file: Option<PathBuf>,
    /// An API key.
    pub key: Option<String>,
    /// A certificate and its key, read again on `SIGHUP`; absent: without TLS.
    pub tls: Option<TlsFiles>,
    /// Whether it may listen where others reach it, without a key.
    pub is_open: bool,
    /// Origins whose pages may ask, beside the server's own.
    pub allowed_origins: Vec<AllowedOrigin>,
    /// Requests that wait for a slot, at most; absent: as [`QueueLimit`] has it.
    pub queue: Option<u32>,
    /// How long a request waits for a slot.
    pub queue_timeout: Option<Duration>,
    /// How long a request may take in all.
    pub request_timeout: Option<Duration>,
    /// How long answers go on after the server was told to stop.
    pub drain: Duration,
    /// A file that traces of requests are written to.
    pub trace_file: Option<PathBuf>,
    /// What strangers may send.
    pub limits: Limits,
    /// Whether this thread, and with it the process, gives up what it does not need any more; not where
    /// the server is a part of a program that has other things to do.
    pub is_confined: bool,
}

/// Serves until the process is told to stop (`SIGTERM`, `SIGINT`): then answers that are being given are
/// finished, within their time. `tell` is told what the server comes to.
pub fn serve(
    model: Model,
    mut options: ServerOptions,
    mut tell: impl FnMut(Happening),
) -> Result<(), RuntimeError> {
    let listener = listen(&mut options)?;
    let keys = read_keys(&options)?;
    if keys.is_empty() && !options.address.ip().is_loopback() && !options.is_open {
        return Err(RuntimeError::Options(format!(
            "{} can be reached from outside, and there is no API key: give --api-key-file, or \
             --allow-anyone if everybody may ask",
            options.address
        )));
    }
    let trace_file = options.trace_file.as_deref().map(traces::open).transpose()?;
    let tls = options.tls.as_ref().map(Tls::read).transpose()?.map(Arc::new);
    let residence = Residence::open();
    // Asked while the system's files can be read; the team asks again, and is told the same.
    let _: usize = cores::available_processors();
    options.runtime.threads.get_or_insert_with(cores::default_threads);
    if options.is_confined {
        let tls_files = options.tls.iter().flat_map(|files| [&files.certificate, &files.key]);
        let files: Vec<&Path> =
            options.key_file.iter().chain(tls_files).map(AsRef::as_ref).collect();
        tell(Happening::Confined(Confinement::enter(&files)));
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(READERS)
        .thread_name("requests")
        .build()
        .map_err(|error| RuntimeError::Machine(format!("the server cannot start: {error}")))?;
    let given = (keys, tls, listener, trace_file);
    runtime.block_on(run(model, options, given, residence, tell))
}

/// What a server comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happening {
    /// It has given up what it does not need.
    Confined(Confinement),
    /// Requests are answered at this address from now on.
    Listens(SocketAddr),
    /// It was told to stop, and finishes its answers.
    Drains,
}

impl ServerOptions {
    /// A server at this address as the command starts it when nothing else is said, in a program that has
    /// other things to do.
    pub fn at(address: SocketAddr) -> ServerOptions {
        ServerOptions {
            address,
            listener: None,
            runtime: RuntimeOptions::default(),
            name: None,
            key_file: None,
            key: None,
            tls: None,
            is_open: false,
            allowed_origins: Vec::new(),
            queue: None,
            queue_timeout: None,
            request_timeout: None,
            drain: Duration::from_secs(30),
            trace_file: None,
            limits: Limits::default(),
            is_confined: false,
        }
    }

    fn queue_limit(&self, slots: u32) -> QueueLimit {
        QueueLimit::new(slots, self.queue)
    }
}

/// The socket to listen at; `options` says its address afterwards.
fn listen(options: &mut ServerOptions) -> Result<std::net::TcpListener, RuntimeError> {
    let failed = |address: &dyn std::fmt::Display, source| {
        RuntimeError::Machine(format!("cannot listen at {address}: {source}"))
    };
    let listener = match options.listener.take() {
        Some(listener) => listener,
        None => std::net::TcpListener::bind(options.address)
            .map_err(|source| failed(&options.address, source))?,
    };
    let prepared = listener.set_nonblocking(true).and_then(|()| listener.local_addr());
    options.address = prepared.map_err(|source| failed(&"the socket that was given", source))?;
    Ok(listener)
}

/// Bytes of a token of an answer that its client has not read yet: its text, and what the engine says of it.
const TOKEN_BYTES: u64 = 16 + size_of::<ChosenToken>() as u64;

/// Bytes of a token of a prompt that waits.
const PROMPT_TOKEN_BYTES: u64 = 4;

/// What a server with these options can use at most.
pub fn memory_ceiling(
    model: &Model,
    options: &ServerOptions,
) -> Result<MemoryCeiling, RuntimeError> {
    let engine = model.memory_ceiling(&options.runtime)?;
    let header = model.compiled().header();
    let slots = options.runtime.slots_of(model.compiled());
    let queue = options.queue_limit(slots);
    let waiting = slots.saturating_add(queue.least());
    let (answers, constraints) = match model.gives() {
        HeadResult::Logits => (
            sum([
                product([slots.into(), header.context.into(), TOKEN_BYTES]),
                ReportedRoom::bytes(&options.limits, waiting, header.context),
            ]),
            model.constraint_memory(slots, waiting)?,
        ),
        HeadResult::Hidden => (embeddings::memory(&options.limits, slots, header.head_width), 0),
    };
    let prompts = product([queue.most().into(), header.context.into(), PROMPT_TOKEN_BYTES]);
    let server = options.limits.memory(model.longest_text()?, sum([answers, prompts]));
    let traces = options.trace_file.as_ref().map_or(0, |_| traces::MEMORY);
    let tls = options.tls.as_ref().map_or(0, |_| options.limits.tls_memory());
    Ok(MemoryCeiling { server: sum([server, constraints, traces, tls]), ..engine })
}

fn read_keys(options: &ServerOptions) -> Result<Keys, RuntimeError> {
    let mut keys = options.key_file.as_deref().map(Keys::read).transpose()?.unwrap_or_default();
    if let Some(key) = &options.key {
        keys.add(key, 0);
    }
    Ok(keys)
}

/// What was opened before the server gave up its files.
type Given = (Keys, Option<Arc<Tls>>, std::net::TcpListener, Option<File>);

async fn run(
    model: Model,
    options: ServerOptions,
    (keys, tls, listener, trace_file): Given,
    residence: Residence,
    mut tell: impl FnMut(Happening),
) -> Result<(), RuntimeError> {
    let listener = TcpListener::from_std(listener)
        .map_err(|error| RuntimeError::Machine(format!("the server cannot listen: {error}")))?;
    let signals = Signals::watch()?;
    let ceiling = memory_ceiling(&model, &options)?;
    // Requests are answered from the first on, so what can fail does so now.
    if !model.compiled().chat_template().is_empty() {
        model.template()?;
    }
    let longest_text = model.longest_text()?;
    let notation = model.notation()?;
    let engine = model.engine(&options.runtime)?;
    let (rules, slots) = (engine.rules(), engine.model().shape().slots);
    let rows_of_slot = model.compiled().layouts().iter().map(|layout| layout.rows).max();
    let rows_of_slot = rows_of_slot.unwrap_or(0);
    let isa = engine.model().level().name();
    let name = match &options.name {
        Some(name) => name.clone(),
        None if model.facts().name.is_empty() => "model".to_owned(),
        None => model.facts().name.clone(),
    };
    let board = Arc::new(Board::new(&name, isa, slots, rows_of_slot));
    let traces = trace_file.map(|file| Traces::start(file, &name, Arc::clone(&board)));
    let traces = traces
        .transpose()
        .map_err(|error| RuntimeError::Machine(format!("traces cannot be written: {error}")))?;
    let queue = options.queue_limit(slots);
    let waiting = slots.saturating_add(queue.least());
    let reported = ReportedRoom::bytes(&options.limits, waiting, model.compiled().header().context);
    let places = RequestPlaces::new(slots, queue);
    let all_places = places.all();
    let (jobs, taken) = mpsc::channel(all_places);
    let worker = Worker::new(engine, taken, Arc::clone(&board));
    let (died, death) = watch::channel(false);
    let thread = std::thread::Builder::new().name("engine".to_owned());
    let engine_thread = thread.spawn(move || {
        worker.run();
        // Dropped by a panic as well.
        drop(died);
    });
    let engine_thread = engine_thread
        .map_err(|error| RuntimeError::Machine(format!("the engine cannot start: {error}")))?;
    let limits = options.limits;
    let address = options.address.ip();
    let is_local = keys.is_empty() && address.is_loopback() && !options.is_open;
    let app = Arc::new(App {
        browsers: Browsers {
            allowed: options.allowed_origins.clone(),
            known_as: is_local.then_some(address),
            is_secure: tls.is_some(),
        },
        model,
        name,
        rules,
        limits,
        board: Arc::clone(&board),
        isa,
        threads: options.runtime.threads.unwrap_or_else(cores::default_threads),
        slots,
        rows_of_slot,
        residence,
        ceiling,
        longest_text,
        body_budget: Arc::new(Semaphore::new(limits.all_body_bytes / json::BUDGET_UNIT)),
        reported: ReportedRoom::new(reported),
        queue_timeout: options.queue_timeout,
        request_timeout: options.request_timeout,
        jobs,
        places,
        keys: RwLock::new(Arc::new(keys)),
        draining: AtomicBool::new(false),
        ids: Arc::new(Ids::default()),
        notation,
        traces: traces.clone(),
    });
    raise_file_limit(limits.connections);
    if let Some(tls) = &tls {
        board.certificate_expires(tls.expires());
    }
    let connections = Connections::new(limits, all_places, board, tls.clone());
    let (drain, draining) = watch::channel(false);
    let router = routes::router(Arc::clone(&app));
    let accepting = tokio::spawn(Arc::clone(&connections).accept(listener, router, draining));
    tell(Happening::Listens(options.address));
    let outcome = until_stopped(&app, &options, tls.as_deref(), signals, death).await;
    app.draining.store(true, Ordering::Relaxed);
    if outcome.is_ok() {
        tell(Happening::Drains);
        let end = Instant::now() + options.drain;
        // New connections learn that the server is not ready, until the last answer is given: to the
        // client, who may not have read all of it, or wait for more embeddings than are computed at once.
        let is_answering = || app.places_taken() > 0 || connections.answering() > 0;
        while is_answering() && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let _ = drain.send(true);
        // What has been answered is on its way out.
        let last = Instant::now() + Duration::from_secs(1);
        while connections.open() > 0 && Instant::now() < last.min(end + Duration::from_secs(1)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        if is_answering() {
            tracing::warn!("answers were cut short: they took longer than the time for draining");
        }
    }
    accepting.abort();
    drop(app);
    drop(engine_thread);
    traces.iter().for_each(|traces| traces.finish());
    outcome
}

/// Signals that a server hears.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reload: Signal,
}

impl Signals {
    fn watch() -> Result<Signals, RuntimeError> {
        let watch = |kind| {
            signal(kind)
                .map_err(|error| RuntimeError::Machine(format!("signals cannot be heard: {error}")))
        };
        Ok(Signals {
            terminate: watch(SignalKind::terminate())?,
            interrupt: watch(SignalKind::interrupt())?,
            reload: watch(SignalKind::hangup())?,
        })
    }
}

/// Reads keys and certificates again when asked to, until the server is to stop, or the engine has.
async fn until_stopped(
    app: &App,
    options: &ServerOptions,
    tls: Option<&Tls>,
    mut signals: Signals,
    mut death: watch::Receiver<bool>,
) -> Result<(), RuntimeError> {
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return Ok(()),
            _ = signals.interrupt.recv() => return Ok(()),
            // The sender lives in the engine's thread and never sends.
            _ = death.changed() => {
                return Err(RuntimeError::Machine("internal error: the engine has stopped".into()));
            }
            _ = signals.reload.recv() => reload(app, options, tls),
        }
    }
}

/// Reads keys and certificates again. Where that fails, those that were valid stay so.
fn reload(app: &App, options: &ServerOptions, tls: Option<&Tls>) {
    match read_keys(options) {
        Ok(keys) => {
            *app.keys.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(keys);
            tracing::info!("the API keys were read again");
        }
        Err(error) => tracing::error!(%error, "the API keys were not read again"),
    }
    let Some(tls) = tls else { return };
    match tls.reload() {
        Ok(()) => {
            app.board.certificate_expires(tls.expires());
            tracing::info!("the certificate was read again");
        }
        Err(error) => tracing::error!(%error, "the certificate was not read again"),
    }
}
