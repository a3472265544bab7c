//! Rewrites from the imported graph to fixed shapes: patterns become named ops, tensors become rows
//! of tokens, attention state becomes caches of a fixed size.
//!
//! [`run`] takes a graph at stage `Imported` and gives one at stage `Fixed`. [`pipeline::PIPELINE`]
//! holds the order with a reason for each position; every pass is one file that starts with what it
//! turns into what. The driver verifies the graph after every pass, and a pass reports what it
//! changed and what it declined, so that `--explain` can say why a model came out as it did.
//!
//! # What stage `Fixed` promises to code generation
//!
//! `main`:
//! * Parameters: `Tokens` i64`[rows]`, then `Positions` i64`[rows]`. Results: exactly one, `Logits`
//!   f32`[rows, V]` or `Hidden` f32`[rows, W]`. No other parameter or result is left.
//! * Nodes in order: the *embed segment* (`embed`, possibly elementwise nodes and `table_rows`),
//!   which ends in hidden f32`[rows, W]`; then the `layer` nodes, consecutive among the nodes that
//!   are not `const`; then the *head segment*. `const` nodes stand where they are needed, in front
//!   of the first node that reads them, never between two `layer` nodes.
//! * A `layer` node has two operands, hidden f32`[rows, W]` and positions i64`[rows]` (a parameter
//!   of `main`), and one result, hidden f32`[rows, W]`. `weights` lists one constant per weight
//!   parameter of the kind, `cache` is always given. `index` counts layers from 0.
//!
//! A kind's body:
//! * Parameters: hidden f32`[rows, W]` and positions i64`[rows]` (role `Operand`, even if no node
//!   reads the positions), then `weights` weight parameters (role `Operand`), in the order of their
//!   first use. Rotary tables are weights. No `const` nodes: even scalars are weight parameters
//!   (f32 `[]`), for layers of a kind may differ in them.
//! * Result: one, hidden.
//! * `cache_append` and `cache_attend` name cache `k0`, which stands for the layer's own cache. Each
//!   body has exactly one of each, `cache_append` first.
//! * Types: keys and values f32`[rows, KV, D]`, queries f32`[rows, H, D]`; `cache_attend` gives
//!   f32`[rows, H, Dv]`.
//!
//! Ops in kind bodies and in the segments of `main`: `linear`, `rms_norm` (over the last axis of
//! `[rows, W]` or `[rows, H, D]`), `layer_norm`, `rotary_rows`, `table_rows`, `slice` (step 1, on
//! any axis but the first), `reshape` (keeps the first axis), `concat` (any axis but the first),
//! `unary`, `binary` (one operand has the shape of the result; the other has the same shape, or
//! broadcasts numpy-wise to it: `[]`, `[W]`, `[rows, H, 1]`), `reduce` (last axis, kept), `gated`,
//! `cache_append`, `cache_attend`; `embed` and `const` in `main` only.
//!
//! Weights of `linear` and `embed` keep the file's storage, f32, f16, bf16 or quantised, dense at any
//! strides, or `Stacked` parts, unless the user wants another: then they are `Rounded`. Every other constant is f32 (norm weights, biases, tables).
//!
//! Rotary tables have `positions` rows, where `positions` is the context; with several sets
//! ([`weir_ir::graph::RotarySets`]) they are stacked, row = set * positions + position. A step's
//! positions operand holds absolute positions; the set is the sequence's, chosen at admission, and
//! `rotary_rows` adds `set * positions`.

mod declined;
pub mod driver;
pub mod error;
pub mod fuse;
pub mod kv;
pub mod layers;
pub mod normalise;
pub mod pipeline;
pub mod positional;
pub mod recognise;
pub mod registry;
pub mod rows;
pub mod weights;

pub use driver::{Flow, Observer, Options, PassReport, Report, run, run_observed};
pub use error::PassError;
pub use registry::Change;
