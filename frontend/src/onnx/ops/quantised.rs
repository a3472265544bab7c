//! Quantised weights: `MatMulNBits`, `GatherBlockQuantized`, `DequantizeLinear`; those of products of
//! integers are [`super::integers`].
//!
//! All of them become one typed constant `[N, K]` whose scales run along K; the exporter's layout is
//! described by strides, so the codes stay where they are in the file.

use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::{Dequantise, Embed, Linear, Reshape, Transpose};
use weir_ir::{
    ConstData, Constant, DType, Dim, Element as CoreElement, QuantData, QuantFormat, TensorType,
    Value, ZeroPoints,
};

use super::elementwise::{binary, cast_to};
use super::integers::gathered_rows;
use super::{OpRow, microsoft, standard};
use crate::error::Problem;
use crate::onnx::context::{ConstantView, Cx};
use crate::onnx::import::dtype;
use crate::onnx::tensor::Element;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("DequantizeLinear", 10, dequantize_linear),
    microsoft("DequantizeLinear", dequantize_linear),
    microsoft("MatMulNBits", matmul_nbits),
    microsoft("GatherBlockQuantized", gather_block_quantized),
];

/// An input that must be a constant in row-major order.
pub(super) fn dense(
    cx: &mut Cx<'_, '_>,
    index: usize,
    what: &str,
) -> Result<ConstantView, Problem> {
    let view = cx.constant(index)?;
    let view = view.ok_or_else(|| cx.unsupported(format!("{what} (input {index}) is computed")))?;
    if !view.is_dense() {
        return Err(cx.unsupported(format!("{what} (input {index}) is a part of a tensor")));
    }
    Ok(view)
}

pub(super) fn scale_dtype(cx: &Cx<'_, '_>, view: &ConstantView) -> Result<DType, Problem> {
    match view.element {
        Element::Float32 => Ok(DType::F32),
        Element::Float16 => Ok(DType::F16),
        Element::Bfloat16 => Ok(DType::BF16),
        other => Err(cx.unsupported(format!("scales of {}", other.name()))),
    }
}

pub(super) fn positive(cx: &Cx<'_, '_>, name: &str, value: Option<i64>) -> Result<usize, Problem> {
    let value = value.ok_or_else(|| cx.malformed(format!("no attribute {name}")))?;
    match usize::try_from(value) {
        Ok(value) if value > 0 && value <= u32::MAX as usize => Ok(value),
        _ => Err(cx.malformed(format!("attribute {name} is {value}"))),
    }
}

fn code_bits(cx: &Cx<'_, '_>) -> Result<usize, Problem> {
    match cx.attributes.int_or("bits", 4)? {
        4 => Ok(4),
        8 => Ok(8),
        other => Err(cx.unsupported(format!("weights of {other} bits"))),
    }
}

pub(super) fn quantised(
    name: String,
    format: QuantFormat,
    n: usize,
    k: usize,
    data: QuantData,
) -> Constant {
    let shape = vec![Dim::from(n), Dim::from(k)];
    let ty = TensorType { element: CoreElement::Quant(format), shape };
    Constant { name, ty, data: ConstData::Quantised(data) }
}

/// Checks the element count of a part.
pub(super) fn expect(
    cx: &Cx<'_, '_>,
    what: &str,
    view: &ConstantView,
    wanted: Option<usize>,
) -> Result<(), Problem> {
    let count: usize = view.dims.iter().product();
    if Some(count) == wanted {
        return Ok(());
    }
    let wanted = wanted.map_or("too many".to_owned(), |wanted| wanted.to_string());
    Err(cx.malformed(format!("{what} {:?} hold {count} elements, not {wanted}", view.dims)))
}

/// Checks a part with one element a row and block: `[n, blocks]`, or the same in one run.
pub(super) fn expect_by_block(
    cx: &Cx<'_, '_>,
    what: &str,
    view: &ConstantView,
    n: usize,
    blocks: usize,
) -> Result<(), Problem> {
    expect(cx, what, view, n.checked_mul(blocks))?;
    if view.dims.len() > 1 && view.dims[0] != n {
        return Err(cx.malformed(format!("{what} {:?}, not [{n}, {blocks}]", view.dims)));
    }
    Ok(())
}

