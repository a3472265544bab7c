//! The verifier: every later phase may rely on what it has checked. It never panics, whatever the
//! graph holds.
//!
//! It checks of every graph:
//! * The graph says that it is at the asked stage, and every live op may appear there.
//! * Values are defined once, by the parameter or node that they name as their source, in front of
//!   their uses; nodes live once; results of a body exist.
//! * Types of results are those that the rules give, with the graph's tables; contents do not
//!   contradict the rules; no size is certainly negative; only constants and weights are quantised.
//! * Constants' bytes hold their elements. Layers name existing kinds, constants and caches.
//! * The tables of `rotary_rows` divide evenly into the graph's rotary sets, and have equally many
//!   rows: a sequence chooses the set, and by it a row, for all of them.
//!
//! And what the stages promise:
//! * Before `Fixed`: no `rows`. Before `Cached`: no caches.
//! * `Canonical` and later: no `batch`; logits `[rows, vocabulary]`.
//! * `Cached` and later: no `past`, so that nothing grows with the sequence. Every cache belongs to
//!   one layer, which appends and then attends once; caches of a kind's layers agree in widths.
//! * `Sparse` and later: every cache has a valid layout (and no cache has one before).
//! * `Fixed`: no symbol but `rows`; parameters, layers and results as `passes` documents.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::ops::Deref;

use crate::dim::{Dim, Symbol};
use crate::entity::{CacheId, Entity, Kind, Value};
use crate::graph::{Body, Graph, InputRole, KvPolicy, ValueSource};
use crate::infer::Tables;
use crate::ops::{Known, Op, Operand};
use crate::stage::Stage;
use crate::types::{DType, Element, TensorType};

/// A graph with the proof that the verifier has accepted it at its stage.
#[derive(Clone, Copy, Debug)]
pub struct Verified<'g> {
    graph: &'g Graph,
}

impl<'g> Verified<'g> {
    /// The graph.
    pub fn graph(self) -> &'g Graph {
        self.graph
    }
}

impl Deref for Verified<'_> {
    type Target = Graph;
    fn deref(&self) -> &Graph {
        self.graph
    }
}

/// Something that must not be: a bug of the pass that ran last, or of the importer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}")]
pub struct VerifyError {
    /// Where: `main n12 linear (node "/head/MatMul")`.
    pub place: String,
    /// What is wrong.
    pub message: String,
}

/// Checks the graph at a stage; all errors at once.
pub fn verify(graph: &Graph, stage: Stage) -> Result<Verified<'_>, Vec<VerifyError>> {
    let mut verifier = Verifier { graph, stage, rotary_rows: None, errors: Vec::new() };
    verifier.tables();
    for (kind, layer_kind) in graph.kinds.iter() {
        let place = format!("{kind} {:?}", layer_kind.name);
        verifier.body(&place, &layer_kind.body, graph.tables_in(kind), layer_kind.weights);
        if stage >= Stage::Cached {
            verifier.kind_caches(&place, kind);
        }
    }
    verifier.body("main", &graph.main, graph.tables(), 0);
    verifier.results();
    if stage >= Stage::Cached {
        verifier.caches();
    }
    if stage == Stage::Fixed {
        verifier.fixed();
    }
    if verifier.errors.is_empty() { Ok(Verified { graph }) } else { Err(verifier.errors) }
}

struct Verifier<'g> {
    graph: &'g Graph,
    stage: Stage,
    /// Rows of the first table of angles.
    rotary_rows: Option<usize>,
    errors: Vec<VerifyError>,
}

impl<'g> Verifier<'g> {
    fn error(&mut self, place: impl ToString, message: impl ToString) {
        self.errors.push(VerifyError { place: place.to_string(), message: message.to_string() });
    }

