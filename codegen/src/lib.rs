//! Code generation: from a graph at stage `Fixed` to a compiled model and its containers.

pub mod image;
