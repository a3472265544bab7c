//! ONNX: bytes to a checked model, and a checked model to the graph of core ops.
//!
//! The steps, each a file: `proto` (messages), `tensor`, `attributes`, `order` and `model`
//! (checks).

pub mod attributes;
mod functions;
pub mod import;
pub mod model;
pub mod ops;
mod order;
#[expect(missing_docs, reason = "the fields are those of onnx.proto")]
pub mod proto;
pub mod roles;
pub mod tensor;
