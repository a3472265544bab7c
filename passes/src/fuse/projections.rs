//! Joins products of one input with several weights.
//!
//! Before:  v3 = linear v1, c0 ; v4 = linear v1, c1 ; v5 = linear v1, c2
//! After:   v6 = linear v1, c3 ; v3 = slice v6 [0, n0) ; v4 = slice v6 [n0, n0 + n1) ; ..
//!          where c3 is c0, c1, c2 stacked
//!
//! Needs: stage `Canonical`, not yet folded into layers: constants are still read by nodes.
//! Gives: query, key and value, or gate and up, are one product.
//!
//! An output of a product depends on its own row of the weight only, so every result keeps its
//! bits. Weights are stacked where their element types and inputs agree; no bytes are copied.

use std::collections::HashMap;

use weir_ir::ops::{Linear, Slice};
use weir_ir::{
    Body, Const, ConstData, Constant, Dim, Element, Graph, Node, Op, Patch, Table, TensorType,
    Value,
};

use crate::declined::Declined;
use crate::error::PassError;
use crate::recognise::place;
use crate::registry::Change;

/// What products must share to be joined.
type Group = (Value, Element, bool);

/// Rewrites the graph; counts products that were joined, and says which have no partner although
/// their input has other readers.
pub fn run(graph: &mut Graph) -> Result<Change, PassError> {
    let mut groups: HashMap<Group, Vec<Node>> = HashMap::new();
    let mut firsts: Vec<Group> = Vec::new();
    for (node, data) in graph.main.live() {
        let Op::Linear(linear) = &data.op else { continue };
        let constant = |index: usize| constant_of(&graph.main, data.operands[index]);
        if linear.residual || constant(1).is_none() || linear.bias && constant(2).is_none() {
            continue;
        }
        let element = graph.main.ty(data.operands[1]).element;
        let group = (data.operands[0], element, linear.bias);
        groups
            .entry(group)
            .or_insert_with(|| {
                firsts.push(group);
                Vec::new()
            })
            .push(node);
    }
    let mut joined = 0;
    let mut declined = Declined::default();
    let constants = &mut graph.constants;
    let mut patch = Patch::new(&mut graph.main);
    for group in &firsts {
        let nodes = &groups[group];
        if nodes.len() > 1 {
            join(&mut patch, constants, *group, nodes)?;
            joined += nodes.len();
        } else if firsts.iter().any(|other| other != group && other.0 == group.0) {
            let reason = "its weight or bias differs in kind from those of the same input";
            declined.add(place(patch.body(), nodes[0]), reason);
        }
    }
    patch.finish();
    graph.main.remove_dead();
    Ok(declined.change(joined, "no two products have the same input"))
}

fn constant_of(body: &Body, value: Value) -> Option<Const> {
    match body.maker(value).map(|node| &node.op) {
        Some(Op::ReadConstant(read)) => Some(read.constant),
        _ => None,
    }
}

fn join(
    patch: &mut Patch<'_>,
    constants: &mut Table<Const, Constant>,
    (x, _, bias): Group,
    nodes: &[Node],
) -> Result<(), PassError> {
    let first = nodes[0];
    let mut operands = vec![x];
    for index in 1..2 + usize::from(bias) {
        let parts: Vec<Constant> = nodes
            .iter()
            .filter_map(|node| constant_of(patch.body(), patch.body().nodes[*node].operands[index]))
            .map(|constant| constants[constant].clone())
            .collect();
        let stacked = stacked(parts)?;
        let (ty, name) = (stacked.ty.clone(), stacked.name.clone());
        let constant = constants.push(stacked);
        let read = Op::read_constant(constant);
        let result = vec![(ty, None)];
        operands.push(patch.push_typed(Some(first), read, Vec::new(), result, Some(name))[0]);
    }
    let origin = patch.body().nodes[first].origin.clone();
    let linear = Linear { bias, residual: false };
    let value = patch.push1(Some(first), linear, operands, origin)?;
    let axis = patch.body().ty(value).rank() - 1;
    let mut start = Dim::number(0);
    for node in nodes {
        let (old, origin) = {
            let data = &patch.body().nodes[*node];
            (data.results[0], data.origin.clone())
        };
        let length = patch.body().shape(old)[axis].clone();
        let slice = Slice { axis, start: start.clone(), step: 1, length: length.clone() };
        let part = patch.push1(Some(first), slice, vec![value], origin)?;
        patch.replace(old, part)?;
        start = start.plus(&length).ok_or_else(|| PassError::internal("a width overflows"))?;
    }
    Ok(())
}

/// Constants one behind the other along dimension 0.
fn stacked(parts: Vec<Constant>) -> Result<Constant, PassError> {
    let first = parts.first().ok_or_else(|| PassError::internal("nothing to stack"))?;
    let mut shape = first.ty.shape.clone();
    let element = first.ty.element;
    let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
    let name = names.join("+");
    let mut sum = Dim::number(0);
    for part in &parts {
        sum =
            sum.plus(&part.ty.shape[0]).ok_or_else(|| PassError::internal("a height overflows"))?;
    }
    shape[0] = sum;
    let flat = parts
        .into_iter()
        .flat_map(|part| match part.data {
            ConstData::Stacked(inner) => inner,
            data => vec![Constant { name: part.name, ty: part.ty, data }],
        })
        .collect();
    Ok(Constant { name, ty: TensorType { element, shape }, data: ConstData::Stacked(flat) })
}
