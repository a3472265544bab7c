//! Matrix products: `MatMul`, `Gemm`, `FusedMatMul`.

use weir_ir::Value;
use weir_ir::ops::binary::BinaryOp;
use weir_ir::ops::{MatMul, Transpose};

use super::elementwise::{binary, with_number};
use super::{OpRow, microsoft, standard};
use crate::error::Problem;
use crate::onnx::context::Cx;

/// The family's operators.
pub const OPS: &[OpRow] = &[
    standard("MatMul", 1, matmul),
    standard("Gemm", 7, gemm),
    microsoft("FusedMatMul", fused_matmul),
];

fn matmul(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let (a, b) = (cx.value(0)?, cx.value(1)?);
    Ok(vec![cx.push(MatMul {}, &[a, b])?])
}

/// The value with its last two dimensions exchanged.
pub fn transposed(cx: &mut Cx<'_, '_>, x: Value) -> Result<Value, Problem> {
    let rank = cx.rank(x);
    if rank < 2 {
        return Err(cx.malformed(format!("a matrix of rank {rank}")));
    }
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    cx.push(Transpose { order }, &[x])
}

/// alpha A B + beta C, A and B transposed on demand.
fn gemm(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    let (mut a, mut b) = (cx.value(0)?, cx.value(1)?);
    if cx.attributes.flag("transA", false)? {
        a = transposed(cx, a)?;
    }
    if cx.attributes.flag("transB", false)? {
        b = transposed(cx, b)?;
    }
    let alpha = cx.attributes.float_or("alpha", 1.0)?;
    let beta = cx.attributes.float_or("beta", 1.0)?;
    let mut result = cx.push(MatMul {}, &[a, b])?;
    if alpha != 1.0 {
        result = with_number(cx, BinaryOp::Mul, result, f64::from(alpha))?;
    }
    if let Some(mut c) = cx.optional(2)? {
        if beta != 1.0 {
            c = with_number(cx, BinaryOp::Mul, c, f64::from(beta))?;
        }
        result = binary(cx, BinaryOp::Add, result, c)?;
    }
    Ok(vec![result])
}

fn fused_matmul(cx: &mut Cx<'_, '_>) -> Result<Vec<Value>, Problem> {
    for name in ["transBatchA", "transBatchB"] {
        if cx.attributes.flag(name, false)? {
            return Err(cx.unsupported(format!("attribute {name}")));
        }
    }
    let (mut a, mut b) = (cx.value(0)?, cx.value(1)?);
    if cx.attributes.flag("transA", false)? {
        a = transposed(cx, a)?;
    }
    if cx.attributes.flag("transB", false)? {
        b = transposed(cx, b)?;
    }
    let alpha = cx.attributes.float_or("alpha", 1.0)?;
    let result = cx.push(MatMul {}, &[a, b])?;
    if alpha == 1.0 {
        return Ok(vec![result]);
    }
    Ok(vec![with_number(cx, BinaryOp::Mul, result, f64::from(alpha))?])
}
