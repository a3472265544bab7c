//! Attention: the standard operator (opset 23 and 24), ONNX Runtime's GroupQueryAttention and
//! MultiHeadAttention. All become the graph's `attention` over keys `concat(past, new)`, whose
//! concatenation is the operator's present output.

use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::unary::UnaryOp;
use weir_ir::ops::{Attention, Concat, Expand, Range, Reshape, RmsNorm, Select, Slice, Transpose};
use weir_ir::{DType, Dim, Symbol, Value};

use super::elementwise::{binary, cast_to, unary};
use super::rotary::{angles_at, rotate};
use super::shape::{product, reshape_to};
use super::{OpRow, microsoft, standard};
use crate::error::Problem;
use crate::onnx::context::Cx;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("Attention", 23, standard_attention),
    microsoft("GroupQueryAttention", group_query_attention),
    microsoft("MultiHeadAttention", multi_head_attention),
];

/// `[B, S, heads * width]` to `[B, heads, S, width]`.
pub fn split_heads(cx: &mut Cx<'_, '_>, x: Value, heads: &Dim) -> Result<Value, Problem> {
    let rows = rows_of_heads(cx, x, heads)?;
    cx.push(Transpose { order: vec![0, 2, 1, 3] }, &[rows])
}

/// `[B, S, heads * width]` to `[B, S, heads, width]`.
fn rows_of_heads(cx: &mut Cx<'_, '_>, x: Value, heads: &Dim) -> Result<Value, Problem> {
    let shape = cx.shape(x);
    let [batch, rows, hidden] = shape.as_slice() else {
        return Err(cx.malformed(format!("an input {shape:?}, not [batch, rows, width]")));
    };
    let width = hidden.divided_exactly(heads);
    let width = width.ok_or_else(|| cx.malformed(format!("{hidden} values in {heads} heads")))?;
    let shape = vec![batch.clone(), rows.clone(), heads.clone(), width];
    cx.push(Reshape { shape }, &[x])
}

/// `[B, heads, S, width]` to `[B, S, heads * width]`.
pub fn merge_heads(cx: &mut Cx<'_, '_>, x: Value) -> Result<Value, Problem> {
    let rows = cx.push(Transpose { order: vec![0, 2, 1, 3] }, &[x])?;
    let shape = cx.shape(rows);
    let hidden = product(&shape[2..]).ok_or_else(|| cx.malformed("too many elements"))?;
    let shape = vec![shape[0].clone(), shape[1].clone(), hidden];
    cx.push(Reshape { shape }, &[rows])
}

/// past, then the new rows.
fn append(cx: &mut Cx<'_, '_>, past: Option<Value>, new: Value) -> Result<Value, Problem> {
    match past {
        Some(past) => cx.push(Concat { axis: 2 }, &[past, new]),
        None => Ok(new),
    }
}

/// Sizes whose sum or difference has no number, or too many terms.
fn too_large(cx: &Cx<'_, '_>) -> Problem {
    cx.malformed("sizes too large to add or subtract")
}

/// A positive attribute.
fn heads(cx: &Cx<'_, '_>, name: &str) -> Result<Option<Dim>, Problem> {
    match cx.attributes.int(name)? {
        None => Ok(None),
        Some(heads) if heads > 0 => Ok(Some(Dim::number(heads))),
        Some(heads) => Err(cx.malformed(format!("attribute {name} is {heads}"))),
    }
}

fn required_heads(cx: &Cx<'_, '_>, name: &str) -> Result<Dim, Problem> {
    heads(cx, name)?.ok_or_else(|| cx.malformed(format!("no attribute {name}")))
}

/// 1 / sqrt(width), the factor where a node gives none.
fn default_scale(cx: &Cx<'_, '_>, query: Value) -> Result<f32, Problem> {
    let shape = cx.shape(query);
    let width = shape.last().and_then(Dim::as_number).filter(|&width| width > 0);
    let width = width.ok_or_else(|| cx.unsupported("a head of symbolic width"))?;
    Ok((1.0 / (width as f64).sqrt()) as f32)
}

