//! A Ctrl-C in the midst of files: the work ends as after an error, so that what there is of it goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

use crate::failure::{Failure, INTERRUPTED};

/// Whether the user wants no more. The work asks, and ends by itself.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    is_asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Begins to watch, in a thread of its own: the first `SIGINT` or `SIGTERM` asks for an end, the second
    /// one ends the program at once. Without it nobody asks.
    pub fn watch() -> Result<Interrupt, Failure> {
        let failed =
            |error: std::io::Error| Failure::other(format!("signals cannot be watched: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let within = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        drop(within);
        let watched = Interrupt::default();
        let is_asked = Arc::clone(&watched.is_asked);
        let mut next = async move || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        let watch = async move {
            next().await;
            is_asked.store(true, Ordering::SeqCst);
            next().await;
            std::process::exit(INTERRUPTED.into());
        };
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(move || runtime.block_on(watch)).map_err(failed)?;
        Ok(watched)
    }

    /// Whether the work ends here.
    pub fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::SeqCst)
    }
}
