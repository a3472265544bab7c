//! Gives every cache a policy, a number of rows and a number format.
//!
//! Before:  cache k0 { type=f32, window=0 }
//! After:   cache k0 { type=f16, window=0, policy=snapstream, sinks=32, selected=736, recent=256, ... }
//!
//! Needs: stage `Cached`.
//! Gives: stage `Sparse`; C = S + K + R for every cache, and D more if tokens may be guessed ahead.
//!
//! A layer whose attention has a sliding window shorter than the context gets a plain ring, whatever
//! the policy: it is bounded already, and dropping what it reads would change the model. So the user's
//! number format for the immutable block is for the others, unless the policy is `full`, which has none.
//!
//! Unless the user says otherwise the cache follows the products (`docs/numerics.md`): int8 where those of
//! layers round their activations to int8, bf16 where they round them to bf16, f32 where all are computed
//! in float32. Two kinds of rows are kept in f16 instead: keys whose product adds a bias, for models with
//! such biases have a few numbers that are many times as large as the others, which would share their
//! scale, or leave little of a score to eight bits; and, in front of int8, rows of less than 32 numbers,
//! whose scales would take what codes save.

#[cfg(test)]
mod tests;

use weir_ir::graph::CacheDecl;
use weir_ir::{Body, CacheFormat, DType, Element, Graph, Op, RowFormats, Stage, TensorType, Value};

use super::policy::{KvError, KvOptions, window_rows};
use crate::driver::Options;

/// Numbers of a row and head for which a scale of four bytes is small.
const LEAST_WIDTH: u32 = 32;

/// Rewrites the graph; returns how many caches have a ring for their window.
pub fn run(graph: &mut Graph, options: &Options) -> Result<usize, KvError> {
    let keep = Keep {
        kv: &options.kv,
        format: options.kv_dtype,
        activations: options.activations,
        context: options.context,
    };
    let rings = keep.rows(graph, options.max_rows)?;
    graph.stage = Stage::Sparse;
    Ok(rings)
}

/// Which rows of a context caches keep, and in which number format.
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    /// Policy with its options.
    pub kv: &'a KvOptions,
    /// The number formats, unless they follow the products.
    pub format: Option<RowFormats>,
    /// What products round their activations to, as [`Options::activations`].
    pub activations: Option<DType>,
    /// Positions of a sequence.
    pub context: u32,
}

impl Keep<'_> {
    /// Gives every cache its rows, at this stage or any later one: nothing else in a graph depends on
    /// them. Returns how many caches have a ring for their window.
    pub fn rows(&self, graph: &mut Graph, max_rows: u32) -> Result<usize, KvError> {
        let in_flight = self.kv.in_flight();
        if in_flight > max_rows {
            return Err(KvError::Numbers(format!(
                "draft= guesses {} tokens ahead, and with the next one a step of {max_rows} rows has \
                 room for at most {}",
                in_flight - 1,
                max_rows.saturating_sub(1)
            )));
        }
        let windowed = |cache: &CacheDecl| cache.window > 0 && cache.window < self.context;
        let bounded = graph.caches.values().filter(|cache| !windowed(cache));
        let heads: Vec<u32> = bounded.map(|cache| cache.kv_heads).collect();
        let mut rows = self.kv.rows(self.context, &heads)?.into_iter();
        let products = Products { activations: self.activations };
        let format = self.format.unwrap_or_else(|| products.cache_format(graph).into());
        if format.block.is_some() && rows.as_slice().iter().any(|rows| !rows.by_head.is_empty()) {
            return Err(KvError::Numbers(
                "a budget by head and a number format of the block exclude each other: rows that only \
                 some heads have lie behind the ring, in its format"
                    .to_owned(),
            ));
        }
        let anew = rows.as_slice().iter().filter(|rows| rows.reselect);
        let observed = anew.map(|rows| rows.observed).max().unwrap_or(0);
        let mut rings = 0;
        for (_, cache) in graph.caches.iter_mut() {
            cache.format = format.ring;
            cache.block = None;
            if windowed(cache) {
                if observed > max_rows {
                    // What is computed again looks as far back as it did.
                    return Err(KvError::Numbers(format!(
                        "reselect= computes {observed} observed rows again, more than the {max_rows} \
                         rows of a step, for which there is room beside a layer's window"
                    )));
                }
                rings += 1;
                cache.layout = Some(window_rows(cache.window, max_rows, in_flight, self.context));
            } else {
                // A window that the context never reaches is no window.
                cache.window = 0;
                cache.layout = rows.next();
                let has_block = cache.layout.as_ref().is_some_and(|rows| rows.policy.has_block());
                cache.block = format.block.filter(|_| has_block);
            }
        }
        Ok(rings)
    }
}

