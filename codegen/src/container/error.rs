//! Why a container could not be written.

use std::path::PathBuf;

use crate::image::NotFinite;

/// A failure of a container writer. Nothing is left at the output's place.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The operating system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The output.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// The model's file holds a weight that cannot be computed with.
    #[error("tensor \"{name}\": {fault}")]
    Weight {
        /// The weight.
        name: String,
        /// Where in it.
        fault: NotFinite,
    },
    /// This compiler was built without the runtime that an output begins with.
    #[error(
        "this weir was built with WEIR_STUB=skip: it carries no runtime for --emit {0}; build it \
         again without that variable"
    )]
    NoRuntime(&'static str),
    /// The embedded runtime has not the shape that the writer needs: our fault.
    #[error("internal error: the embedded runtime cannot be extended: {0}")]
    Runtime(String),
    /// The model's image contradicts itself: our fault.
    #[error("internal error: the compiled model is inconsistent: {0}")]
    Image(String),
}
