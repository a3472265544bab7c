//! Recognises rotary position embedding.
//!
//! Before:  v3 = slice v0 (upper half) ; v4 = neg v3 ; v5 = slice v0 (lower half)
//!          v6 = concat v4, v5 ; v7 = mul v0, v1 ; v8 = mul v6, v2 ; v9 = add v7, v8
//! After:   v9 = rotary v0, (slice v1), (slice v2) {width=D, interleaved=false}
//!
//! Needs: stage `Imported`, floats widened, constants folded.
//! Gives: `rotary` on whatever layout the exporter used; cos and sin have one angle per pair.
//!
//! The op takes one angle per pair; that both halves of cos and sin are equal is checked by
//! evaluating them. A rotation of the first values of a head, with the rest joined on again, becomes
//! one op with a smaller width.

use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::unary::UnaryOp;
use weir_ir::ops::{Rotary, Slice};
use weir_ir::{Graph, Node, Op, Patch, Value};

use super::{Pattern, place};
use crate::declined::Declined;
use crate::error::PassError;
use crate::positional::Positional;
use crate::registry::Change;

struct Match {
    node: Node,
    result: Value,
    x: Value,
    angles: [Value; 2],
    width: usize,
    interleaved: bool,
}

/// Rewrites the graph; counts rotations.
pub fn run(graph: &mut Graph, context: u32) -> Result<Change, PassError> {
    let pattern = Pattern::new(graph);
    let positional = Positional::new(graph, context);
    let mut matches = Vec::new();
    for (node, data) in graph.main.live() {
        let [result] = data.results.as_slice() else { continue };
        matches.extend(rotation(&pattern, &positional, node, *result));
    }
    let found = matches.len();
    let mut patch = Patch::new(&mut graph.main);
    for found in matches {
        let axis = patch.body().ty(found.angles[0]).rank() - 1;
        let (step, length) = (if found.interleaved { 2 } else { 1 }, found.width / 2);
        let mut operands = vec![found.x];
        for angle in found.angles {
            let slice = Slice { axis, start: 0usize.into(), step, length: length.into() };
            operands.push(patch.push1(Some(found.node), slice, vec![angle], None)?);
        }
        let width = u32::try_from(found.width).map_err(|_| PassError::internal("head width"))?;
        let rotary = Rotary { width, interleaved: found.interleaved };
        let origin = patch.body().nodes[found.node].origin.clone();
        let value = patch.push1(Some(found.node), rotary, operands, origin)?;
        patch.replace(found.result, value)?;
    }
    patch.finish();
    join_partial(graph)?;
    graph.main.remove_dead();
    let mut declined = Declined::default();
    let pattern = Pattern::new(graph);
    for (node, data) in graph.main.live() {
        let [result] = data.results.as_slice() else { continue };
        let turned = pattern.width(*result).and_then(|width| turned_half(&pattern, *result, width));
        if turned.is_some() {
            let reason = "what it turns is not summed with the same value by cosines and sines of \
                          positions, one angle a pair";
            declined.add(place(&graph.main, node), reason);
        }
    }
    Ok(declined.change(found, "no rotation is spelled out in the graph"))
}

fn rotation(
    pattern: &Pattern<'_>,
    positional: &Positional<'_>,
    node: Node,
    result: Value,
) -> Option<Match> {
    let width = pattern.width(result)?;
    pattern.either(result, BinaryOp::Add).find_map(|(straight, crossed)| {
        pattern.either(crossed, BinaryOp::Mul).find_map(|(turned, sin)| {
            let (x, interleaved) = turned_half(pattern, turned, width)?;
            let cos = pattern
                .either(straight, BinaryOp::Mul)
                .find_map(|(other, cos)| (other == x).then_some(cos))?;
            let angles = [cos, sin];
            let good = angles.iter().all(|angle| {
                positional.contains(*angle)
                    && pattern.width(*angle) == Some(width)
                    && is_paired(positional, *angle, width, interleaved)
            });
            good.then_some(Match { node, result, x, angles, width, interleaved })
        })
    })
}

