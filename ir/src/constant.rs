//! Constants: weights and tables, with their bytes left where the importer found them.
//!
//! Bytes are reference counted views (`bytes::Bytes`), usually of a memory map. Transposition and
//! concatenation and rounding are descriptions, so that no pass copies a large weight; the packer
//! reads rows through the accessors in `constant/rows.rs`.

mod rows;

use bytes::Bytes;

pub use rows::QuantRow;

use crate::interpret::{EvalFault, Tensor, checked_count};
use crate::quantise::Rounder;
use crate::types::{DType, Element, QuantFormat, TensorType, ZeroPoints};

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
    /// A matrix of floats of the same shape, rounded to this constant's type when it is read:
    /// [`crate::quantise`] says how. A rounded constant is never rounded again.
    Rounded(Box<Constant>),
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

impl QuantData {
    /// Whether both are one tensor: the same codes of the same file, read in the same way, with equal scales
    /// and zero points, which an importer may have spread.
    pub fn is_same_storage(&self, other: &QuantData) -> bool {
        let zeros = match (&self.zeros, &other.zeros) {
            (None, None) => true,
            (Some(a), Some(b)) => a == b && self.zero_strides == other.zero_strides,
            _ => false,
        };
        zeros
            && are_one(&self.codes, &other.codes)
            && self.scales == other.scales
            && self.signed == other.signed
            && self.code_strides == other.code_strides
            && self.scale_strides == other.scale_strides
    }

    /// Whether all rows and blocks read the same scale and the same zero point.
    fn has_one_scale(&self) -> bool {
        self.scale_strides == [0, 0] && (self.zeros.is_none() || self.zero_strides == [0, 0])
    }
}

/// Whether both are the same bytes at the same place.
fn are_one(one: &Bytes, other: &Bytes) -> bool {
    one.as_ptr() == other.as_ptr() && one.len() == other.len()
}

