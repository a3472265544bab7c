//! What ONNX Runtime's `quantize_dynamic` writes, and its optimiser makes of it: products of integers and
//! look-ups in bytes.
//!
//! How far activations are rounded inside of a product is our choice, so a product of codes reads the
//! activations themselves ([`Rounded`]), and the scales that follow it become its weight's. It is a value
//! once it has met the scale of its activations, which is then left out.

use bytes::Bytes;
use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::{Embed, Gather, Linear};
use weir_ir::{
    ConstData, DType, Element as CoreElement, Op, QuantData, QuantFormat, Value, ZeroPoints,
};

use super::elementwise::binary;
use super::quantised::{dense, expect_by_block, quantised, with_one_scale};
use super::{OpRow, microsoft, standard};
use crate::error::Problem;
use crate::onnx::context::{ConstantView, Cx};
use crate::onnx::import::Rounded;
use crate::onnx::tensor::Element;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("DynamicQuantizeLinear", 11, dynamic_quantize_linear),
    standard("MatMulInteger", 10, matmul_integer),
    microsoft("DynamicQuantizeMatMul", dynamic_quantize_matmul),
    microsoft("MatMulIntegerToFloat", matmul_integer_to_float),
];

fn dynamic_quantize_linear(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let x = cx.value(0)?;
    cx.rounds = [Rounded::Codes, Rounded::Scale, Rounded::Zero].map(|part| (part, x)).to_vec();
    Ok(Vec::new())
}

/// `(codes, weight, zero point?, zero points?)`: the sum, which is scaled behind.
fn matmul_integer(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let x = rounded_activations(cx, 2)?;
    let weight = matrix_of_bytes(cx, 3, None)?;
    let product = cx.push(Linear { bias: false, residual: false }, &[x, weight])?;
    cx.rounds = vec![(Rounded::Product(product), x)];
    Ok(Vec::new())
}

/// `(codes, weight, scale, scales, zero point?, zero points?, bias?)`.
fn matmul_integer_to_float(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let x = rounded_activations(cx, 4)?;
    if cx.rounded(2, Rounded::Scale) != Some(x) {
        return Err(cx.unsupported("the activations' scale (input 2) is not that of their codes"));
    }
    let weight = matrix_of_bytes(cx, 5, Some(3))?;
    product_with(cx, x, weight, 6)
}

/// `(activations, weight, scales, zero points?, bias?)`.
fn dynamic_quantize_matmul(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let x = cx.value(0)?;
    let weight = matrix_of_bytes(cx, 3, Some(2))?;
    product_with(cx, x, weight, 4)
}

fn product_with(
    cx: &mut Cx<'_, '_>,
    x: Value,
    weight: Value,
    bias: usize,
) -> Result<Vec<Value>, Problem> {
    let bias = cx.optional(bias)?;
    let linear = Linear { bias: bias.is_some(), residual: false };
    let operands: Vec<Value> = [x, weight].into_iter().chain(bias).collect();
    Ok(vec![cx.push(linear, &operands)?])
}

/// The activations whose codes are input 0 and whose zero point is this input.
fn rounded_activations(cx: &Cx<'_, '_>, zero: usize) -> Result<Value, Problem> {
    let Some(x) = cx.rounded(0, Rounded::Codes) else {
        return Err(cx.unsupported("a left side (input 0) that is not DynamicQuantizeLinear's"));
    };
    if cx.rounded(zero, Rounded::Zero) != Some(x) {
        let message = format!("the left side's zero point (input {zero}) is not that of its codes");
        return Err(cx.unsupported(message));
    }
    Ok(x)
}