fn group_query_attention(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    cx.at_most_inputs(16)?;
    for (index, what) in [(12, "a quantised key cache"), (13, "a quantised value cache")] {
        if cx.has(index) {
            return Err(cx.unsupported(format!("{what} (input {index})")));
        }
    }
    for name in ["k_quant_type", "v_quant_type"] {
        if let Some(kind) = cx.attributes.string(name)?
            && kind != "NONE"
        {
            return Err(cx.unsupported(format!("attribute {name} {kind}")));
        }
    }
    // How wide a quantised cache would be.
    cx.attributes.ignore(&["kv_cache_bit_width"]);
    for name in ["qk_output"] {
        if cx.attributes.int_or(name, 0)? != 0 {
            return Err(cx.unsupported(format!("attribute {name}")));
        }
    }
    // Newer versions write down what was always meant.
    if !cx.attributes.flag("causal", true)? {
        return Err(cx.unsupported("attribute causal 0"));
    }
    let query_heads = required_heads(cx, "num_heads")?;
    let kv_heads = required_heads(cx, "kv_num_heads")?;
    let softcap = cx.attributes.positive_or("softcap", 0.0)?;
    let local = cx.attributes.int_or("local_window_size", -1)?;
    // -1 is how the operator spells that there is none.
    let window = match local {
        -1 => 0,
        local => u32::try_from(local).ok().filter(|window| *window > 0).ok_or_else(|| {
            cx.malformed(format!("attribute local_window_size is {local}, neither -1 nor positive"))
        })?,
    };
    // With a cache as short as the window the file's cache holds the newest rows only; which
    // rows a cache keeps is our own choice later, the window alone is the model's meaning.
    if cx.attributes.flag("sliding_window_cache", false)? && window == 0 {
        return Err(cx.malformed("a window-sized cache without a window"));
    }
    let [query, key, value] = projections(cx, &query_heads, &kv_heads)?;
    let (query, key) = query_key_norm(cx, query, key, &query_heads, &kv_heads)?;
    let mut query = split_heads(cx, query, &query_heads)?;
    let mut key = split_heads(cx, key, &kv_heads)?;
    let value = split_heads(cx, value, &kv_heads)?;
    check_lengths(cx)?;

    let key_width = cx.shape(key)[3].clone();
    let value_width = cx.shape(value)[3].clone();
    let past_key = cx.cache(3, &kv_heads, &key_width)?;
    let past_value = cx.cache(4, &kv_heads, &value_width)?;
    let interleaved = cx.attributes.flag("rotary_interleaved", false)?;
    if cx.attributes.flag("do_rotary", false)? {
        let (cos, sin) = (cx.value(7)?, cx.value(8)?);
        let positions = match cx.optional(9)? {
            Some(positions) => positions,
            None => {
                let start = match past_key {
                    Some(past) => cx.shape(past)[2].clone(),
                    None => Dim::number(0),
                };
                let length = cx.shape(query)[2].clone();
                cx.push(Range { dtype: DType::I64, start, step: 1, length }, &[])?
            }
        };
        let angles = angles_at(cx, cos, sin, positions)?;
        query = rotate(cx, query, angles, interleaved)?;
        key = rotate(cx, key, angles, interleaved)?;
    } else if cx.has(7) || cx.has(8) {
        return Err(cx.malformed("rotary tables (inputs 7 and 8) and attribute do_rotary 0"));
    }
    let key = append(cx, past_key, key)?;
    let value = append(cx, past_value, value)?;
    let scale = match cx.attributes.float_or("scale", 0.0)? {
        0.0 => default_scale(cx, query)?,
        scale => scale,
    };
    let mut operands = vec![query, key, value];
    let mask = cx.optional(10)?;
    operands.extend(mask);
    let mut sinks = cx.optional(11)?;
    if cx.attributes.int_or("smooth_softmax", 0)? == 1 && sinks.is_none() {
        // A sink with logit 0 in every head.
        let dtype = cx.dtype(query)?;
        let zero = cx.scalar(0.0, dtype)?;
        sinks = Some(cx.push(Expand { shape: vec![query_heads.clone()] }, &[zero])?);
    }
    operands.extend(sinks);
    let (mask, sinks) = (mask.is_some(), sinks.is_some());
    let attention = Attention { scale, softcap, causal: true, window, mask, sinks };
    let output = cx.push(attention, &operands)?;
    Ok(vec![merge_heads(cx, output)?, key, value])
}