    fn tables(&mut self) {
        let graph = self.graph;
        if graph.stage != self.stage {
            self.error("the graph", format!("stands at {}, not at {}", graph.stage, self.stage));
        }
        for (id, constant) in graph.constants.iter() {
            if let Err(error) = constant.check() {
                self.error(id, error);
            }
        }
        if self.stage < Stage::Cached && !graph.caches.is_empty() {
            self.error("the graph", "has caches before stage Cached");
        }
        if !(1..=2).contains(&graph.rotary.sets) {
            self.error("the graph", format!("has {} sets of rotary tables", graph.rotary.sets));
        }
        for (id, cache) in graph.caches.iter() {
            if cache.kv_heads == 0 || cache.key_width == 0 || cache.value_width == 0 {
                self.error(id, "has no heads or no width");
            }
            if let Some(block) = cache.block {
                let layout = cache.layout.as_ref();
                if !layout.is_some_and(|layout| layout.policy.has_block()) {
                    self.error(id, "has a type of its block and no block");
                }
                if !block.suits_block_of(cache.format) {
                    let (block, ring) = (block.name(), cache.format.name());
                    self.error(id, format!("has a block of {block} with a ring of {ring}"));
                }
            }
            match &cache.layout {
                None if self.stage >= Stage::Sparse => self.error(id, "has no layout"),
                Some(_) if self.stage < Stage::Sparse => self.error(id, "has a layout too early"),
                Some(layout) => {
                    if let Err(message) = layout.check() {
                        self.error(id, message);
                    }
                    let heads = layout.by_head.len();
                    if heads > 0 && heads != cache.kv_heads as usize {
                        let has = cache.kv_heads;
                        self.error(id, format!("has rows of {heads} heads and {has} heads"));
                    }
                    if heads > 0 && cache.block.is_some() {
                        self.error(id, "has rows by head and a type of its block");
                    }
                    if layout.policy == KvPolicy::Window
                        && (cache.window == 0 || layout.recent < cache.window)
                    {
                        let (recent, window) = (layout.recent, cache.window);
                        self.error(id, format!("{recent} rows cannot hold a window of {window}"));
                    }
                }
                None => {}
            }
        }
    }

    /// Structure, types and stage of a body. The last `weights` parameters may be quantised.
    fn body(&mut self, place: &str, body: &'g Body, tables: Tables<'g>, weights: usize) {
        let mut defined = vec![false; body.values.len()];
        if weights > body.params.len() {
            self.error(place, format!("{weights} weights of {} parameters", body.params.len()));
        }
        for (index, param) in body.params.iter().enumerate() {
            let at = format!("{place} parameter {index}");
            let quantised = index + weights >= body.params.len();
            self.define(&at, body, &mut defined, param.value, ValueSource::Param(index), quantised);
        }
        let mut live = HashSet::new();
        for node in &body.order {
            let Some(data) = body.nodes.get(*node) else {
                self.error(place, format!("{node} does not exist"));
                continue;
            };
            let at = match &data.origin {
                Some(origin) => format!("{place} {node} {} ({origin})", data.op),
                None => format!("{place} {node} {}", data.op),
            };
            if !live.insert(*node) {
                self.error(&at, "lives twice");
                continue;
            }
            if !data.op.is_legal_at(self.stage) {
                self.error(&at, format!("is not legal at {}", self.stage));
            }
            let mut operands = Vec::with_capacity(data.operands.len());
            for operand in &data.operands {
                match body.values.get(*operand) {
                    Some(value) if defined[operand.index()] => {
                        operands.push(Operand { ty: &value.ty, known: value.known.as_ref() });
                    }
                    _ => self.error(&at, format!("{operand} is not defined in front of it")),
                }
            }
            if operands.len() == data.operands.len() {
                self.types(&at, body, &tables, &data.op, &operands, &data.results);
            }
            let quantised = matches!(data.op, Op::ReadConstant(_));
            for (index, value) in data.results.iter().enumerate() {
                let source = ValueSource::Result(*node, index);
                self.define(&at, body, &mut defined, *value, source, quantised);
            }
        }
        for result in &body.results {
            if !defined.get(result.value.index()).copied().unwrap_or(false) {
                self.error(place, format!("result {} is not defined", result.value));
            }
        }
    }

