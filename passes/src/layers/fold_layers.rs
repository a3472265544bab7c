//! Holds repeated layers once.
//!
//! Before:  v5 = <nodes of layer 0> v1 ; v9 = <nodes of layer 1> v5, with constants of their own
//! After:   v5, v6, v7 = layer v1, positions, past_key, past_value {kind=kind0, weights=[c1, ..]}
//!          v9, .. = layer v5, positions, .. {kind=kind0, weights=[c7, ..]}
//!
//! Needs: stage `Canonical`, rows; every `causal_attention` reads the past rows of one layer.
//! Gives: `main` is embed segment, layers, head segment; one kind for all layers that are equal but
//! for their constants.
//!
//! Layers are not looked up by name. A *cut* is a place in the order that one value crosses,
//! hidden rows `[S, W]`; parameters and constants do not count. A layer starts at the last cut in
//! front of its attention, and ends where the next one starts. The last layer ends where it has
//! the ops of an earlier layer, or else at the last cut made by a residual sum: behind it stand
//! the final norm and the head. Moving nodes into a body changes no value, and two layers share a
//! kind only if ops, attributes, wiring and the types of constants are equal.

use std::collections::HashMap;

use weir_ir::graph::LayerKind;
use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::{Layer, ReadConstant};
use weir_ir::{
    Body, Const, DType, Dim, Graph, InputRole, Kind, Node, NodeData, Op, OutputRole, Rebuild,
    Symbol, Table, Tables, TensorType, Value,
};

use crate::error::{PassError, Unsupported};
use crate::registry::Change;

/// Nodes of a layer: those behind `start` up to `end`, both cuts.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    attention: usize,
    end: usize,
}

/// The main body as a list of nodes other than `const`, in an order in which layers are contiguous.
struct Listing<'g> {
    body: &'g Body,
    nodes: Vec<Node>,
    /// The value that crosses the place behind each node, if it is one of hidden rows.
    cuts: Vec<Option<Value>>,
}

/// Rewrites the graph; counts layers and lists the layers of each kind.
pub fn run(graph: &mut Graph) -> Result<Change, PassError> {
    let listing = listing(&graph.main)?;
    let spans = spans(&listing)?;
    let mut kinds: Table<Kind, LayerKind> = Table::default();
    let mut by_shape: HashMap<String, Kind> = HashMap::new();
    let mut applied = Vec::new();
    for span in &spans {
        let (body, weights) = layer_body(graph, &listing, *span)?;
        let kind = *by_shape.entry(signature(&body)).or_insert_with(|| {
            let name = format!("layer{}", kinds.len());
            kinds.push(LayerKind { name, weights: weights.len(), caches: 0, body })
        });
        applied.push((kind, weights));
    }
    let main = main_body(graph, &listing, &spans, &applied, &kinds)?;
    graph.main = main;
    let notes = kinds.iter().map(|(kind, data)| {
        let layers: Vec<String> = (0..applied.len())
            .filter(|layer| applied[*layer].0 == kind)
            .map(|layer| layer.to_string())
            .collect();
        format!("{} has {} weights, layers {}", data.name, data.weights, layers.join(" "))
    });
    let notes = notes.collect();
    graph.kinds = kinds;
    Ok(Change { count: spans.len(), notes })
}

fn constant_of(body: &Body, value: Value) -> Option<Const> {
    match body.maker(value).map(|node| &node.op) {
        Some(Op::ReadConstant(ReadConstant { constant })) => Some(*constant),
        _ => None,
    }
}

