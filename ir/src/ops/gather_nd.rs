//! Takes slices at coordinates.
//!
//! Operands: data, integer indices `[..., m]`. Result: see ONNX GatherND.

use super::{CoreOp, Known, Operand};
use super::rules::{Inferred, agree, integer, last, operands, plain, single_known, uniform};
use crate::attribute::attributes;

attributes!(
    /// Takes slices at coordinates.
    GatherNd {
        /// Leading dimensions that both share.
        batch_dims: usize,
    }
);

impl CoreOp for GatherNd {
    fn infer(&self, given: &[Operand<'_>]) -> Result<Inferred, String> {
        let [data, indices] = operands::<2>(given)?;
        let dtype = plain(data)?;
        integer(indices)?;
        let coordinates = last(indices)?.as_size().ok_or("the number of coordinates is symbolic")?;
        let rank = data.ty.rank();
        let batch = self.batch_dims;
        let used = batch.checked_add(coordinates).filter(|used| *used <= rank);
        let Some(used) = used.filter(|_| batch < indices.ty.rank()) else {
            return Err(format!(
                "{batch} batch dimensions and {coordinates} coordinates do not fit {} and {}",
                data.ty, indices.ty
            ));
        };
        for (a, b) in data.ty.shape.iter().zip(&indices.ty.shape).take(batch) {
            agree("batch dimensions", a, b)?;
        }
        let mut shape = indices.ty.shape[..indices.ty.rank() - 1].to_vec();
        shape.extend_from_slice(&data.ty.shape[used..]);
        let known = uniform(data).cloned().map(Known::Fill);
        single_known(dtype, shape, known)
    }
}
