//! Gives every cache a policy, a number of rows and a number format.
//!
//! Before:  cache k0 { type=f32, window=0 }
//! After:   cache k0 { type=f16, window=0, policy=snapstream, sinks=32, selected=736, recent=256, ... }
//!
//! Needs: stage `Cached`.
//! Gives: stage `Sparse`; C = S + K + R for every cache.
//!
//! A layer whose attention has a sliding window shorter than the context gets a plain ring, whatever
//! the policy: it is bounded already, and dropping what it reads would change the model.
//!
//! Unless the user says otherwise keys and values are kept in f16 where a product rounds its
//! activations, to int8 or bf16: that loses more than ten times as much (`docs/numerics.md`). Where
//! all products are computed in float32 the cache is f32.

use weir_ir::{Body, DType, Element, Graph, Op, Stage, TensorType};

use super::policy::{KvError, window_rows};
use crate::driver::Options;

/// Rewrites the graph; returns how many caches have a ring for their window.
pub fn run(graph: &mut Graph, options: &Options) -> Result<usize, KvError> {
    let rows = options.kv.rows(options.context)?;
    let dtype = options.kv_dtype.unwrap_or_else(|| suits_products(graph));
    let mut rings = 0;
    for (_, cache) in graph.caches.iter_mut() {
        let windowed = cache.window > 0 && cache.window < options.context;
        rings += usize::from(windowed);
        cache.dtype = dtype;
        cache.layout = Some(if windowed {
            window_rows(cache.window, options.max_rows, options.context)
        } else {
            // A window that the context never reaches is no window.
            cache.window = 0;
            rows.clone()
        });
    }
    graph.stage = Stage::Sparse;
    Ok(rings)
}

/// The number format that loses little beside what the products lose.
fn suits_products(graph: &Graph) -> DType {
    let bodies = graph.kinds.values().map(|kind| &kind.body).chain([&graph.main]);
    if bodies.into_iter().any(has_rounding_product) { DType::F16 } else { DType::F32 }
}

fn has_rounding_product(body: &Body) -> bool {
    body.live().any(|(_, node)| {
        matches!(node.op, Op::Linear(_)) && rounds_activations(body.ty(node.operands[1]))
    })
}

/// Whether products with such a weight round their activations, unless they are told not to.
fn rounds_activations(weight: &TensorType) -> bool {
    match weight.element {
        // Blocks of another length than sixteens have float32 products.
        Element::Quant(format) => format.block.is_multiple_of(16),
        Element::Plain(dtype) => dtype == DType::BF16,
    }
}
