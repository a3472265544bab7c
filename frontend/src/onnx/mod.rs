//! ONNX: bytes to a checked model, and a checked model to the graph of core ops.
//!
//! The steps, each a file: `proto` (messages), `functions` (written out, within a `weight`),
//! `model` (checks, with `tensor`, `attributes` and `order`), `roles` (what inputs are), `import` (the
//! walk over the nodes, which holds quantised constants `once`) and `ops` (one importer an operator, each
//! working through a `context` within an `allowance`).

mod allowance;
pub mod attributes;
pub mod context;
mod functions;
pub mod import;
pub mod model;
mod once;
pub mod ops;
mod order;
#[expect(missing_docs, reason = "the fields are those of onnx.proto")]
pub mod proto;
pub mod roles;
pub mod tensor;
mod weight;
