//! Code generation: from a graph at stage `Fixed` to a compiled model and its containers.

pub mod emit;
pub mod image;
#[allow(unsafe_code)]
pub mod jit;
pub mod kernels;
pub mod pack;