/// x of `concat(-x[upper], x[lower])`, or of the interleaved form `(-x[1], x[0], -x[3], x[2], ..)`.
fn turned_half(pattern: &Pattern<'_>, value: Value, width: usize) -> Option<(Value, bool)> {
    let (op, operands) = pattern.made(value)?;
    let axis = pattern.last_axis(value);
    match (op, operands) {
        (Op::Concat(concat), [upper, lower]) if concat.axis == axis && width.is_multiple_of(2) => {
            let upper = pattern.unary(*upper, UnaryOp::Neg)?;
            let x = part(pattern, upper, axis, width / 2, 1, width / 2)?;
            (part(pattern, *lower, axis, 0, 1, width / 2)? == x).then_some((x, false))
        }
        (Op::Reshape(_), [stacked]) if width.is_multiple_of(2) => {
            let (Op::Concat(concat), [odd, even]) = pattern.made(*stacked)? else { return None };
            if concat.axis != axis + 1 || pattern.width(*stacked) != Some(2) {
                return None;
            }
            let unpacked = |value: Value| match pattern.made(value)? {
                (Op::Reshape(_), [inner]) if pattern.width(value) == Some(1) => Some(*inner),
                _ => None,
            };
            let odd = pattern.unary(unpacked(*odd)?, UnaryOp::Neg)?;
            let x = part(pattern, odd, axis, 1, 2, width / 2)?;
            (part(pattern, unpacked(*even)?, axis, 0, 2, width / 2)? == x).then_some((x, true))
        }
        _ => None,
    }
}

/// x of `x[axis: start, start + step, ..]`.
fn part(
    pattern: &Pattern<'_>,
    value: Value,
    axis: usize,
    start: usize,
    step: i64,
    length: usize,
) -> Option<Value> {
    let (Op::Slice(slice), [x]) = pattern.made(value)? else { return None };
    let same = slice.axis == axis
        && slice.step == step
        && slice.start.as_size() == Some(start)
        && slice.length.as_size() == Some(length);
    same.then_some(*x)
}

/// Whether both members of each pair have one angle.
fn is_paired(positional: &Positional<'_>, angle: Value, width: usize, interleaved: bool) -> bool {
    let Ok(tensor) = positional.at(angle, 3, 2) else { return false };
    let Ok(values) = tensor.f32s() else { return false };
    values.chunks_exact(width).all(|row| {
        (0..width / 2).all(|pair| match interleaved {
            true => row[2 * pair] == row[2 * pair + 1],
            false => row[pair] == row[pair + width / 2],
        })
    })
}

/// `concat(rotary(x[..w]), x[w..])` is `rotary(x) {width=w}`.
fn join_partial(graph: &mut Graph) -> Result<(), PassError> {
    let pattern = Pattern::new(graph);
    let mut joins = Vec::new();
    for (node, data) in graph.main.live() {
        let (Op::Concat(concat), [turned, rest], [result]) =
            (&data.op, data.operands.as_slice(), data.results.as_slice())
        else {
            continue;
        };
        let Some((Op::Rotary(rotary), [head, cos, sin])) = pattern.made(*turned) else { continue };
        let (Some(first), Some(width)) = (pattern.width(*turned), pattern.width(*result)) else {
            continue;
        };
        let axis = concat.axis;
        let x = part(&pattern, *head, axis, 0, 1, first);
        if axis == pattern.last_axis(*result)
            && x.is_some()
            && part(&pattern, *rest, axis, first, 1, width - first) == x
            && let Some(x) = x
        {
            joins.push((node, *result, rotary.clone(), vec![x, *cos, *sin]));
        }
    }
    let mut patch = Patch::new(&mut graph.main);
    for (node, result, rotary, operands) in joins {
        let origin = patch.body().nodes[node].origin.clone();
        let value = patch.push1(Some(node), rotary, operands, origin)?;
        patch.replace(result, value)?;
    }
    patch.finish();
    Ok(())
}