/// Depth first from logits or hidden rows: whatever a cut depends on stands in front of it.
fn listing(body: &Body) -> Result<Listing<'_>, PassError> {
    let mut maker: HashMap<Value, Node> = HashMap::new();
    for (node, data) in body.live() {
        if !matches!(data.op, Op::ReadConstant(_)) {
            maker.extend(data.results.iter().map(|value| (*value, node)));
        }
    }
    let mut roots: Vec<Value> = Vec::new();
    let answers = body.results.iter().filter(|result| result.role.is_answer());
    roots.extend(answers.map(|result| result.value));
    roots.extend(body.results.iter().map(|result| result.value));
    let mut nodes = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for root in roots {
        // An explicit stack: models are deeper than threads' stacks are tall.
        let mut stack: Vec<(Node, usize)> = Vec::new();
        let enter = |value: Value,
                     stack: &mut Vec<(Node, usize)>,
                     seen: &mut std::collections::HashSet<Node>| {
            if let Some(node) = maker.get(&value)
                && seen.insert(*node)
            {
                stack.push((*node, 0));
            }
        };
        enter(root, &mut stack, &mut seen);
        while let Some((node, next)) = stack.pop() {
            match body.nodes[node].operands.get(next) {
                Some(operand) => {
                    stack.push((node, next + 1));
                    enter(*operand, &mut stack, &mut seen);
                }
                None => nodes.push(node),
            }
        }
    }
    let cuts = cuts(body, &nodes);
    Ok(Listing { body, nodes, cuts })
}

/// For the place behind each node: the hidden rows that alone cross it.
fn cuts(body: &Body, nodes: &[Node]) -> Vec<Option<Value>> {
    let mut made: HashMap<Value, usize> = HashMap::new();
    let mut last_use: HashMap<Value, usize> = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        let data = &body.nodes[*node];
        for operand in &data.operands {
            if made.contains_key(operand) {
                last_use.insert(*operand, index);
            }
        }
        made.extend(data.results.iter().map(|value| (*value, index)));
    }
    for result in &body.results {
        let present =
            matches!(result.role, OutputRole::PresentKey(_) | OutputRole::PresentValue(_));
        if !present && made.contains_key(&result.value) {
            last_use.insert(result.value, nodes.len());
        }
    }
    let mut live: Vec<Value> = Vec::new();
    nodes
        .iter()
        .enumerate()
        .map(|(index, node)| {
            live.retain(|value| last_use[value] > index);
            live.extend(
                body.nodes[*node]
                    .results
                    .iter()
                    .filter(|value| last_use.get(value).is_some_and(|last| *last > index)),
            );
            match live.as_slice() {
                [value] if is_hidden(body.ty(*value)) => Some(*value),
                _ => None,
            }
        })
        .collect()
}

fn is_hidden(ty: &TensorType) -> bool {
    ty.dtype() == Some(DType::F32)
        && ty.rank() == 2
        && ty.shape[0] == Dim::symbol(Symbol::Sequence)
        && ty.shape[1].as_size().is_some()
}

fn spans(listing: &Listing<'_>) -> Result<Vec<Span>, PassError> {
    let data = |index: usize| &listing.body.nodes[listing.nodes[index]];
    let attentions: Vec<usize> = (0..listing.nodes.len())
        .filter(|index| matches!(data(*index).op, Op::CausalAttention(_)))
        .collect();
    let mut problems = Vec::new();
    let mut starts: Vec<usize> = Vec::new();
    for (layer, attention) in attentions.iter().enumerate() {
        let from = if layer == 0 { 0 } else { attentions[layer - 1] + 1 };
        match (from..*attention).rev().find(|index| listing.cuts[*index].is_some()) {
            Some(start) => starts.push(start),
            None => problems.push(Unsupported {
                place: place(data(*attention)),
                message: match layer {
                    0 => "no single value of hidden rows enters the first layer".to_owned(),
                    _ => format!("layers {} and {layer} share more than hidden rows", layer - 1),
                },
            }),
        }
    }
    if !problems.is_empty() {
        return Err(PassError::Unsupported(problems));
    }
    let (Some(start), Some(attention)) = (starts.last(), attentions.last()) else {
        return Err(PassError::Unsupported(vec![Unsupported {
            place: "the graph".to_owned(),
            message: "has no attention over a cache".to_owned(),
        }]));
    };
    let mut spans: Vec<Span> = starts
        .windows(2)
        .zip(&attentions)
        .map(|(pair, attention)| Span { start: pair[0], attention: *attention, end: pair[1] })
        .collect();
    let Some(end) = last_end(listing, &spans, *start, *attention) else {
        return Err(PassError::Unsupported(vec![Unsupported {
            place: place(data(*attention)),
            message: "no single value of hidden rows leaves the last layer".to_owned(),
        }]));
    };
    spans.push(Span { start: *start, attention: *attention, end });
    Ok(spans)
}

