//! Weights of codes that name numbers in a table: `MatMulBnb4`, four bits as bitsandbytes writes them.
//!
//! The numbers of the table do not lie at equal distances, so no scale and zero point gives them. The
//! weight becomes the floats that it stands for, which `--weights` rounds like those of any file. They are
//! bytes that the file does not hold, eight times those that it does, and count as such.

use weir_ir::ops::{MatMul, Transpose};
use weir_ir::{ConstData, Constant, DType, Dim, TensorType, Value};

use super::quantised::{dense, expect, positive, scale_dtype};
use super::{OpRow, microsoft};
use crate::error::Problem;
use crate::onnx::context::Cx;
use crate::onnx::tensor::Element;

/// The family's operators.
pub const OPS: &[OpRow] = &[microsoft("MatMulBnb4", matmul_bnb4)];

/// Floats of four bits: a sign, two bits of exponent, one of mantissa, as parts of the greatest. This table
/// and the next are ONNX Runtime's, digit by digit (`blockwise_quant_block_bnb4.h`).
const FP4: [f32; 16] = [
    0.0,
    5.208_333_3e-3,
    0.666_666_7,
    1.0,
    0.333_333_34,
    0.5,
    0.166_666_67,
    0.25,
    -0.0,
    -5.208_333_3e-3,
    -0.666_666_7,
    -1.0,
    -0.333_333_34,
    -0.5,
    -0.166_666_67,
    -0.25,
];

/// Means of sixteen equally probable parts of a normal distribution (QLoRA, Dettmers et al. 2023, appendix
/// E).
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// `(activations, codes, scales)`; codes of `[N, K]` and scales of blocks of it run through all rows.
fn matmul_bnb4(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    cx.at_most_inputs(3)?;
    let k = positive(cx, "K", cx.attributes.int("K")?)?;
    let n = positive(cx, "N", cx.attributes.int("N")?)?;
    let block = positive(cx, "block_size", cx.attributes.int("block_size")?)?;
    let table = match cx.attributes.int("quant_type")? {
        Some(0) => &FP4,
        Some(1) => &NF4,
        Some(other) => return Err(cx.unsupported(format!("quant_type {other}"))),
        None => return Err(cx.malformed("no attribute quant_type")),
    };
    if cx.attributes.int_or("transB", 1)? != 1 {
        return Err(cx.unsupported("attribute transB"));
    }
    // Says whether gradients are wanted.
    cx.attributes.ignore(&["training_mode"]);
    let x = cx.value(0)?;
    let codes = dense(cx, 1, "the weight")?;
    if codes.element != Element::Uint8 {
        return Err(cx.malformed(format!("a weight of {}", codes.element.name())));
    }
    let scales = dense(cx, 2, "scales")?;
    let dtype = scale_dtype(cx, &scales)?;
    let count = n.checked_mul(k);
    expect(cx, "codes", &codes, count.map(|count| count.div_ceil(2)))?;
    expect(cx, "scales", &scales, count.map(|count| count.div_ceil(block)))?;
    let floats = count.unwrap_or(0).saturating_mul(dtype.bytes());
    cx.make_room(floats)?;
    let mut bytes = Vec::with_capacity(floats);
    // The first of two codes is the high half of their byte.
    let mut codes = codes.bytes.iter().flat_map(|pair| [pair >> 4, pair & 15]);
    let mut left = count.unwrap_or(0);
    for scale in scales.bytes.chunks_exact(dtype.bytes()) {
        let width = block.min(left);
        if width == 0 {
            break;
        }
        left -= width;
        let numbers = scaled(dtype, table, scale);
        for code in codes.by_ref().take(width) {
            bytes.extend_from_slice(&numbers[usize::from(code)][..dtype.bytes()]);
        }
    }
    let ty = TensorType::new(dtype, vec![Dim::from(n), Dim::from(k)]);
    let data = ConstData::Dense { bytes: bytes.into(), strides: vec![k, 1] };
    let weight = cx.add_constant(Constant { name: cx.node.inputs[1].clone(), ty, data })?;
    let weight = cx.push(Transpose { order: vec![1, 0] }, &[weight])?;
    Ok(vec![cx.push(MatMul {}, &[x, weight])?])
}

/// The numbers of a table times a block's scale, computed in the scale's type.
fn scaled(dtype: DType, table: &[f32; 16], scale: &[u8]) -> [[u8; 4]; 16] {
    let half = || u16::from_le_bytes([scale[0], scale[1]]);
    let narrow = |[low, high]: [u8; 2]| [low, high, 0, 0];
    match dtype {
        DType::F16 => {
            let scale = half::f16::from_bits(half());
            table.map(|number| narrow((half::f16::from_f32(number) * scale).to_le_bytes()))
        }
        DType::BF16 => {
            let scale = half::bf16::from_bits(half());
            table.map(|number| narrow((half::bf16::from_f32(number) * scale).to_le_bytes()))
        }
        _ => {
            let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
            table.map(|number| (number * scale).to_le_bytes())
        }
    }
}
