//! Reads a language model as an exporter wrote it: ONNX bytes, and the tokenizer, chat template
//! and settings beside them.
//!
//! Invariant: input is hostile. Every size is checked before it is used, nothing outside the
//! model's directory is opened, and whatever we do not understand is an error that names its
//! place; all of a model's errors are reported together.

pub mod error;
pub mod onnx;
#[expect(unsafe_code, reason = "maps files into memory")]
pub mod source;

pub use error::{Fault, ImportError, NodePlace, Place, Problem};