/// Where the last layer ends.
fn last_end(
    listing: &Listing<'_>,
    earlier: &[Span],
    start: usize,
    attention: usize,
) -> Option<usize> {
    let name = |index: usize| listing.body.nodes[listing.nodes[index]].op.name();
    let same = earlier.iter().rev().find_map(|span| {
        let length = span.end - span.start;
        let end = start + length;
        let fits = end > attention
            && end < listing.nodes.len()
            && listing.cuts[end].is_some()
            && (1..=length).all(|step| name(span.start + step) == name(start + step));
        fits.then_some(end)
    });
    let width =
        |index: usize| listing.cuts[index].map(|value| listing.body.shape(value)[1].clone());
    let hidden = width(start);
    let candidates =
        || (attention + 1..listing.nodes.len()).filter(|index| width(*index) == hidden);
    let is_sum = |index: &usize| match &listing.body.nodes[listing.nodes[*index]].op {
        Op::Binary(binary) => binary.op == BinaryOp::Add,
        Op::Linear(linear) => linear.residual,
        _ => false,
    };
    same.or_else(|| candidates().rfind(is_sum)).or_else(|| candidates().next())
}

/// A layer's nodes as a body, and the constants that its weight parameters stand for.
fn layer_body(
    graph: &Graph,
    listing: &Listing<'_>,
    span: Span,
) -> Result<(Body, Vec<Const>), PassError> {
    let main = &graph.main;
    let tables =
        Tables { constants: &graph.constants, caches: &graph.caches, kinds: None, cache: None };
    let mut rebuild = Rebuild::new(main, tables);
    let attention = &main.nodes[listing.nodes[span.attention]];
    let mut outside = vec![hidden_at(listing, span.start)?, positions(main)?];
    outside.extend(&attention.operands[3..5]);
    for value in outside {
        rebuild.param(value, InputRole::Operand, main.ty(value).clone());
    }
    let nodes = &listing.nodes[span.start + 1..=span.end];
    let mut weights: Vec<Const> = Vec::new();
    let mut params: HashMap<Const, Value> = HashMap::new();
    for operand in nodes.iter().flat_map(|node| &main.nodes[*node].operands) {
        let Some(constant) = constant_of(main, *operand) else { continue };
        let param = *params.entry(constant).or_insert_with(|| {
            weights.push(constant);
            let ty = graph.constants[constant].ty.clone();
            rebuild.body.param(InputRole::Operand, ty, None, None)
        });
        if rebuild.get(*operand).is_none() {
            rebuild.set(*operand, param);
        }
    }
    for node in nodes {
        let data = &main.nodes[*node];
        if data.operands.iter().any(|operand| rebuild.get(*operand).is_none()) {
            return Err(PassError::Unsupported(vec![Unsupported {
                place: place(data),
                message: "a layer reads more than hidden rows, positions and its cache".to_owned(),
            }]));
        }
        rebuild.copy(*node)?;
    }
    let mut results = vec![hidden_at(listing, span.end)?];
    results.extend(&attention.results[1..3]);
    for value in results {
        let value = rebuild.get(value).ok_or_else(|| PassError::lost(value))?;
        rebuild.result(value, OutputRole::Other);
    }
    let mut body = rebuild.body;
    for (_, value) in body.values.iter_mut() {
        // Names of one layer would mislead in all others.
        value.name = None;
    }
    Ok((body, weights))
}

