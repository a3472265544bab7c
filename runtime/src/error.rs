//! Errors of the runtime library.

use std::path::PathBuf;

use crate::constraint::ConstraintError;
use crate::forward::StepFault;
use crate::weights::ModelError;

/// What can go wrong after a model has been found.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The compiled model is damaged or not one: the file's fault.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The model's tables contradict each other: the compiler's fault.
    #[error("the compiled model: {0}")]
    Tables(String),
    /// The facts, the tokenizer or the chat template cannot be read: the file's fault.
    #[error("the model's {part}: {reason}")]
    Part {
        /// Which part.
        part: &'static str,
        /// Why not.
        reason: String,
    },
    /// Something that this model has not got was asked for: the user's choice.
    #[error("the model has no {0}")]
    Absent(&'static str),
    /// Text was asked of a model that gives embeddings: the user's choice.
    #[error("the model gives embeddings and writes no text; `embed` and `serve` are its commands")]
    NoText,
    /// Embeddings were asked of a model that writes text: the user's choice.
    #[error("the model writes text and gives no embeddings")]
    NoEmbeddings,
    /// Options that cannot be met: the user's choice.
    #[error("{0}")]
    Options(String),
    /// A request that cannot be served: the user's choice.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A constraint that no answer can be held to: the user's choice.
    #[error("the constraint: {0}")]
    Constraint(#[from] ConstraintError),
    /// This machine cannot run the model.
    #[error("{0}")]
    Machine(String),
    /// Model code reported an internal error: our fault.
    #[error(transparent)]
    Fault(#[from] StepFault),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A prompt among several cannot be served: the user's choice.
    #[error("prompt {number}: {reason}")]
    Prompt {
        /// Its place among the prompts, from 1.
        number: usize,
        /// Why not.
        reason: RequestError,
    },
    /// Long work was told to stop: the user's choice.
    #[error("stopped at {0}; the figures are of these")]
    Stopped(String),
    /// The program's answer could not be written.
    #[error("standard output: {0}")]
    Output(#[from] std::io::Error),
    /// What the program reads could not be read.
    #[error("standard input: {0}")]
    Input(std::io::Error),
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// There is nothing to continue.
    #[error("the prompt has no tokens; give some text")]
    Empty,
    /// More rows than the model has positions.
    #[error(
        "{rows} tokens do not fit into the model's context of {context}; shorten the prompt, or \
         compile the model with a larger --context"
    )]
    TooLong {
        /// Tokens of the prompt, and those that are to be decoded after it if their number is fixed.
        rows: usize,
        /// Positions of the model.
        context: u32,
    },
    /// An id outside the vocabulary.
    #[error("token {index} of the prompt is {token}, and the vocabulary has {vocabulary} entries")]
    UnknownToken {
        /// Place in the prompt.
        index: usize,
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// A bias for an id outside the vocabulary.
    #[error("a logit bias names token {token}, and the vocabulary has {vocabulary} entries")]
    UnknownBias {
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// A sampling option outside its range.
    #[error("{option} is {value}, but it must be {rule}")]
    Sampling {
        /// Name of the option.
        option: &'static str,
        /// Its value.
        value: f32,
        /// What is allowed.
        rule: &'static str,
    },
    /// Stop strings need text, and there is no tokenizer.
    #[error("stop strings need a tokenizer, which this model has not got")]
    StopWithoutTokenizer,
    /// No answer is wanted.
    #[error("0 samples: at least 1 is needed")]
    NoSamples,
    /// Samples of a prompt whose dropped rows are to stay dropped.
    #[error(
        "{samples} samples with incremental history: a prompt is computed from its first token on, \
         unless one answer is wanted; use 1 sample, or exact history"
    )]
    SamplesIncremental {
        /// Their number.
        samples: u32,
    },
    /// A grammar of another model.
    #[error(
        "the constraint was read for a vocabulary of {read_for} entries, and this model's has \
         {vocabulary}"
    )]
    ForeignGrammar {
        /// Entries that it was read for.
        read_for: u32,
        /// Size of the vocabulary.
        vocabulary: u32,
    },
    /// A stop string that would stop everything.
    #[error("a stop string is empty")]
    EmptyStop,
}
