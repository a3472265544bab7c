//! Weir's graph: what a model computes, from the imported form down to fixed shapes.
//!
//! The crate knows no file format, no instruction set and no protocol. It holds the types, a closed
//! set of core ops with their type rules and scalar references, the text form, the verifier and the
//! interpreter made of the scalar references.

pub mod attribute;
pub mod constant;
pub mod dim;
pub mod entity;
pub mod graph;
pub mod infer;
pub mod interpret;
pub mod ops;
pub mod patch;
pub mod quantise;
pub mod stage;
pub mod text;
pub mod types;
pub mod verify;

pub use constant::{ConstData, Constant, QuantData, QuantRow};
pub use dim::{Dim, Symbol};
pub use entity::{CacheId, Const, Kind, Node, Table, Value};
pub use graph::{
    Body, CacheDecl, CacheFormat, Graph, InputRole, LayerKind, NodeData, OutputRole, RotarySets,
    RowFormats, ValueData,
};
pub use infer::Tables;
pub use ops::Op;
pub use patch::{Patch, Rebuild};
pub use stage::{Stage, Stages};
pub use types::{DType, Element, QuantFormat, TensorType, ZeroPoints};
pub use verify::{Verified, VerifyError, verify};