/// Query, key and value rows; one packed projection holds them side by side.
fn projections(
    cx: &mut Cx<'_, '_>,
    query_heads: &Dim,
    kv_heads: &Dim,
) -> Result<[Value; 3], Problem> {
    if cx.has(1) {
        return Ok([cx.value(0)?, cx.value(1)?, cx.value(2)?]);
    }
    let packed = cx.value(0)?;
    let shape = cx.shape(packed);
    let hidden = match shape.as_slice() {
        [_, _, hidden] => hidden.clone(),
        _ => return Err(cx.malformed(format!("a packed projection {shape:?}"))),
    };
    let all = kv_heads.scaled(2).and_then(|pair| pair.plus(query_heads));
    let width = all.and_then(|heads| hidden.divided_exactly(&heads));
    let width = width.ok_or_else(|| {
        cx.malformed(format!(
            "a packed projection of {hidden} for {query_heads}+2*{kv_heads} heads"
        ))
    })?;
    let mut start = Dim::number(0);
    let mut parts = [packed; 3];
    for (part, heads) in parts.iter_mut().zip([query_heads, kv_heads, kv_heads]) {
        let length = heads.times(&width).ok_or_else(|| too_large(cx))?;
        let end = start.plus(&length).ok_or_else(|| too_large(cx))?;
        *part = cx.push(Slice { axis: 2, start, step: 1, length }, &[packed])?;
        start = end;
    }
    Ok(parts)
}

/// The norms of query and key heads that newer files hand to the operator.
fn query_key_norm(
    cx: &mut Cx<'_, '_>,
    query: Value,
    key: Value,
    query_heads: &Dim,
    kv_heads: &Dim,
) -> Result<(Value, Value), Problem> {
    let epsilon = cx.attributes.positive_or("qk_norm_epsilon", 1e-6)?;
    if cx.has(14) != cx.has(15) {
        return Err(cx.malformed("a norm for only one of query and key (inputs 14 and 15)"));
    }
    let mut normed = [query, key];
    for (index, (rows, heads)) in normed.iter_mut().zip([query_heads, kv_heads]).enumerate() {
        if let Some(weight) = cx.optional(14 + index)? {
            let flat = cx.shape(*rows);
            let split = rows_of_heads(cx, *rows, heads)?;
            let result = cx.push(RmsNorm { epsilon }, &[split, weight])?;
            *rows = reshape_to(cx, result, &flat, true)?;
        }
    }
    Ok((normed[0], normed[1]))
}

/// The lengths must be what a mask of ones gives: without padding every row is as long as the
/// batch's longest.
fn check_lengths(cx: &mut Cx<'_, '_>) -> Result<(), Problem> {
    let total = Dim::total();
    let last = total.minus(&Dim::number(1)).ok_or_else(|| too_large(cx))?;
    let wanted = [(5, "seqlens_k", last), (6, "total_sequence_length", total)];
    for (index, what, wanted) in wanted {
        let given = cx.value(index)?;
        let given = cx.fill_of(given);
        if given.as_ref() != Some(&wanted) {
            let given = given.map_or("data".to_owned(), |given| given.to_string());
            return Err(cx.unsupported(format!("{what} is {given}, not {wanted}")));
        }
    }
    Ok(())
}

fn multi_head_attention(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    for (index, what) in
        [(4, "key_padding_mask"), (8, "past_sequence_length"), (9, "cache_indirection")]
    {
        if cx.has(index) {
            return Err(cx.unsupported(format!("{what} (input {index})")));
        }
    }
    let heads = required_heads(cx, "num_heads")?;
    // The number that a padding mask would write.
    cx.attributes.ignore(&["mask_filter_value"]);
    let causal = cx.attributes.flag("unidirectional", false)?;
    if !cx.has(1) || !cx.has(2) {
        return Err(cx.unsupported("packed query, key and value"));
    }
    let mut rows = [cx.value(0)?, cx.value(1)?, cx.value(2)?];
    if let Some(bias) = cx.optional(3)? {
        let mut start = Dim::number(0);
        for part in &mut rows {
            let shape = cx.shape(*part);
            let length = match shape.as_slice() {
                [_, _, hidden] => hidden.clone(),
                _ => return Err(cx.unsupported("a bias for keys by head")),
            };
            let end = start.plus(&length).ok_or_else(|| too_large(cx))?;
            let bias = cx.push(Slice { axis: 0, start, step: 1, length }, &[bias])?;
            *part = binary(cx, BinaryOp::Add, *part, bias)?;
            start = end;
        }
    }
    let mut split = rows;
    for part in &mut split {
        if cx.rank(*part) == 3 {
            *part = split_heads(cx, *part, &heads)?;
        }
    }
    let [query, key, value] = split;
    let (key_width, value_width) = match (cx.shape(key).as_slice(), cx.shape(value).as_slice()) {
        ([_, _, _, key_width], [_, _, _, value_width]) => (key_width.clone(), value_width.clone()),
        (key, value) => return Err(cx.malformed(format!("keys {key:?} and values {value:?}"))),
    };
    let past_key = cx.cache(6, &heads, &key_width)?;
    let past_value = cx.cache(7, &heads, &value_width)?;
    let key = append(cx, past_key, key)?;
    let value = append(cx, past_value, value)?;
    let scale = match cx.attributes.float_or("scale", 0.0)? {
        0.0 => default_scale(cx, query)?,
        scale => scale,
    };
    let mut operands = vec![query, key, value];
    let mask = cx.optional(5)?;
    operands.extend(mask);
    let mask = mask.is_some();
    let attention = Attention { scale, softcap: 0.0, causal, window: 0, mask, sinks: false };
    let output = cx.push(attention, &operands)?;
    Ok(vec![merge_heads(cx, output)?, key, value])
}