/// Row-major strides of a shape.
pub fn row_major(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1usize; sizes.len()];
    for index in (1..sizes.len()).rev() {
        strides[index - 1] = strides[index].saturating_mul(sizes[index]);
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

/// Why a constant's bytes do not hold its elements. The file's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("constant {name:?}: {message}")]
pub struct ConstantError {
    /// The constant.
    pub name: String,
    /// What does not fit.
    pub message: String,
}

/// The float of an element's bytes.
fn float_at(dtype: DType, raw: &[u8]) -> f64 {
    let half = || u16::from_le_bytes([raw[0], raw[1]]);
    match dtype {
        DType::F16 => half::f16::from_bits(half()).to_f64(),
        DType::BF16 => half::bf16::from_bits(half()).to_f64(),
        DType::F64 => f64::from_le_bytes(raw.try_into().expect("eight bytes")),
        _ => f64::from(f32::from_le_bytes(raw.try_into().expect("four bytes"))),
    }
}

/// The integer of an element's bytes; u64 as its bits.
fn integer_at(dtype: DType, raw: &[u8]) -> i64 {
    let mut wide = [0; 8];
    wide[..raw.len()].copy_from_slice(raw);
    let unsigned = i64::from_le_bytes(wide);
    let shift = 64 - 8 * raw.len() as u32;
    match dtype {
        DType::I8 | DType::I16 | DType::I32 => (unsigned << shift) >> shift,
        _ => unsigned,
    }
}

/// Greatest place that strides reach; `None` on overflow or without elements.
fn reach(sizes: &[usize], strides: &[usize]) -> Option<usize> {
    sizes.iter().zip(strides).try_fold(0usize, |reach, (size, stride)| {
        reach.checked_add(size.checked_sub(1)?.checked_mul(*stride)?)
    })
}

impl QuantData {
    fn check(&self, format: &QuantFormat, rows: usize, columns: usize) -> Result<(), String> {
        if !matches!(format.bits, 4 | 8) || format.block == 0 {
            return Err(format!("{} bits in blocks of {}", format.bits, format.block));
        }
        if !matches!(format.scale, DType::F32 | DType::F16 | DType::BF16) {
            return Err(format!("scales of {}", format.scale));
        }
        if rows == 0 || columns == 0 {
            return Ok(());
        }
        let blocks = columns.div_ceil(format.block as usize);
        let per_byte = if format.bits == 4 { 2 } else { 1 };
        let scale_bytes = format.scale.bytes();
        let fits = |what: &str,
                    bytes: &Bytes,
                    sizes: &[usize; 2],
                    strides: [usize; 2],
                    divide: usize,
                    multiply: usize| {
            let last =
                reach(sizes, &strides).and_then(|place| (place / divide + 1).checked_mul(multiply));
            if last.is_some_and(|last| last <= bytes.len()) {
                Ok(())
            } else {
                Err(format!("{what} reach behind their {} bytes", bytes.len()))
            }
        };
        fits("codes", &self.codes, &[rows, columns], self.code_strides, per_byte, 1)?;
        let grid = &[rows, blocks];
        fits("scales", &self.scales, grid, self.scale_strides, 1, scale_bytes)?;
        match (&self.zeros, format.zero) {
            (None, ZeroPoints::Fixed(_)) => Ok(()),
            (Some(zeros), ZeroPoints::Codes) => {
                fits("zero points", zeros, grid, self.zero_strides, per_byte, 1)
            }
            (Some(zeros), ZeroPoints::Float) => {
                fits("zero points", zeros, grid, self.zero_strides, 1, scale_bytes)
            }
            _ => Err("zero points do not fit the format".into()),
        }
    }
}

impl Constant {
    /// Checks that the bytes hold all elements that the type promises. Every accessor below relies
    /// on it: whoever makes a constant from a file calls it once.
    pub fn check(&self) -> Result<(), ConstantError> {
        let message = match self.checked() {
            Ok(()) => return Ok(()),
            Err(message) => message,
        };
        Err(ConstantError { name: self.name.clone(), message })
    }

    fn checked(&self) -> Result<(), String> {
        let sizes = self.ty.sizes().ok_or("a size is no number")?;
        let count = self.ty.element_count().ok_or("the number of elements overflows")?;
        match (&self.data, self.ty.element) {
            (ConstData::Dense { bytes, strides }, Element::Plain(dtype)) => {
                if strides.len() != sizes.len() {
                    return Err(format!("{} strides for {} sizes", strides.len(), sizes.len()));
                }
                let last = reach(&sizes, strides)
                    .and_then(|place| place.checked_add(1)?.checked_mul(dtype.bytes()));
                if count == 0 || last.is_some_and(|last| last <= bytes.len()) {
                    Ok(())
                } else {
                    Err(format!("{} reaches behind its {} bytes", self.ty, bytes.len()))
                }
            }
            (ConstData::Quantised(data), Element::Quant(format)) => match sizes.as_slice() {
                [rows, columns] => data.check(&format, *rows, *columns),
                _ => Err(format!("{} is no matrix", self.ty)),
            },
            (ConstData::Stacked(parts), _) => {
                let mut total = 0usize;
                for part in parts {
                    part.checked().map_err(|message| format!("{}: {message}", part.name))?;
                    let part_sizes = part.ty.sizes().unwrap_or_default();
                    let (Some((first, rest)), Some(own)) =
                        (part_sizes.split_first(), sizes.get(1..))
                    else {
                        return Err("a part without rows".into());
                    };
                    if part.ty.element != self.ty.element || rest != own {
                        return Err(format!("part {} does not fit {}", part.ty, self.ty));
                    }
                    total = total.checked_add(*first).ok_or("the sum of rows overflows")?;
                }
                if sizes.first() == Some(&total) {
                    Ok(())
                } else {
                    Err(format!("{total} stacked rows in {}", self.ty))
                }
            }
            (ConstData::Rounded(source), _) => {
                self.checked_source()?;
                source.checked()
            }
            _ => Err(format!("storage does not fit {}", self.ty)),
        }
    }

    /// Whether the source of a rounded constant fits its type.
    fn checked_source(&self) -> Result<(), String> {
        let ConstData::Rounded(source) = &self.data else { return Ok(()) };
        let rounds = match self.ty.element {
            Element::Plain(dtype) => matches!(dtype, DType::F32 | DType::F16 | DType::BF16),
            Element::Quant(format) => Rounder::new(&format).is_some(),
        };
        if !rounds {
            return Err(format!("nothing rounds to {}", self.ty));
        }
        let floats = source.ty.dtype().is_some_and(DType::is_float) && !source.has_rounded();
        if !floats || source.ty.rank() != 2 || source.ty.shape != self.ty.shape {
            return Err(format!("{} is no source of {}", source.ty, self.ty));
        }
        Ok(())
    }

    fn has_rounded(&self) -> bool {
        match &self.data {
            ConstData::Rounded(_) => true,
            ConstData::Stacked(parts) => parts.iter().any(Constant::has_rounded),
            ConstData::Dense { .. } | ConstData::Quantised(_) => false,
        }
    }

    /// Whether the elements lie dense in row-major order.
    pub fn is_row_major(&self) -> bool {
        match (&self.data, self.ty.sizes()) {
            (ConstData::Dense { strides, .. }, Some(sizes)) => {
                let dense = row_major(&sizes);
                let mut pairs = sizes.iter().zip(strides.iter().zip(&dense));
                pairs.all(|(size, (stride, dense))| *size == 1 || stride == dense)
            }
            _ => false,
        }
    }

    /// Whether both are one dense or quantised tensor: of one type, the same bytes of the same file, read in
    /// the same way.
    pub fn is_same_storage(&self, other: &Constant) -> bool {
        let same_data = match (&self.data, &other.data) {
            (
                ConstData::Dense { bytes, strides },
                ConstData::Dense { bytes: others, strides: other_strides },
            ) => strides == other_strides && are_one(bytes, others),
            (ConstData::Quantised(data), ConstData::Quantised(others)) => {
                data.is_same_storage(others)
            }
            _ => false,
        };
        same_data && self.ty == other.ty
    }

    /// The same elements with the dimensions of a matrix exchanged; nothing is copied. The matrix is dense,
    /// or quantised with one scale and zero point for all: others' blocks would run along the wrong
    /// dimension.
    pub fn transposed(&self) -> Option<Constant> {
        let [rows, columns] = self.ty.shape.as_slice() else { return None };
        let (element, data) = match (&self.data, self.ty.element) {
            (ConstData::Dense { bytes, strides }, element) => {
                let &[down, right] = strides.as_slice() else { return None };
                let (bytes, strides) = (bytes.clone(), vec![right, down]);
                (element, ConstData::Dense { bytes, strides })
            }
            (ConstData::Quantised(data), Element::Quant(format)) if data.has_one_scale() => {
                let block = u32::try_from(rows.as_size()?).ok().filter(|&block| block > 0)?;
                let [down, right] = data.code_strides;
                let data = QuantData { code_strides: [right, down], ..data.clone() };
                (Element::Quant(QuantFormat { block, ..format }), ConstData::Quantised(data))
            }
            _ => return None,
        };
        let shape = vec![columns.clone(), rows.clone()];
        Some(Constant { name: self.name.clone(), ty: TensorType { element, shape }, data })
    }

    /// The same matrix rounded to an element type when it is read; nothing is computed. `None` if the
    /// constant is no matrix of floats as they are in a file, or nothing rounds to the type.
    pub fn rounded(&self, element: Element) -> Option<Constant> {
        let ty = TensorType { element, shape: self.ty.shape.clone() };
        let data = ConstData::Rounded(Box::new(self.clone()));
        let rounded = Constant { name: self.name.clone(), ty, data };
        rounded.checked_source().is_ok().then_some(rounded)
    }

    /// Rows and columns of a matrix.
    pub fn matrix(&self) -> Option<[usize; 2]> {
        self.ty.sizes()?.try_into().ok()
    }

    /// All floats, row-major, as f32: of dense, stacked and quantised constants.
    pub fn elements_f32(&self) -> Option<Vec<f32>> {
        self.tensor().ok()?.f32s().ok().map(|values| values.to_vec())
    }

    /// The constant as a tensor of the interpreter.
    pub fn tensor(&self) -> Result<Tensor, EvalFault> {
        self.check().map_err(|error| EvalFault::Operand(error.to_string()))?;
        let sizes = self.ty.sizes().ok_or_else(|| EvalFault::Unbound(self.ty.to_string()))?;
        let count = checked_count(&sizes)?;
        if let (ConstData::Dense { bytes, strides }, Element::Plain(dtype)) =
            (&self.data, self.ty.element)
        {
            let places = places(&sizes, strides, count);
            let width = dtype.bytes();
            let raw = places.iter().map(|place| &bytes[place * width..][..width]);
            return Ok(match dtype {
                DType::Bool => Tensor::from_bool(sizes, raw.map(|raw| raw[0] != 0).collect()),
                _ if dtype.is_float() => {
                    Tensor::from_f64(dtype, sizes, raw.map(|raw| float_at(dtype, raw)).collect())
                }
                _ => {
                    let values = raw.map(|raw| integer_at(dtype, raw)).collect();
                    Tensor::from_i64(dtype, sizes, values)
                }
            });
        }
        if let (ConstData::Stacked(parts), Element::Plain(dtype)) = (&self.data, self.ty.element) {
            let parts: Vec<Tensor> =
                parts.iter().map(Constant::tensor).collect::<Result<_, _>>()?;
            return Ok(if dtype.is_float() {
                Tensor::from_f64(dtype, sizes, parts.iter().flat_map(Tensor::f64s).collect())
            } else {
                let mut values = Vec::with_capacity(count);
                for part in &parts {
                    values.extend_from_slice(&part.i64s()?);
                }
                match dtype {
                    DType::Bool => {
                        Tensor::from_bool(sizes, values.iter().map(|value| *value != 0).collect())
                    }
                    _ => Tensor::from_i64(dtype, sizes, values),
                }
            });
        }
        let mut values = vec![0.0; count];
        self.rows_f32(0, &mut values);
        Ok(match self.ty.element {
            Element::Plain(dtype) => Tensor::from_f32(dtype, sizes, values),
            Element::Quant(_) => Tensor::of_quantised(self.ty.element, sizes, values),
        })
    }
}

/// Places of the elements in row-major order.
fn places(sizes: &[usize], strides: &[usize], count: usize) -> Vec<usize> {
    let mut places = vec![0usize];
    for (size, stride) in sizes.iter().zip(strides) {
        places = places
            .iter()
            .flat_map(|place| (0..*size).map(move |index| place + index * stride))
            .collect();
    }
    debug_assert_eq!(places.len(), count);
    places
}
