//! Kernels: one folder an operation, one file a version.
//!
//! | kernel | job |
//! |---|---|
//! | `matmul` | `y = x·Wᵀ (+ bias) (+ residual)` for all weight formats |
//! | `norm` | RMS and layer norm |
//! | `rotary` | rotation of heads by position |
//! | `map` | elementwise functions, gated activations, copies |
//! | `reduce` | sums, means, extremes of the last axis |
//! | `gated` | gate and up of a product, gated and rounded for the next product |
//! | `rounding` | rows, their norms and gated products on their way into integer products |
//! | `rows` | embedding rows, table rows, the head's rows |
//! | `append` | keys, rotated on the way, and values into the cache |
//! | `attention` | attention over ranges of cache rows |
//! | `lots` | the hash that rows are chosen by where nothing is scored |
//! | `turn` | heads of keys and queries for caches with codes of four bits |
//! | `best` | the best of many scores |
//! | `observe` | scores of a prompt's candidates |
//! | `compact` | selection, and the write into a slot |

pub mod append;
pub mod attention;
mod best;
pub mod compact;
pub mod gated;
mod lots;
pub mod map;
pub mod matmul;
pub mod norm;
pub mod observe;
pub mod reduce;
pub mod rotary;
pub mod rounding;
pub mod rows;
pub mod turn;

#[cfg(test)]
pub(crate) mod tests;