fn standard_attention(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let given = [cx.value(0)?, cx.value(1)?, cx.value(2)?];
    let query_heads = heads(cx, "q_num_heads")?;
    let kv_heads = heads(cx, "kv_num_heads")?;
    // Output 3 has modes; it is not made. The softmax is in float32 whatever is asked.
    cx.attributes.ignore(&["qk_matmul_output_mode", "softmax_precision"]);
    let softcap = cx.attributes.positive_or("softcap", 0.0)?;
    let causal = cx.attributes.flag("is_causal", false)?;
    let was_flat = cx.rank(given[0]) == 3;
    let mut split = given;
    for (part, heads) in split.iter_mut().zip([&query_heads, &kv_heads, &kv_heads]) {
        match (cx.rank(*part), heads) {
            (4, _) => {}
            (3, Some(heads)) => *part = split_heads(cx, *part, heads)?,
            (rank, _) => return Err(cx.malformed(format!("an input of rank {rank} without heads"))),
        }
    }
    let [query, key, value] = split;
    let scale = match cx.attributes.float("scale")? {
        Some(scale) => scale,
        None => default_scale(cx, query)?,
    };
    let heads_of_keys = cx.shape(key)[1].clone();
    let (key_width, value_width) = (cx.shape(key)[3].clone(), cx.shape(value)[3].clone());
    let past_key = cx.cache(4, &heads_of_keys, &key_width)?;
    let past_value = cx.cache(5, &heads_of_keys, &value_width)?;
    let past_length = past_key.map(|past| cx.shape(past)[2].clone());
    let key = append(cx, past_key, key)?;
    let value = append(cx, past_value, value)?;
    let mut mask = cx.optional(3)?;
    let (attended_key, attended_value, padding) = used_rows(cx, key, value)?;
    // Without a past each sequence's last query sees its last key, so that the triangle of each
    // lies elsewhere, and we make one for all.
    if causal && past_length.is_none() && padding.is_some() {
        return Err(cx.unsupported(
            "is_causal with nonpad_kv_seqlen (input 6) that is not one known number",
        ));
    }
    let rows = cx.shape(attended_key)[2].clone();
    if let Some(given) = mask {
        mask = Some(mask_of_length(cx, given, &rows)?);
    }
    mask = both(cx, mask, padding)?;
    // Query i sees keys up to i + (rows of the past). The graph counts from the last key, which is
    // the same where past and new rows are all there is.
    let new_rows = cx.shape(query)[2].clone();
    let from_last = rows.minus(&new_rows).ok_or_else(|| too_large(cx))?;
    let known_rows = cx.has(6) && padding.is_none();
    let offset = match &past_length {
        Some(past) => past.clone(),
        None if known_rows => from_last.clone(),
        None => Dim::number(0),
    };
    let aligned = from_last == offset;
    if causal && !aligned {
        let triangle = causal_mask(cx, &new_rows, &rows, offset)?;
        mask = both(cx, mask, Some(triangle))?;
    }
    if let Some(given) = mask
        && cx.dtype(given)? != DType::Bool
    {
        let dtype = cx.dtype(query)?;
        mask = Some(cast_to(cx, given, dtype)?);
    }
    let mut operands = vec![query, attended_key, attended_value];
    operands.extend(mask);
    let (mask, causal) = (mask.is_some(), causal && aligned);
    let attention = Attention { scale, softcap, causal, window: 0, mask, sinks: false };
    let mut output = cx.push(attention, &operands)?;
    if was_flat {
        output = merge_heads(cx, output)?;
    }
    Ok(vec![output, key, value])
}

