//! Recognises products with a weight and look-ups in an embedding table.
//!
//! Before:  v3 = transpose c0 ; v4 = cast v3 ; v5 = matmul v1, v4 ; v6 = add v5, v2
//!          v8 = gather v7, v0
//! After:   v6 = linear v1, c0, v2 ; v8 = embed v0, c7
//!
//! Needs: stage `Imported`, floats widened.
//! Gives: every product with a constant matrix is `linear`, whose weight is a constant `[N, K]` in
//! the file's storage type; transpositions are views of the file's bytes.
//!
//! A bias is taken in where the product has no other reader; the sum stays the same. Look-ups of the same
//! tokens in the same table are one: some exporters spell each reader's out, and layers begin where one
//! value crosses.

use std::collections::HashMap;

use weir_ir::entity::Entity;
use weir_ir::graph::ValueSource;
use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::{Embed, Linear, TypeError};
use weir_ir::{Body, Const, Constant, DType, Element, Graph, Node, Op, Patch, Table, Value};

use super::place;
use crate::declined::Declined;
use crate::registry::Change;

/// A constant matrix as a graph spells it: casts and transpositions of a constant.
#[derive(Clone, Copy)]
struct View {
    constant: Const,
    transposed: bool,
}

/// Rewrites the graph; counts products and look-ups.
pub fn run(graph: &mut Graph) -> Result<Change, TypeError> {
    let nodes: Vec<Node> = graph.main.order.clone();
    let constants = &mut graph.constants;
    let mut patch = Patch::new(&mut graph.main);
    let mut found = 0;
    let mut declined = Declined::default();
    let mut looked_up: HashMap<(Value, Const), Value> = HashMap::new();
    for node in nodes {
        let data = patch.body().nodes[node].clone();
        match &data.op {
            Op::MatMul(_) => {
                let Some(weight) = rows_by_output(patch.body(), constants, data.operands[1]) else {
                    let reason = match view(patch.body(), constants, data.operands[1]) {
                        None => "the right factor is computed",
                        Some(_) => {
                            "the right factor is a constant, but no matrix that can be read by outputs"
                        }
                    };
                    declined.add(place(patch.body(), node), reason);
                    continue;
                };
                let weight = read(&mut patch, constants, node, weight);
                let linear = Linear { bias: false, residual: false };
                let operands = vec![data.operands[0], weight];
                let value = patch.push1(Some(node), linear, operands, data.origin.clone())?;
                patch.replace(data.results[0], value)?;
                found += 1;
            }
            Op::Gather(gather) if gather.axis == 0 => {
                let Some(view) = view(patch.body(), constants, data.operands[0]) else { continue };
                let is_float = match constants[view.constant].ty.element {
                    Element::Plain(dtype) => dtype.is_float(),
                    Element::Quant(_) => true,
                };
                if !is_float || constants[view.constant].ty.rank() != 2 {
                    if is_float {
                        declined.add(place(patch.body(), node), "the table is not a matrix");
                    }
                    continue;
                }
                let Some(table) = oriented(constants, view, false) else { continue };
                found += 1;
                let place = (data.operands[1], table);
                if let Some(rows) = looked_up.get(&place) {
                    patch.replace(data.results[0], *rows)?;
                    continue;
                }
                let table = read(&mut patch, constants, node, table);
                let embed = Embed { to: DType::F32 };
                let operands = vec![data.operands[1], table];
                let value = patch.push1(Some(node), embed, operands, data.origin.clone())?;
                patch.replace(data.results[0], value)?;
                looked_up.insert(place, value);
            }
            Op::Embed(_) | Op::Linear(_) => {
                // The importer wrote the op; only the way to the constant may be spelled out.
                let Some(view) = view(patch.body(), constants, data.operands[1]) else { continue };
                let is_direct = matches!(
                    patch.body().maker(data.operands[1]).map(|maker| &maker.op),
                    Some(Op::ReadConstant(_))
                );
                let Some(constant) = oriented(constants, view, false) else { continue };
                if let Op::Embed(Embed { to: DType::F32 }) = data.op {
                    let place = (data.operands[0], constant);
                    if let Some(rows) = looked_up.get(&place) {
                        patch.replace(data.results[0], *rows)?;
                        found += 1;
                        continue;
                    }
                    looked_up.insert(place, data.results[0]);
                }
                if is_direct {
                    continue;
                }
                let mut operands = data.operands.clone();
                operands[1] = read(&mut patch, constants, node, constant);
                patch.set_operands(node, operands)?;
                found += 1;
            }
            Op::Binary(binary) if binary.op == BinaryOp::Add => {
                add_bias(&mut patch, constants, node)?
            }
            _ => {}
        }
    }
    patch.finish();
    graph.main.remove_dead();
    Ok(declined.change(found, "every product and look-up reads its weight directly"))
}

