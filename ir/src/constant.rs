//! Constants: weights and tables, with their bytes left where the importer found them.
//!
//! Bytes are reference counted views (`bytes::Bytes`), usually of a memory map. Transposition and
//! concatenation are descriptions, so that no pass copies a large weight; the packer reads rows
//! through the accessors in this file.

use bytes::Bytes;

use crate::interpret::{EvalFault, Tensor, checked_count};
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

    fn code(bytes: &[u8], bits: u8, signed: bool, place: usize) -> u8 {
        let code = if bits == 4 { bytes[place / 2] >> (place % 2 * 4) & 15 } else { bytes[place] };
        // Two's complement plus half the range is the code with its top bit flipped.
        if signed { code ^ (1 << (bits - 1)) } else { code }
    }

    fn float(bytes: &[u8], dtype: DType, place: usize) -> f32 {
        let width = dtype.bytes();
        float_at(dtype, &bytes[place * width..][..width]) as f32
    }

    /// Unsigned codes of row n, scales and zeros of its blocks. The constant has been checked.
    fn row(&self, format: &QuantFormat, n: usize, row: &mut QuantRow) {
        for (k, code) in row.codes.iter_mut().enumerate() {
            let place = n * self.code_strides[0] + k * self.code_strides[1];
            *code = Self::code(&self.codes, format.bits, self.signed, place);
        }
        for block in 0..row.scales.len() {
            let place = n * self.scale_strides[0] + block * self.scale_strides[1];
            row.scales[block] = Self::float(&self.scales, format.scale, place);
            let place = n * self.zero_strides[0] + block * self.zero_strides[1];
            row.zeros[block] = match (format.zero, &self.zeros) {
                (ZeroPoints::Codes, Some(zeros)) => {
                    f32::from(Self::code(zeros, format.bits, self.signed, place))
                }
                (ZeroPoints::Float, Some(zeros)) => Self::float(zeros, format.scale, place),
                (ZeroPoints::Fixed(zero), _) => f32::from(zero),
                _ => 0.0,
            };
        }
    }
}

/// A row of a quantised weight: `weight[k] = (codes[k] - zeros[k / block]) * scales[k / block]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QuantRow {
    /// Unsigned codes, one per k.
    pub codes: Vec<u8>,
    /// Scales, one per block.
    pub scales: Vec<f32>,
    /// Zero points, one per block, in codes.
    pub zeros: Vec<f32>,
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
            _ => Err(format!("storage does not fit {}", self.ty)),
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

    /// The same elements with the dimensions of a dense matrix exchanged; nothing is copied.
    pub fn transposed(&self) -> Option<Constant> {
        let ConstData::Dense { bytes, strides } = &self.data else { return None };
        let ([rows, columns], [down, right]) = (self.ty.shape.as_slice(), strides.as_slice())
        else {
            return None;
        };
        let shape = vec![columns.clone(), rows.clone()];
        Some(Constant {
            name: self.name.clone(),
            ty: TensorType { element: self.ty.element, shape },
            data: ConstData::Dense { bytes: bytes.clone(), strides: vec![*right, *down] },
        })
    }

    /// Rows and columns of a matrix.
    pub fn matrix(&self) -> Option<[usize; 2]> {
        self.ty.sizes()?.try_into().ok()
    }

    /// The part of a stacked constant that has row n, and the row's number in it.
    fn part_of(&self, mut n: usize) -> Option<(&Constant, usize)> {
        let ConstData::Stacked(parts) = &self.data else { return Some((self, n)) };
        for part in parts {
            let rows = part.ty.shape.first()?.as_size()?;
            if n < rows {
                return part.part_of(n);
            }
            n -= rows;
        }
        None
    }

    /// Writes row n of a matrix of any float or quantised storage as f32. `false` if the constant
    /// is no such matrix, or n or the length of the row is wrong.
    pub fn row_f32(&self, n: usize, row: &mut [f32]) -> bool {
        if self.matrix().is_none_or(|[rows, columns]| n >= rows || columns != row.len()) {
            return false;
        }
        let Some((part, n)) = self.part_of(n) else { return false };
        match (&part.data, part.ty.element) {
            (ConstData::Dense { bytes, strides }, Element::Plain(dtype)) if dtype.is_float() => {
                let width = dtype.bytes();
                for (k, value) in row.iter_mut().enumerate() {
                    let place = (n * strides[0] + k * strides[1]) * width;
                    *value = float_at(dtype, &bytes[place..place + width]) as f32;
                }
                true
            }
            (ConstData::Quantised(_), Element::Quant(format)) => {
                let mut codes = QuantRow::default();
                part.quant_row(n, &mut codes);
                for (k, value) in row.iter_mut().enumerate() {
                    let block = k / format.block as usize;
                    *value = (f32::from(codes.codes[k]) - codes.zeros[block]) * codes.scales[block];
                }
                true
            }
            _ => false,
        }
    }

    /// Codes, scales and zero points of row n of a quantised matrix, for packing. `false` if the
    /// constant is none or n is wrong.
    pub fn quant_row(&self, n: usize, row: &mut QuantRow) -> bool {
        let Some([rows, columns]) = self.matrix() else { return false };
        if n >= rows {
            return false;
        }
        let Some((part, n)) = self.part_of(n) else { return false };
        let (ConstData::Quantised(data), Element::Quant(format)) = (&part.data, part.ty.element)
        else {
            return false;
        };
        let blocks = columns.div_ceil(format.block as usize);
        row.codes.resize(columns, 0);
        row.scales.resize(blocks, 0.0);
        row.zeros.resize(blocks, 0.0);
        data.row(&format, n, row);
        true
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
        if let [rows, columns] = *sizes.as_slice() {
            for n in 0..rows {
                self.row_f32(n, &mut values[n * columns..][..columns]);
            }
        }
        Ok(Tensor::of_quantised(self.ty.element, sizes, values))
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
