//! What can be wrong with a compiled model, and where.

use super::Place;

/// A compiled model that cannot be used: the place and the fault.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct ModelError {
    /// Which model it is.
    pub place: Place,
    /// What is wrong there.
    pub fault: ModelFault,
}

/// A part of a compiled model that carries a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    /// Machine code.
    Code,
    /// The header of the tables.
    Header,
    /// Tables, tokenizer, template and facts.
    Tables,
    /// Packed weights.
    Weights,
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Region::Code => "code",
            Region::Header => "header",
            Region::Tables => "tables",
            Region::Weights => "weights",
        })
    }
}

/// What is wrong with a compiled model. All variants but the first and `OtherVersion` mean that the
/// file was damaged after it was written.
#[derive(Debug, thiserror::Error)]
pub enum ModelFault {
    /// The program has no model in it, or the file is something else.
    #[error("there is no compiled model in it ({0})")]
    NoModel(&'static str),
    /// The file was written by another version of the compiler.
    #[error(
        "the model was compiled for version {found} of the runtime, this is version {expected}; \
         compile it again"
    )]
    OtherVersion {
        /// Version in the file.
        found: u32,
        /// Version of this runtime.
        expected: u32,
    },
    /// The end of the file is missing.
    #[error("the file is truncated: {0}")]
    Truncated(String),
    /// A region's checksum does not match its bytes.
    #[error("the {0} of the model are damaged: their checksum does not match")]
    Damaged(Region),
    /// A value in a table cannot be.
    #[error("the model's tables are damaged: {0}")]
    Malformed(String),
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl ModelFault {
    /// The fault together with the place where it was found.
    pub(super) fn at(self, place: &Place) -> ModelError {
        ModelError { place: place.clone(), fault: self }
    }
}

/// A [`ModelFault::Malformed`] with the given text.
pub(super) fn malformed(text: impl Into<String>) -> ModelFault {
    ModelFault::Malformed(text.into())
}
