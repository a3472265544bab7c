//! A connection's socket, which outlives the protocol that is spoken on it.
//!
//! A system that closes a socket with unread bytes sends a reset, and a reset throws away what the
//! client has not read yet: whoever is told that its body is too long while it still sends that body
//! would see a broken connection in place of the answer (RFC 9112, section 9.6). So what is left is
//! read and dropped for a while, once the answer is out.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;

/// How long a client may stay silent behind its answer.
const SILENCE: Duration = Duration::from_secs(1);

/// How long a client that has gone may go unnoticed.
const LOOK: Duration = Duration::from_secs(1);

/// How long its bytes are dropped.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many of them: a second body of the largest size, and more than the buffers of both systems hold.
const DROPPED_BYTES: usize = 16 << 20;

/// A socket that several own: the protocol's layers, and whoever closes it.
#[derive(Clone)]
pub struct Socket(Arc<TcpStream>);

impl Socket {
    /// Takes over a connection.
    pub fn new(stream: TcpStream) -> Socket {
        Socket(Arc::new(stream))
    }

    /// Waits until the client has closed its side. Hyper notices that by itself while it reads, but not
    /// while bytes behind a request lie unread because its answer is still to come.
    pub async fn left(&self) {
        loop {
            tokio::time::sleep(LOOK).await;
            // What is unread makes it ready for as long as it is; so it is asked, not waited for.
            let ready = pin!(self.0.ready(Interest::READABLE));
            match ready.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(ready)) if ready.is_read_closed() => return,
                Poll::Ready(Err(_)) => return,
                Poll::Ready(Ok(_)) | Poll::Pending => {}
            }
        }
    }

    /// Says that nothing more will be sent, and drops what still comes until the client has closed its
    /// side, falls silent or takes too long.
    pub async fn linger(self) {
        // Shut already, or the client is gone.
        if shutdown(&*self.0, Shutdown::Write).is_err() {
            return;
        }
        let all = async {
            let mut dropped = 0;
            let mut bytes = [0; 4096];
            while dropped < DROPPED_BYTES {
                match tokio::time::timeout(SILENCE, self.0.readable()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) | Err(_) => return,
                }
                match self.0.try_read(&mut bytes) {
                    Ok(0) => return,
                    Ok(count) => dropped += count,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
            }
        };
        drop(tokio::time::timeout(PATIENCE, all).await);
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write_vectored(parts) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => return Poll::Ready(outcome),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket holds nothing back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(&*self.0, Shutdown::Write).map_err(Into::into))
    }
}
