//! Code generation: from a graph at stage `Fixed` to a compiled model and its containers.

pub mod container;
pub mod emit;
mod error;
mod generate;
pub mod image;
#[allow(unsafe_code)]
pub mod jit;
pub mod kernels;
mod layouts;
pub mod pack;
pub mod plan;
pub mod probes;
pub mod segments;
pub mod tables;
pub mod weights;
pub mod work;

pub use error::CodegenError;
pub use generate::{Generated, Options, Report, SegmentReport, generate};
