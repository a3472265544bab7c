//! Constants: weights and tables, with their bytes left where the importer found them.
//!
//! Bytes are reference counted views (`bytes::Bytes`), usually of a memory map. Transposition and
//! concatenation are descriptions, so that no pass copies a large weight; the packer reads rows
//! through the accessors in this file.

use bytes::Bytes;

use crate::types::{DType, TensorType};

/// A constant tensor.
#[derive(Clone, Debug)]
pub struct Constant {
    /// Name in the model's file, or one that a pass made up; for messages and symbol names.
    pub name: String,
    /// Type; all sizes are numbers.
    pub ty: TensorType,
    /// Elements.
    pub data: ConstData,
}

/// Elements of a constant.
#[derive(Clone, Debug)]
pub enum ConstData {
    /// Plain little-endian elements at `strides` (in elements, one per dimension).
    Dense {
        /// The bytes of the elements.
        bytes: Bytes,
        /// Elements from one index to the next, per dimension; row-major when dense.
        strides: Vec<usize>,
    },
    /// Block-quantised rows.
    Quantised(QuantData),
    /// Parts stacked along dimension 0; their other sizes and their element types are equal.
    Stacked(Vec<Constant>),
}

/// Codes, scales and zero points of a `[N, K]` weight, each addressed by two strides, which covers
/// the layouts of all known exporters without copying.
#[derive(Clone, Debug)]
pub struct QuantData {
    /// Codes, packed low nibble first when `bits` is 4.
    pub codes: Bytes,
    /// Codes from one n to the next and from one k to the next.
    pub code_strides: [usize; 2],
    /// Whether codes (and zero points) are two's complement; they count as unsigned after adding
    /// half their range.
    pub signed: bool,
    /// Scales.
    pub scales: Bytes,
    /// Scales from one n to the next and from one block to the next.
    pub scale_strides: [usize; 2],
    /// Zero points as the format says (`Codes`: packed like codes; `Float`: like scales).
    pub zeros: Option<Bytes>,
    /// Zero points from one n to the next and from one block to the next.
    pub zero_strides: [usize; 2],
}

/// Row-major strides of a shape.
pub fn row_major(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; sizes.len()];
    for index in (1..sizes.len()).rev() {
        strides[index - 1] = strides[index] * sizes[index];
    }
    strides
}

impl Constant {
    /// A dense constant of plain elements in row-major order.
    ///
    /// # Panics
    /// If a size is not a number or the byte count does not fit: the importer has checked both.
    pub fn dense(name: impl Into<String>, ty: TensorType, bytes: Bytes) -> Constant {
        let sizes = ty.sizes().expect("constants have numeric sizes");
        let width = ty.dtype().expect("a plain element type").bytes();
        assert_eq!(ty.element_count().and_then(|n| n.checked_mul(width)), Some(bytes.len()));
        let strides = row_major(&sizes);
        Constant { name: name.into(), ty, data: ConstData::Dense { bytes, strides } }
    }

    /// A dense f32 constant.
    pub fn from_f32(name: impl Into<String>, sizes: &[usize], values: &[f32]) -> Constant {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = sizes.iter().map(|size| (*size).into()).collect();
        Constant::dense(name, TensorType::new(DType::F32, shape), bytes.into())
    }

    /// A dense i64 constant.
    pub fn from_i64(name: impl Into<String>, sizes: &[usize], values: &[i64]) -> Constant {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = sizes.iter().map(|size| (*size).into()).collect();
        Constant::dense(name, TensorType::new(DType::I64, shape), bytes.into())
    }
}

impl Constant {
    /// All elements of a plain integer or boolean constant with at most `limit` elements,
    /// row-major.
    pub fn small_integers(&self, limit: usize) -> Option<Vec<i64>> {
        let dtype = self.ty.dtype()?;
        let count = self.ty.element_count()?;
        if dtype.is_float() || count > limit {
            return None;
        }
        let ConstData::Dense { bytes, strides } = &self.data else { return None };
        let sizes = self.ty.sizes()?;
        let mut elements = Vec::with_capacity(count);
        for flat in 0..count {
            let mut rest = flat;
            let mut place = 0;
            for dimension in (0..sizes.len()).rev() {
                place += rest % sizes[dimension] * strides[dimension];
                rest /= sizes[dimension];
            }
            let width = dtype.bytes();
            let raw = bytes.get(place * width..(place + 1) * width)?;
            let mut wide = [0; 8];
            wide[..width].copy_from_slice(raw);
            let unsigned = u64::from_le_bytes(wide);
            let shift = 64 - 8 * width as u32;
            elements.push(match dtype {
                DType::U64 => i64::try_from(unsigned).ok()?,
                DType::U32 | DType::U16 | DType::U8 | DType::Bool => unsigned as i64,
                _ => ((unsigned << shift) as i64) >> shift,
            });
        }
        Some(elements)
    }
}
