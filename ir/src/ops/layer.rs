//! Applies a layer kind.
//!
//! Operands: those of the kind's body before its weights (hidden rows first; table rows; pasts
//! while canonical). Results: those of the body. The body's weight parameters stand for
//! `weights`, its cache parameter for `cache`.

use super::{CoreOp, Operand};
use super::rules::{Inferred};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::entity::{CacheId, Const, Kind};

attributes!(
    /// Applies a layer kind.
    Layer {
        /// The kind.
        kind: Kind,
        /// Number of the layer in the model.
        index: u32,
        /// Constants for the weight parameters.
        weights: Vec<Const>,
        /// The cache of the layer, from stage `Cached` on.
        cache: Option<CacheId>,
    }
);

impl CoreOp for Layer {
    fn infer(&self, operands: &[Operand<'_>]) -> Result<Inferred, String> {
        let _ = operands;
        Err("its types stand in the layer kind's body; infer it through the graph".into())
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let _ = (given, cx);
        Err(EvalFault::NeedsGraph)
    }
}
