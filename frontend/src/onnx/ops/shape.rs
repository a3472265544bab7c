//! Shapes: `Shape`, `Size`, `Reshape`, `Flatten`, `Squeeze`, `Unsqueeze`, `Expand`, `Tile`.
//!
//! Shapes are values in the file and attributes in the graph: each importer reads the elements of
//! its shape operand, which the graph knows in terms of the symbols.

use weir_ir::ops::{Concat, Expand, KnownValue, Reshape, ShapeOf, Slice};
use weir_ir::{DType, Dim, Symbol, Value};

use super::{OpRow, standard};
use crate::error::Problem;
use crate::onnx::context::Cx;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("Shape", 1, shape),
    standard("Size", 1, size),
    standard("Reshape", 5, reshape),
    standard("Flatten", 1, flatten),
    standard("Squeeze", 1, squeeze),
    standard("Unsqueeze", 1, unsqueeze),
    standard("Expand", 8, expand),
    standard("Tile", 6, tile),
];

/// The product of sizes.
pub fn product(sizes: &[Dim]) -> Option<Dim> {
    sizes.iter().try_fold(Dim::number(1), |product, size| product.times(size))
}

fn shape(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let rank = cx.rank(data) as i64;
    let clamp = |end: i64| (if end < 0 { end.saturating_add(rank) } else { end }).clamp(0, rank);
    let start = clamp(cx.attributes.int_or("start", 0)?) as usize;
    let end = clamp(cx.attributes.int_or("end", rank)?) as usize;
    let end = end.max(start);
    if let Some(sizes) = cx.sizes_in_file(data, start..end)? {
        let shape = vec![Dim::from(sizes.len())];
        return Ok(vec![cx.push(KnownValue { dtype: DType::I64, shape, elements: sizes }, &[])?]);
    }
    Ok(vec![cx.push(ShapeOf { start, end }, &[data])?])
}

fn size(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let rank = cx.rank(data);
    let sizes = cx.sizes_in_file(data, 0..rank)?.unwrap_or_else(|| cx.shape(data));
    let count = product(&sizes).ok_or_else(|| cx.malformed("too many elements"))?;
    let known = KnownValue { dtype: DType::I64, shape: Vec::new(), elements: vec![count] };
    Ok(vec![cx.push(known, &[])?])
}

/// Reshapes by the operator's rule: 0 keeps a size (unless `allow_zero`), -1 is what is left.
pub fn reshape_to(
    cx: &mut Cx<'_, '_>,
    data: Value,
    wanted: &[Dim],
    allow_zero: bool,
) -> Result<Value, Problem> {
    let from = cx.shape(data);
    let mut shape = Vec::with_capacity(wanted.len());
    let mut rest = None;
    for (index, size) in wanted.iter().enumerate() {
        match size.as_number() {
            Some(-1) => {
                if rest.replace(index).is_some() {
                    return Err(cx.malformed(format!("two sizes are -1 in {wanted:?}")));
                }
                shape.push(Dim::number(1));
            }
            Some(0) if !allow_zero => match from.get(index) {
                Some(size) => shape.push(size.clone()),
                None => {
                    return Err(cx.malformed(format!("{wanted:?} keeps a size beyond {from:?}")));
                }
            },
            Some(number) if number < 0 => {
                return Err(cx.malformed(format!("negative size in {wanted:?}")));
            }
            _ => shape.push(size.clone()),
        }
    }
    if let Some(rest) = rest {
        let count = product(&from);
        let others = product(&shape);
        let size = count.zip(others).and_then(|(count, others)| count.divided_exactly(&others));
        shape[rest] =
            size.ok_or_else(|| cx.malformed(format!("{from:?} does not divide into {wanted:?}")))?;
    }
    if shape == from {
        return Ok(data);
    }
    cx.push(Reshape { shape }, &[data])
}

fn reshape(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let wanted = cx.sizes(1, "the shape")?;
    let allow_zero = cx.attributes.flag("allowzero", false)?;
    Ok(vec![reshape_to(cx, data, &wanted, allow_zero)?])
}

fn flatten(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let from = cx.shape(data);
    let axis = cx.attributes.int_or("axis", 1)?;
    let rank = from.len() as i64;
    let axis = if axis == rank { from.len() } else { cx.axis(axis, from.len())? };
    let sizes = [product(&from[..axis]), product(&from[axis..])];
    let [Some(rows), Some(columns)] = sizes else {
        return Err(cx.malformed("too many elements"));
    };
    Ok(vec![cx.push(Reshape { shape: vec![rows, columns] }, &[data])?])
}

/// Axes from input 1 (opset 13 on) or the attribute before.
pub fn axes(cx: &mut Cx<'_, '_>, input_since: i64) -> Result<Option<Vec<i64>>, Problem> {
    if cx.opset() < input_since {
        return Ok(cx.attributes.ints("axes")?.map(<[i64]>::to_vec));
    }
    if cx.has(1) { cx.integers(1, "axes").map(Some) } else { Ok(None) }
}

