//! Work of hours that is told to stop: the document at hand is finished, and what has been measured is said.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::line_start;
use crate::RuntimeError;
use crate::command::{INTERRUPTED, say};

/// Whether the user wants no more: the first `SIGINT` or `SIGTERM` asks for it, the second one ends the
/// program at once.
pub(super) struct Stop {
    is_asked: Arc<AtomicBool>,
    place: OnceCell<String>,
}

impl Stop {
    /// Begins to watch, in a thread of its own, which answers before the document at hand has ended.
    pub fn watch() -> Result<Stop, RuntimeError> {
        let failed = |error| RuntimeError::Machine(format!("signals cannot be watched: {error}"));
        let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
        let is_asked = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&is_asked);
        let watch = move || {
            let mut signals = signals.forever();
            if signals.next().is_some() {
                asked.store(true, Ordering::SeqCst);
                let start = line_start();
                say(format_args!("{start}stopping after this document; once more stops at once"));
            }
            if signals.next().is_some() {
                std::process::exit(INTERRUPTED.into());
            }
        };
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(watch).map_err(failed)?;
        Ok(Stop { is_asked, place: OnceCell::new() })
    }

    /// Whether work ends here, where it is not yet done. `place` says how far it has come.
    pub fn ends(&self, place: impl FnOnce() -> String) -> bool {
        let ends = self.is_asked.load(Ordering::SeqCst);
        if ends {
            self.place.get_or_init(place);
        }
        ends
    }

    /// Where work has ended before it was done, if it has.
    pub fn place(&self) -> Option<&str> {
        self.place.get().map(String::as_str)
    }
}