/// Keys and values without rows beyond `nonpad_kv_seqlen`; lengths that differ by sequence become
/// a mask.
fn used_rows(
    cx: &mut Cx<'_, '_>,
    key: Value,
    value: Value,
) -> Result<(Value, Value, Option<Value>), Problem> {
    let Some(lengths) = cx.optional(6)? else { return Ok((key, value, None)) };
    let rows = cx.shape(key)[2].clone();
    if let Some(length) = cx.fill_of(lengths) {
        if length == rows {
            return Ok((key, value, None));
        }
        let used = Slice { axis: 2, start: Dim::number(0), step: 1, length };
        let key = cx.push(used.clone(), &[key])?;
        let value = cx.push(used, &[value])?;
        return Ok((key, value, None));
    }
    let shape = cx.shape(lengths);
    let mut spread = shape;
    spread.resize(4, Dim::number(1));
    let lengths = reshape_to(cx, lengths, &spread, true)?;
    let lengths = cast_to(cx, lengths, DType::I64)?;
    let range = Range { dtype: DType::I64, start: Dim::number(0), step: 1, length: rows };
    let index = cx.push(range, &[])?;
    let padding = binary(cx, BinaryOp::Less, index, lengths)?;
    Ok((key, value, Some(padding)))
}

/// A mask cut or, by the operator's rule, closed to the number of keys.
fn mask_of_length(cx: &mut Cx<'_, '_>, mask: Value, rows: &Dim) -> Result<Value, Problem> {
    let shape = cx.shape(mask);
    let Some(given) = shape.last() else { return Err(cx.malformed("a mask without dimensions")) };
    let axis = shape.len() - 1;
    if given == rows || given.as_number() == Some(1) && rows.as_number().is_none() {
        return Ok(mask);
    }
    let missing = rows.minus(given).ok_or_else(|| too_large(cx))?;
    match missing.as_number() {
        Some(missing) if missing > 0 => {
            let dtype = cx.dtype(mask)?;
            let closed = if dtype == DType::Bool { 0.0 } else { f64::NEG_INFINITY };
            let closed = cx.scalar(closed, dtype)?;
            let mut shape = shape;
            shape[axis] = Dim::number(missing);
            let closed = cx.push(Expand { shape }, &[closed])?;
            cx.push(Concat { axis }, &[mask, closed])
        }
        Some(_) => Err(cx.malformed(format!("a mask for {given} keys of {rows}"))),
        // A mask over a cache of fixed length: its first columns are the rows in use.
        None if given.as_number().is_some() && rows.mentions(Symbol::Past) => {
            let start = Dim::number(0);
            cx.push(Slice { axis, start, step: 1, length: rows.clone() }, &[mask])
        }
        None => Err(cx.unsupported(format!("a mask for {given} keys of {rows}"))),
    }
}

/// Keys up to query + offset.
fn causal_mask(
    cx: &mut Cx<'_, '_>,
    queries: &Dim,
    keys: &Dim,
    offset: Dim,
) -> Result<Value, Problem> {
    let start = offset;
    let range = Range { dtype: DType::I64, start, step: 1, length: queries.clone() };
    let last = cx.push(range, &[])?;
    let last = cx.push(Reshape { shape: vec![queries.clone(), Dim::number(1)] }, &[last])?;
    let start = Dim::number(0);
    let range = Range { dtype: DType::I64, start, step: 1, length: keys.clone() };
    let index = cx.push(range, &[])?;
    binary(cx, BinaryOp::LessOrEqual, index, last)
}

/// A mask that keeps what both keep.
fn both(
    cx: &mut Cx<'_, '_>,
    mask: Option<Value>,
    kept: Option<Value>,
) -> Result<Option<Value>, Problem> {
    let (Some(mask), Some(kept)) = (mask, kept) else { return Ok(mask.or(kept)) };
    let dtype = cx.dtype(mask)?;
    if dtype == DType::Bool {
        return binary(cx, BinaryOp::And, mask, kept).map(Some);
    }
    let infinity = cx.scalar(f64::INFINITY, dtype)?;
    let closed = unary(cx, UnaryOp::Neg, infinity)?;
    cx.push(Select {}, &[kept, mask, closed]).map(Some)
}
