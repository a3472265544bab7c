//! Reads a language model as an exporter wrote it: ONNX bytes, and the tokenizer, chat template
//! and settings beside them.
//!
//! Invariant: input is hostile. Every size is checked before it is used, nothing outside the
//! model's directory is opened, and whatever we do not understand is an error that names its
//! place; all of a model's errors are reported together. No name of a model family decides
//! anything: operators and patterns do.

pub mod beside;
pub mod error;
pub mod import;
mod json;
pub mod onnx;
mod pooling;
#[expect(unsafe_code, reason = "maps files into memory")]
pub mod source;
pub mod synthetic;

pub use beside::{ModelFacts, SamplingDefaults, TextAssets};
pub use error::{Fault, ImportError, NodePlace, Place, Problem};
pub use import::{ImportOptions, Imported, import, import_operators};
