//! Takes connections, and closes those that waste time.
//!
//! Hyper reads heads and writes answers; what it does not bound is bounded here: the number of
//! connections (`places`), and the time for which a client may take nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_io_timeout::TimeoutStream;

use super::board::Board;
use super::limits::Limits;
use super::places::{Place, Places};
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
    places: Arc<Places>,
}

impl Connections {
    /// No connections yet, to a server where so many `requests` can be served or wait.
    pub fn new(
        limits: Limits,
        requests: usize,
        board: Arc<Board>,
        tls: Option<Arc<Tls>>,
    ) -> Arc<Connections> {
        let places = Places::new(&limits, requests, Arc::clone(&board));
        Arc::new(Connections { limits, board, tls, places })
    }

    /// How many are open.
    pub fn open(&self) -> usize {
        self.places.taken()
    }

    /// How many of them are being answered.
    pub fn answering(&self) -> usize {
        self.places.answering()
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
            match self.places.take(address.ip()).await {
                Some(place) => {
                    let (connections, router) = (Arc::clone(&self), router.clone());
                    let draining = draining.clone();
                    tokio::spawn(async move {
                        let served = connections.serve(stream, router, &place, draining);
                        tokio::select! {
                            () = served => {}
                            () = place.dismissal() => {}
                        }
                    });
                }
                None => self.board.refuse(),
            }
        }
    }

    /// Serves a connection until its client leaves it.
    async fn serve(
        &self,
        stream: TcpStream,
        router: Router,
        place: &Arc<Place>,
        mut draining: watch::Receiver<bool>,
    ) {
        let limits = self.limits;
        // Tokens are small and wanted at once.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection was gone at once");
            return;
        }
        let socket = Socket::new(stream);
        let mut stream = TimeoutStream::new(socket.clone());
        stream.set_write_timeout(Some(limits.write_stall));
        let secured = tokio::select! {
            secured = self.secure(stream) => secured,
            // Nothing has been asked here yet.
            () = until(&mut draining) => None,
        };
        let Some(stream) = secured else { return };
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(limits.head)
            .max_headers(limits.headers)
            .max_buf_size(limits.head_bytes);
        let router = TowerToHyperService::new(router);
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(Arc::clone(place));
            router.call(request)
        });
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let to_the_end = async {
            tokio::select! {
                outcome = connection.as_mut() => outcome,
                () = until(&mut draining) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        };
        let outcome = tokio::select! {
            outcome = to_the_end => outcome,
            () = socket.left() => return,
        };
        match outcome {
            Ok(()) => socket.linger().await,
            // It was told what is wrong with its head, of which there may be more.
            Err(error) if error.is_parse() => socket.linger().await,
            Err(error) => tracing::debug!(%error, "a connection has ended early"),
        }
    }

    /// Agrees on keys where the server has a certificate. Nothing if the client does not.
    async fn secure(&self, stream: TimeoutStream<Socket>) -> Option<Pin<Box<dyn Stream>>> {
        let Some(tls) = &self.tls else { return Some(Box::pin(stream)) };
        match tls.accept(Box::pin(stream), self.limits.head).await {
            Ok(stream) => Some(Box::pin(stream)),
            Err(error) => {
                self.board.handshake_failed();
                tracing::info!(%error, "a connection was not secured");
                None
            }
        }
    }
}

async fn until(draining: &mut watch::Receiver<bool>) {
    drop(draining.wait_for(|draining| *draining).await);
}

/// What a connection is read from and written to, with TLS or without.
trait Stream: AsyncRead + AsyncWrite + Send {}

impl<S: AsyncRead + AsyncWrite + Send> Stream for S {}