/// How products round, which caches follow.
struct Products {
    /// What all of them round their activations to, where that is said.
    activations: Option<DType>,
}

impl Products {
    /// The number format that loses no more than the products do.
    fn cache_format(&self, graph: &Graph) -> CacheFormat {
        let bodies = || graph.kinds.values().map(|kind| &kind.body).chain([&graph.main]);
        let layers = || bodies().filter(|body| keys(body).next().is_some());
        let are_biased = layers().any(has_biased_keys);
        let [codes, halves] = [DType::I8, DType::BF16];
        let all_round_to = |dtype: DType| layers().all(|body| self.round_to(body, dtype));
        let mut caches = graph.caches.values();
        let are_wide = caches.all(|cache| cache.key_width.min(cache.value_width) >= LEAST_WIDTH);
        if are_wide && all_round_to(codes) && !are_biased {
            return CacheFormat::I8;
        }
        let has_codes = layers().any(|body| self.round_to(body, codes));
        if all_round_to(halves) && !has_codes && !are_biased {
            return CacheFormat::BF16;
        }
        let is_rounded = |body| [codes, halves].iter().any(|dtype| self.round_to(body, *dtype));
        match bodies().any(is_rounded) {
            true => CacheFormat::F16,
            false => CacheFormat::F32,
        }
    }

    /// Whether a product of the body rounds its activations to a number format.
    fn round_to(&self, body: &Body, dtype: DType) -> bool {
        body.live().any(|(_, node)| {
            let weight = || body.ty(node.operands[1]);
            matches!(node.op, Op::Linear(_)) && self.rounded_to(weight()) == Some(dtype)
        })
    }

    /// What products with such a weight round their activations to, if at all.
    fn rounded_to(&self, weight: &TensorType) -> Option<DType> {
        match (self.activations, &weight.element) {
            (Some(dtype), _) => (dtype != DType::F32).then_some(dtype),
            // Blocks of another length than sixteens have float32 products.
            (None, Element::Quant(format)) => format.block.is_multiple_of(16).then_some(DType::I8),
            (None, Element::Plain(dtype)) => (*dtype == DType::BF16).then_some(DType::BF16),
        }
    }
}

/// Keys on their way into a cache.
fn keys(body: &Body) -> impl Iterator<Item = Value> {
    body.live().filter_map(|(_, node)| match node.op {
        Op::CacheAppend(_) => Some(node.operands[0]),
        _ => None,
    })
}

/// Whether a key is made by a product with a bias, with nothing behind it that evens out sizes.
fn has_biased_keys(body: &Body) -> bool {
    keys(body).any(|key| {
        let before = |value: &Value| {
            let maker = body.maker(*value)?;
            let passes_on = !matches!(maker.op, Op::Linear(_) | Op::RmsNorm(_) | Op::LayerNorm(_));
            passes_on.then(|| maker.operands.first().copied()).flatten()
        };
        let first = std::iter::successors(Some(key), before).last();
        let maker = first.and_then(|value| body.maker(value));
        maker.is_some_and(|maker| matches!(&maker.op, Op::Linear(product) if product.bias))
    })
}
