//! Numbers that two systems of the same arithmetic round to different neighbours, as often as
//! `docs/numerics.md` derives.

use weir_ir::graph::{CacheDecl, CacheFormat};
use weir_ir::{Body, DType, Element, Graph, Op, TensorType};

use super::{STORED_UNITS, UNIT, UNITS, block, stored_error};

/// Numbers that two systems are expected to round to different neighbours.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Apart {
    /// Activations of a token.
    pub(super) activations: f64,
    /// Keys and values of a token.
    pub(super) stored: f64,
    /// Queries of a token, where they are rounded.
    pub(super) queries: f64,
    /// Weights of attention of a query and a key in front of it, where they are rounded.
    pub(super) weights: f64,
}

impl Apart {
    /// Those of a graph at stage `Fixed`.
    pub(super) fn expected(graph: &Graph) -> Apart {
        Apart {
            activations: activations_apart(graph),
            stored: graph.caches.values().map(stored_apart).sum(),
            queries: queries_apart(graph),
            weights: weights_apart(graph),
        }
    }

    /// Those of a prompt of so many tokens.
    pub(super) fn of(&self, tokens: usize) -> f64 {
        let pairs = tokens * tokens.saturating_sub(1) / 2;
        let of_token = self.activations + self.stored + self.queries;
        tokens as f64 * of_token + pairs as f64 * self.weights
    }
}

/// Activations of a token that two systems are expected to round apart, over all layers and the head.
fn activations_apart(graph: &Graph) -> f64 {
    let of_product = |weight: &TensorType| {
        let each = match (block(weight), weight.element) {
            (Some(_), _) => code_apart(f64::from(UNITS)),
            (None, Element::Plain(DType::BF16)) => value_apart(CacheFormat::BF16),
            _ => 0.0,
        };
        each * weight.sizes().map_or(0.0, |sizes| sizes[1] as f64)
    };
    let of_body = |body: &Body| -> f64 {
        let products = body.live().filter(|(_, node)| matches!(node.op, Op::Linear(_)));
        products.map(|(_, node)| of_product(body.ty(node.operands[1]))).sum()
    };
    layers(graph).map(of_body).sum::<f64>() + of_body(&graph.main)
}

/// The bodies of the layers, one after the other.
fn layers(graph: &Graph) -> impl Iterator<Item = &Body> {
    graph.main.live().filter_map(|(_, node)| match &node.op {
        Op::Layer(layer) => Some(&graph.kinds[layer.kind].body),
        _ => None,
    })
}

/// Keys and values of a token in a cache.
pub(super) fn values_of_a_row(cache: &CacheDecl) -> usize {
    cache.kv_heads as usize * (cache.key_width + cache.value_width) as usize
}

/// Those of them that two systems are expected to store otherwise.
fn stored_apart(cache: &CacheDecl) -> f64 {
    // Halves that are the scales of int4, two a head: the largest magnitude is off by 4 u of itself, and
    // a unit in the last place is 2⁻¹⁰ of the power of two below it, 0.72 of it on average.
    let of_format = |format| {
        let scales = match format {
            CacheFormat::I4 => 2.0 * f64::from(cache.kv_heads) * 4.0 * UNIT * 1024.0 / 0.72,
            _ => 0.0,
        };
        values_of_a_row(cache) as f64 * value_apart(format) + scales
    };
    // A row of a block with its own format is rounded to both, as is one of int4 in a cache that drops
    // rows of prompts.
    let formats = cache.row_formats();
    of_format(formats.ring) + formats.block.map_or(0.0, of_format)
}

/// Heads and width of each layer's queries.
fn queries(graph: &Graph) -> impl Iterator<Item = [usize; 2]> {
    layers(graph).filter_map(|body| {
        let (_, attend) = body.live().find(|(_, node)| matches!(node.op, Op::CacheAttend(_)))?;
        let shape = &body.ty(attend.operands[0]).shape;
        Some([shape.get(1)?.as_size()?, shape.get(2)?.as_size()?])
    })
}

/// The format that caches' rings have.
fn ring(graph: &Graph) -> Option<CacheFormat> {
    graph.caches.values().next().map(|cache| cache.format)
}

/// Queries of a token that two systems are expected to round apart.
fn queries_apart(graph: &Graph) -> f64 {
    let each = match ring(graph) {
        Some(CacheFormat::I8 | CacheFormat::I4) => code_apart(STORED_UNITS),
        Some(CacheFormat::BF16) => value_apart(CacheFormat::BF16),
        _ => 0.0,
    };
    queries(graph).map(|[heads, width]| (heads * width) as f64 * each).sum()
}

/// Weights of attention that two systems are expected to round apart, of a query and a key: off by
/// 12 u of itself, a code is 1/255 of the greatest weight, and a unit of bf16 more than 1/256 of the
/// weight.
fn weights_apart(graph: &Graph) -> f64 {
    let units = match ring(graph) {
        Some(CacheFormat::I8 | CacheFormat::I4) => 255.0,
        Some(CacheFormat::BF16) => 256.0,
        _ => 0.0,
    };
    queries(graph).map(|[heads, _]| heads as f64 * units * 12.0 * UNIT).sum()
}

/// Chance that two systems round a number to different codes: off by 4 u of the largest of those that
/// share its scale, a unit is this part of that.
fn code_apart(units: f64) -> f64 {
    units * 4.0 * UNIT
}

/// Chance that two systems store a value of a cache otherwise. In 16 bits it is off by 12 u of the root
/// mean square of its row; a unit in the last place is twice what rounding is off by at most, and the
/// power of two below a value is 0.56 of that root mean square on average.
///
/// Of int4 only those codes count that are next to the bound between two levels. There are 15 bounds, and
/// no code of a normal row is more frequent than one in `√(2 π) · 127 / m`, its largest value m times the
/// root mean square; m is below 4 up to 1,500 numbers, so a code is next to a bound with 15 / 79.
fn value_apart(format: CacheFormat) -> f64 {
    match format {
        CacheFormat::I8 => code_apart(STORED_UNITS),
        CacheFormat::I4 => code_apart(STORED_UNITS) * 15.0 / 79.0,
        CacheFormat::F16 | CacheFormat::BF16 => {
            12.0 * UNIT / (0.56 * 2.0 * 3f64.sqrt() * stored_error(format))
        }
        _ => 0.0,
    }
}
