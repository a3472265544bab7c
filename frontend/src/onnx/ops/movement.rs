//! Data movement: `Transpose`, `Concat`, `Slice`, `Split`, `Gather`, `GatherElements`, `GatherND`,
//! `Trilu`, `Identity`, `ScatterND`, `TensorScatter`.

use weir_ir::ops::{
    Concat, Gather, GatherElements, GatherNd, Reshape, ScatterNd, Slice, Transpose, Trilu,
    UpdateSlice,
};
use weir_ir::{Dim, InputRole, Symbol, Value};

use super::{OpRow, standard};
use crate::error::Problem;
use crate::onnx::context::Cx;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("Transpose", 1, transpose),
    standard("Concat", 4, concat),
    standard("Slice", 1, slice),
    standard("Split", 2, split),
    standard("Gather", 1, gather),
    standard("GatherElements", 11, gather_elements),
    standard("GatherND", 11, gather_nd),
    standard("ScatterND", 11, scatter_nd),
    standard("Trilu", 14, trilu),
    standard("Identity", 1, identity),
    standard("TensorScatter", 24, tensor_scatter),
];

fn transpose(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let rank = cx.rank(data);
    let order = match cx.attributes.ints("perm")? {
        Some(order) => {
            order.iter().map(|&axis| cx.axis(axis, rank)).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..rank).rev().collect(),
    };
    Ok(vec![cx.push(Transpose { order }, &[data])?])
}

fn concat(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let parts = (0..cx.inputs()).map(|index| cx.value(index)).collect::<Result<Vec<_>, _>>()?;
    let Some(&first) = parts.first() else { return Err(cx.malformed("nothing to join")) };
    let axis = cx.attributes.int("axis")?.ok_or_else(|| cx.malformed("no axis"))?;
    let axis = cx.axis(axis, cx.rank(first))?;
    if parts.len() == 1 {
        return Ok(vec![first]);
    }
    parts.iter().try_for_each(|&part| cx.may_append(part, axis))?;
    Ok(vec![cx.push(Concat { axis }, &parts)?])
}

fn slice(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let mut data = cx.value(0)?;
    let rank = cx.rank(data);
    let numbers = |list: &[i64]| list.iter().copied().map(Dim::number).collect::<Vec<_>>();
    let (starts, ends, axes, steps);
    if cx.opset() < 10 {
        let list = |name: &str| {
            let list = cx.attributes.ints(name)?;
            list.ok_or_else(|| cx.malformed(format!("no {name}")))
        };
        (starts, ends) = (numbers(list("starts")?), numbers(list("ends")?));
        axes = cx.attributes.ints("axes")?.map(<[i64]>::to_vec);
        steps = None;
    } else {
        starts = cx.sizes(1, "starts")?;
        ends = cx.sizes(2, "ends")?;
        axes = if cx.has(3) { Some(cx.integers(3, "axes")?) } else { None };
        steps = if cx.has(4) { Some(cx.integers(4, "steps")?) } else { None };
    }
    let axes = axes.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err(cx.malformed("starts, ends, axes and steps differ in length"));
    }
    for index in 0..starts.len() {
        let axis = cx.axis(axes[index], rank)?;
        data = slice_axis(cx, data, axis, &starts[index], &ends[index], steps[index])?;
    }
    Ok(vec![data])
}

/// One axis of a `Slice`, by the operator's rules for negative and far indices.
fn slice_axis(
    cx: &mut Cx<'_, '_>,
    data: Value,
    axis: usize,
    start: &Dim,
    end: &Dim,
    step: i64,
) -> Result<Value, Problem> {
    let size = cx.shape(data)[axis].clone();
    let form = || format!("indices {start}..{end} in steps of {step} of a dimension of {size}");
    let range = match step {
        0 => return Err(cx.malformed("step 0")),
        1.. => {
            let start = resolve(start, &size);
            let end = resolve(end, &size);
            start.zip(end).and_then(|(start, end)| {
                let span = end.minus(&start)?;
                let length = match span.as_number() {
                    Some(span) => Dim::number(span.max(0).checked_add(step - 1)? / step),
                    None if step == 1 => span,
                    None => span.divided_exactly(&Dim::number(step))?,
                };
                Some((start, length))
            })
        }
        _ => backwards(start, end, &size, step),
    };
    let Some((start, length)) = range else {
        return Err(cx.unsupported(form()));
    };
    if start.as_number() == Some(0) && length == size && step == 1 {
        return Ok(data);
    }
    cx.push(Slice { axis, start, step, length }, &[data])
}

