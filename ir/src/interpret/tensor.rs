//! Tensors of the interpreter. Floats of up to 32 bits are held as f32, already rounded to their
//! type; integers as i64 in the range of their type (u64 as its bits); quantised weights as the
//! floats that they stand for. Elements are shared, so that a clone or a reshape is free.

use std::sync::Arc;

use super::EvalFault;
use crate::dim::Dim;
use crate::types::{DType, Element, TensorType};

/// Most elements of one tensor: beyond it the graph is absurd, not the machine too small.
pub const MAX_ELEMENTS: usize = 1 << 28;

/// Elements, row-major.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Floats of up to 32 bits.
    F32(Arc<Vec<f32>>),
    /// Double precision.
    F64(Arc<Vec<f64>>),
    /// Integers.
    I64(Arc<Vec<i64>>),
    /// Booleans.
    Bool(Arc<Vec<bool>>),
}

/// A tensor with a value for every element.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    element: Element,
    sizes: Vec<usize>,
    data: Data,
}

/// Number of elements, if it is within [`MAX_ELEMENTS`].
pub fn checked_count(sizes: &[usize]) -> Result<usize, EvalFault> {
    // A size of 0 counts as 1, so that no partial product is beyond the limit either.
    let bound = sizes.iter().try_fold(1usize, |count, size| count.checked_mul((*size).max(1)));
    match bound {
        Some(bound) if bound <= MAX_ELEMENTS => Ok(if sizes.contains(&0) { 0 } else { bound }),
        _ => Err(EvalFault::TooLarge(sizes.to_vec())),
    }
}

/// A float rounded to a float type of up to 32 bits.
pub fn rounded(dtype: DType, value: f64) -> f32 {
    match dtype {
        DType::F16 => half::f16::from_f64(value).to_f32(),
        DType::BF16 => half::bf16::from_f64(value).to_f32(),
        _ => value as f32,
    }
}

/// An integer wrapped to the range of its type.
pub fn wrapped_integer(dtype: DType, value: i64) -> i64 {
    match dtype {
        DType::I32 => i64::from(value as i32),
        DType::I16 => i64::from(value as i16),
        DType::I8 => i64::from(value as i8),
        DType::U32 => i64::from(value as u32),
        DType::U16 => i64::from(value as u16),
        DType::U8 => i64::from(value as u8),
        _ => value,
    }
}

impl Tensor {
    /// A tensor of floats computed in f32, which are rounded to the type.
    pub fn from_f32(dtype: DType, sizes: Vec<usize>, mut values: Vec<f32>) -> Tensor {
        debug_assert_eq!(sizes.iter().product::<usize>(), values.len());
        if dtype == DType::F64 {
            let wide = values.into_iter().map(f64::from).collect();
            return Tensor {
                element: Element::Plain(dtype),
                sizes,
                data: Data::F64(Arc::new(wide)),
            };
        }
        if dtype != DType::F32 {
            for value in &mut values {
                *value = rounded(dtype, f64::from(*value));
            }
        }
        Tensor { element: Element::Plain(dtype), sizes, data: Data::F32(Arc::new(values)) }
    }

    /// A tensor of floats computed in f64, which are rounded to the type.
    pub fn from_f64(dtype: DType, sizes: Vec<usize>, values: Vec<f64>) -> Tensor {
        let data = if dtype == DType::F64 {
            Data::F64(Arc::new(values))
        } else {
            Data::F32(Arc::new(values.into_iter().map(|value| rounded(dtype, value)).collect()))
        };
        Tensor { element: Element::Plain(dtype), sizes, data }
    }

    /// A tensor of integers, which wrap to the range of the type.
    pub fn from_i64(dtype: DType, sizes: Vec<usize>, mut values: Vec<i64>) -> Tensor {
        debug_assert_eq!(sizes.iter().product::<usize>(), values.len());
        for value in &mut values {
            *value = wrapped_integer(dtype, *value);
        }
        Tensor { element: Element::Plain(dtype), sizes, data: Data::I64(Arc::new(values)) }
    }

    /// A tensor of booleans.
    pub fn from_bool(sizes: Vec<usize>, values: Vec<bool>) -> Tensor {
        debug_assert_eq!(sizes.iter().product::<usize>(), values.len());
        let element = Element::Plain(DType::Bool);
        Tensor { element, sizes, data: Data::Bool(Arc::new(values)) }
    }

    /// A tensor whose elements are equal (integers or booleans).
    pub fn filled(dtype: DType, sizes: Vec<usize>, value: i64) -> Result<Tensor, EvalFault> {
        let count = checked_count(&sizes)?;
        Ok(match dtype {
            DType::Bool => Tensor::from_bool(sizes, vec![value != 0; count]),
            _ if dtype.is_float() => Tensor::from_f64(dtype, sizes, vec![value as f64; count]),
            _ => Tensor::from_i64(dtype, sizes, vec![value; count]),
        })
    }

