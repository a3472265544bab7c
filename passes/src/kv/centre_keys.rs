//! Takes off the keys of caches with codes of four bits what all keys of a head have in common.
//!
//! Before:  causal_attention q, k, v ...
//! After:   k' = sub k, c ; causal_attention q, k', v ...
//!
//! Needs: stage `Canonical`, each layer's constants its own; tokens of a text.
//! Gives: the same attention over smaller keys.
//!
//! Keys are no centred cloud: a constant part of them is often larger than what tells them apart, and
//! it decides how coarsely a row is rounded. A query's product with it is one number for all keys,
//! which softmax does not see. So any c leaves attention what it is, but where scores are bent
//! (soft-capping) or compared with a number of their own (sink logits): those layers stay.
//!
//! c is measured: the mean key over a text, without the first row of a window, which attention often
//! treats apart. Where keys are rotated, it is the mean of what is rotated, turned by as many
//! positions as a sequence may have and averaged again: pairs that turn fast have no mean there, and
//! a short text says it for long ones. (Keys without their mean: KVQuant, arXiv:2401.18079, and KIVI,
//! arXiv:2402.02750, store channels with an offset of their own for the same reason; SageAttention,
//! arXiv:2410.02367, subtracts the mean of keys before it rounds them.)

use std::collections::{BTreeMap, HashSet};

use weir_ir::interpret::{Bindings, Interpreter, Tensor};
use weir_ir::ops::binary::{Binary, BinaryOp};
use weir_ir::{Constant, DType, Graph, Node, Op, Patch, RowFormats, Value};

use crate::declined::Declined;
use crate::error::PassError;
use crate::recognise::place;
use crate::registry::Change;
use crate::weights::CalibrationError;
use crate::weights::calibration::walk::values_of;

/// Operand of attention that is the key.
const KEY: usize = 1;

/// Positions that a mean is turned by, at equal distances over all that the tables have.
const POSITIONS: usize = 1024;

/// Sums over the keys of a head's row, by number: `[KV, D]`.
struct Keys {
    sums: Vec<f64>,
    rows: usize,
}

/// Rewrites the graph; counts attentions whose keys are centred.
pub fn run(
    graph: &mut Graph,
    formats: Option<RowFormats>,
    text: &[Vec<u32>],
) -> Result<Change, PassError> {
    if !formats.is_some_and(RowFormats::turns_keys) {
        return Ok(Change::default());
    }
    if text.is_empty() {
        let note = "without a tokenizer there is no text that keys could be measured on";
        return Ok(Change { count: 0, notes: vec![note.to_owned()] });
    }
    let mut declined = Declined::default();
    let mut found: Vec<Node> = Vec::new();
    for (node, data) in graph.main.live() {
        match &data.op {
            Op::CausalAttention(op) if op.softcap != 0.0 => {
                declined.add(place(&graph.main, node), "its scores are soft-capped");
            }
            Op::CausalAttention(op) if op.sinks => {
                declined.add(place(&graph.main, node), "its scores are compared with sink logits");
            }
            Op::CausalAttention(_) => found.push(node),
            _ => {}
        }
    }
    let measured: HashSet<Value> = found.iter().map(|node| measured_at(graph, *node)).collect();
    let keys = match summed(graph, &measured, text) {
        // A built-in text may be spelt with tokens that the model was never given.
        Err(PassError::Calibration(error @ CalibrationError::NoEmbedding(_))) => {
            return Ok(Change { count: 0, notes: vec![error.to_string()] });
        }
        keys => keys?,
    };
    let mut centres: Vec<(Node, Constant)> = Vec::new();
    for node in found {
        match centre(graph, node, &keys)? {
            Some(constant) => centres.push((node, constant)),
            None => declined.add(place(&graph.main, node), "the text gives it no finite keys"),
        }
    }
    let count = centres.len();
    let constants = &mut graph.constants;
    let mut patch = Patch::new(&mut graph.main);
    for (node, constant) in centres {
        let ty = constant.ty.clone();
        let read = Op::read_constant(constants.push(constant));
        let read = patch.push_typed(Some(node), read, Vec::new(), vec![(ty, None)], None)[0];
        let mut operands = patch.body().nodes[node].operands.clone();
        let origin = patch.body().nodes[node].origin.clone();
        let sub = Binary { op: BinaryOp::Sub };
        operands[KEY] = patch.push1(Some(node), sub, vec![operands[KEY], read], origin)?;
        patch.set_operands(node, operands)?;
    }
    patch.finish();
    Ok(declined.change(count, "no attention over keys"))
}

