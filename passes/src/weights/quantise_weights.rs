//! Gives weights the number formats that the user wants.
//!
//! Before:  const c0: f32[N, K] = .. ; v3 = linear v1, c0
//! After:   const c1: int4<block=32, scale=f16, zero=8>[N, K] = rounded f32[N, K] = ..
//!          v3 = linear v1, c1
//!
//! Needs: stage `Canonical`, not yet folded into layers: constants are still read by nodes.
//! Gives: the weights of products and embeddings have the chosen types; a constant is rounded when it
//! is read, by [`weir_ir::quantise`], so nothing is computed or copied here.
//!
//! This is the one pass that changes what a model computes, within the error that
//! `ir/src/quantise.rs` states for a block. A table that is embedding and head stays one. A weight that
//! has codes in the file keeps them: rounding them again would add an error and gain nothing that the
//! file's maker could not have had; asking for it is an error that names the group. Weights that the
//! user does not mention, vectors and rotary tables stay as they are.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use weir_ir::graph::OutputRole;
use weir_ir::{Body, Const, Element, Graph, Node, Op, Patch, Value};

use super::choice::{Decision, Group, WeightChoice, WeightsError};
use super::format_name;
use crate::error::PassError;
use crate::registry::Change;

/// A weight and the nodes that read it as one.
#[derive(Default)]
struct Uses {
    nodes: Vec<Node>,
    groups: BTreeSet<Group>,
}

/// Rewrites the graph; counts weights that got another type, and says of each group what they were
/// and are.
pub fn run(graph: &mut Graph, choice: &WeightChoice) -> Result<Change, PassError> {
    if choice.is_file() {
        return Ok(Change { count: 0, notes: vec!["weights stay as in the file".to_owned()] });
    }
    let mut told: BTreeMap<(Vec<Group>, String), usize> = BTreeMap::new();
    let mut rounded = Vec::new();
    for (constant, uses) in uses(&graph.main) {
        let groups: Vec<Group> = uses.groups.iter().copied().collect();
        let is_tied = groups.contains(&Group::Head) && groups.contains(&Group::Embedding);
        let group = if is_tied { Group::Head } else { groups[0] };
        let wanted = if is_tied { choice.of_tied()? } else { choice.of(group) };
        let weight = &graph.constants[constant];
        let Some([_, columns]) = weight.matrix() else { continue };
        let found = weight.ty.element;
        let what = match choice.decide(wanted, found, columns) {
            Decision::Keep => format!("stay {}", format_name(found)),
            Decision::Round(element) => {
                let new = weight.rounded(element).ok_or_else(|| {
                    PassError::internal(format!("{constant} cannot become {element}"))
                })?;
                rounded.push((new, uses.nodes));
                format!("{} to {}", format_name(found), format_name(element))
            }
            Decision::Conflict => {
                let wanted = wanted.map(|wanted| wanted.to_string()).unwrap_or_default();
                let (name, found) = (weight.name.clone(), format_name(found));
                let group = group.name();
                return Err(WeightsError::Quantised { wanted, group, name, found }.into());
            }
        };
        *told.entry((groups, what)).or_default() += 1;
    }
    let count = rounded.len();
    let constants = &mut graph.constants;
    let mut patch = Patch::new(&mut graph.main);
    for (weight, nodes) in rounded {
        let (ty, name) = (weight.ty.clone(), weight.name.clone());
        let constant = constants.push(weight);
        for node in nodes {
            let read = Op::read_constant(constant);
            let result = vec![(ty.clone(), None)];
            let values = patch.push_typed(Some(node), read, Vec::new(), result, Some(name.clone()));
            let mut operands = patch.body().nodes[node].operands.clone();
            operands[1] = values[0];
            patch.set_operands(node, operands)?;
        }
    }
    patch.finish();
    graph.main.remove_dead();
    Ok(Change { count, notes: told.into_iter().map(note).collect() })
}

fn note(((groups, what), count): ((Vec<Group>, String), usize)) -> String {
    let names: Vec<&str> = groups.iter().map(|group| group.name()).collect();
    let weights = if count == 1 { "weight" } else { "weights" };
    format!("{}: {count} {weights}, {what}", names.join(" and "))
}

/// Constants that are weights of products or tables of embeddings, in the order of their numbers.
fn uses(body: &Body) -> BTreeMap<Const, Uses> {
    let head = head(body);
    let mut uses: BTreeMap<Const, Uses> = BTreeMap::new();
    for (node, data) in body.live() {
        let group = match &data.op {
            Op::Embed(_) => Group::Embedding,
            Op::Linear(_) if head.contains(&node) => Group::Head,
            Op::Linear(_) => Group::Layers,
            _ => continue,
        };
        let Some(Op::ReadConstant(read)) = body.maker(data.operands[1]).map(|maker| &maker.op)
        else {
            continue;
        };
        let is_matrix = matches!(body.ty(data.operands[1]).element, Element::Quant(_))
            || body.ty(data.operands[1]).dtype().is_some_and(|dtype| dtype.is_float());
        if is_matrix {
            let uses = uses.entry(read.constant).or_default();
            uses.nodes.push(node);
            uses.groups.insert(group);
        }
    }
    uses
}

/// Products that give the logits, with nothing behind them but changes of single logits.
fn head(body: &Body) -> HashSet<Node> {
    let logits = body.results.iter().filter(|result| result.role == OutputRole::Logits);
    let mut ahead: Vec<Value> = logits.map(|result| result.value).collect();
    let mut seen: HashSet<Value> = ahead.iter().copied().collect();
    let mut head = HashSet::new();
    while let Some(value) = ahead.pop() {
        let weir_ir::graph::ValueSource::Result(node, _) = body.values[value].source else {
            continue;
        };
        let data = &body.nodes[node];
        match &data.op {
            Op::Linear(_) => {
                head.insert(node);
            }
            Op::Unary(_)
            | Op::Binary(_)
            | Op::Cast(_)
            | Op::Reshape(_)
            | Op::Slice(_)
            | Op::Concat(_)
            | Op::Select(_) => {
                ahead.extend(data.operands.iter().filter(|operand| seen.insert(**operand)));
            }
            _ => {}
        }
    }
    head
}
