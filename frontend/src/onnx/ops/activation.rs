//! Activations: named ones of the graph where there is one, else their definitions.

use weir_ir::Value;
use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::reduce::ReduceOp;
use weir_ir::ops::unary::UnaryOp;
use weir_ir::ops::{Reduce, Select, Softmax};

use super::elementwise::{binary, unary, with_number};
use super::shape::{product, reshape_to};
use super::{OpRow, microsoft, standard};
use crate::error::Problem;
use crate::onnx::context::Cx;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("Sigmoid", 6, |cx| one(cx, UnaryOp::Sigmoid)),
    standard("Relu", 6, |cx| one(cx, UnaryOp::Relu)),
    standard("Gelu", 20, gelu),
    standard("Swish", 24, swish),
    standard("HardSigmoid", 6, hard_sigmoid),
    standard("HardSwish", 14, hard_swish),
    standard("LeakyRelu", 6, leaky_relu),
    standard("Elu", 6, elu),
    standard("Softplus", 1, softplus),
    standard("Softsign", 1, softsign),
    standard("Softmax", 1, softmax),
    standard("LogSoftmax", 1, log_softmax),
    microsoft("Gelu", |cx| one(cx, UnaryOp::Gelu)),
    microsoft("BiasGelu", |cx| with_bias(cx, UnaryOp::Gelu)),
    microsoft("FastGelu", |cx| with_bias(cx, UnaryOp::GeluTanh)),
    microsoft("QuickGelu", quick_gelu),
];

fn one(cx: &mut Cx<'_, '_>, op: UnaryOp) -> Result<Vec<Value>, Problem> {
    let x = cx.value(0)?;
    Ok(vec![unary(cx, op, x)?])
}

fn with_bias(cx: &mut Cx<'_, '_>, op: UnaryOp) -> Result<Vec<Value>, Problem> {
    let mut x = cx.value(0)?;
    if let Some(bias) = cx.optional(1)? {
        x = binary(cx, BinaryOp::Add, x, bias)?;
    }
    Ok(vec![unary(cx, op, x)?])
}

fn gelu(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    match cx.attributes.string("approximate")?.unwrap_or("none") {
        "none" => one(cx, UnaryOp::Gelu),
        "tanh" => one(cx, UnaryOp::GeluTanh),
        other => Err(cx.unsupported(format!("approximation {other}"))),
    }
}

fn swish(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let alpha = cx.attributes.float_or("alpha", 1.0)?;
    gated(cx, alpha)
}

fn quick_gelu(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let alpha = cx.attributes.float_or("alpha", 1.702)?;
    gated(cx, alpha)
}

/// x sigmoid(alpha x).
fn gated(cx: &mut Cx<'_, '_>, alpha: f32) -> Result<Vec<Value>, Problem> {
    let x = cx.value(0)?;
    if alpha == 1.0 {
        return Ok(vec![unary(cx, UnaryOp::Silu, x)?]);
    }
    if alpha == 1.702 {
        return Ok(vec![unary(cx, UnaryOp::GeluQuick, x)?]);
    }
    let scaled = with_number(cx, BinaryOp::Mul, x, f64::from(alpha))?;
    let gate = unary(cx, UnaryOp::Sigmoid, scaled)?;
    Ok(vec![binary(cx, BinaryOp::Mul, x, gate)?])
}

/// max(0, min(1, alpha x + beta)).
fn hard(cx: &mut Cx<'_, '_>, x: Value, alpha: f32, beta: f32) -> Result<Value, Problem> {
    let scaled = with_number(cx, BinaryOp::Mul, x, f64::from(alpha))?;
    let shifted = with_number(cx, BinaryOp::Add, scaled, f64::from(beta))?;
    let above = with_number(cx, BinaryOp::Max, shifted, 0.0)?;
    with_number(cx, BinaryOp::Min, above, 1.0)
}

fn hard_sigmoid(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let alpha = cx.attributes.float_or("alpha", 0.2)?;
    let beta = cx.attributes.float_or("beta", 0.5)?;
    let x = cx.value(0)?;
    Ok(vec![hard(cx, x, alpha, beta)?])
}

