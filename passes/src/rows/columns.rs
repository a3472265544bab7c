//! Movements of columns that become nodes: slices, joins, vectors for every column.

use weir_ir::ops::{Concat, Reshape, Slice, TypeError};
use weir_ir::{Body, Symbol, Value};

use super::axes::{Axis, Factor, columns, stretch};
use super::form::Rows;

/// `[sequence, a, b, ..]` of a value.
pub(super) fn shaped(body: &mut Body, value: Value, sizes: &[usize]) -> Result<Value, TypeError> {
    let mut shape = vec![Symbol::Sequence.into()];
    shape.extend(sizes.iter().map(|size| (*size).into()));
    if body.shape(value) == shape {
        return Ok(value);
    }
    // A reshape of a reshape reads the first value.
    let value = match body.maker(value) {
        Some(node) if matches!(node.op, weir_ir::Op::Reshape(_)) => node.operands[0],
        _ => value,
    };
    if body.shape(value) == shape {
        return Ok(value);
    }
    body.push1(Reshape { shape }.into(), vec![value], None)
}

/// Entries `start .. start + length` of a dimension over columns.
pub(super) fn slice(
    body: &mut Body,
    rows: &Rows,
    axis: usize,
    start: usize,
    length: usize,
) -> Result<Option<Rows>, TypeError> {
    let Some((size, stride)) = stretch(&rows.axes[axis]) else { return Ok(None) };
    if size < 2 || start + length > size || !rows.width.is_multiple_of(size * stride) {
        return Ok(None);
    }
    let outer = rows.width / (size * stride);
    let mut axes = Vec::with_capacity(rows.axes.len());
    for (index, other) in rows.axes.iter().enumerate() {
        axes.push(if index == axis {
            columns(length, stride)
        } else {
            let Some(axis) = rescaled(other, size * stride, length * stride) else {
                return Ok(None);
            };
            axis
        });
    }
    let value = if outer == 1 {
        let flat = shaped(body, rows.value, &[rows.width])?;
        cut(body, flat, 1, start * stride, length * stride)?
    } else {
        let wide = shaped(body, rows.value, &[outer, size * stride])?;
        cut(body, wide, 2, start * stride, length * stride)?
    };
    let width = outer * length * stride;
    let value = shaped(body, value, &[width])?;
    Ok(Some(Rows { value, width, axes, last_only: rows.last_only }))
}

fn cut(
    body: &mut Body,
    value: Value,
    axis: usize,
    start: usize,
    length: usize,
) -> Result<Value, TypeError> {
    let slice = Slice { axis, start: start.into(), step: 1, length: length.into() };
    body.push1(slice.into(), vec![value], None)
}

/// Strides of a dimension after a stretch of `before` columns has become one of `after`; `None` if
/// the dimension walks from one such stretch into the next.
fn rescaled(axis: &[Factor], before: usize, after: usize) -> Option<Axis> {
    axis.iter()
        .map(|factor| match factor {
            Factor::Columns { size, stride } if *stride >= before => (stride % before == 0)
                .then(|| Factor::Columns { size: *size, stride: stride / before * after }),
            Factor::Columns { size, stride } if size * stride > before => None,
            other => Some(other.clone()),
        })
        .collect()
}

/// The stride at which single entries of a dimension are joined: whole stretches of the dimensions
/// behind it, as tensors lie in memory, where those begin with the first column.
fn single_stride(part: &Rows, axis: usize) -> usize {
    let behind = part.axes[axis + 1..].iter().flatten();
    let sizes = behind.clone().map(|factor| match factor {
        Factor::Columns { size, .. } => *size,
        _ => 1,
    });
    let width: usize = sizes.product();
    let within = |factor: &Factor| match factor {
        Factor::Columns { size, stride } => size * stride <= width,
        _ => true,
    };
    if behind.clone().all(within) && part.width.is_multiple_of(width) { width } else { 1 }
}

/// Rows whose repeated columns are written out, one after another.
pub(super) fn unrepeated(body: &mut Body, rows: &Rows) -> Result<Option<Rows>, TypeError> {
    let mut rows = rows.clone();
    for axis in 0..rows.axes.len() {
        let (heads, stride, count) = match rows.axes[axis].as_slice() {
            [Factor::Repeat(count)] => (1, rows.width, *count),
            [Factor::Columns { size, stride }, Factor::Repeat(count)] => (*size, *stride, *count),
            _ => continue,
        };
        if heads * stride != rows.width {
            return Ok(None);
        }
        let mut axes = Vec::with_capacity(rows.axes.len());
        for (index, other) in rows.axes.iter().enumerate() {
            axes.push(if index == axis {
                columns(heads * count, stride)
            } else {
                let Some(axis) = rescaled(other, stride, stride * count) else { return Ok(None) };
                axis
            });
        }
        let value = shaped(body, rows.value, &[heads, stride])?;
        let value = body.push1(Concat { axis: 2 }.into(), vec![value; count], None)?;
        rows.width *= count;
        rows.value = shaped(body, value, &[rows.width])?;
        rows.axes = axes;
    }
    Ok(Some(rows))
}

/// Joins rows along a dimension over columns.
pub(super) fn concat(
    body: &mut Body,
    parts: &[Rows],
    axis: usize,
) -> Result<Option<Rows>, TypeError> {
    let Some(stretches) =
        parts.iter().map(|part| stretch(part.axes.get(axis)?)).collect::<Option<Vec<_>>>()
    else {
        return Ok(None);
    };
    // A stretch of one column has no stride of its own; its neighbours tell.
    let known = stretches.iter().find(|(size, _)| *size > 1).map(|(_, stride)| *stride);
    let stride = known.unwrap_or_else(|| parts.first().map_or(1, |part| single_stride(part, axis)));
    let total: usize = stretches.iter().map(|(size, _)| size).sum();
    let mut joined: Option<(usize, Vec<Axis>)> = None;
    let mut values = Vec::new();
    for (part, (size, own)) in parts.iter().zip(&stretches) {
        let apart = *size > 1 && *own != stride;
        if apart || *size == 0 || part.width % (size * stride) != 0 {
            return Ok(None);
        }
        let outer = part.width / (size * stride);
        let mut axes = Vec::new();
        for (index, other) in part.axes.iter().enumerate() {
            axes.push(if index == axis {
                columns(total, stride)
            } else {
                let Some(axis) = rescaled(other, size * stride, total * stride) else {
                    return Ok(None);
                };
                axis
            });
        }
        match &joined {
            Some((known, layout)) if *known != outer || *layout != axes => return Ok(None),
            _ => joined = Some((outer, axes)),
        }
        values.push(shaped(body, part.value, &[outer, size * stride])?);
    }
    let Some((outer, axes)) = joined else { return Ok(None) };
    let value = body.push1(Concat { axis: 2 }.into(), values, None)?;
    let width = outer * total * stride;
    let value = shaped(body, value, &[width])?;
    let last_only = parts.iter().any(|part| part.last_only);
    Ok(Some(Rows { value, width, axes, last_only }))
}

/// For every column of a row, its index along each dimension of the layout (0 along dimensions that
/// are not over columns).
pub(super) fn column_indices(rows: &Rows) -> Vec<Vec<usize>> {
    (0..rows.width)
        .map(|column| {
            rows.axes
                .iter()
                .map(|axis| {
                    axis.iter().fold(0, |index, factor| match factor {
                        Factor::Columns { size, stride } => index * size + column / stride % size,
                        Factor::Repeat(size) => index * size,
                        Factor::Rows | Factor::Total => index,
                    })
                })
                .collect()
        })
        .collect()
}
