//! Recognises activations and gated MLPs.
//!
//! Before:  v4 = sigmoid v1 ; v5 = mul v1, v4 ; v6 = mul v5, v2
//! After:   v6 = gated v1, v2 {activation=silu}
//!
//! Needs: stage `Canonical`, not yet folded into layers.
//! Gives: an activation however spelled is one op, and its product with another value `gated`.
//!
//! Exporters spell GELU in a dozen ways, so an expression of one variable is recognised by its
//! values: at points on both sides of zero it must agree with the activation to 4e-6, some ulp of
//! f32; GELU and its tanh form differ by 5e-4. Between the points and beyond them it then agrees as
//! well, since it has smooth functions only, as all spelled activations do: a bound that no point
//! reaches, or a step between two of them, would not be seen.

use weir_ir::interpret::{Bindings, Interpreter, Tensor, run_op};
use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::unary::{Unary, UnaryOp};
use weir_ir::ops::{Gated, ReadConstant};
use weir_ir::{DType, Graph, Node, Op, Patch, Value};

use crate::declined::Declined;
use crate::error::PassError;
use crate::recognise::place;
use crate::registry::Change;

/// Activations that a product may take in.
const ACTIVATIONS: [UnaryOp; 4] =
    [UnaryOp::Silu, UnaryOp::Gelu, UnaryOp::GeluTanh, UnaryOp::GeluQuick];

/// Deepest spelled activation: the tanh form of GELU has nine nodes in a chain.
const DEPTH: usize = 12;

/// Where expressions are compared.
const POINTS: [f32; 12] = [-9.0, -4.5, -2.25, -1.5, -0.75, -0.3, 0.0, 0.2, 0.7, 1.3, 2.9, 7.5];

/// Rewrites the graph; counts gated products.
pub fn run(graph: &mut Graph) -> Result<Change, PassError> {
    let spelled = spelled(graph)?;
    let mut patch = Patch::new(&mut graph.main);
    for (node, result, x, op) in spelled {
        let origin = patch.body().nodes[node].origin.clone();
        let value = patch.push1(Some(node), Unary { op }, vec![x], origin)?;
        patch.replace(result, value)?;
    }
    patch.finish();
    graph.main.remove_dead();
    let gated = join(graph)?;
    graph.main.remove_dead();
    let mut declined = Declined::default();
    for (node, data) in graph.main.live() {
        if matches!(&data.op, Op::Unary(Unary { op }) if is_activation(*op)) {
            let reason = "no product of its result with a value of the same shape";
            declined.add(place(&graph.main, node), reason);
        }
    }
    Ok(declined.change(gated, "no activation that may stand in a product"))
}

fn is_activation(op: UnaryOp) -> bool {
    ACTIVATIONS.contains(&op) || op == UnaryOp::Relu
}

/// Products that are activations, with their variable.
fn spelled(graph: &Graph) -> Result<Vec<(Node, Value, Value, UnaryOp)>, PassError> {
    let body = &graph.main;
    let expected = ACTIVATIONS
        .iter()
        .map(|op| {
            let run = run_op(&Unary { op: *op }.into(), &[points()], &Bindings::default())?;
            Ok((*op, run[0].f32s()?.to_vec()))
        })
        .collect::<Result<Vec<_>, PassError>>()?;
    let interpreter = Interpreter::new(graph);
    let mut found: Vec<(Node, Value, Value, UnaryOp)> = Vec::new();
    for (node, data) in body.live() {
        let (Op::Binary(binary), [result]) = (&data.op, data.results.as_slice()) else { continue };
        if binary.op != BinaryOp::Mul {
            continue;
        }
        let mut variables = Vec::new();
        candidates(graph, *result, DEPTH, &mut variables);
        let recognised = variables.into_iter().find_map(|x| {
            if x == *result || body.ty(x) != body.ty(*result) {
                return None;
            }
            let values = value_at_points(graph, &interpreter, *result, x, DEPTH)?;
            let values = values.f32s().ok()?;
            let close = |expected: &[f32]| {
                values.len() == expected.len()
                    && values
                        .iter()
                        .zip(expected)
                        .all(|(a, b)| (a - b).abs() <= 4e-6 * b.abs().max(1.0))
            };
            expected.iter().find(|(_, expected)| close(expected)).map(|(op, _)| (x, *op))
        });
        if let Some((x, op)) = recognised {
            found.push((node, *result, x, op));
        }
    }
    Ok(found)
}

