//! Norms. `SimplifiedLayerNormalization` (which ONNX Runtime registers in the standard domain) and
//! `RMSNormalization` differ only in name; the `Skip` forms add a residual first and hand it on.

use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::reduce::ReduceOp;
use weir_ir::ops::unary::UnaryOp;
use weir_ir::ops::{LayerNorm, Reduce, RmsNorm};
use weir_ir::{Constant, Dim, Value};

use super::elementwise::{binary, cast_to, unary, with_number};
use super::shape::{product, reshape_to};
use super::{OpRow, microsoft, standard};
use crate::error::Problem;
use crate::onnx::context::Cx;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("LayerNormalization", 1, |cx| norm(cx, Kind::Layer)),
    standard("RMSNormalization", 23, |cx| norm(cx, Kind::Rms)),
    standard("SimplifiedLayerNormalization", 1, |cx| norm(cx, Kind::Rms)),
    microsoft("SimplifiedLayerNormalization", |cx| norm(cx, Kind::Rms)),
    microsoft("SkipSimplifiedLayerNormalization", |cx| skip(cx, Kind::Rms)),
    microsoft("SkipLayerNormalization", |cx| skip(cx, Kind::Layer)),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Rms,
    Layer,
}

fn norm(cx: &mut Cx<'_, '_>, kind: Kind) -> Result<Vec<Value>, Problem> {
    let (x, weight) = (cx.value(0)?, cx.value(1)?);
    // Type of the inner arithmetic; ours is float32 always, as the default says.
    cx.attributes.ignore(&["stash_type"]);
    let epsilon = cx.attributes.positive_or("epsilon", 1e-5)?;
    let shape = cx.shape(x);
    let axis = cx.axis(cx.attributes.int_or("axis", -1)?, shape.len())?;
    let bias = match kind {
        Kind::Layer => cx.optional(2)?,
        Kind::Rms => {
            cx.at_most_inputs(2)?;
            None
        }
    };
    // Several dimensions are normed together as one.
    let mut flat = shape[..axis].to_vec();
    let width = product(&shape[axis..]).ok_or_else(|| cx.malformed("too many elements"))?;
    flat.push(width);
    let rows = reshape_to(cx, x, &flat, true)?;
    let normed = over_last(cx, kind, rows, weight, bias, epsilon)?;
    let mut results = vec![reshape_to(cx, normed, &shape, true)?];
    if kind == Kind::Layer && (cx.wants(1) || cx.wants(2)) {
        results.extend(statistics(cx, x, axis, epsilon)?);
    }
    Ok(results)
}

/// Mean and inverse deviation, which a file may name as further outputs.
fn statistics(
    cx: &mut Cx<'_, '_>,
    x: Value,
    axis: usize,
    epsilon: f32,
) -> Result<[Value; 2], Problem> {
    let axes: Vec<usize> = (axis..cx.rank(x)).collect();
    let mean_of = Reduce { op: ReduceOp::Mean, axes, keep: true };
    let mean = cx.push(mean_of.clone(), &[x])?;
    let apart = binary(cx, BinaryOp::Sub, x, mean)?;
    let square = binary(cx, BinaryOp::Mul, apart, apart)?;
    let variance = cx.push(mean_of, &[square])?;
    let variance = with_number(cx, BinaryOp::Add, variance, f64::from(epsilon))?;
    Ok([mean, unary(cx, UnaryOp::Rsqrt, variance)?])
}

fn over_last(
    cx: &mut Cx<'_, '_>,
    kind: Kind,
    x: Value,
    weight: Value,
    bias: Option<Value>,
    epsilon: f32,
) -> Result<Value, Problem> {
    let (dtype, shape) = (cx.dtype(x)?, cx.shape(x));
    let width = shape.last().cloned();
    let width = width.ok_or_else(|| cx.malformed("a norm of a scalar"))?;
    if let Some(count) = own_weights(cx, weight, &shape) {
        // Weights that differ between the rows, a set for each head: the norm has none of its own.
        cx.make_room(count.saturating_mul(size_of::<f32>()))?;
        let ones = Constant::from_f32("ones", &[count], &vec![1.0; count]);
        let ones = cx.add_constant(ones)?;
        let normed = over_last(cx, kind, x, ones, None, epsilon)?;
        let weight = cast_to(cx, weight, dtype)?;
        let scaled = binary(cx, BinaryOp::Mul, normed, weight)?;
        let Some(bias) = bias else { return Ok(scaled) };
        let bias = cast_to(cx, bias, dtype)?;
        return binary(cx, BinaryOp::Add, scaled, bias);
    }
    let weight = vector(cx, weight, &width)?;
    let weight = cast_to(cx, weight, dtype)?;
    match (kind, bias) {
        (Kind::Rms, _) => cx.push(RmsNorm { epsilon }, &[x, weight]),
        (Kind::Layer, None) => cx.push(LayerNorm { epsilon, bias: false }, &[x, weight]),
        (Kind::Layer, Some(bias)) => {
            let bias = vector(cx, bias, &width)?;
            let bias = cast_to(cx, bias, dtype)?;
            cx.push(LayerNorm { epsilon, bias: true }, &[x, weight, bias])
        }
    }
}

/// Width of the rows if they have different weights, which lie in further dimensions.
fn own_weights(cx: &Cx<'_, '_>, weight: Value, shape: &[Dim]) -> Option<usize> {
    let own = cx.shape(weight);
    let (width, rest) = own.split_last()?;
    let first = shape.len().checked_sub(own.len())?;
    let fits = own
        .iter()
        .zip(&shape[first..])
        .all(|(own, size)| own == size || own.as_number() == Some(1));
    let differ = rest.iter().any(|size| size.as_number() != Some(1));
    (fits && differ && Some(width) == shape.last()).then(|| width.as_size())?
}

/// A weight as `[width]`.
fn vector(cx: &mut Cx<'_, '_>, weight: Value, width: &Dim) -> Result<Value, Problem> {
    let shape = cx.shape(weight);
    if product(&shape).as_ref() != Some(width) {
        return Err(cx.unsupported(format!("a weight {shape:?} for rows of {width}")));
    }
    reshape_to(cx, weight, std::slice::from_ref(width), true)
}

/// Outputs: the normed sum; two that training alone reads; the sum.
fn skip(cx: &mut Cx<'_, '_>, kind: Kind) -> Result<Vec<Value>, Problem> {
    let (x, residual, weight) = (cx.value(0)?, cx.value(1)?, cx.value(2)?);
    // ONNX Runtime's kDefaultSkipLayerNormEpsilon, smaller than that of the other norms.
    let epsilon = cx.attributes.positive_or("epsilon", 1e-12)?;
    let (norm_bias, bias) = match kind {
        Kind::Rms => (None, cx.optional(3)?),
        Kind::Layer => (cx.optional(3)?, cx.optional(4)?),
    };
    for index in [1, 2] {
        if cx.wants(index) {
            return Err(cx.unsupported(format!("output {index}, a statistic for training")));
        }
    }
    let mut sum = binary(cx, BinaryOp::Add, x, residual)?;
    if let Some(bias) = bias {
        sum = binary(cx, BinaryOp::Add, sum, bias)?;
    }
    let normed = over_last(cx, kind, sum, weight, norm_bias, epsilon)?;
    // Outputs 1 and 2 have no names, so their values are not bound.
    Ok(vec![normed, normed, normed, sum])
}