/// A weight packed by rows of whole blocks, with its scales and zero points by row and block.
fn packed_rows(
    cx: &mut Cx<'_, '_>,
    codes: ConstantView,
    inputs: [usize; 2],
    (n, k): (usize, usize),
    (bits, block): (usize, usize),
    (row_codes, default_zero): (usize, u8),
) -> Result<Constant, Problem> {
    let [scales_input, zeros_input] = inputs;
    let blocks = k.div_ceil(block);
    let scales = dense(cx, scales_input, "scales")?;
    let scale = scale_dtype(cx, &scales)?;
    expect_by_block(cx, "scales", &scales, n, blocks)?;
    let signed = codes.element == Element::Int4 || codes.element == Element::Int8;
    let mut zero = ZeroPoints::Fixed(default_zero);
    let mut zeros = None;
    let mut zero_strides = [0, 0];
    if cx.has(zeros_input) {
        let view = dense(cx, zeros_input, "zero points")?;
        match view.element {
            // They are read as the codes are, signed or not.
            element if element == codes.element => {
                // Bytes of packed rows start on a byte; 4-bit elements are packed throughout.
                let by_nibble = element.bits() == 4;
                let row = if by_nibble { blocks } else { (blocks * bits).div_ceil(8) * 8 / bits };
                let elements = if by_nibble { row } else { row * bits / 8 };
                expect_by_block(cx, "zero points", &view, n, elements)?;
                zero = ZeroPoints::Codes;
                zero_strides = [row, 1];
            }
            element if dtype(element) == Some(scale) => {
                expect_by_block(cx, "zero points", &view, n, blocks)?;
                zero = ZeroPoints::Float;
                zero_strides = [blocks, 1];
            }
            other => {
                let (other, codes) = (other.name(), codes.element.name());
                return Err(cx.unsupported(format!(
                    "zero points (input {zeros_input}) of {other} with codes of {codes}"
                )));
            }
        }
        zeros = Some(view.bytes);
    }
    let name = cx.node.inputs.iter().find(|name| !name.is_empty() && *name != &cx.node.inputs[0]);
    let name = name.cloned().unwrap_or_default();
    let block = u32::try_from(block).map_err(|_| cx.malformed("block_size is too large"))?;
    let format = QuantFormat { bits: bits as u8, block, scale, short: false, zero };
    let data = QuantData {
        codes: codes.bytes,
        code_strides: [row_codes, 1],
        signed,
        scales: scales.bytes,
        scale_strides: [blocks, 1],
        zeros,
        zero_strides,
    };
    Ok(quantised(name, format, n, k, data))
}

fn matmul_nbits(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    cx.at_most_inputs(6)?;
    if cx.has(4) {
        return Err(cx.unsupported("g_idx (input 4), a permutation of the reduced dimension"));
    }
    let k = positive(cx, "K", cx.attributes.int("K")?)?;
    let n = positive(cx, "N", cx.attributes.int("N")?)?;
    let bits = code_bits(cx)?;
    let block = positive(cx, "block_size", cx.attributes.int("block_size")?)?;
    // How far the activations may be rounded inside; that is our choice by `--compute`.
    cx.attributes.ignore(&["accuracy_level"]);
    if cx.attributes.int_or("weight_prepacked", 0)? != 0 {
        return Err(cx.unsupported("attribute weight_prepacked"));
    }
    let x = cx.value(0)?;
    let codes = dense(cx, 1, "the weight")?;
    if codes.element != Element::Uint8 {
        return Err(cx.malformed(format!("a weight of {}", codes.element.name())));
    }
    // Each block starts on a byte.
    if block * bits % 8 != 0 {
        return Err(cx.unsupported(format!("blocks of {block} codes of {bits} bits")));
    }
    let blocks = k.div_ceil(block);
    let row_codes = blocks * block;
    if codes.dims != [n, blocks, block * bits / 8] {
        let wanted = [n, blocks, block * bits / 8];
        return Err(cx.malformed(format!("codes {:?}, not {wanted:?}", codes.dims)));
    }
    let default_zero = 1u8 << (bits - 1);
    let sizes = ((n, k), (bits, block), (row_codes, default_zero));
    let mut constant = packed_rows(cx, codes, [2, 3], sizes.0, sizes.1, sizes.2)?;
    constant.name.clone_from(&cx.node.inputs[1]);
    let weight = cx.add_constant(constant)?;
    let bias = cx.optional(5)?;
    let mut operands = vec![x, weight];
    operands.extend(bias);
    Ok(vec![cx.push(Linear { bias: bias.is_some(), residual: false }, &operands)?])
}

