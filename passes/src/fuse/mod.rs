//! Neighbouring ops joined into one.

pub mod gated_mlp;
pub mod projections;
pub mod residual;