    fn define(
        &mut self,
        at: &str,
        body: &Body,
        defined: &mut [bool],
        value: Value,
        source: ValueSource,
        quantised: bool,
    ) {
        let Some(data) = body.values.get(value) else {
            return self.error(at, format!("{value} does not exist"));
        };
        if std::mem::replace(&mut defined[value.index()], true) {
            self.error(at, format!("{value} is defined twice"));
        }
        if data.source != source {
            self.error(at, format!("{value} names another source: {:?}", data.source));
        }
        if matches!(data.ty.element, Element::Quant(_)) && !quantised {
            self.error(at, format!("{value} of {} is no constant", data.ty));
        }
        let known = match &data.known {
            None => &[][..],
            Some(Known::Fill(value)) => std::slice::from_ref(value),
            Some(Known::Elements(elements)) => elements,
        };
        for dim in data.ty.shape.iter().chain(known) {
            if let Some(symbol) = self.forbidden(dim) {
                let name = symbol.name();
                self.error(at, format!("{value} mentions {name} at {}: {dim}", self.stage));
                break;
            }
        }
        if data.ty.shape.iter().any(|dim| dim.as_number().is_some_and(|size| size < 0)) {
            self.error(at, format!("{value} has a negative size: {}", data.ty));
        }
    }

    /// A symbol that the stage does not have.
    fn forbidden(&self, dim: &Dim) -> Option<Symbol> {
        Symbol::ALL.into_iter().find(|symbol| {
            let allowed = match symbol {
                Symbol::Batch => self.stage < Stage::Canonical,
                Symbol::Past => self.stage < Stage::Cached,
                Symbol::Sequence => self.stage < Stage::Fixed,
                Symbol::Rows => self.stage == Stage::Fixed,
            };
            !allowed && dim.mentions(*symbol)
        })
    }

