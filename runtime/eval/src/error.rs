//! What can be wrong with a task: the options, the file, or this machine.

use std::path::PathBuf;

/// Why a task cannot be opened or goes no further.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The words that name a task cannot be understood: the user's choice.
    #[error("task `{spec}`: {reason}")]
    Spec {
        /// As it was given.
        spec: String,
        /// Why not.
        reason: String,
    },
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A file is no text in UTF-8: the file's fault.
    #[error("{}: not UTF-8 from byte {valid}", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
        /// Bytes in front of the first that is not text.
        valid: usize,
    },
    /// A file is larger than what is read into memory.
    #[error("{}: {bytes} bytes, and at most {limit} are read", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What is allowed.
        limit: u64,
    },
    /// A record is not what its format says: the file's fault.
    #[error("{}:{line}: {field}: {reason}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// Where the record begins, from 1.
        line: usize,
        /// Name of the field, or `record` for the whole.
        field: String,
        /// Why not.
        reason: String,
    },
    /// A file holds nothing to ask.
    #[error("{}: {reason}", path.display())]
    Nothing {
        /// The file.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// A question and its answer leave no room for a document: the context is too small.
    #[error(
        "question {id}: {question} tokens, an answer of {answer} and no document fill the context \
         of {context}"
    )]
    NoRoom {
        /// The question.
        id: String,
        /// Its tokens.
        question: usize,
        /// Tokens that the answer may have.
        answer: usize,
        /// Tokens of the context.
        context: usize,
    },
    /// What is to be hidden fills a document alone: the user's choice.
    #[error("{task}: {needed} tokens of needles do not fit into a document of {room}")]
    Overfull {
        /// The family.
        task: String,
        /// Tokens of a document without filler.
        needed: usize,
        /// Tokens that it may have.
        room: usize,
    },
    /// A task runs programs that a model wrote, and nobody allowed it.
    #[error("this task runs the programs that the model writes; it does so only if asked to")]
    ProgramsNotAllowed,
    /// A chart could not be drawn: our fault.
    #[error("the chart: {0}")]
    Chart(String),
    /// Programs cannot be run here.
    #[error("programs cannot be run here: {0}")]
    Sandbox(String),
}
