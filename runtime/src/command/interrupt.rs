//! A Ctrl-C in the midst of work that is better ended in order: what has been measured is told, what has been
//! written goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::INTERRUPTED;
use crate::RuntimeError;

/// Whether the user wants no more. The work asks, and ends by itself.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    is_asked: Arc<AtomicBool>,
}

impl Interrupt {
    /// Begins to watch, in a thread of its own: the first `SIGINT` or `SIGTERM` asks for an end, and `tell`
    /// answers at once; the second one ends the program. Without it nobody asks.
    pub fn watch(tell: impl FnOnce() + Send + 'static) -> Result<Interrupt, RuntimeError> {
        let failed = |error| RuntimeError::Machine(format!("signals cannot be watched: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let interrupt = Interrupt::default();
        let is_asked = Arc::clone(&interrupt.is_asked);
        let watch = move || {
            let mut signals = signals.forever();
            if signals.next().is_some() {
                is_asked.store(true, Ordering::SeqCst);
                tell();
            }
            if signals.next().is_some() {
                std::process::exit(INTERRUPTED.into());
            }
        };
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(watch).map_err(failed)?;
        Ok(interrupt)
    }

    /// Whether the work ends here.
    pub fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::SeqCst)
    }
}