/// A weight `[K, N]` of bytes (input 1) with a zero point for all or for each of the N, and a scale
/// likewise; without scales they are 1.
fn matrix_of_bytes(
    cx: &mut Cx<'_, '_>,
    zeros: usize,
    scales: Option<usize>,
) -> Result<Value, Problem> {
    let codes = dense(cx, 1, "the weight")?;
    let Some(signed) = signed_bytes(codes.element) else {
        return Err(cx.unsupported(format!("a weight of {}", codes.element.name())));
    };
    let &[k, n] = codes.dims.as_slice() else {
        return Err(cx.unsupported(format!("a weight {:?}", codes.dims)));
    };
    let block = u32::try_from(k).ok().filter(|&block| block > 0 && n > 0);
    let block = block.ok_or_else(|| cx.unsupported(format!("a weight {:?}", codes.dims)))?;
    let (mut zero, mut zero_bytes) = (ZeroPoints::Fixed(unsigned_code(0, signed)), None);
    if cx.has(zeros) {
        let view = dense(cx, zeros, "zero points")?;
        if view.element != codes.element {
            return Err(cx.malformed(format!("zero points of {}", view.element.name())));
        }
        match (view.dims.iter().product(), view.bytes.first()) {
            (1usize, Some(&one)) => zero = ZeroPoints::Fixed(unsigned_code(one, signed)),
            _ => {
                expect_by_block(cx, "zero points", &view, n, 1)?;
                (zero, zero_bytes) = (ZeroPoints::Codes, Some(view.bytes));
            }
        }
    }
    let scales = match scales {
        None => repeated(cx, &1f32.to_le_bytes(), n)?,
        Some(index) => {
            let view = dense(cx, index, "scales")?;
            let by_output = scales_by_output(cx, &view, n)?;
            by_output.ok_or_else(|| cx.unsupported(format!("scales {:?}", view.dims)))?
        }
    };
    let format = QuantFormat { bits: 8, block, scale: DType::F32, short: false, zero };
    let data = QuantData {
        codes: codes.bytes,
        code_strides: [1, n],
        signed,
        scales,
        scale_strides: [1, 1],
        zeros: zero_bytes,
        zero_strides: [1, 1],
    };
    let name = cx.node.inputs[1].clone();
    cx.add_constant(quantised(name, format, n, k, data))
}

/// Whether bytes are two's complement; `None` of other elements.
fn signed_bytes(element: Element) -> Option<bool> {
    match element {
        Element::Int8 => Some(true),
        Element::Uint8 => Some(false),
        _ => None,
    }
}

/// A byte as a code counts: from the least number on.
fn unsigned_code(byte: u8, signed: bool) -> u8 {
    if signed { byte ^ 0x80 } else { byte }
}

/// Bytes `n` times over.
fn repeated(cx: &mut Cx<'_, '_>, bytes: &[u8], n: usize) -> Result<Bytes, Problem> {
    cx.make_room(bytes.len().saturating_mul(n))?;
    Ok(Bytes::from(bytes.repeat(n)))
}

/// A float32 for each of `n` outputs, of one for all or as many.
fn scales_by_output(
    cx: &mut Cx<'_, '_>,
    view: &ConstantView,
    n: usize,
) -> Result<Option<Bytes>, Problem> {
    if view.element != Element::Float32 || view.dims.len() > 1 || !view.is_dense() {
        return Ok(None);
    }
    match (view.dims.iter().product::<usize>(), view.bytes.get(..4)) {
        (1, Some(one)) => repeated(cx, one, n).map(Some),
        (count, _) if count == n => {
            let bytes = n.checked_mul(4).filter(|&bytes| bytes <= view.bytes.len());
            Ok(bytes.map(|bytes| view.bytes.slice(..bytes)))
        }
        _ => Ok(None),
    }
}

