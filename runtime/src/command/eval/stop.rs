//! Work of hours that is told to stop: the document at hand is finished, and what has been measured is said.

use std::cell::OnceCell;

use super::line_start;
use crate::RuntimeError;
use crate::command::{Interrupt, say};

/// Whether the user wants no more, and how far the work has come then.
pub(super) struct Stop {
    interrupt: Interrupt,
    place: OnceCell<String>,
}

impl Stop {
    /// Begins to watch. The user is answered before the document at hand has ended.
    pub fn watch() -> Result<Stop, RuntimeError> {
        let interrupt = Interrupt::watch(|| {
            let start = line_start();
            say(format_args!("{start}stopping after this document; once more stops at once"));
        })?;
        Ok(Stop { interrupt, place: OnceCell::new() })
    }

    /// Whether work ends here, where it is not yet done. `place` says how far it has come.
    pub fn ends(&self, place: impl FnOnce() -> String) -> bool {
        let ends = self.interrupt.is_asked();
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
