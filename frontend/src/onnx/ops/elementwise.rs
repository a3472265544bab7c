//! Arithmetic, comparison, logic and casts, element by element.

use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::unary::UnaryOp;
use weir_ir::ops::{Binary, Cast, KnownValue, Select, Unary};
use weir_ir::{DType, Dim, Value};

use super::integers::{rounded_factors, times};
use super::{OpRow, standard};
use crate::error::Problem;
use crate::onnx::context::Cx;
use crate::onnx::import::{Rounded, dtype};
use crate::onnx::tensor::Element;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("Add", 7, |cx| two(cx, BinaryOp::Add)),
    standard("Sub", 7, |cx| two(cx, BinaryOp::Sub)),
    standard("Mul", 7, mul),
    standard("Div", 7, |cx| two(cx, BinaryOp::Div)),
    standard("And", 7, |cx| two(cx, BinaryOp::And)),
    standard("Or", 7, |cx| two(cx, BinaryOp::Or)),
    standard("Xor", 7, |cx| two(cx, BinaryOp::Xor)),
    standard("Equal", 7, |cx| two(cx, BinaryOp::Equal)),
    standard("Less", 7, |cx| two(cx, BinaryOp::Less)),
    standard("LessOrEqual", 12, |cx| two(cx, BinaryOp::LessOrEqual)),
    standard("Greater", 7, |cx| two(cx, BinaryOp::Greater)),
    standard("GreaterOrEqual", 12, |cx| two(cx, BinaryOp::GreaterOrEqual)),
    standard("Pow", 7, pow),
    standard("Mod", 10, modulo),
    standard("Neg", 6, |cx| one(cx, UnaryOp::Neg)),
    standard("Abs", 6, |cx| one(cx, UnaryOp::Abs)),
    standard("Exp", 6, |cx| one(cx, UnaryOp::Exp)),
    standard("Log", 6, |cx| one(cx, UnaryOp::Log)),
    standard("Sqrt", 6, |cx| one(cx, UnaryOp::Sqrt)),
    standard("Reciprocal", 6, |cx| one(cx, UnaryOp::Reciprocal)),
    standard("Sin", 7, |cx| one(cx, UnaryOp::Sin)),
    standard("Cos", 7, |cx| one(cx, UnaryOp::Cos)),
    standard("Tanh", 6, |cx| one(cx, UnaryOp::Tanh)),
    standard("Erf", 9, |cx| one(cx, UnaryOp::Erf)),
    standard("Floor", 6, |cx| one(cx, UnaryOp::Floor)),
    standard("Ceil", 6, |cx| one(cx, UnaryOp::Ceil)),
    standard("Round", 11, |cx| one(cx, UnaryOp::Round)),
    standard("Sign", 9, |cx| one(cx, UnaryOp::Sign)),
    standard("Not", 1, |cx| one(cx, UnaryOp::Not)),
    standard("IsNaN", 9, |cx| one(cx, UnaryOp::IsNan)),
    standard("IsInf", 10, is_inf),
    standard("Min", 8, |cx| fold(cx, BinaryOp::Min)),
    standard("Max", 8, |cx| fold(cx, BinaryOp::Max)),
    standard("Sum", 8, |cx| fold(cx, BinaryOp::Add)),
    standard("Mean", 8, mean),
    standard("Where", 9, select),
    standard("Clip", 6, clip),
    standard("Cast", 6, cast),
    standard("CastLike", 15, cast_like),
    standard("Dropout", 7, dropout),
];

/// A function of one value.
pub fn unary(cx: &mut Cx<'_, '_>, op: UnaryOp, x: Value) -> Result<Value, Problem> {
    cx.push(Unary { op }, &[x])
}

/// A function of two values.
pub fn binary(cx: &mut Cx<'_, '_>, op: BinaryOp, a: Value, b: Value) -> Result<Value, Problem> {
    cx.push(Binary { op }, &[a, b])
}

/// A function of a value and a number of the value's type.
pub fn with_number(
    cx: &mut Cx<'_, '_>,
    op: BinaryOp,
    x: Value,
    number: f64,
) -> Result<Value, Problem> {
    let dtype = cx.dtype(x)?;
    let number = cx.scalar(number, dtype)?;
    binary(cx, op, x, number)
}

/// A value in another element type.
pub fn cast_to(cx: &mut Cx<'_, '_>, x: Value, to: DType) -> Result<Value, Problem> {
    if cx.dtype(x)? == to { Ok(x) } else { cx.push(Cast { to }, &[x]) }
}

fn one(cx: &mut Cx<'_, '_>, op: UnaryOp) -> Result<Vec<Value>, Problem> {
    let x = cx.value(0)?;
    Ok(vec![unary(cx, op, x)?])
}

fn two(cx: &mut Cx<'_, '_>, op: BinaryOp) -> Result<Vec<Value>, Problem> {
    let (a, b) = (cx.value(0)?, cx.value(1)?);
    Ok(vec![binary(cx, op, a, b)?])
}