/// `linear + vector`: the vector becomes the bias.
fn add_bias(
    patch: &mut Patch<'_>,
    constants: &Table<Const, Constant>,
    node: Node,
) -> Result<(), TypeError> {
    let data = patch.body().nodes[node].clone();
    for (product, other) in [(0, 1), (1, 0)] {
        let (product, other) = (data.operands[product], data.operands[other]);
        let ValueSource::Result(maker, _) = patch.body().values[product].source else { continue };
        let made = patch.body().nodes[maker].clone();
        let Op::Linear(Linear { bias: false, residual: false }) = made.op else { continue };
        let outputs = patch.body().shape(product).last().cloned();
        let is_vector = patch.body().shape(other).len() == 1
            && patch.body().shape(other).first() == outputs.as_ref();
        if !is_vector || view(patch.body(), constants, other).is_none() {
            continue;
        }
        if patch.users(product).len() != 1 {
            continue;
        }
        let operands = vec![made.operands[0], made.operands[1], other];
        let linear = Linear { bias: true, residual: false };
        let value = patch.push1(Some(node), linear, operands, made.origin)?;
        patch.replace(data.results[0], value)?;
        return Ok(());
    }
    Ok(())
}

/// Casts, transpositions and others between a constant and its reader that are looked through: more than
/// any exporter writes, and few enough for a file that is nothing else.
const MAX_CHAIN: usize = 32;

/// The constant behind casts, transpositions and dequantisation.
fn view(body: &Body, constants: &Table<Const, Constant>, value: Value) -> Option<View> {
    let (mut value, mut transposed, mut needs_floats) = (value, false, false);
    for _ in 0..MAX_CHAIN {
        let maker = body.maker(value)?;
        match &maker.op {
            Op::ReadConstant(read) => {
                let from = constants[read.constant].ty.dtype();
                let is_taken = !needs_floats || from.is_none_or(DType::is_float);
                return is_taken.then_some(View { constant: read.constant, transposed });
            }
            Op::Cast(cast) if cast.to.is_float() => needs_floats = true,
            Op::Dequantise(_) => {}
            Op::Transpose(transpose) if transpose.order == [1, 0] => transposed = !transposed,
            Op::Reshape(_) if body.shape(value) == body.shape(maker.operands[0]) => {}
            _ => return None,
        }
        value = maker.operands[0];
    }
    None
}

/// The weight of a product `x [.., K] * value [K, N]` as a constant `[N, K]`.
fn rows_by_output(
    body: &Body,
    constants: &mut Table<Const, Constant>,
    value: Value,
) -> Option<Const> {
    let found = view(body, constants, value)?;
    if constants[found.constant].ty.rank() != 2 {
        return None;
    }
    oriented(constants, found, true)
}

/// The constant of a view, with its dimensions swapped if asked for on top of the view's own swap.
/// A swapped quantised weight with scales of its own for rows or blocks has no description: its blocks run
/// along the wrong dimension.
fn oriented(constants: &mut Table<Const, Constant>, view: View, swap: bool) -> Option<Const> {
    if view.transposed == swap {
        return Some(view.constant);
    }
    let constant = &constants[view.constant];
    let name = format!("{} transposed", constant.name);
    let swapped = Constant { name, ..constant.transposed()? };
    // One view a constant, so that a table that is read twice stays one weight. Names do not tell: two
    // branches of a file may each have a constant of one name.
    let known = constants.iter().find(|(_, other)| other.is_same_storage(&swapped));
    match known.map(|(constant, _)| constant) {
        Some(constant) => Some(constant),
        None => Some(constants.push(swapped)),
    }
}

/// A node that reads a constant in front of `place`.
fn read(
    patch: &mut Patch<'_>,
    constants: &Table<Const, Constant>,
    place: Node,
    constant: Const,
) -> Value {
    debug_assert!(constant.index() < constants.len());
    let ty = constants[constant].ty.clone();
    let name = Some(constants[constant].name.clone());
    patch.push_typed(Some(place), Op::read_constant(constant), Vec::new(), vec![(ty, None)], name)
        [0]
}

#[cfg(test)]
mod tests;