/// The results of a `Mul` with a factor that is no value yet: a product of codes, or the scale of
/// activations, which is 1 where it meets the product of the same activations' codes. `None` where both
/// factors must be values.
pub fn rounded_factors(cx: &mut Cx<'_, '_>) -> Result<Option<Vec<Value>>, Problem> {
    for (index, other) in [(0, 1), (1, 0)] {
        match (cx.rounding(index), cx.rounding(other)) {
            (
                Some((Rounded::Product(product), x)),
                Some((scale @ (Rounded::Scale | Rounded::Scales(_)), scaled)),
            ) => {
                if x != scaled {
                    return Err(cx.unsupported(format!(
                        "the scale (input {other}) is not that of the activations of the product \
                         (input {index})"
                    )));
                }
                let Rounded::Scales(scales) = scale else { return Ok(Some(vec![product])) };
                return Ok(Some(vec![times(cx, [product, scales])?]));
            }
            (Some((Rounded::Product(product), x)), None) => {
                let factor = cx.value(other)?;
                let product = times(cx, [product, factor])?;
                cx.rounds = vec![(Rounded::Product(product), x)];
                return Ok(Some(Vec::new()));
            }
            (Some((Rounded::Scale, x)), None) => {
                let scales = cx.value(other)?;
                if cx.constant_of(scales).is_none() {
                    return Err(cx.unsupported(format!(
                        "the scale of rounded activations (input {index}) times what is neither \
                         constant nor a product of their codes (input {other})"
                    )));
                }
                cx.rounds = vec![(Rounded::Scales(scales), x)];
                return Ok(Some(Vec::new()));
            }
            _ => {}
        }
    }
    Ok(None)
}

/// The product of two values; scales that follow a product belong to its weight.
pub fn times(cx: &mut Cx<'_, '_>, factors: [Value; 2]) -> Result<Value, Problem> {
    match scaled_product(cx, factors)? {
        Some(product) => Ok(product),
        None => binary(cx, BinaryOp::Mul, factors[0], factors[1]),
    }
}

/// A product with a weight of codes whose scales are all 1, times a number or one for each output:
/// these are the weight's scales. `None` for other factors.
fn scaled_product(cx: &mut Cx<'_, '_>, [one, other]: [Value; 2]) -> Result<Option<Value>, Problem> {
    for (product, factor) in [(one, other), (other, one)] {
        let Some((Op::Linear(linear), &[x, weight])) = cx.maker(product) else { continue };
        let linear = linear.clone();
        let Some(constant) = cx.quantised(weight) else { continue };
        let (ConstData::Quantised(data), CoreElement::Quant(format)) =
            (&constant.data, constant.ty.element)
        else {
            continue;
        };
        let is_one = |scale: &[u8]| scale == 1f32.to_le_bytes();
        if format.scale != DType::F32 || !data.scales.chunks(4).all(is_one) {
            continue;
        }
        let Some(&[n, k]) = constant.ty.sizes().as_deref() else { continue };
        if format.block as usize != k {
            continue;
        }
        let (name, data) = (constant.name.clone(), data.clone());
        let Some(view) = cx.constant_of(factor) else { continue };
        let Some(scales) = scales_by_output(cx, &view, n)? else { continue };
        let data = QuantData { scales, scale_strides: [1, 1], ..data };
        let weight = cx.add_constant(quantised(name, format, n, k, data))?;
        return Ok(Some(cx.push(linear, &[x, weight])?));
    }
    Ok(None)
}

/// Rows of a table of bytes that have one scale and zero point for all, in float32, as
/// `quantize_dynamic` writes a look-up; `None` for any other form.
pub fn gathered_rows(cx: &mut Cx<'_, '_>) -> Result<Option<Value>, Problem> {
    let x = cx.value(0)?;
    let Some((Op::Gather(Gather { axis: 0 }), &[table, ids])) = cx.maker(x) else {
        return Ok(None);
    };
    let (Some(codes), Some(scale)) = (cx.constant_of(table), cx.constant(1)?) else {
        return Ok(None);
    };
    if signed_bytes(codes.element).is_none() || scale.element != Element::Float32 {
        return Ok(None);
    }
    let name = cx.name_of(table).unwrap_or_default();
    let Some(table) = with_one_scale(cx, name, codes, scale)? else { return Ok(None) };
    let table = cx.add_constant(table)?;
    Ok(Some(cx.push(Embed { to: DType::F32 }, &[ids, table])?))
}
