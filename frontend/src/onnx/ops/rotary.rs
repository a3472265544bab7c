//! Rotary embeddings. Two operators share a name: the standard one takes (x, cos, sin,
//! position_ids), ONNX Runtime's (x, position_ids, cos, sin). The tables hold one column a pair.

use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::{Gather, Range, Rotary};
use weir_ir::{DType, Dim, Value};

use super::attention::{merge_heads, split_heads};
use super::elementwise::{binary, cast_to};
use super::shape::reshape_to;
use super::{OpRow, microsoft, standard};
use crate::error::Problem;
use crate::onnx::context::Cx;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("RotaryEmbedding", 23, standard_rotary),
    microsoft("RotaryEmbedding", microsoft_rotary),
];

/// cos and sin for the rows of an `[batch, heads, rows, width]` tensor.
#[derive(Debug, Clone, Copy)]
pub struct Angles {
    cos: Value,
    sin: Value,
    width: u32,
}

/// Rows of the tables at the positions `[S]` or `[B, S]`.
pub fn angles_at(
    cx: &mut Cx<'_, '_>,
    cos: Value,
    sin: Value,
    positions: Value,
) -> Result<Angles, Problem> {
    let cos = cx.push(Gather { axis: 0 }, &[cos, positions])?;
    let sin = cx.push(Gather { axis: 0 }, &[sin, positions])?;
    angles(cx, cos, sin)
}

/// Given cos and sin `[S, pairs]` or `[B, S, pairs]`.
pub fn angles(cx: &mut Cx<'_, '_>, cos: Value, sin: Value) -> Result<Angles, Problem> {
    let shape = cx.shape(cos);
    if cx.shape(sin) != shape {
        return Err(cx.malformed(format!("cos {shape:?} and sin {:?}", cx.shape(sin))));
    }
    let pairs = shape.last().and_then(Dim::as_size).and_then(|pairs| u32::try_from(pairs).ok());
    let width = pairs.and_then(|pairs| pairs.checked_mul(2));
    let width = width.ok_or_else(|| cx.unsupported(format!("cos and sin {shape:?}")))?;
    let spread = match shape.as_slice() {
        [rows, pairs] => vec![rows.clone(), pairs.clone()],
        [batch, rows, pairs] => {
            vec![batch.clone(), Dim::number(1), rows.clone(), pairs.clone()]
        }
        _ => return Err(cx.malformed(format!("cos and sin {shape:?}"))),
    };
    let cos = reshape_to(cx, cos, &spread, true)?;
    let sin = reshape_to(cx, sin, &spread, true)?;
    Ok(Angles { cos, sin, width })
}

/// Rotates `[batch, heads, rows, width]`.
pub fn rotate(
    cx: &mut Cx<'_, '_>,
    x: Value,
    angles: Angles,
    interleaved: bool,
) -> Result<Value, Problem> {
    let dtype = cx.dtype(x)?;
    let cos = cast_to(cx, angles.cos, dtype)?;
    let sin = cast_to(cx, angles.sin, dtype)?;
    cx.push(Rotary { width: angles.width, interleaved }, &[x, cos, sin])
}

/// x as `[batch, heads, rows, width]`, and whether it came as `[batch, rows, heads * width]`.
fn by_heads(
    cx: &mut Cx<'_, '_>,
    x: Value,
    heads: i64,
    table_width: Option<u32>,
) -> Result<(Value, bool), Problem> {
    let shape = cx.shape(x);
    match shape.as_slice() {
        [_, _, _, _] => Ok((x, false)),
        [_, _, hidden] => {
            let heads = if heads > 0 {
                Dim::number(heads)
            } else {
                // Without a head count the tables must cover whole heads.
                table_width
                    .and_then(|width| hidden.divided_exactly(&Dim::number(i64::from(width))))
                    .ok_or_else(|| cx.malformed("neither num_heads nor tables give the heads"))?
            };
            Ok((split_heads(cx, x, &heads)?, true))
        }
        _ => Err(cx.malformed(format!("an input {shape:?}"))),
    }
}

fn finish(
    cx: &mut Cx<'_, '_>,
    x: Value,
    heads: i64,
    angles: Angles,
    rotary_dim: i64,
) -> Result<Vec<Value>, Problem> {
    let interleaved = cx.attributes.flag("interleaved", false)?;
    if rotary_dim != 0 && rotary_dim != i64::from(angles.width) {
        let message = format!("rotary_embedding_dim {rotary_dim}, tables for {}", angles.width);
        return Err(cx.malformed(message));
    }
    let whole = (rotary_dim == 0).then_some(angles.width);
    let (x, was_flat) = by_heads(cx, x, heads, whole)?;
    let rotated = rotate(cx, x, angles, interleaved)?;
    Ok(vec![if was_flat { merge_heads(cx, rotated)? } else { rotated }])
}

fn standard_rotary(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let (x, cos, sin) = (cx.value(0)?, cx.value(1)?, cx.value(2)?);
    let heads = cx.attributes.int_or("num_heads", 0)?;
    let rotary_dim = cx.attributes.int_or("rotary_embedding_dim", 0)?;
    let angles = match cx.optional(3)? {
        Some(positions) => angles_at(cx, cos, sin, positions)?,
        None => angles(cx, cos, sin)?,
    };
    finish(cx, x, heads, angles, rotary_dim)
}

fn microsoft_rotary(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let (x, positions, cos, sin) = (cx.value(0)?, cx.value(1)?, cx.value(2)?, cx.value(3)?);
    let heads = cx.attributes.int_or("num_heads", 0)?;
    let rotary_dim = cx.attributes.int_or("rotary_embedding_dim", 0)?;
    if cx.attributes.float_or("scale", 1.0)? != 1.0 {
        return Err(cx.unsupported("attribute scale"));
    }
    if cx.attributes.flag("is_packed_batching", false)? {
        return Err(cx.unsupported("attribute is_packed_batching"));
    }
    let shape = cx.shape(x);
    let rows = if shape.len() == 4 { shape.get(2) } else { shape.get(1) };
    let rows = rows.cloned().ok_or_else(|| cx.malformed(format!("an input {shape:?}")))?;
    let positions = match cx.shape(positions).as_slice() {
        [_, _] => positions,
        [_] => offset_positions(cx, positions, rows)?,
        other => return Err(cx.malformed(format!("position_ids {other:?}"))),
    };
    let angles = angles_at(cx, cos, sin, positions)?;
    finish(cx, x, heads, angles, rotary_dim)
}

/// One number, the position of the first row.
fn offset_positions(cx: &mut Cx<'_, '_>, first: Value, rows: Dim) -> Result<Value, Problem> {
    let range = |start: Dim| Range { dtype: DType::I64, start, step: 1, length: rows };
    if let Some(start) = cx.fill_of(first) {
        return cx.push(range(start), &[]);
    }
    let rows = cx.push(range(Dim::number(0)), &[])?;
    let first = cast_to(cx, first, DType::I64)?;
    binary(cx, BinaryOp::Add, rows, first)
}
