//! Computes what depends on constants only.
//!
//! Before:  v2 = const c0 ; v3 = const c1 ; v4 = add v2, v3 ; v5 = shape_of v1
//! After:   v4 = const c2 ; v5 = known [1, sequence, 64]
//!
//! Needs: stage `Imported`; products with weights already recognised, so that large weights are
//! read where they lie and not computed here.
//! Gives: no node has constants for all its operands.
//!
//! The interpreter computes the values, so the fold is what the graph means by definition.

use std::collections::HashSet;

use weir_ir::interpret::{Bindings, Data, Interpreter};
use weir_ir::ops::{Known, KnownValue};
use weir_ir::patch::Rebuild;
use weir_ir::{Body, Constant, Element, Graph, NodeData, Op, Table, Value};

use crate::declined::Declined;
use crate::error::PassError;
use crate::registry::Change;

/// Rewrites the graph; counts nodes that were folded.
pub fn run(graph: &mut Graph) -> Result<Change, PassError> {
    state_known(graph)?;
    let main = &graph.main;
    // Values that depend on constants only, and those of them that something else reads.
    let mut fixed: HashSet<Value> = HashSet::new();
    let mut wanted: Vec<Value> = Vec::new();
    let mut folded = 0;
    for (_, node) in main.live() {
        let numeric = node.results.iter().all(|value| main.ty(*value).sizes().is_some());
        let foldable = match &node.op {
            Op::ReadConstant(_) => continue_fixed(&mut fixed, &node.results),
            Op::KnownValue(known) => {
                known.elements.iter().all(|element| element.as_number().is_some())
            }
            Op::Range(range) => range.start.as_number().is_some(),
            // What is chosen by length is not constant.
            Op::ByLength(_) => false,
            Op::Slice(slice) => slice.start.as_number().is_some(),
            Op::UpdateSlice(update) => update.start.as_number().is_some(),
            Op::Trilu(trilu) => trilu.diagonal.as_number().is_some(),
            _ => true,
        };
        let all_fixed = node.operands.iter().all(|operand| fixed.contains(operand));
        if matches!(node.op, Op::ReadConstant(_)) || !(foldable && numeric && all_fixed) {
            wanted.extend(node.operands.iter().filter(|operand| fixed.contains(operand)));
            continue;
        }
        fixed.extend(&node.results);
        folded += 1;
    }
    wanted.extend(main.results.iter().map(|result| result.value).filter(|v| fixed.contains(v)));
    wanted.retain(|value| !reads_constant(graph, *value));
    wanted.sort_unstable();
    wanted.dedup();

    let interpreter = Interpreter::new(graph);
    let bindings = Bindings::default();
    let tensors = interpreter.evaluate(&wanted, &bindings, &|_| None)?;
    let mut constants: Table<_, Constant> = graph.constants.clone();
    let mut replaced = Vec::new();
    for (value, tensor) in wanted.iter().zip(&tensors) {
        let name = main.values[*value].name.clone().unwrap_or_else(|| format!("folded {value}"));
        let constant = tensor_constant(name, tensor)?;
        replaced.push((*value, constants.push(constant)));
    }
    let mut rebuilt = graph.clone();
    rebuilt.constants = constants;
    let tables = rebuilt.tables();
    let mut rebuild = Rebuild::new(main, tables);
    for param in &main.params {
        let data = &main.values[param.value];
        let value = rebuild.body.param(
            param.role.clone(),
            data.ty.clone(),
            data.known.clone(),
            data.name.clone(),
        );
        rebuild.set(param.value, value);
    }
    for (value, constant) in &replaced {
        let data = &rebuilt.constants[*constant];
        let known = Known::of_constant(data);
        let name = Some(data.name.clone());
        let read = rebuild.body.push_typed(
            Op::read_constant(*constant),
            Vec::new(),
            vec![(data.ty.clone(), known)],
            name,
        );
        rebuild.set(*value, read[0]);
    }
    for (node, data) in main.live() {
        let is_fixed = data.results.iter().any(|value| fixed.contains(value));
        if !is_fixed || matches!(data.op, Op::ReadConstant(_)) {
            rebuild.copy(node)?;
        }
    }
    for result in &main.results {
        let value = rebuild.get(result.value);
        rebuild.result(value.ok_or_else(|| PassError::lost(result.value))?, result.role.clone());
    }
    let mut body = rebuild.body;
    body.remove_dead();
    rebuilt.main = body;
    *graph = rebuilt;
    Ok(Declined::default().change(folded, "no node has only constants for operands"))
}

/// States what follows from shapes. What is computed from the width of a head, for example, depends
/// on constants only, though the tensor whose shape was asked for does not.
fn state_known(graph: &mut Graph) -> Result<(), PassError> {
    let main = &graph.main;
    let mut rebuild = Rebuild::new(main, graph.tables());
    for param in &main.params {
        let data = &main.values[param.value];
        rebuild.param(param.value, param.role.clone(), data.ty.clone());
    }
    for (node, data) in main.live() {
        if let Some(known) = known_content(main, data) {
            let value = rebuild.push(known, Vec::new(), data.origin.clone())?[0];
            rebuild.set(data.results[0], value);
        } else {
            rebuild.copy(node)?;
        }
    }
    for result in &main.results {
        let value = rebuild.get(result.value);
        rebuild.result(value.ok_or_else(|| PassError::lost(result.value))?, result.role.clone());
    }
    let mut body = rebuild.body;
    body.remove_dead();
    graph.main = body;
    Ok(())
}

/// The content of a result that a type rule knows element by element.
fn known_content(main: &Body, node: &NodeData) -> Option<KnownValue> {
    if matches!(node.op, Op::ReadConstant(_) | Op::KnownValue(_)) {
        return None;
    }
    let [result] = node.results.as_slice() else { return None };
    let data = &main.values[*result];
    let Some(Known::Elements(elements)) = &data.known else { return None };
    let dtype = data.ty.dtype()?;
    Some(KnownValue { dtype, shape: data.ty.shape.clone(), elements: elements.clone() })
}

fn continue_fixed(fixed: &mut HashSet<Value>, results: &[Value]) -> bool {
    fixed.extend(results);
    false
}

fn reads_constant(graph: &Graph, value: Value) -> bool {
    let maker = graph.main.maker(value);
    matches!(maker.map(|node| &node.op), Some(Op::ReadConstant(_)))
}

/// A constant with the content of a tensor, in the tensor's type.
pub fn tensor_constant(
    name: String,
    tensor: &weir_ir::interpret::Tensor,
) -> Result<Constant, PassError> {
    let ty = tensor.ty();
    let Element::Plain(dtype) = ty.element else {
        return Err(PassError::internal("a folded tensor has plain elements"));
    };
    let bytes: Vec<u8> = match tensor.data() {
        Data::F64(values) => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        Data::F32(_) => {
            let values = tensor.f32s()?;
            match dtype {
                weir_ir::DType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                weir_ir::DType::F16 => values
                    .iter()
                    .flat_map(|value| half::f16::from_f32(*value).to_le_bytes())
                    .collect(),
                _ => values
                    .iter()
                    .flat_map(|value| half::bf16::from_f32(*value).to_le_bytes())
                    .collect(),
            }
        }
        Data::Bool(values) => values.iter().map(|value| u8::from(*value)).collect(),
        Data::I64(values) => {
            let width = dtype.bytes();
            values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(width)).collect()
        }
    };
    Ok(Constant::dense(name, ty, bytes.into()))
}
