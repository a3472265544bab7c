//! Matrix product of the last two dimensions, numpy-wise (rank 1 allowed), f32 accumulation in
//! index order.
//!
//! Operands: a, b. Result: batch dimensions broadcast.

use super::{CoreOp, Operand};
use super::rules::{Inferred, agree, broadcast, operands, same_dtype, single};
use crate::attribute::attributes;
use crate::interpret::{Context, EvalFault, Tensor};
use crate::interpret::Data;
use super::rules::{broadcast_strides, strided};
use crate::types::DType;

attributes!(
    /// Matrix product of the last two dimensions, numpy-wise (rank 1 allowed), f32 accumulation in index order.
    MatMul {

    }
);

impl CoreOp for MatMul {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [a, b] = operands::<2>(given)?;
        let dtype = same_dtype(a, b)?;
        if dtype == DType::Bool {
            return Err(format!("{} has no product", a.ty));
        }
        let (a, b) = (&a.ty.shape, &b.ty.shape);
        let (a_batch, rows, inner) = match a.as_slice() {
            [] => return Err("a scalar has no matrix product".into()),
            [inner] => (&[][..], None, inner),
            [batch @ .., rows, inner] => (batch, Some(rows), inner),
        };
        let (b_batch, b_inner, columns) = match b.as_slice() {
            [] => return Err("a scalar has no matrix product".into()),
            [inner] => (&[][..], inner, None),
            [batch @ .., inner, columns] => (batch, inner, Some(columns)),
        };
        agree("summed sizes", inner, b_inner)?;
        let mut shape = broadcast(a_batch, b_batch)?;
        shape.extend(rows.into_iter().chain(columns).cloned());
        single(dtype, shape)
    }

    fn eval(&self, given: &[Tensor], cx: &Context<'_>) -> Result<Vec<Tensor>, EvalFault> {
        let (a_sizes, b_sizes) = (given[0].sizes(), given[1].sizes());
        let (a_batch, rows, inner) = match a_sizes {
            [batch @ .., rows, inner] => (batch, *rows, *inner),
            _ => (&[][..], 1, a_sizes[0]),
        };
        let (b_batch, columns) = match b_sizes {
            [batch @ .., _, columns] => (batch, *columns),
            _ => (&[][..], 1),
        };
        let rank = a_batch.len().max(b_batch.len());
        let sizes = cx.sizes(0);
        // Which matrix of each operand every matrix of the result comes from.
        let batch = &sizes[..rank];
        let order = |from: &[usize]| {
            let numbers: Vec<usize> = (0..from.iter().product()).collect();
            strided(&numbers, 0, &broadcast_strides(from, rank), batch)
        };
        let pairs: Vec<(usize, usize)> = order(a_batch).into_iter().zip(order(b_batch)).collect();
        let (m, k, n) = (rows, inner, columns);
        Ok(vec![match (given[0].data(), given[1].data()) {
            (Data::I64(a), Data::I64(b)) => {
                let product = products(&pairs, [m, k, n], a, b, 0, |sum, a, b| {
                    sum.wrapping_add(a.wrapping_mul(b))
                });
                Tensor::from_i64(given[0].dtype(), sizes, product)
            }
            (Data::F64(a), Data::F64(b)) => {
                let product = products(&pairs, [m, k, n], a, b, 0.0, |sum, a, b| sum + a * b);
                Tensor::from_f64(DType::F64, sizes, product)
            }
            (Data::F32(a), Data::F32(b)) => {
                let product = products(&pairs, [m, k, n], a, b, 0.0, |sum, a, b| sum + a * b);
                Tensor::from_f32(given[0].dtype(), sizes, product)
            }
            _ => return Err(EvalFault::Operand("element types differ".into())),
        }])
    }
}

/// Products of pairs of matrices `[m, k]` and `[k, n]`; every sum runs over k ascending.
fn products<T: Copy>(
    pairs: &[(usize, usize)],
    [m, k, n]: [usize; 3],
    a: &[T],
    b: &[T],
    zero: T,
    add: impl Fn(T, T, T) -> T,
) -> Vec<T> {
    let mut result = vec![zero; pairs.len() * m * n];
    for (pair, (left, right)) in pairs.iter().enumerate() {
        for row in 0..m {
            let sums = &mut result[(pair * m + row) * n..][..n];
            for inner in 0..k {
                let factor = a[(left * m + row) * k + inner];
                let line = &b[(right * k + inner) * n..][..n];
                sums.iter_mut().zip(line).for_each(|(sum, b)| *sum = add(*sum, factor, *b));
            }
        }
    }
    result
}