fn squeeze(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let from = cx.shape(data);
    let gone = match axes(cx, 13)? {
        Some(axes) => {
            axes.iter().map(|&axis| cx.axis(axis, from.len())).collect::<Result<Vec<_>, _>>()?
        }
        None => (0..from.len()).filter(|&axis| from[axis].as_number() == Some(1)).collect(),
    };
    for &axis in &gone {
        if from[axis].as_number() != Some(1) {
            return Err(cx.malformed(format!("axis {axis} of {from:?} has not size 1")));
        }
    }
    let kept = (0..from.len()).filter(|axis| !gone.contains(axis));
    let shape = kept.map(|axis| from[axis].clone()).collect();
    Ok(vec![cx.push(Reshape { shape }, &[data])?])
}

fn unsqueeze(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let from = cx.shape(data);
    let axes = axes(cx, 13)?.ok_or_else(|| cx.malformed("no axes"))?;
    let rank = from.len() + axes.len();
    let mut is_new = vec![false; rank];
    for axis in axes {
        let axis = cx.axis(axis, rank)?;
        if std::mem::replace(&mut is_new[axis], true) {
            return Err(cx.malformed(format!("axis {axis} twice")));
        }
    }
    let mut shape = from;
    for (axis, _) in is_new.iter().enumerate().filter(|(_, new)| **new) {
        shape.insert(axis, Dim::number(1));
    }
    Ok(vec![cx.push(Reshape { shape }, &[data])?])
}

/// The sizes that two shapes broadcast to.
pub fn broadcast(cx: &Cx<'_, '_>, a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>, Problem> {
    let rank = a.len().max(b.len());
    let one = Dim::number(1);
    let size = |shape: &[Dim], index: usize| {
        let missing = rank - shape.len();
        if index < missing { one.clone() } else { shape[index - missing].clone() }
    };
    let mut sizes = Vec::with_capacity(rank);
    for index in 0..rank {
        let (left, right) = (size(a, index), size(b, index));
        if left == right || right == one {
            sizes.push(left);
        } else if left == one {
            sizes.push(right);
        } else {
            return Err(cx.malformed(format!("{a:?} and {b:?} do not broadcast")));
        }
    }
    Ok(sizes)
}

/// Expands a value, unless it has the shape already.
pub fn expand_to(cx: &mut Cx<'_, '_>, data: Value, shape: Vec<Dim>) -> Result<Value, Problem> {
    if cx.shape(data) == shape { Ok(data) } else { cx.push(Expand { shape }, &[data]) }
}

fn expand(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let wanted = cx.sizes(1, "the shape")?;
    if let Some(size) = wanted.iter().find(|size| size.as_number().is_some_and(|size| size < 0)) {
        return Err(cx.malformed(format!("negative size {size}")));
    }
    let data = lengthen(cx, data, &wanted)?;
    let from = cx.shape(data);
    let shape = broadcast(cx, &from, &wanted)?;
    Ok(vec![expand_to(cx, data, shape)?])
}

/// Expanding `sequence` to `past + sequence` is allowed where nothing is past or one row is new,
/// and some exports build their causal mask so. In both cases the result is the operand with its
/// first entry repeated in front, which we write down for all lengths.
fn lengthen(cx: &mut Cx<'_, '_>, data: Value, wanted: &[Dim]) -> Result<Value, Problem> {
    let from = cx.shape(data);
    let Some(new_dims) = wanted.len().checked_sub(from.len()) else { return Ok(data) };
    let sequence = Dim::symbol(Symbol::Sequence);
    let mut long = data;
    for axis in 0..from.len() {
        if from[axis] == sequence && wanted[new_dims + axis] == Dim::total() {
            let (start, length) = (Dim::number(0), Dim::number(1));
            let first = cx.push(Slice { axis, start, step: 1, length }, &[long])?;
            let mut shape = cx.shape(first);
            shape[axis] = Dim::symbol(Symbol::Past);
            let front = cx.push(Expand { shape }, &[first])?;
            long = cx.push(Concat { axis }, &[front, long])?;
        }
    }
    Ok(long)
}

fn tile(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let data = cx.value(0)?;
    let from = cx.shape(data);
    let repeats = cx.sizes(1, "repeats")?;
    if repeats.len() != from.len() {
        return Err(cx.malformed(format!("{} repeats of {from:?}", repeats.len())));
    }
    // [a, b] by [m, n]: [1, a, 1, b] -> [m, a, n, b] -> [m a, n b].
    let mut apart = Vec::new();
    let mut repeated = Vec::new();
    let mut joined = Vec::new();
    for (size, repeat) in from.iter().zip(&repeats) {
        if !repeat.is_at_least(0) {
            return Err(cx.malformed(format!("{repeat} repeats")));
        }
        apart.extend([Dim::number(1), size.clone()]);
        repeated.extend([repeat.clone(), size.clone()]);
        let product = size.times(repeat).ok_or_else(|| cx.malformed("too many elements"))?;
        joined.push(product);
    }
    let data = cx.push(Reshape { shape: apart }, &[data])?;
    let data = cx.push(Expand { shape: repeated }, &[data])?;
    Ok(vec![cx.push(Reshape { shape: joined }, &[data])?])
}