fn gather_block_quantized(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let bits = code_bits(cx)?;
    let block = positive(cx, "block_size", Some(cx.attributes.int_or("block_size", 128)?))?;
    let gather_axis = cx.attributes.int_or("gather_axis", 0)?;
    let quantize_axis = cx.attributes.int_or("quantize_axis", 1)?;
    if gather_axis != 0 || !matches!(quantize_axis, 1 | -1) {
        let axes = format!("gather_axis {gather_axis} and quantize_axis {quantize_axis}");
        return Err(cx.unsupported(axes));
    }
    let view = cx.constant(0)?;
    let codes = view.ok_or_else(|| cx.unsupported("the table (input 0) is computed"))?;
    let &[n, columns] = codes.dims.as_slice() else {
        return Err(cx.unsupported(format!("a table {:?}", codes.dims)));
    };
    let per_element = match codes.element {
        Element::Uint8 => 8 / bits,
        Element::Int4 | Element::Uint4 => 1,
        other => return Err(cx.unsupported(format!("a table of {}", other.name()))),
    };
    let (bits, default_zero) = match codes.element {
        // Of bytes the missing zero point is the middle; of true 4-bit elements it is 0, which in
        // unsigned codes is the middle for signed ones.
        Element::Uint8 => (bits, 1u8 << (bits - 1)),
        Element::Int4 => (4, 8),
        _ => (4, 0),
    };
    let k = columns * per_element;
    let row_codes = codes.strides[0].checked_mul(per_element);
    let row_codes =
        row_codes.ok_or_else(|| cx.unsupported("the table's rows lie too far apart"))?;
    if n == 0 || k == 0 || codes.strides[1] != 1 && columns > 1 {
        return Err(cx.unsupported(format!("a table {:?} at {:?}", codes.dims, codes.strides)));
    }
    let constant =
        packed_rows(cx, codes, [2, 3], (n, k), (bits, block), (row_codes, default_zero))?;
    let CoreElement::Quant(QuantFormat { scale, .. }) = constant.ty.element else {
        return Err(cx.malformed("scales"));
    };
    let mut constant = constant;
    constant.name.clone_from(&cx.node.inputs[0]);
    let table = cx.add_constant(constant)?;
    let ids = cx.value(1)?;
    Ok(vec![cx.push(Embed { to: scale }, &[ids, table])?])
}

fn dequantize_linear(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let axis = cx.attributes.int_or("axis", 1)?;
    let block = cx.attributes.int_or("block_size", 0)?;
    let to = cx.attributes.int_or("output_dtype", 0)?;
    if let Some(weight) = quantised_weight(cx, axis, block)? {
        return Ok(vec![weight]);
    }
    if let (0 | 1, Some(rows)) = (to, gathered_rows(cx)?) {
        return Ok(vec![rows]);
    }
    let x = cx.value(0)?;
    let scale = cx.value(1)?;
    let to = match to {
        0 => cx.dtype(scale)?,
        wire => {
            let element = Element::from_wire(i32::try_from(wire).unwrap_or(-1));
            let element = element.map_err(|error| error.at(cx.place()))?;
            dtype(element).ok_or_else(|| cx.unsupported("4-bit result"))?
        }
    };
    let scale = spread(cx, "scales", scale, x, axis, block)?;
    let mut result = if to.is_float() { cast_to(cx, x, to)? } else { x };
    if let Some(zero) = cx.optional(2)? {
        let zero = spread(cx, "zero points", zero, x, axis, block)?;
        // Codes and zero points are exact in the float type; their difference too.
        let zero = cast_to(cx, zero, to)?;
        result = binary(cx, BinaryOp::Sub, result, zero)?;
    }
    let scale = cast_to(cx, scale, to)?;
    Ok(vec![binary(cx, BinaryOp::Mul, result, scale)?])
}

