//! Why a graph could not be compiled.

use crate::emit::EmitError;

/// An error of code generation.
#[derive(Debug, thiserror::Error)]
pub enum CodegenError {
    /// The graph is not what stage `Fixed` promises: a mistake of a pass.
    #[error("{place}: {message}")]
    Graph {
        /// Segment and node.
        place: String,
        /// What does not fit.
        message: String,
    },
    /// The model needs something that no kernel computes.
    #[error("{place}: {message} is not supported")]
    Unsupported {
        /// Segment and node.
        place: String,
        /// What is missing.
        message: String,
    },
    /// The user's options do not fit the model.
    #[error("{0}")]
    Options(String),
    /// A planned buffer overlaps another one, or a barrier is missing: our own mistake.
    #[error("buffer plan of {segment}: {message}")]
    Plan {
        /// Segment.
        segment: String,
        /// What the verifier found.
        message: String,
    },
    /// Code could not be emitted: our own mistake.
    #[error(transparent)]
    Emit(#[from] EmitError),
}

/// What does not fit in a graph.
pub(crate) fn wrong(place: impl Into<String>, message: impl Into<String>) -> CodegenError {
    CodegenError::Graph { place: place.into(), message: message.into() }
}

/// A number in the width that tables have for it.
pub(crate) fn number(value: usize, what: &str) -> Result<u32, CodegenError> {
    u32::try_from(value)
        .map_err(|_| CodegenError::Options(format!("{what} {value} is too large for a model")))
}