/// An index of a forward slice, counted from the front and clamped to the size.
fn resolve(index: &Dim, size: &Dim) -> Option<Dim> {
    if let (Some(index), Some(size)) = (index.as_number(), size.as_number()) {
        let front = if index < 0 { index.saturating_add(size) } else { index };
        return Some(Dim::number(front.clamp(0, size)));
    }
    // Exporters write "to the end" as a number that no dimension reaches.
    if index.as_number().is_some_and(|index| index >= i64::from(i32::MAX)) {
        return Some(size.clone());
    }
    if !index.is_at_least(0) {
        // Certainly negative: it counts from the end.
        let back = index.scaled(-1)?;
        let front = size.plus(index)?;
        if !back.is_at_least(1) {
            return None;
        }
        return front.is_at_least(0).then_some(front);
    }
    let left = size.minus(index)?;
    if left.is_at_least(0) {
        return Some(index.clone());
    }
    if left.scaled(-1)?.is_at_least(0) {
        return Some(size.clone());
    }
    // A symbolic index into a fixed table: the table ends the context, so the index is inside.
    (size.as_number().is_some()).then(|| index.clone())
}

/// First index and length of a slice that walks backwards.
fn backwards(start: &Dim, end: &Dim, size: &Dim, step: i64) -> Option<(Dim, Dim)> {
    if let (Some(start), Some(end), Some(size)) =
        (start.as_number(), end.as_number(), size.as_number())
    {
        let front = |index: i64| if index < 0 { index.saturating_add(size) } else { index };
        // A start before the front is the first element, an end there is before it. Without elements
        // both are -1.
        let first = front(start).max(0).min(size - 1);
        let last = front(end).clamp(-1, size - 1);
        let stride = step.checked_neg()?;
        let length = (first - last).max(0).checked_add(stride - 1)? / stride;
        return Some((Dim::number(first.max(0)), Dim::number(length)));
    }
    // The whole dimension reversed.
    let from_last = start.as_number().is_some_and(|start| start == -1 || start >= i32::MAX.into());
    let to_first = end.as_number().is_some_and(|end| end <= i64::from(i32::MIN) + 1);
    (step == -1 && from_last && to_first)
        .then(|| Some((size.minus(&Dim::number(1))?, size.clone())))
        .flatten()
}

fn split(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let axis = cx.axis(cx.attributes.int_or("axis", 0)?, cx.rank(data))?;
    let size = cx.shape(data)[axis].clone();
    let sizes = if cx.opset() < 13 {
        let list = cx.attributes.ints("split")?;
        list.map(|list| list.iter().copied().map(Dim::number).collect())
    } else if cx.has(1) {
        Some(cx.sizes(1, "the split")?)
    } else {
        None
    };
    let count = cx.attributes.int("num_outputs")?.unwrap_or(cx.outputs() as i64);
    let sizes: Vec<Dim> = match (sizes, size.as_number()) {
        (Some(sizes), _) => sizes,
        (None, _) if count < 1 || count as usize != cx.outputs() => {
            return Err(cx.malformed(format!("{count} parts for {} outputs", cx.outputs())));
        }
        (None, Some(size)) => {
            // Equal parts, the last one smaller.
            let part = size.div_euclid(count) + i64::from(size.rem_euclid(count) != 0);
            let sizes = (0..count).map(|index| (size - index * part).clamp(0, part));
            sizes.map(Dim::number).collect()
        }
        (None, None) => match size.divided_exactly(&Dim::number(count)) {
            Some(part) => vec![part; count as usize],
            None => return Err(cx.unsupported(format!("{count} equal parts of {size}"))),
        },
    };
    if sizes.len() != cx.outputs() {
        return Err(cx.malformed(format!("{} sizes for {} outputs", sizes.len(), cx.outputs())));
    }
    let mut start = Dim::number(0);
    let mut parts = Vec::new();
    for length in sizes {
        let end = start.plus(&length).ok_or_else(|| cx.malformed("sizes overflow"))?;
        if !length.is_at_least(0) {
            return Err(cx.malformed(format!("a part of size {length}")));
        }
        parts.push(cx.push(Slice { axis, start, step: 1, length }, &[data])?);
        start = end;
    }
    if start != size {
        return Err(cx.malformed(format!("parts of {start} in all, the dimension has {size}")));
    }
    Ok(parts)
}

