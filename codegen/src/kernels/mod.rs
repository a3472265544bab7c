//! Kernels: one folder an operation, one file a version.
//!
//! | kernel | job |
//! |---|---|
//! | `matmul` | `y = x·Wᵀ (+ bias) (+ residual)` for all weight formats |

pub mod matmul;