/// Scales or zero points in a shape that broadcasts against x.
fn spread(
    cx: &mut Cx<'_, '_>,
    what: &str,
    part: Value,
    x: Value,
    axis: i64,
    block: i64,
) -> Result<Value, Problem> {
    let (shape, of_part) = (cx.shape(x), cx.shape(part));
    let is_one = of_part.is_empty() || of_part.len() == 1 && of_part[0].as_number() == Some(1);
    if is_one && block == 0 {
        return cx.push(Reshape { shape: Vec::new() }, &[part]);
    }
    let axis = cx.axis(axis, shape.len())?;
    if of_part.len() == 1 && block == 0 {
        let mut along = vec![Dim::number(1); shape.len()];
        along[axis] = of_part[0].clone();
        return cx.push(Reshape { shape: along }, &[part]);
    }
    if !fits_blocks(&of_part, &shape, axis, block) {
        return Err(cx.malformed(format!("{what} {of_part:?} of {shape:?} in blocks of {block}")));
    }
    // Each scale repeats along its block, the last of which may be partial.
    let blocks = of_part[axis].clone();
    let mut apart = of_part.clone();
    apart.insert(axis + 1, Dim::number(1));
    let mut repeated = apart.clone();
    repeated[axis + 1] = Dim::number(block);
    let mut joined = of_part;
    joined[axis] = blocks.scaled(block).ok_or_else(|| cx.malformed("block_size"))?;
    let part = cx.push(Reshape { shape: apart }, &[part])?;
    let part = cx.push(weir_ir::ops::Expand { shape: repeated }, &[part])?;
    let part = cx.push(Reshape { shape: joined.clone() }, &[part])?;
    if joined[axis] == shape[axis] {
        return Ok(part);
    }
    let start = Dim::number(0);
    cx.push(weir_ir::ops::Slice { axis, start, step: 1, length: shape[axis].clone() }, &[part])
}

/// Whether a part has the sizes of x, but along the axis one element for each block.
fn fits_blocks(part: &[Dim], x: &[Dim], axis: usize, block: i64) -> bool {
    let fits = |(index, (part, size)): (usize, (&Dim, &Dim))| {
        match (part.as_number(), size.as_number()) {
            _ if index != axis => part == size,
            (Some(blocks), Some(size)) => blocks == size / block + i64::from(size % block != 0),
            // Of a size that is known only when it runs, the rule for slices decides.
            _ => true,
        }
    };
    block > 0 && part.len() == x.len() && part.iter().zip(x).enumerate().all(fits)
}

/// Whether a constant has one element.
fn is_one(view: &ConstantView) -> bool {
    view.dims.iter().product::<usize>() == 1
}

/// A matrix of codes `[N, K]` whose one scale, and one zero point (input 2), stand for all: no stride leads
/// from them, so that the matrix may be transposed, before this node or behind it. `None` of other forms.
pub(super) fn with_one_scale(
    cx: &mut Cx<'_, '_>,
    name: String,
    codes: ConstantView,
    scale: ConstantView,
) -> Result<Option<Constant>, Problem> {
    let signed = match codes.element {
        Element::Int4 | Element::Int8 => true,
        Element::Uint4 | Element::Uint8 => false,
        _ => return Ok(None),
    };
    let (&[n, k], &[down, right]) = (codes.dims.as_slice(), codes.strides.as_slice()) else {
        return Ok(None);
    };
    if n == 0 || k == 0 || !is_one(&scale) {
        return Ok(None);
    }
    let bits = codes.element.bits() as u8;
    let zero = match cx.constant(2)? {
        Some(view) if view.element == codes.element && is_one(&view) => view.bytes.first().copied(),
        Some(_) => None,
        None if cx.has(2) => None,
        None => Some(0),
    };
    let (Some(zero), Ok(block)) = (zero, u32::try_from(k)) else { return Ok(None) };
    let scale_dtype = scale_dtype(cx, &scale)?;
    let Some(scale_bytes) = scale.bytes.get(..scale_dtype.bytes()) else { return Ok(None) };
    // The codes count from the least number on; of 4 bits the other half of the byte is no one's.
    let zero = (if signed { zero ^ (1 << (bits - 1)) } else { zero }) & (u8::MAX >> (8 - bits));
    let format = QuantFormat {
        bits,
        block,
        scale: scale_dtype,
        short: false,
        zero: ZeroPoints::Fixed(zero),
    };
    let data = QuantData {
        codes: codes.bytes,
        code_strides: [down, right],
        signed,
        scales: scale.bytes.slice_ref(scale_bytes),
        scale_strides: [0, 0],
        zeros: None,
        zero_strides: [0, 0],
    };
    Ok(Some(quantised(name, format, n, k, data)))
}