fn hard_swish(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let x = cx.value(0)?;
    let gate = hard(cx, x, 1.0 / 6.0, 0.5)?;
    Ok(vec![binary(cx, BinaryOp::Mul, x, gate)?])
}

/// `below` where x is negative, else x.
fn where_negative(cx: &mut Cx<'_, '_>, x: Value, below: Value) -> Result<Vec<Value>, Problem> {
    let negative = with_number(cx, BinaryOp::Less, x, 0.0)?;
    Ok(vec![cx.push(Select {}, &[negative, below, x])?])
}

fn leaky_relu(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let alpha = cx.attributes.float_or("alpha", 0.01)?;
    let x = cx.value(0)?;
    let below = with_number(cx, BinaryOp::Mul, x, f64::from(alpha))?;
    where_negative(cx, x, below)
}

fn elu(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let alpha = cx.attributes.float_or("alpha", 1.0)?;
    let x = cx.value(0)?;
    let exponential = unary(cx, UnaryOp::Exp, x)?;
    let below = with_number(cx, BinaryOp::Sub, exponential, 1.0)?;
    let below = with_number(cx, BinaryOp::Mul, below, f64::from(alpha))?;
    where_negative(cx, x, below)
}

/// log(1 + e^x) as max(x, 0) + log(1 + e^-|x|), which does not overflow.
fn softplus(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let x = cx.value(0)?;
    let positive = unary(cx, UnaryOp::Relu, x)?;
    let size = unary(cx, UnaryOp::Abs, x)?;
    let negative = unary(cx, UnaryOp::Neg, size)?;
    let exponential = unary(cx, UnaryOp::Exp, negative)?;
    let above_one = with_number(cx, BinaryOp::Add, exponential, 1.0)?;
    let rest = unary(cx, UnaryOp::Log, above_one)?;
    Ok(vec![binary(cx, BinaryOp::Add, positive, rest)?])
}

fn softsign(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let x = cx.value(0)?;
    let size = unary(cx, UnaryOp::Abs, x)?;
    let below = with_number(cx, BinaryOp::Add, size, 1.0)?;
    Ok(vec![binary(cx, BinaryOp::Div, x, below)?])
}

/// Applies `inner` along the axis; before opset 13 along all dimensions from the axis on.
fn along_axis(
    cx: &mut Cx<'_, '_>,
    inner: fn(&mut Cx<'_, '_>, Value, usize) -> Result<Value, Problem>,
) -> Result<Vec<Value>, Problem> {
    let x = cx.value(0)?;
    let shape = cx.shape(x);
    if cx.opset() >= 13 {
        let axis = cx.axis(cx.attributes.int_or("axis", -1)?, shape.len())?;
        return Ok(vec![inner(cx, x, axis)?]);
    }
    let axis = cx.axis(cx.attributes.int_or("axis", 1)?, shape.len())?;
    if axis + 1 == shape.len() {
        return Ok(vec![inner(cx, x, axis)?]);
    }
    let (rows, columns) = (product(&shape[..axis]), product(&shape[axis..]));
    let flat = rows.zip(columns).map(|(rows, columns)| vec![rows, columns]);
    let flat = flat.ok_or_else(|| cx.malformed("too many elements"))?;
    let x = reshape_to(cx, x, &flat, true)?;
    let x = inner(cx, x, 1)?;
    Ok(vec![reshape_to(cx, x, &shape, true)?])
}

fn softmax(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    along_axis(cx, |cx, x, axis| cx.push(Softmax { axis }, &[x]))
}

/// x - max - log(sum(e^(x - max))).
fn log_softmax(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    along_axis(cx, |cx, x, axis| {
        let axes = vec![axis];
        let max = cx.push(Reduce { op: ReduceOp::Max, axes: axes.clone(), keep: true }, &[x])?;
        let below = binary(cx, BinaryOp::Sub, x, max)?;
        let exponential = unary(cx, UnaryOp::Exp, below)?;
        let sum = cx.push(Reduce { op: ReduceOp::Sum, axes, keep: true }, &[exponential])?;
        let log = unary(cx, UnaryOp::Log, sum)?;
        binary(cx, BinaryOp::Sub, below, log)
    })
}