    /// The floats of a quantised weight.
    pub(crate) fn of_quantised(element: Element, sizes: Vec<usize>, values: Vec<f32>) -> Tensor {
        Tensor { element, sizes, data: Data::F32(Arc::new(values)) }
    }

    /// The same elements with other sizes; the caller guarantees an equal count.
    pub fn reshaped(&self, sizes: Vec<usize>) -> Tensor {
        debug_assert_eq!(sizes.iter().product::<usize>(), self.count());
        Tensor { element: self.element, sizes, data: self.data.clone() }
    }

    /// Elements moved to other places: the same type of elements.
    pub(crate) fn with(&self, sizes: Vec<usize>, data: Data) -> Tensor {
        Tensor { element: self.element, sizes, data }
    }

    /// Plain element type; that of the floats for a quantised weight.
    pub fn dtype(&self) -> DType {
        match self.element {
            Element::Plain(dtype) => dtype,
            Element::Quant(_) => DType::F32,
        }
    }

    /// Sizes.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Number of elements.
    pub fn count(&self) -> usize {
        match &self.data {
            Data::F32(values) => values.len(),
            Data::F64(values) => values.len(),
            Data::I64(values) => values.len(),
            Data::Bool(values) => values.len(),
        }
    }

    /// Elements.
    pub fn data(&self) -> &Data {
        &self.data
    }

    /// Its type.
    pub fn ty(&self) -> TensorType {
        let shape = self.sizes.iter().map(|size| Dim::from(*size)).collect();
        TensorType { element: self.element, shape }
    }

    /// Floats in single precision.
    pub fn f32s(&self) -> Result<Arc<Vec<f32>>, EvalFault> {
        match &self.data {
            Data::F32(values) => Ok(Arc::clone(values)),
            Data::F64(values) => Ok(Arc::new(values.iter().map(|value| *value as f32).collect())),
            _ => Err(EvalFault::Operand(format!("{} is not of floats", self.ty()))),
        }
    }

    /// Floats in double precision; integers and booleans as numbers.
    pub fn f64s(&self) -> Vec<f64> {
        match &self.data {
            Data::F32(values) => values.iter().map(|value| f64::from(*value)).collect(),
            Data::F64(values) => values.to_vec(),
            Data::I64(values) if self.dtype() == DType::U64 => {
                values.iter().map(|value| *value as u64 as f64).collect()
            }
            Data::I64(values) => values.iter().map(|value| *value as f64).collect(),
            Data::Bool(values) => values.iter().map(|value| f64::from(u8::from(*value))).collect(),
        }
    }

    /// Integers; booleans as 0 and 1.
    pub fn i64s(&self) -> Result<Arc<Vec<i64>>, EvalFault> {
        match &self.data {
            Data::I64(values) => Ok(Arc::clone(values)),
            Data::Bool(values) => Ok(Arc::new(values.iter().map(|v| i64::from(*v)).collect())),
            _ => Err(EvalFault::Operand(format!("{} is not of integers", self.ty()))),
        }
    }

    /// Booleans.
    pub fn bools(&self) -> Result<Arc<Vec<bool>>, EvalFault> {
        match &self.data {
            Data::Bool(values) => Ok(Arc::clone(values)),
            _ => Err(EvalFault::Operand(format!("{} is not of booleans", self.ty()))),
        }
    }
}

/// Applies a function that moves elements to a tensor of whatever elements.
macro_rules! move_elements {
    ($tensor:expr, $sizes:expr, |$values:ident| $body:expr) => {{
        use std::sync::Arc;
        use $crate::interpret::Data;
        let data = match $tensor.data() {
            Data::F32($values) => Data::F32(Arc::new($body)),
            Data::F64($values) => Data::F64(Arc::new($body)),
            Data::I64($values) => Data::I64(Arc::new($body)),
            Data::Bool($values) => Data::Bool(Arc::new($body)),
        };
        $tensor.with($sizes, data)
    }};
}
pub(crate) use move_elements;

/// Like [`move_elements`] for two tensors of one element type.
macro_rules! move_two {
    ($first:expr, $second:expr, $sizes:expr, |$a:ident, $b:ident| $body:expr) => {{
        use std::sync::Arc;
        use $crate::interpret::{Data, EvalFault};
        let data = match ($first.data(), $second.data()) {
            (Data::F32($a), Data::F32($b)) => Data::F32(Arc::new($body)),
            (Data::F64($a), Data::F64($b)) => Data::F64(Arc::new($body)),
            (Data::I64($a), Data::I64($b)) => Data::I64(Arc::new($body)),
            (Data::Bool($a), Data::Bool($b)) => Data::Bool(Arc::new($body)),
            _ => return Err(EvalFault::Operand("element types differ".into())),
        };
        $first.with($sizes, data)
    }};
}
pub(crate) use move_two;
