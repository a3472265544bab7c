//! Recognises root-mean-square norms.
//!
//! Before:  v1 = pow v0, 2 ; v2 = reduce mean v1 ; v3 = add v2, 1e-5 ; v4 = sqrt v3
//!          v5 = div v0, v4 (or reciprocal and mul) ; v6 = mul v5, c0
//! After:   v6 = rms_norm v0, c0 {epsilon=1e-5}
//!
//! Needs: stage `Imported`, floats widened, constants folded.
//! Gives: every norm of this form over the last dimension is `rms_norm`, whatever layout it stands
//! in (whole rows, or heads of a query).
//!
//! Correct because the op is defined as the formula that was spelled out.

use std::collections::HashMap;

use weir_ir::ops::RmsNorm;
use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::reduce::ReduceOp;
use weir_ir::ops::unary::UnaryOp;
use weir_ir::{Constant, Graph, Node, Op, Patch, Value};

use super::{Pattern, place};
use crate::declined::Declined;
use crate::error::PassError;
use crate::registry::Change;

/// A norm without its weight.
#[derive(Clone, Copy)]
struct Norm {
    x: Value,
    epsilon: f32,
    width: usize,
}

/// Rewrites the graph; counts norms.
pub fn run(graph: &mut Graph) -> Result<Change, PassError> {
    let pattern = Pattern::new(graph);
    let mut bare: HashMap<Value, (Node, Norm)> = HashMap::new();
    let mut weighted: Vec<(Node, Value, Norm, Value)> = Vec::new();
    for (node, data) in graph.main.live() {
        let [result] = data.results.as_slice() else { continue };
        if let Some(norm) = norm(&pattern, *result) {
            bare.insert(*result, (node, norm));
            continue;
        }
        for (y, weight) in pattern.either(*result, BinaryOp::Mul) {
            if let Some((_, norm)) = bare.get(&y)
                && pattern.is_constant(weight)
                && is_vector(&pattern, weight, norm.width)
            {
                weighted.push((node, *result, *norm, weight));
                break;
            }
        }
    }
    let constants = &mut graph.constants;
    let mut patch = Patch::new(&mut graph.main);
    let mut ones: HashMap<usize, Value> = HashMap::new();
    let first = patch.body().order.first().copied();
    let found = bare.len();
    for (node, result, norm, weight) in weighted {
        let op = RmsNorm { epsilon: norm.epsilon };
        let weight = flat(&mut patch, node, weight, norm.width)?;
        let value = patch.push1(Some(node), op, vec![norm.x, weight], None)?;
        patch.replace(result, value)?;
    }
    let mut rest: Vec<(Value, (Node, Norm))> = bare.into_iter().collect();
    rest.sort_by_key(|(value, _)| *value);
    for (result, (node, norm)) in rest {
        // Without a reader left but its own former weight, the bare norm goes as dead code.
        let weight = *ones.entry(norm.width).or_insert_with(|| {
            let constant = Constant::from_f32(
                format!("ones {}", norm.width),
                &[norm.width],
                &vec![1.0; norm.width],
            );
            let ty = constant.ty.clone();
            let read = Op::read_constant(constants.push(constant));
            patch.push_typed(first, read, Vec::new(), vec![(ty, None)], None)[0]
        });
        let op = RmsNorm { epsilon: norm.epsilon };
        let value = patch.push1(Some(node), op, vec![norm.x, weight], None)?;
        patch.replace(result, value)?;
    }
    patch.finish();
    graph.main.remove_dead();
    let mut declined = Declined::default();
    let pattern = Pattern::new(graph);
    for (node, data) in graph.main.live() {
        let (Op::Reduce(reduce), [squares]) = (&data.op, data.operands.as_slice()) else {
            continue;
        };
        if reduce.op == ReduceOp::Mean && square_of(&pattern, *squares).is_some() {
            let last = reduce.keep && reduce.axes == [pattern.last_axis(*squares)];
            let reason = match last {
                false => "the mean of squares is not kept over the last dimension alone",
                true => "the squared value is not divided by the root of their mean and a constant",
            };
            declined.add(place(&graph.main, node), reason);
        }
    }
    Ok(declined.change(found, "no norm is spelled out in the graph"))
}

/// The weight as a vector.
fn flat(
    patch: &mut Patch<'_>,
    place: Node,
    weight: Value,
    width: usize,
) -> Result<Value, PassError> {
    if patch.body().ty(weight).rank() == 1 {
        return Ok(weight);
    }
    let reshape = weir_ir::ops::Reshape { shape: vec![width.into()] };
    Ok(patch.push1(Some(place), reshape, vec![weight], None)?)
}

fn is_vector(pattern: &Pattern<'_>, weight: Value, width: usize) -> bool {
    let ty = pattern.body().ty(weight);
    ty.element_count() == Some(width) && pattern.width(weight) == Some(width)
}

/// `x / sqrt(mean(x^2) + epsilon)` in its spellings.
fn norm(pattern: &Pattern<'_>, value: Value) -> Option<Norm> {
    if let Some([x, root]) = pattern.binary(value, BinaryOp::Div)
        && let Some(sum) = pattern.unary(root, UnaryOp::Sqrt)
    {
        return from_sum(pattern, x, sum);
    }
    pattern.either(value, BinaryOp::Mul).find_map(|(x, inverse)| {
        let sum = inverse_root(pattern, inverse)?;
        from_sum(pattern, x, sum)
    })
}

/// s of `1 / sqrt(s)`.
fn inverse_root(pattern: &Pattern<'_>, value: Value) -> Option<Value> {
    if let Some(sum) = pattern.unary(value, UnaryOp::Rsqrt) {
        return Some(sum);
    }
    if let Some(root) = pattern.unary(value, UnaryOp::Reciprocal) {
        return pattern.unary(root, UnaryOp::Sqrt);
    }
    if let Some([base, exponent]) = pattern.binary(value, BinaryOp::Pow)
        && pattern.scalar(exponent) == Some(-0.5)
    {
        return Some(base);
    }
    let [one, root] = pattern.binary(value, BinaryOp::Div)?;
    if pattern.scalar(one) == Some(1.0) { pattern.unary(root, UnaryOp::Sqrt) } else { None }
}

/// `mean(x^2) + epsilon` over the last dimension of the x that is divided.
fn from_sum(pattern: &Pattern<'_>, x: Value, sum: Value) -> Option<Norm> {
    pattern.either(sum, BinaryOp::Add).find_map(|(mean, epsilon)| {
        let epsilon = pattern.scalar(epsilon)?;
        let (Op::Reduce(reduce), [squares]) = pattern.made(mean)? else { return None };
        let over_last = reduce.axes == [pattern.last_axis(*squares)] && reduce.keep;
        let is_square = match reduce.op {
            ReduceOp::Mean => square_of(pattern, *squares) == Some(x),
            _ => false,
        };
        let width = pattern.width(x)?;
        (over_last && is_square).then_some(Norm { x, epsilon, width })
    })
}

fn square_of(pattern: &Pattern<'_>, value: Value) -> Option<Value> {
    if let Some([base, exponent]) = pattern.binary(value, BinaryOp::Pow) {
        return (pattern.scalar(exponent) == Some(2.0)).then_some(base);
    }
    let [a, b] = pattern.binary(value, BinaryOp::Mul)?;
    (a == b).then_some(a)
}
