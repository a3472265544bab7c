//! Why `weir` ends without having done what was asked.

use std::fmt::Display;

use weir_codegen::CodegenError;
use weir_codegen::container::ContainerError;
use weir_frontend::ImportError;
use weir_passes::PassError;
use weir_runtime::command::{INTERRUPTED, exit_code, reader_has_gone, say};
use weir_runtime::{ModelError, RuntimeError};

/// An error with the exit code that it gives: 2 if the user asked for something that cannot be, 0
/// if the reader of our output has gone and wants no more, 130 if the work was told to stop, 1 otherwise.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// What happened and where.
    pub message: String,
    /// Whoever read our output has gone: nothing to say.
    silent: bool,
}

impl Failure {
    /// The user's options.
    pub fn usage(message: impl Into<String>) -> Failure {
        Failure { code: 2, message: message.into(), silent: false }
    }

    /// A Ctrl-C.
    pub fn stopped(message: impl Into<String>) -> Failure {
        Failure { code: INTERRUPTED, message: message.into(), silent: false }
    }

    /// Anything else.
    pub fn other(error: impl Display) -> Failure {
        Failure { code: 1, message: error.to_string(), silent: false }
    }

    /// Tells the user on standard error.
    pub fn print(&self) {
        if !self.silent {
            say(format_args!("error: {}", self.message));
        }
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<ImportError> for Failure {
    fn from(error: ImportError) -> Failure {
        Failure { code: if error.is_usage() { 2 } else { 1 }, ..Failure::other(error) }
    }
}

impl From<PassError> for Failure {
    fn from(error: PassError) -> Failure {
        // The text comes from this crate, whose failure says what is missing and has its exit code.
        let error = match error {
            PassError::CalibrationText(reason) => match reason.downcast::<Failure>() {
                Ok(failure) => return *failure,
                Err(reason) => PassError::CalibrationText(reason),
            },
            error => error,
        };
        let is_usage =
            matches!(error, PassError::Options(_) | PassError::Kv(_) | PassError::Calibration(_));
        Failure { code: if is_usage { 2 } else { 1 }, ..Failure::other(error) }
    }
}

impl From<CodegenError> for Failure {
    fn from(error: CodegenError) -> Failure {
        let is_usage = matches!(error, CodegenError::Options(_));
        Failure { code: if is_usage { 2 } else { 1 }, ..Failure::other(error) }
    }
}

impl From<ContainerError> for Failure {
    fn from(error: ContainerError) -> Failure {
        Failure::other(error)
    }
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Failure {
        Failure::other(error)
    }
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Failure {
        if reader_has_gone(&error) {
            return Failure { code: 0, silent: true, ..Failure::other(error) };
        }
        Failure { code: exit_code(&error), ..Failure::other(error) }
    }
}

/// Only writing to standard output is left to this conversion; files are named where they are used.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        RuntimeError::Output(error).into()
    }
}