/// Where keys of an attention are measured: before their rotation by tables, or as they are.
fn measured_at(graph: &Graph, attention: Node) -> Value {
    let key = graph.main.nodes[attention].operands[KEY];
    rotation(graph, key).map_or(key, |(rotary, _)| graph.main.nodes[rotary].operands[0])
}

/// The rotation by tables that made a value, and the tables of cosines and sines.
fn rotation(graph: &Graph, key: Value) -> Option<(Node, [Constant; 2])> {
    let body = &graph.main;
    let (node, data) = body.live().find(|(_, data)| data.results.contains(&key))?;
    let Op::RotaryRows(_) = &data.op else { return None };
    let table = |operand: Value| match body.maker(operand).map(|maker| &maker.op) {
        Some(Op::ReadConstant(read)) => Some(graph.constants[read.constant].clone()),
        _ => None,
    };
    Some((node, [table(data.operands[2])?, table(data.operands[3])?]))
}

/// Sums of the values' rows over a text.
fn summed(
    graph: &Graph,
    values: &HashSet<Value>,
    text: &[Vec<u32>],
) -> Result<BTreeMap<Value, Keys>, PassError> {
    let mut all = BTreeMap::new();
    values_of(graph, values, text, |value, windows| {
        let mut keys = Keys { sums: Vec::new(), rows: 0 };
        for window in windows {
            let width: usize = window.sizes().iter().skip(1).product();
            keys.sums.resize(width, 0.0);
            for row in window.f32s()?.chunks_exact(width.max(1)).skip(1) {
                keys.sums.iter_mut().zip(row).for_each(|(sum, key)| *sum += f64::from(*key));
                keys.rows += 1;
            }
        }
        all.insert(value, keys);
        Ok(())
    })?;
    Ok(all)
}

/// What the keys of an attention have in common, `[KV, D]`; nothing if that is not known.
fn centre(
    graph: &Graph,
    attention: Node,
    keys: &BTreeMap<Value, Keys>,
) -> Result<Option<Constant>, PassError> {
    let body = &graph.main;
    let key = body.nodes[attention].operands[KEY];
    let sizes: Option<Vec<usize>> =
        body.ty(key).shape.iter().skip(1).map(weir_ir::Dim::as_size).collect();
    let (Some(sizes), Some(keys)) = (sizes, keys.get(&measured_at(graph, attention))) else {
        return Ok(None);
    };
    let mean: Vec<f32> = keys.sums.iter().map(|sum| (sum / keys.rows as f64) as f32).collect();
    let centre = match rotation(graph, key) {
        Some((rotary, tables)) => rotated_mean(graph, rotary, &tables, &sizes, mean)?,
        None => mean,
    };
    let is_known = centre.len() == sizes.iter().product() && centre.iter().all(|c| c.is_finite());
    let name = format!("centre of {}", place(body, attention));
    Ok(is_known.then(|| Constant::from_f32(name, &sizes, &centre)))
}

/// The mean of a key's rotations over all positions that the tables have.
fn rotated_mean(
    graph: &Graph,
    rotary: Node,
    tables: &[Constant; 2],
    sizes: &[usize],
    key: Vec<f32>,
) -> Result<Vec<f32>, PassError> {
    let tables = [tables[0].tensor()?, tables[1].tensor()?];
    // Stacked tables: the sequence of POSITIONS rows is rotated by the set that is for its length.
    let sets = graph.rotary.sets.max(1) as usize;
    let positions = tables[0].sizes().first().copied().unwrap_or(0) / sets;
    let rows = POSITIONS.min(positions);
    let places: Vec<i64> = (0..rows).map(|row| (row * positions / rows) as i64).collect();
    let repeated: Vec<f32> = std::iter::repeat_n(&key, rows).flatten().copied().collect();
    let x = Tensor::from_f32(DType::F32, [&[rows], sizes].concat(), repeated);
    let places = Tensor::from_i64(DType::I64, vec![rows], places);
    let [cos, sin] = tables;
    let op = &graph.main.nodes[rotary].op;
    let bindings = Bindings::one_sequence(0, rows);
    let rotated = Interpreter::new(graph).apply(op, &[x, places, cos, sin], &bindings)?;
    let mut sums = vec![0.0f64; key.len()];
    for row in rotated[0].f32s()?.chunks_exact(key.len().max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, key)| *sum += f64::from(*key));
    }
    Ok(sums.iter().map(|sum| (sum / rows as f64) as f32).collect())
}