fn mul(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    if let Some(results) = rounded_factors(cx)? {
        return Ok(results);
    }
    let factors = [cx.value(0)?, cx.value(1)?];
    Ok(vec![times(cx, factors)?])
}

/// The exponent may have another type than the base, which gives the result's.
fn pow(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let (base, exponent) = (cx.value(0)?, cx.value(1)?);
    let (to, from) = (cx.dtype(base)?, cx.dtype(exponent)?);
    if from.is_float() && !to.is_float() {
        // The power is taken in floats, as the operator's reference does, then truncated.
        let base = cast_to(cx, base, from)?;
        let power = binary(cx, BinaryOp::Pow, base, exponent)?;
        return Ok(vec![cast_to(cx, power, to)?]);
    }
    let exponent = cast_to(cx, exponent, to)?;
    Ok(vec![binary(cx, BinaryOp::Pow, base, exponent)?])
}

fn modulo(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let op = if cx.attributes.flag("fmod", false)? { BinaryOp::Fmod } else { BinaryOp::Mod };
    two(cx, op)
}

fn is_inf(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let negative = cx.attributes.flag("detect_negative", true)?;
    let positive = cx.attributes.flag("detect_positive", true)?;
    let x = cx.value(0)?;
    let infinite = unary(cx, UnaryOp::IsInf, x)?;
    let wanted = match (negative, positive) {
        (true, true) => return Ok(vec![infinite]),
        (true, false) => with_number(cx, BinaryOp::Less, x, 0.0)?,
        (false, true) => with_number(cx, BinaryOp::Greater, x, 0.0)?,
        // Nothing is looked for: no number is above itself.
        (false, false) => binary(cx, BinaryOp::Greater, x, x)?,
    };
    Ok(vec![binary(cx, BinaryOp::And, infinite, wanted)?])
}

fn fold(cx: &mut Cx<'_, '_>, op: BinaryOp) -> Result<Vec<Value>, Problem> {
    let mut result = cx.value(0)?;
    for index in 1..cx.inputs() {
        let next = cx.value(index)?;
        result = binary(cx, op, result, next)?;
    }
    Ok(vec![result])
}

fn mean(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let sum = fold(cx, BinaryOp::Add)?[0];
    let count = cx.inputs() as f64;
    Ok(vec![with_number(cx, BinaryOp::Div, sum, count)?])
}

fn select(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let (condition, a, b) = (cx.value(0)?, cx.value(1)?, cx.value(2)?);
    Ok(vec![cx.push(Select {}, &[condition, a, b])?])
}

fn clip(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let mut x = cx.value(0)?;
    if cx.opset() < 11 {
        if let Some(low) = cx.attributes.float("min")? {
            x = with_number(cx, BinaryOp::Max, x, f64::from(low))?;
        }
        if let Some(high) = cx.attributes.float("max")? {
            x = with_number(cx, BinaryOp::Min, x, f64::from(high))?;
        }
        return Ok(vec![x]);
    }
    if let Some(low) = cx.optional(1)? {
        x = binary(cx, BinaryOp::Max, x, low)?;
    }
    if let Some(high) = cx.optional(2)? {
        x = binary(cx, BinaryOp::Min, x, high)?;
    }
    Ok(vec![x])
}

fn cast(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    // These two say how float8 saturates and how float8 scales round.
    cx.attributes.ignore(&["saturate", "round_mode"]);
    let to = cx.attributes.int("to")?.ok_or_else(|| cx.malformed("no type to cast to"))?;
    let wire = i32::try_from(to).unwrap_or(-1);
    let element = Element::from_wire(wire).map_err(|error| error.at(cx.place()))?;
    let to = dtype(element).ok_or_else(|| cx.unsupported(format!("cast to {}", element.name())))?;
    if let Some((Rounded::Product(product), activations)) = cx.rounding(0)
        && to.is_float()
    {
        // A sum of whole numbers is made a float before it is scaled.
        let product = cast_to(cx, product, to)?;
        cx.rounds = vec![(Rounded::Product(product), activations)];
        return Ok(Vec::new());
    }
    let x = cx.value(0)?;
    Ok(vec![cast_to(cx, x, to)?])
}

fn cast_like(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    cx.attributes.ignore(&["saturate", "round_mode"]);
    let (x, like) = (cx.value(0)?, cx.value(1)?);
    let to = cx.dtype(like)?;
    Ok(vec![cast_to(cx, x, to)?])
}

/// In inference nothing is dropped.
fn dropout(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    cx.attributes.ignore(&["seed", "ratio"]);
    let x = cx.value(0)?;
    if let Some(training) = cx.optional(2)?
        && cx.fill_of(training).and_then(|fill| fill.as_number()) != Some(0)
    {
        return Err(cx.unsupported("training mode"));
    }
    if !cx.wants(1) {
        return Ok(vec![x]);
    }
    let (dtype, elements) = (DType::Bool, vec![Dim::number(1)]);
    let kept = KnownValue { dtype, shape: cx.shape(x), elements };
    Ok(vec![x, cx.push(kept, &[])?])
}
