//! Constants: `Constant`, `ConstantOfShape`, `Range`, `NonZero` of what follows from shapes.

use weir_ir::ops::{Expand, KnownValue, Range};
use weir_ir::{Constant, DType, Dim, TensorType, Value};

use super::{OpRow, standard};
use crate::error::Problem;
use crate::onnx::allowance::numbers;
use crate::onnx::context::Cx;
use crate::onnx::import::dtype;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("Constant", 1, constant),
    standard("ConstantOfShape", 9, constant_of_shape),
    standard("Range", 11, range),
    standard("NonZero", 9, non_zero),
];

fn constant(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let name = cx.node.outputs.first().cloned().unwrap_or_default();
    if let Some(tensor) = cx.attributes.tensor("value")? {
        return Ok(vec![cx.tensor_value(tensor)?]);
    }
    let constant = if let Some(value) = cx.attributes.float("value_float")? {
        Constant::from_f32(name, &[], &[value])
    } else if let Some(values) = cx.attributes.floats("value_floats")? {
        Constant::from_f32(name, &[values.len()], values)
    } else if let Some(value) = cx.attributes.int("value_int")? {
        Constant::from_i64(name, &[], &[value])
    } else if let Some(values) = cx.attributes.ints("value_ints")? {
        Constant::from_i64(name, &[values.len()], values)
    } else {
        return Err(cx.unsupported("a constant without a tensor, numbers or a number"));
    };
    Ok(vec![cx.add_constant(constant)?])
}

fn constant_of_shape(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let shape = cx.sizes(0, "the shape")?;
    let tensor = cx.attributes.tensor("value")?;
    let Some(tensor) = tensor else {
        let zero = cx.scalar(0.0, DType::F32)?;
        return Ok(vec![cx.push(Expand { shape }, &[zero])?]);
    };
    if tensor.count() != 1 {
        return Err(cx.malformed(format!("attribute value has {} elements", tensor.count())));
    }
    let dtype = dtype(tensor.element).ok_or_else(|| cx.unsupported("4-bit value"))?;
    let ty = TensorType::new(dtype, Vec::new());
    let scalar = Constant::dense("fill", ty, tensor.bytes.clone());
    if !dtype.is_float()
        && let Some([fill]) = scalar.small_integers(1).as_deref()
    {
        let elements = vec![Dim::number(*fill)];
        return Ok(vec![cx.push(KnownValue { dtype, shape, elements }, &[])?]);
    }
    let scalar = cx.add_constant(scalar)?;
    Ok(vec![cx.push(Expand { shape }, &[scalar])?])
}

/// Coordinates `[rank, count]` of the elements that are not zero: a tensor whose very size depends on
/// content, so the content must follow from shapes (exporters repeat the angles of a rotation so).
fn non_zero(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let elements = cx.integers(0, "the tensor")?;
    let operand = cx.value(0)?;
    let shape = cx.shape(operand);
    let sizes: Option<Vec<usize>> = shape.iter().map(Dim::as_size).collect();
    let sizes = sizes.ok_or_else(|| cx.unsupported(format!("a tensor {shape:?}")))?;
    let strides = weir_ir::constant::row_major(&sizes);
    let found: Vec<usize> = (0..elements.len()).filter(|&place| elements[place] != 0).collect();
    // The node's own list; what is known of its result counts by itself.
    cx.make_room(numbers(found.len().saturating_mul(sizes.len())))?;
    let mut coordinates = Vec::with_capacity(found.len() * sizes.len());
    for (stride, size) in strides.iter().zip(&sizes) {
        let size = (*size).max(1);
        coordinates.extend(found.iter().map(|place| Dim::from(place / stride % size)));
    }
    let shape = vec![Dim::from(shape.len()), Dim::from(found.len())];
    Ok(vec![cx.push(KnownValue { dtype: DType::I64, shape, elements: coordinates }, &[])?])
}

fn range(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let start = cx.value(0)?;
    let dtype = cx.dtype(start)?;
    if dtype.is_float() {
        return float_range(cx, dtype);
    }
    let mut ends = Vec::new();
    for (index, what) in ["start", "limit", "delta"].into_iter().enumerate() {
        let mut elements = cx.sizes(index, what)?;
        match (elements.pop(), elements.is_empty()) {
            (Some(only), true) => ends.push(only),
            _ => return Err(cx.malformed(format!("{what} is no scalar"))),
        }
    }
    let (start, limit) = (ends[0].clone(), &ends[1]);
    let Some(step) = ends[2].as_number().filter(|&step| step != 0) else {
        return Err(cx.unsupported(format!("a range in steps of {}", ends[2])));
    };
    let span = limit.minus(&start);
    let length = span.as_ref().and_then(|span| match span.as_number() {
        Some(span) => {
            let steps = span.checked_div_euclid(step)?;
            let rest = i64::from(span.checked_rem_euclid(step)? != 0);
            Some(Dim::number(if step > 0 { steps + rest } else { steps }.max(0)))
        }
        None => span.divided_exactly(&Dim::number(step)).filter(|length| length.is_at_least(0)),
    });
    let Some(length) = length else {
        return Err(cx.unsupported(format!("a range from {start} to {limit} in steps of {step}")));
    };
    Ok(vec![cx.push(Range { dtype, start, step, length }, &[])?])
}

/// A range of floats, whose three inputs must be constants.
fn float_range(cx: &mut Cx<'_, '_>, dtype: DType) -> Result<Vec<Value>, Problem> {
    const LONGEST: f64 = 1e6;
    let mut ends = [0.0; 3];
    for (index, end) in ends.iter_mut().enumerate() {
        let value = cx.value(index)?;
        *end = cx
            .float_of(value)
            .ok_or_else(|| cx.unsupported("a range of floats that depends on data"))?;
    }
    let [start, limit, step] = ends;
    let count = ((limit - start) / step).ceil().max(0.0);
    if count.is_nan() || count > LONGEST {
        return Err(cx.unsupported(format!("a range of {count} floats")));
    }
    cx.make_room(count as usize * dtype.bytes())?;
    let floats = (0..count as usize).map(|index| start + index as f64 * step);
    let bytes: Vec<u8> = match dtype {
        DType::F32 => floats.flat_map(|number| (number as f32).to_le_bytes()).collect(),
        DType::F64 => floats.flat_map(f64::to_le_bytes).collect(),
        DType::F16 => floats.flat_map(|n| half::f16::from_f64(n).to_le_bytes()).collect(),
        DType::BF16 => floats.flat_map(|n| half::bf16::from_f64(n).to_le_bytes()).collect(),
        other => return Err(cx.unsupported(format!("a range of {other}"))),
    };
    let ty = TensorType::new(dtype, vec![Dim::from(count as usize)]);
    Ok(vec![cx.add_constant(Constant::dense("range", ty, bytes.into()))?])
}