    fn types(
        &mut self,
        at: &str,
        body: &Body,
        tables: &Tables<'_>,
        op: &Op,
        operands: &[Operand<'_>],
        results: &[Value],
    ) {
        let inferred = match tables.infer(op, operands) {
            Ok(inferred) => inferred,
            Err(error) => return self.error(at, error.message),
        };
        if inferred.len() != results.len() {
            return self.error(at, format!("has {} of {} results", results.len(), inferred.len()));
        }
        for (value, (ty, known)) in results.iter().zip(&inferred) {
            let Some(data) = body.values.get(*value) else { continue };
            if data.ty != *ty {
                self.error(at, format!("{value} is {}, the rule says {ty}", data.ty));
            } else if contradict(&data.ty, data.known.as_ref(), known.as_ref()) {
                self.error(at, format!("{value} has other content than the rule says"));
            }
        }
        if let Op::RotaryRows(_) = op
            && let Some(rows) = operands[2].ty.shape.first().and_then(Dim::as_size)
        {
            if !rows.is_multiple_of(self.graph.rotary.sets.max(1) as usize) {
                self.error(at, format!("{rows} rows of {} sets", self.graph.rotary.sets));
            }
            let first = *self.rotary_rows.get_or_insert(rows);
            if rows != first {
                self.error(at, format!("{rows} rows of angles, where others have {first}"));
            }
        }
    }

    /// In a kind's body: one append and one attend of `k0`, in this order.
    fn kind_caches(&mut self, place: &str, kind: Kind) {
        let Some(layer_kind) = self.graph.kinds.get(kind) else { return };
        let named: Vec<CacheId> =
            layer_kind.body.live().filter_map(|(_, node)| cache_of(&node.op)).collect();
        if layer_kind.caches > 1 || named.iter().any(|cache| cache.index() >= layer_kind.caches) {
            self.error(place, "names another cache than k0");
        }
        if layer_kind.caches == 1 && !appends_then_attends(&layer_kind.body, CacheId::new(0)) {
            self.error(place, "does not append to k0 and then attend to it, once each");
        }
    }

    /// Every cache belongs to one layer, or is used by `main` itself.
    fn caches(&mut self) {
        let graph = self.graph;
        let mut owners = vec![0usize; graph.caches.len()];
        let mut first_of_kind: Vec<Option<CacheId>> = vec![None; graph.kinds.len()];
        for (node, data) in graph.main.live() {
            let Op::Layer(layer) = &data.op else { continue };
            let Some(cache) = layer.cache else { continue };
            let Some(decl) = graph.caches.get(cache) else { continue };
            owners[cache.index()] += 1;
            if decl.layer != layer.index {
                let message = format!("{cache} is of layer {}, not {}", decl.layer, layer.index);
                self.error(node, message);
            }
            let Some(slot) = first_of_kind.get_mut(layer.kind.index()) else { continue };
            let first = *slot.get_or_insert(cache);
            let widths = |id: CacheId| {
                graph.caches.get(id).map(|c| {
                    (c.format, c.block, [c.kv_heads, c.key_width, c.value_width, c.window])
                })
            };
            if widths(first) != widths(cache) {
                self.error(
                    node,
                    format!("{cache} has other widths or another type than {first} of its kind"),
                );
            }
        }
        for (cache, _) in graph.caches.iter() {
            let in_main = graph.main.live().any(|(_, node)| cache_of(&node.op) == Some(cache));
            let proper = match owners[cache.index()] {
                0 => in_main && appends_then_attends(&graph.main, cache),
                count => count == 1 && !in_main,
            };
            if !proper {
                self.error(cache, "is not appended to and then attended to by one layer");
            }
        }
    }

    fn results(&mut self) {
        let body = &self.graph.main;
        let answers: Vec<Value> = body
            .results
            .iter()
            .filter(|result| result.role.is_answer())
            .map(|result| result.value)
            .collect();
        if answers.len() > 1 {
            self.error("main", "has more than one result of logits or hidden rows");
        }
        if self.stage >= Stage::Canonical {
            for value in answers {
                if body.values.get(value).is_some_and(|data| data.ty.rank() != 2) {
                    self.error("main", format!("the result {value} is not [rows, columns]"));
                }
            }
        }
    }

    fn fixed(&mut self) {
        let body = &self.graph.main;
        let rows = TensorType::new(DType::I64, vec![Dim::symbol(Symbol::Rows)]);
        let roles: Vec<&InputRole> = body.params.iter().map(|param| &param.role).collect();
        if roles != [&InputRole::Tokens, &InputRole::Positions] {
            self.error("main", "its parameters are not tokens and positions");
        }
        let typed = |param: &crate::graph::Param| {
            body.values.get(param.value).is_none_or(|data| data.ty == rows)
        };
        if !body.params.iter().all(typed) {
            self.error("main", format!("a parameter is not {rows}"));
        }
        if !matches!(body.results.as_slice(), [only] if only.role.is_answer()) {
            self.error("main", "its only result is not logits or hidden rows");
        }
        let mut state = 0;
        for (node, data) in body.live() {
            match &data.op {
                Op::Layer(layer) => {
                    if layer.cache.is_none() || data.operands.len() != 2 {
                        self.error(node, "a layer takes hidden rows, positions and a cache");
                    }
                    if state == 2 {
                        self.error(node, "stands behind the head");
                    }
                    state = state.max(1);
                }
                _ if state == 1 => state = 2,
                _ => {}
            }
        }
        for (kind, layer_kind) in self.graph.kinds.iter() {
            let reads =
                layer_kind.body.live().any(|(_, node)| matches!(node.op, Op::ReadConstant(_)));
            if reads {
                self.error(kind, "reads a constant; constants of a kind are weights");
            }
        }
    }
}

fn cache_of(op: &Op) -> Option<CacheId> {
    match op {
        Op::CacheAppend(append) => Some(append.cache),
        Op::CacheAttend(attend) => Some(attend.cache),
        _ => None,
    }
}

fn appends_then_attends(body: &Body, cache: CacheId) -> bool {
    let uses: Vec<bool> = body
        .order
        .iter()
        .filter_map(|node| body.nodes.get(*node))
        .filter(|node| cache_of(&node.op) == Some(cache))
        .map(|node| matches!(node.op, Op::CacheAttend(_)))
        .collect();
    uses == [false, true]
}

/// Whether two statements about a content exclude each other.
fn contradict(ty: &TensorType, stated: Option<&Known>, inferred: Option<&Known>) -> bool {
    let (Some(stated), Some(inferred)) = (stated, inferred) else { return false };
    let list = |known: &Known| crate::ops::rules::listed(Operand { ty, known: Some(known) });
    match (stated, inferred) {
        (Known::Fill(a), Known::Fill(b)) => a != b,
        _ => match (list(stated), list(inferred)) {
            (Some(a), Some(b)) => a != b,
            _ => false,
        },
    }
}