/// Everything about a body but places and names: two layers with equal signatures are one kind.
fn signature(body: &Body) -> String {
    let mut text = String::new();
    for param in &body.params {
        text.push_str(&format!("{} ", body.ty(param.value)));
    }
    for (_, node) in body.live() {
        text.push_str(&format!("\n{:?} {:?} {:?}", node.op, node.operands, node.results));
    }
    for result in &body.results {
        text.push_str(&format!("\n{}", result.value));
    }
    text
}

fn main_body(
    graph: &Graph,
    listing: &Listing<'_>,
    spans: &[Span],
    applied: &[(Kind, Vec<Const>)],
    kinds: &Table<Kind, LayerKind>,
) -> Result<Body, PassError> {
    let main = &graph.main;
    let tables = Tables {
        constants: &graph.constants,
        caches: &graph.caches,
        kinds: Some(kinds),
        cache: None,
    };
    let mut rebuild = Rebuild::new(main, tables);
    for param in &main.params {
        rebuild.param(param.value, param.role.clone(), main.ty(param.value).clone());
    }
    let positions = positions(main)?;
    let first = spans.first().map_or(0, |span| span.start + 1);
    for node in &listing.nodes[..first] {
        copy_with_constants(&mut rebuild, *node)?;
    }
    for (index, (span, (kind, weights))) in spans.iter().zip(applied).enumerate() {
        let attention = &main.nodes[listing.nodes[span.attention]];
        let inputs = [
            hidden_at(listing, span.start)?,
            positions,
            attention.operands[3],
            attention.operands[4],
        ];
        let operands = inputs
            .iter()
            .map(|value| rebuild.get(*value).ok_or_else(|| PassError::lost(*value)))
            .collect::<Result<_, _>>()?;
        let index = u32::try_from(index).map_err(|_| PassError::internal("2^32 layers"))?;
        let layer = Layer { kind: *kind, index, weights: weights.clone(), cache: None };
        let results = rebuild.push(layer, operands, attention.origin.clone())?;
        let old = [hidden_at(listing, span.end)?, attention.results[1], attention.results[2]];
        for (old, new) in old.into_iter().zip(results) {
            rebuild.set(old, new);
        }
    }
    let last = spans.last().map_or(0, |span| span.end + 1);
    for node in &listing.nodes[last..] {
        copy_with_constants(&mut rebuild, *node)?;
    }
    for result in &main.results {
        let value = rebuild.get(result.value).ok_or_else(|| PassError::lost(result.value))?;
        rebuild.result(value, result.role.clone());
    }
    Ok(rebuild.body)
}

/// Copies a node, and in front of it the constants that nothing before it has read.
fn copy_with_constants(rebuild: &mut Rebuild<'_>, node: Node) -> Result<(), PassError> {
    let source = rebuild.source();
    for operand in &source.nodes[node].operands {
        if let Some(constant) = constant_of(source, *operand)
            && rebuild.get(*operand).is_none()
        {
            let origin = source.maker(*operand).and_then(|maker| maker.origin.clone());
            let value = rebuild.push(Op::read_constant(constant), Vec::new(), origin)?[0];
            rebuild.set(*operand, value);
        }
    }
    rebuild.copy(node)?;
    Ok(())
}

fn hidden_at(listing: &Listing<'_>, cut: usize) -> Result<Value, PassError> {
    listing.cuts[cut].ok_or_else(|| PassError::internal("a layer ends where there is no cut"))
}

fn positions(main: &Body) -> Result<Value, PassError> {
    let mut params = main.params.iter();
    let param = params.find(|param| param.role == InputRole::Positions);
    param.map(|param| param.value).ok_or_else(|| PassError::internal("no positions"))
}

fn place(node: &NodeData) -> String {
    node.origin.clone().unwrap_or_else(|| node.op.name().to_owned())
}