/// A constant matrix in blocks or rows, or with one scale, becomes a quantised weight; `None` for any other
/// form.
fn quantised_weight(cx: &mut Cx<'_, '_>, axis: i64, block: i64) -> Result<Option<Value>, Problem> {
    let (Some(codes), Some(scales)) = (cx.constant(0)?, cx.constant(1)?) else { return Ok(None) };
    let is_code =
        matches!(codes.element, Element::Int4 | Element::Uint4 | Element::Int8 | Element::Uint8);
    let (&[rows, columns], true) = (codes.dims.as_slice(), is_code) else { return Ok(None) };
    if block == 0 && is_one(&scales) {
        let scale = scale_dtype(cx, &scales)?;
        let name = cx.node.inputs[0].clone();
        let Some(constant) = with_one_scale(cx, name, codes, scales)? else { return Ok(None) };
        let constant = cx.add_constant(constant)?;
        return Ok(Some(cx.push(Dequantise { to: scale }, &[constant])?));
    }
    if !codes.is_dense() || !scales.is_dense() || rows == 0 || columns == 0 {
        return Ok(None);
    }
    let axis = cx.axis(axis, 2)?;
    // In blocks the scales run along the axis; by axis there is one scale an index of it, and the
    // other dimension is one block.
    let (reduced, block, part_dims) = match block {
        0 if scales.dims == [codes.dims[axis]] => {
            (1 - axis, codes.dims[1 - axis], scales.dims.clone())
        }
        1.. => {
            let block = usize::try_from(block).map_err(|_| cx.malformed("block_size"))?;
            let mut part_dims = codes.dims.clone();
            part_dims[axis] = codes.dims[axis].div_ceil(block);
            (axis, block, part_dims)
        }
        _ => return Ok(None),
    };
    let (n, k) = (codes.dims[1 - reduced], codes.dims[reduced]);
    let blocks = k.div_ceil(block);
    if scales.dims != part_dims {
        return Err(cx.malformed(format!("scales {:?} of {:?}", scales.dims, codes.dims)));
    }
    let scale = scale_dtype(cx, &scales)?;
    if u32::try_from(block).is_err() {
        return Ok(None);
    }
    let bits = codes.element.bits() as usize;
    let signed = matches!(codes.element, Element::Int4 | Element::Int8);
    // Strides of (n, k) in a row-major matrix whose dimension `reduced` is k.
    let strides = |along: usize| if reduced == 1 { [along, 1] } else { [1, n] };
    let (zeros, zero) = match cx.constant(2)? {
        Some(view) if view.is_dense() && view.element == codes.element => {
            if view.dims != part_dims {
                let message = format!("zero points {:?}, the scales are {part_dims:?}", view.dims);
                return Err(cx.malformed(message));
            }
            (Some(view.bytes), ZeroPoints::Codes)
        }
        Some(_) => return Ok(None),
        None if cx.has(2) => return Ok(None),
        None => {
            let middle = 1u8 << (bits - 1);
            (None, ZeroPoints::Fixed(if signed { middle } else { 0 }))
        }
    };
    let format = QuantFormat { bits: bits as u8, block: block as u32, scale, short: false, zero };
    let data = QuantData {
        codes: codes.bytes,
        code_strides: strides(k),
        signed,
        scales: scales.bytes,
        scale_strides: strides(blocks),
        zeros,
        zero_strides: strides(blocks),
    };
    let name = cx.node.inputs[0].clone();
    let constant = cx.add_constant(quantised(name, format, n, k, data))?;
    let weight = cx.push(Dequantise { to: scale }, &[constant])?;
    if reduced == 1 {
        return Ok(Some(weight));
    }
    Ok(Some(cx.push(Transpose { order: vec![1, 0] }, &[weight])?))
}