fn gather(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let (data, indices) = (cx.value(0)?, cx.value(1)?);
    let axis = cx.axis(cx.attributes.int_or("axis", 0)?, cx.rank(data))?;
    Ok(vec![cx.push(Gather { axis }, &[data, indices])?])
}

fn gather_elements(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let (data, indices) = (cx.value(0)?, cx.value(1)?);
    let axis = cx.axis(cx.attributes.int_or("axis", 0)?, cx.rank(data))?;
    Ok(vec![cx.push(GatherElements { axis }, &[data, indices])?])
}

fn gather_nd(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let (data, indices) = (cx.value(0)?, cx.value(1)?);
    let batch_dims = cx.attributes.int_or("batch_dims", 0)?;
    let batch_dims = usize::try_from(batch_dims)
        .map_err(|_| cx.malformed(format!("batch_dims {batch_dims}")))?;
    let mut places = cx.shape(indices).to_vec();
    // Index tuples of one entry pick along the first dimension, which is what `Gather` does.
    if batch_dims == 0 && places.last().and_then(Dim::as_number) == Some(1) {
        places.pop();
        let indices = cx.push(Reshape { shape: places }, &[indices])?;
        return Ok(vec![cx.push(Gather { axis: 0 }, &[data, indices])?]);
    }
    Ok(vec![cx.push(GatherNd { batch_dims }, &[data, indices])?])
}

fn scatter_nd(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let (data, indices, update) = (cx.value(0)?, cx.value(1)?, cx.value(2)?);
    let reduction = cx.attributes.string("reduction")?.unwrap_or("none");
    if reduction != "none" {
        return Err(cx.unsupported(format!("reduction {reduction}")));
    }
    Ok(vec![cx.push(ScatterNd {}, &[data, indices, update])?])
}

fn trilu(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let upper = cx.attributes.flag("upper", true)?;
    let diagonal = if cx.has(1) {
        let elements = cx.sizes(1, "the diagonal")?;
        let [only] = elements.as_slice() else {
            return Err(cx.malformed("the diagonal is no scalar"));
        };
        only.clone()
    } else {
        Dim::number(0)
    };
    Ok(vec![cx.push(Trilu { upper, diagonal }, &[data])?])
}

fn identity(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    Ok(vec![cx.value(0)?])
}

/// Writes new rows into a cache of fixed length. In a language model the first free row is the
/// number of rows written so far, so that the cache with its rows is `past` followed by the new
/// ones; its unused rows are never looked at (the attention that reads it knows the length).
fn tensor_scatter(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let (data, update) = (cx.value(0)?, cx.value(1)?);
    let rank = cx.rank(data);
    let axis = cx.axis(cx.attributes.int_or("axis", -2)?, rank)?;
    let mode = cx.attributes.string("mode")?.unwrap_or("linear");
    if mode != "linear" {
        return Err(cx.unsupported(format!("mode {mode}")));
    }
    let start = if cx.has(2) {
        let indices = cx.value(2)?;
        cx.fill_of(indices)
            .ok_or_else(|| cx.unsupported("write indices that are not the number of past rows"))?
    } else {
        Dim::number(0)
    };
    let is_cache = matches!(cx.role(data), Some(InputRole::PastKey(_) | InputRole::PastValue(_)));
    if is_cache {
        let past = Dim::symbol(Symbol::Past);
        if start != past || cx.shape(data)[axis] != past {
            return Err(cx.unsupported(format!("a cache that is written at {start}")));
        }
        let written = cx.push(Concat { axis }, &[data, update])?;
        cx.stays_fixed(data, written);
        return Ok(vec![written]);
    }
    Ok(vec![cx.push(UpdateSlice { axis, start }, &[data, update])?])
}
