//! Reductions and running sums.

use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::reduce::ReduceOp;
use weir_ir::ops::unary::UnaryOp;
use weir_ir::ops::{CumulativeSum, Reduce};
use weir_ir::{DType, Value};

use super::elementwise::{binary, cast_to, unary};
use super::shape::{axes, reshape_to};
use super::{OpRow, standard};
use crate::error::Problem;
use crate::onnx::context::Cx;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("ReduceSum", 1, |cx| plain(cx, ReduceOp::Sum, 13)),
    standard("ReduceMean", 1, |cx| plain(cx, ReduceOp::Mean, 18)),
    standard("ReduceMax", 1, |cx| plain(cx, ReduceOp::Max, 18)),
    standard("ReduceMin", 1, |cx| plain(cx, ReduceOp::Min, 18)),
    standard("ReduceProd", 1, |cx| plain(cx, ReduceOp::Product, 18)),
    standard("ReduceSumSquare", 1, |cx| plain(cx, ReduceOp::SumSquare, 18)),
    standard("ReduceL1", 1, reduce_l1),
    standard("ReduceL2", 1, reduce_l2),
    standard("ReduceLogSum", 1, reduce_log_sum),
    standard("ReduceLogSumExp", 1, reduce_log_sum_exp),
    standard("CumSum", 11, cumulative_sum),
];

/// Which dimensions a node reduces; `None` for none at all.
fn plan(cx: &mut Cx<'_, '_>, input_since: i64) -> Result<Option<(Vec<usize>, bool)>, Problem> {
    let data = cx.value(0)?;
    let rank = cx.rank(data);
    let keep = cx.attributes.flag("keepdims", true)?;
    let noop_when_empty = cx.attributes.flag("noop_with_empty_axes", false)?;
    let listed = axes(cx, input_since)?.filter(|axes| !axes.is_empty());
    let mut axes = match listed {
        Some(axes) => {
            axes.iter().map(|&axis| cx.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?
        }
        None if noop_when_empty => return Ok(None),
        None => (0..rank).collect(),
    };
    axes.sort_unstable();
    axes.dedup();
    Ok(Some((axes, keep)))
}

fn plain(cx: &mut Cx<'_, '_>, op: ReduceOp, input_since: i64) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    Ok(vec![match plan(cx, input_since)? {
        Some((axes, keep)) => cx.push(Reduce { op, axes, keep }, &[data])?,
        // Of one element each, only the sum of squares differs from the element.
        None if op == ReduceOp::SumSquare => binary(cx, BinaryOp::Mul, data, data)?,
        None => data,
    }])
}

fn reduce_l1(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let size = unary(cx, UnaryOp::Abs, data)?;
    Ok(vec![match plan(cx, 18)? {
        Some((axes, keep)) => cx.push(Reduce { op: ReduceOp::Sum, axes, keep }, &[size])?,
        None => size,
    }])
}

fn reduce_l2(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let dtype = {
        let data = cx.value(0)?;
        cx.dtype(data)?
    };
    let squares = plain(cx, ReduceOp::SumSquare, 18)?[0];
    if dtype.is_float() {
        return Ok(vec![unary(cx, UnaryOp::Sqrt, squares)?]);
    }
    let squares = cast_to(cx, squares, DType::F64)?;
    let root = unary(cx, UnaryOp::Sqrt, squares)?;
    Ok(vec![cast_to(cx, root, dtype)?])
}

fn reduce_log_sum(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let sum = plain(cx, ReduceOp::Sum, 18)?[0];
    Ok(vec![unary(cx, UnaryOp::Log, sum)?])
}

/// max + log(sum(e^(x - max))).
fn reduce_log_sum_exp(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let Some((axes, keep)) = plan(cx, 18)? else { return Ok(vec![data]) };
    let max = cx.push(Reduce { op: ReduceOp::Max, axes: axes.clone(), keep: true }, &[data])?;
    let below = binary(cx, BinaryOp::Sub, data, max)?;
    let exponential = unary(cx, UnaryOp::Exp, below)?;
    let sum =
        cx.push(Reduce { op: ReduceOp::Sum, axes: axes.clone(), keep: true }, &[exponential])?;
    let log = unary(cx, UnaryOp::Log, sum)?;
    let result = binary(cx, BinaryOp::Add, max, log)?;
    if keep {
        return Ok(vec![result]);
    }
    let shape = cx.shape(result);
    let kept = (0..shape.len()).filter(|axis| !axes.contains(axis));
    let shape: Vec<_> = kept.map(|axis| shape[axis].clone()).collect();
    Ok(vec![reshape_to(cx, result, &shape, true)?])
}

fn cumulative_sum(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let listed = cx.integers(1, "the axis")?;
    let [axis] = listed.as_slice() else { return Err(cx.malformed("the axis is no scalar")) };
    let axis = cx.axis(*axis, cx.rank(data))?;
    let exclusive = cx.attributes.flag("exclusive", false)?;
    let reverse = cx.attributes.flag("reverse", false)?;
    Ok(vec![cx.push(CumulativeSum { axis, exclusive, reverse }, &[data])?])
}
