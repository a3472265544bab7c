//! Takes connections, so many at once and so many of one address, and closes those that waste time.
//!
//! Hyper reads heads and writes answers; what it does not bound is bounded here: the number of
//! connections, and the time for which a client may take nothing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_io_timeout::TimeoutStream;

use super::board::Board;
use super::limits::Limits;
use super::socket::Socket;
use super::tls::Tls;

/// How long to wait when the system has no descriptors left.
const BREATH: Duration = Duration::from_millis(50);

/// Files that a server has open besides its connections, at most.
const OTHER_FILES: u64 = 64;

/// Asks the system for as many files as there may be connections: what a process begins with is often
/// less.
pub fn raise_file_limit(connections: usize) {
    let wanted = connections as u64 + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let (Some(current), wanted) = (current, maximum.map_or(wanted, |most| wanted.min(most))) else {
        return;
    };
    if current < wanted {
        let limit = Rlimit { current: Some(wanted), maximum };
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::warn!(%error, current, wanted, "the limit of open files stays");
        }
    }
}

/// Connections that are open.
pub struct Connections {
    limits: Limits,
    board: Arc<Board>,
    tls: Option<Arc<Tls>>,
    open: AtomicUsize,
    of_address: Mutex<HashMap<IpAddr, usize>>,
}

/// A connection's place; given back when it is dropped.
struct Place {
    connections: Arc<Connections>,
    address: IpAddr,
}

impl Connections {
    /// No connections yet.
    pub fn new(limits: Limits, board: Arc<Board>, tls: Option<Arc<Tls>>) -> Arc<Connections> {
        let of_address = Mutex::new(HashMap::new());
        Arc::new(Connections { limits, board, tls, open: AtomicUsize::new(0), of_address })
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    fn place(self: &Arc<Connections>, address: IpAddr) -> Option<Place> {
        // One thread accepts, so nobody else adds one in between.
        if self.open() >= self.limits.connections {
            return None;
        }
        let mut of_address = self.of_address.lock().unwrap_or_else(PoisonError::into_inner);
        let count = of_address.entry(address).or_default();
        if *count >= self.limits.connections_of_address {
            return None;
        }
        *count += 1;
        self.open.fetch_add(1, Ordering::Relaxed);
        self.board.connection(1);
        Some(Place { connections: Arc::clone(self), address })
    }

    /// Accepts until it is dropped. Once `draining` says so, connections end with the answer that they
    /// are at.
    pub async fn accept(
        self: Arc<Connections>,
        listener: TcpListener,
        router: Router,
        draining: watch::Receiver<bool>,
    ) {
        loop {
            let (stream, address) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // The client has gone already, or there are too many files.
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(BREATH).await;
                    continue;
                }
            };
            match self.place(address.ip()) {
                Some(place) => {
                    let limits = self.limits;
                    tokio::spawn(serve(stream, router.clone(), limits, place, draining.clone()));
                }
                None => self.board.refuse(),
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Connections { of_address, open, board, .. } = &*self.connections;
        let mut of_address = of_address.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = of_address.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                of_address.remove(&self.address);
            }
        }
        open.fetch_sub(1, Ordering::Relaxed);
        board.connection(-1);
    }
}

async fn serve(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    place: Place,
    mut draining: watch::Receiver<bool>,
) {
    // Tokens are small and wanted at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection was gone at once");
        return;
    }
    let socket = Socket::new(stream);
    let mut stream = TimeoutStream::new(socket.clone());
    stream.set_write_timeout(Some(limits.write_stall));
    let secured = tokio::select! {
        secured = secure(stream, &place.connections) => secured,
        // Nothing has been asked here yet.
        () = until(&mut draining) => None,
    };
    let Some(stream) = secured else { return };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_headers(limits.headers)
        .max_buf_size(limits.head_bytes);
    let service = TowerToHyperService::new(router);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = until(&mut draining) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    match outcome {
        Ok(()) => socket.linger().await,
        // It was told what is wrong with its head, of which there may be more.
        Err(error) if error.is_parse() => socket.linger().await,
        Err(error) => tracing::debug!(%error, "a connection has ended early"),
    }
    drop(place);
}

async fn until(draining: &mut watch::Receiver<bool>) {
    drop(draining.wait_for(|draining| *draining).await);
}

/// What a connection is read from and written to, with TLS or without.
trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}

/// Agrees on keys where the server has a certificate. Nothing if the client does not.
async fn secure(
    stream: TimeoutStream<Socket>,
    Connections { tls, limits, board, .. }: &Connections,
) -> Option<Pin<Box<dyn Stream>>> {
    let Some(tls) = tls else { return Some(Box::pin(stream)) };
    match tls.accept(Box::pin(stream), limits.head).await {
        Ok(stream) => Some(Box::pin(stream)),
        Err(error) => {
            board.handshake_failed();
            tracing::info!(%error, "a connection was not secured");
            None
        }
    }
}
