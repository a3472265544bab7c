//! `If`: a condition that follows from shapes picks its branch here. A condition on the length of
//! the sequence, which is known only when it runs, may choose between tables (LongRoPE files pick
//! one of two pairs of cos and sin so).

use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::unary::UnaryOp;
use weir_ir::ops::{Binary, ByLength, Unary};
use weir_ir::{Constant, Dim, Op, TensorType, Value};

use super::{OpRow, standard};
use crate::error::Problem;
use crate::onnx::context::{Cx, MAX_CHAIN};
use crate::onnx::import::dtype;

/// The family's operators.
pub const OPS: &[OpRow] = &[standard("If", 1, branch)];

fn branch(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let condition = cx.value(0)?;
    let then = cx.attributes.graph("then_branch")?.ok_or_else(|| cx.malformed("no then_branch"))?;
    let other =
        cx.attributes.graph("else_branch")?.ok_or_else(|| cx.malformed("no else_branch"))?;
    let failed = |cx: &Cx<'_, '_>| cx.unsupported("a branch could not be imported");
    if let Some(known) = cx.fill_of(condition).and_then(|fill| fill.as_number()) {
        let taken = if known != 0 { then } else { other };
        return cx.inline(taken).ok_or_else(|| failed(cx));
    }
    let Some(length) = length_condition(cx, condition, false, MAX_CHAIN) else {
        return Err(cx.unsupported("a condition that is neither fixed nor a limit on the length"));
    };
    let then = cx.inline(then).ok_or_else(|| failed(cx))?;
    let other = cx.inline(other).ok_or_else(|| failed(cx))?;
    if then.len() != other.len() {
        return Err(cx.malformed("branches with different numbers of outputs"));
    }
    let (short, long) = if length.holds_when_long { (other, then) } else { (then, other) };
    let limit = length.limit;
    short
        .into_iter()
        .zip(long)
        .map(|(short, long)| {
            let short = extended(cx, short, long)?;
            cx.push(ByLength { limit }, &[short, long])
        })
        .collect()
}

/// Files cut the short table at the limit. Its missing rows are never read, so the long table's
/// stand in for them, and both have one type.
fn extended(cx: &mut Cx<'_, '_>, short: Value, long: Value) -> Result<Value, Problem> {
    let (Some(rows), Some(more)) = (cx.constant_of(short), cx.constant_of(long)) else {
        return Ok(short);
    };
    let (&[short_rows, columns], &[long_rows, long_columns]) =
        (rows.dims.as_slice(), more.dims.as_slice())
    else {
        return Ok(short);
    };
    let dense = rows.is_dense() && more.is_dense() && rows.element == more.element;
    let Some(dtype) = dtype(rows.element) else { return Ok(short) };
    if !dense || columns != long_columns || short_rows >= long_rows {
        return Ok(short);
    }
    let (first, all) = (short_rows * columns * dtype.bytes(), long_rows * columns * dtype.bytes());
    cx.make_room(all)?;
    let mut bytes = Vec::with_capacity(all);
    bytes.extend_from_slice(&rows.bytes[..first]);
    bytes.extend_from_slice(&more.bytes[first..all]);
    let ty = TensorType::new(dtype, vec![long_rows.into(), columns.into()]);
    cx.add_constant(Constant::dense("short table", ty, bytes.into()))
}

/// A condition on past + sequence: it changes where the length exceeds `limit`.
struct LengthCondition {
    limit: u32,
    holds_when_long: bool,
}

fn length_condition(
    cx: &Cx<'_, '_>,
    value: Value,
    negated: bool,
    steps: usize,
) -> Option<LengthCondition> {
    let steps = steps.checked_sub(1)?;
    let (op, operands) = cx.maker(value)?;
    let comparison = match op {
        Op::Unary(Unary { op: UnaryOp::Not }) => {
            return length_condition(cx, operands[0], !negated, steps);
        }
        Op::Reshape(_) | Op::Cast(_) | Op::Gather(_) => {
            return length_condition(cx, operands[0], negated, steps);
        }
        Op::Binary(Binary { op }) => *op,
        _ => return None,
    };
    let (left, right) = (cx.fill_of(operands[0])?, cx.fill_of(operands[1])?);
    let total = Dim::total();
    // length + more against a number, in either order.
    let (length, number, flipped) = match (left.as_number(), right.as_number()) {
        (None, Some(number)) => (left, number, false),
        (Some(number), None) => (right, number, true),
        _ => return None,
    };
    let more = length.minus(&total)?.as_number()?;
    let number = number.checked_sub(more)?;
    let comparison = match (comparison, flipped) {
        (BinaryOp::Greater, false) | (BinaryOp::Less, true) => BinaryOp::Greater,
        (BinaryOp::GreaterOrEqual, false) | (BinaryOp::LessOrEqual, true) => {
            BinaryOp::GreaterOrEqual
        }
        (BinaryOp::Less, false) | (BinaryOp::Greater, true) => BinaryOp::Less,
        (BinaryOp::LessOrEqual, false) | (BinaryOp::GreaterOrEqual, true) => BinaryOp::LessOrEqual,
        _ => return None,
    };
    let (limit, holds_when_long) = match comparison {
        BinaryOp::Greater => (number, true),
        BinaryOp::GreaterOrEqual => (number.checked_sub(1)?, true),
        BinaryOp::Less => (number.checked_sub(1)?, false),
        _ => (number, false),
    };
    let limit = u32::try_from(limit).ok()?;
    Some(LengthCondition { limit, holds_when_long: holds_when_long != negated })
}
