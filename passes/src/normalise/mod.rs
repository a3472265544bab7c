//! The imported graph made uniform: one sequence, one float type, nothing computed from constants.

pub mod bind_batch;
pub mod fold_constants;
pub mod widen_floats;
