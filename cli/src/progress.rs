//! Progress of long work: a bar at a terminal, nothing elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use weir_runtime::command::say;

/// Shows one piece of work after another on standard error.
pub struct Progress {
    visible: bool,
}

/// A piece of work that is under way; its line goes when it is dropped.
pub struct Work {
    bar: ProgressBar,
}

impl Progress {
    /// Progress that shows itself only to a person at a terminal who has not asked for quiet.
    pub fn new(quiet: bool) -> Progress {
        Progress { visible: !quiet && std::io::stderr().is_terminal() }
    }

    /// Tells a person at the terminal something that is of no use to a log.
    pub fn tell(&self, line: std::fmt::Arguments<'_>) {
        if self.visible {
            say(line);
        }
    }

    /// Work without a known length.
    pub fn start(&self, what: &'static str) -> Work {
        self.bar(ProgressBar::new_spinner(), "{spinner} {msg}", what)
    }

    /// Work over a number of bytes.
    pub fn start_bytes(&self, what: &'static str, bytes: u64) -> Work {
        let template = "{msg:10} [{wide_bar}] {bytes} of {total_bytes}, {elapsed}";
        self.bar(ProgressBar::new(bytes), template, what)
    }

    /// Work of so many pieces, if their number is known.
    pub fn start_count(&self, what: &'static str, count: Option<u64>) -> Work {
        match count {
            Some(count) => {
                let template = "{msg:10} [{wide_bar}] {pos} of {len}, {elapsed}";
                self.bar(ProgressBar::new(count), template, what)
            }
            None => self.bar(ProgressBar::no_length(), "{spinner} {msg}: {pos}, {elapsed}", what),
        }
    }

    fn bar(&self, bar: ProgressBar, template: &str, what: &'static str) -> Work {
        if !self.visible {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(what);
        bar.enable_steady_tick(Duration::from_millis(100));
        Work { bar }
    }
}

impl Work {
    /// Changes what is said of the work.
    pub fn say(&self, what: String) {
        self.bar.set_message(what);
    }

    /// How far the work has come.
    pub fn at(&self, done: u64) {
        self.bar.set_position(done);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