fn points() -> Tensor {
    Tensor::from_f32(DType::F32, vec![POINTS.len()], POINTS.to_vec())
}

/// Whether an elementwise function is one formula everywhere.
fn is_smooth(op: &Op) -> bool {
    match op {
        Op::Binary(binary) => matches!(
            binary.op,
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Mul | BinaryOp::Div | BinaryOp::Pow
        ),
        Op::Unary(unary) => match unary.op {
            UnaryOp::Neg
            | UnaryOp::Exp
            | UnaryOp::Log
            | UnaryOp::Sqrt
            | UnaryOp::Rsqrt
            | UnaryOp::Reciprocal
            | UnaryOp::Sin
            | UnaryOp::Cos
            | UnaryOp::Tanh
            | UnaryOp::Erf
            | UnaryOp::Sigmoid
            | UnaryOp::Silu
            | UnaryOp::Gelu
            | UnaryOp::GeluTanh
            | UnaryOp::GeluQuick => true,
            UnaryOp::Abs
            | UnaryOp::Relu
            | UnaryOp::Floor
            | UnaryOp::Ceil
            | UnaryOp::Round
            | UnaryOp::Sign
            | UnaryOp::Not
            | UnaryOp::IsNan
            | UnaryOp::IsInf => false,
        },
        _ => false,
    }
}

/// Values that an expression may be a function of: those within its smooth nodes.
fn candidates(graph: &Graph, value: Value, depth: usize, found: &mut Vec<Value>) {
    let Some(node) = graph.main.maker(value) else { return };
    if depth == 0 || !is_smooth(&node.op) {
        return;
    }
    for operand in &node.operands {
        if !found.contains(operand) {
            found.push(*operand);
            candidates(graph, *operand, depth - 1, found);
        }
    }
}

/// The expression's value where its variable runs through the points; `None` if it has others.
fn value_at_points(
    graph: &Graph,
    interpreter: &Interpreter<'_>,
    value: Value,
    variable: Value,
    depth: usize,
) -> Option<Tensor> {
    if value == variable {
        return Some(points());
    }
    let node = graph.main.maker(value)?;
    if let Op::ReadConstant(ReadConstant { constant }) = node.op {
        let single = graph.constants[constant].ty.element_count() == Some(1);
        return single
            .then(|| interpreter.constant(constant).ok().map(|t| t.reshaped(Vec::new())))
            .flatten();
    }
    if depth == 0 || !is_smooth(&node.op) {
        return None;
    }
    let operands: Option<Vec<Tensor>> = node
        .operands
        .iter()
        .map(|operand| value_at_points(graph, interpreter, *operand, variable, depth - 1))
        .collect();
    run_op(&node.op, &operands?, &Bindings::default()).ok()?.into_iter().next()
}

fn join(graph: &mut Graph) -> Result<usize, PassError> {
    let order = graph.main.order.clone();
    let mut patch = Patch::new(&mut graph.main);
    let mut joined = 0;
    for node in order {
        let body = patch.body();
        let data = &body.nodes[node];
        let (Op::Binary(binary), [a, b], [result]) =
            (&data.op, data.operands.as_slice(), data.results.as_slice())
        else {
            continue;
        };
        let same = body.ty(*a) == body.ty(*result) && body.ty(*b) == body.ty(*result);
        if binary.op != BinaryOp::Mul || !same {
            continue;
        }
        let found = [(*a, *b), (*b, *a)].into_iter().find_map(|(active, up)| {
            let maker = body.maker(active)?;
            let Op::Unary(Unary { op }) = maker.op else { return None };
            is_activation(op).then_some((op, maker.operands[0], up))
        });
        let Some((activation, gate, up)) = found else { continue };
        let (result, origin) = (*result, data.origin.clone());
        let value = patch.push1(Some(node), Gated { activation }, vec![gate, up], origin)?;
        patch.replace(result, value)?;
        joined += 1;
    }
    patch.finish();
    Ok(joined)
}
