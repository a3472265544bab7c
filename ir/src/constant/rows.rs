//! Rows of constant matrices: floats of any storage, codes of quantised ones.
//!
//! A weight is read once, from end to end, so several rows are read together: a matrix that a file
//! holds transposed is then read along its own rows, not a cache line for every element.

use super::{ConstData, Constant, QuantData, float_at};
use crate::quantise::Rounder;
use crate::types::{DType, Element, QuantFormat, ZeroPoints};

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

impl QuantRow {
    fn resize(&mut self, columns: usize, blocks: usize) {
        self.codes.resize(columns, 0);
        self.scales.resize(blocks, 0.0);
        self.zeros.resize(blocks, 0.0);
    }
}

impl Constant {
    /// Writes row n of a matrix of any float or quantised storage as f32. `false` if the constant
    /// is no such matrix, or n or the length of the row is wrong.
    pub fn row_f32(&self, n: usize, row: &mut [f32]) -> bool {
        self.matrix().is_some_and(|[_, columns]| columns == row.len()) && self.rows_f32(n, row)
    }

    /// Writes as many whole rows as `out` holds, from row `first` on, like [`Constant::row_f32`].
    pub fn rows_f32(&self, first: usize, out: &mut [f32]) -> bool {
        let Some([rows, columns]) = self.matrix() else { return false };
        if columns == 0 || out.is_empty() {
            return out.is_empty();
        }
        let count = out.len() / columns;
        if !out.len().is_multiple_of(columns) || first.checked_add(count).is_none_or(|n| n > rows) {
            return false;
        }
        match (&self.data, self.ty.element) {
            (ConstData::Dense { bytes, strides }, Element::Plain(dtype)) if dtype.is_float() => {
                let [down, right] = [strides[0], strides[1]];
                if right == 1 {
                    for (row, out) in out.chunks_exact_mut(columns).enumerate() {
                        let begin = (first + row) * down * dtype.bytes();
                        floats(dtype, &bytes[begin..][..columns * dtype.bytes()], out);
                    }
                } else {
                    across(dtype, &bytes[..], [first * down, down, right], columns, out);
                }
                true
            }
            (ConstData::Quantised(data), Element::Quant(format)) => {
                let mut row = QuantRow::default();
                row.resize(columns, columns.div_ceil(format.block as usize));
                for (n, out) in out.chunks_exact_mut(columns).enumerate() {
                    data.row(&format, first + n, &mut row);
                    dequantise(&format, &row, out);
                }
                true
            }
            (ConstData::Stacked(parts), _) => {
                self.each_part(parts, first, count, |part, first, places| {
                    part.rows_f32(first, &mut out[places.start * columns..places.end * columns])
                })
            }
            (ConstData::Rounded(source), Element::Plain(dtype)) => {
                let read = source.rows_f32(first, out);
                match dtype {
                    DType::F16 => {
                        out.iter_mut().for_each(|x| *x = half::f16::from_f32(*x).to_f32());
                    }
                    DType::BF16 => {
                        out.iter_mut().for_each(|x| *x = half::bf16::from_f32(*x).to_f32());
                    }
                    _ => {}
                }
                read
            }
            (ConstData::Rounded(source), Element::Quant(format)) => {
                let Some(mut rounder) = Rounder::new(&format) else { return false };
                let mut row = QuantRow::default();
                row.resize(columns, columns.div_ceil(format.block as usize));
                let read = source.rows_f32(first, out);
                for out in out.chunks_exact_mut(columns) {
                    rounder.row(out, &mut row.codes, &mut row.scales, &mut row.zeros);
                    dequantise(&format, &row, out);
                }
                read
            }
            _ => false,
        }
    }

    /// Codes, scales and zero points of row n of a quantised matrix. `false` if the constant is none
    /// or n is wrong.
    pub fn quant_row(&self, n: usize, row: &mut QuantRow) -> bool {
        self.quant_rows(n, std::slice::from_mut(row))
    }

    /// Codes, scales and zero points of rows from `first` on, like [`Constant::quant_row`].
    pub fn quant_rows(&self, first: usize, out: &mut [QuantRow]) -> bool {
        let Some([rows, columns]) = self.matrix() else { return false };
        let Element::Quant(format) = self.ty.element else { return false };
        if first.checked_add(out.len()).is_none_or(|n| n > rows) {
            return false;
        }
        let blocks = columns.div_ceil(format.block.max(1) as usize);
        out.iter_mut().for_each(|row| row.resize(columns, blocks));
        match &self.data {
            ConstData::Quantised(data) => {
                for (n, row) in out.iter_mut().enumerate() {
                    data.row(&format, first + n, row);
                }
                true
            }
            ConstData::Stacked(parts) => {
                self.each_part(parts, first, out.len(), |part, first, places| {
                    part.quant_rows(first, &mut out[places])
                })
            }
            ConstData::Rounded(source) => {
                let Some(mut rounder) = Rounder::new(&format) else { return false };
                let mut floats = vec![0.0; out.len() * columns];
                let read = source.rows_f32(first, &mut floats);
                for (x, row) in floats.chunks_exact(columns.max(1)).zip(out) {
                    rounder.row(x, &mut row.codes, &mut row.scales, &mut row.zeros);
                }
                read
            }
            ConstData::Dense { .. } => false,
        }
    }

    /// Calls `read(part, row of the part, places among the asked rows)` for the parts of a stack that
    /// `count` rows from `first` on lie in.
    fn each_part(
        &self,
        parts: &[Constant],
        first: usize,
        count: usize,
        mut read: impl FnMut(&Constant, usize, std::ops::Range<usize>) -> bool,
    ) -> bool {
        let (mut begin, end) = (0, first + count);
        for part in parts {
            let Some([rows, _]) = part.matrix() else { return false };
            let (from, to) = (first.max(begin), end.min(begin + rows));
            if from < to && !read(part, from - begin, from - first..to - first) {
                return false;
            }
            begin += rows;
        }
        end <= begin
    }
}

impl QuantData {
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
        let begin = n * self.code_strides[0];
        if format.bits == 4 && self.code_strides[1] == 1 && begin.is_multiple_of(2) {
            let flip = if self.signed { 8 } else { 0 };
            let bytes = &self.codes[begin / 2..][..row.codes.len().div_ceil(2)];
            for (pair, byte) in row.codes.chunks_mut(2).zip(bytes) {
                pair[0] = (byte & 15) ^ flip;
                if let Some(second) = pair.get_mut(1) {
                    *second = (byte >> 4) ^ flip;
                }
            }
        } else {
            for (k, code) in row.codes.iter_mut().enumerate() {
                let place = begin + k * self.code_strides[1];
                *code = Self::code(&self.codes, format.bits, self.signed, place);
            }
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

/// The floats that a row of codes stands for.
fn dequantise(format: &QuantFormat, row: &QuantRow, out: &mut [f32]) {
    let block = format.block as usize;
    let blocks = out.chunks_mut(block).zip(row.codes.chunks(block));
    for ((out, codes), (scale, zero)) in blocks.zip(row.scales.iter().zip(&row.zeros)) {
        for (x, code) in out.iter_mut().zip(codes) {
            *x = (f32::from(*code) - zero) * scale;
        }
    }
}

/// Floats that lie one behind the other.
fn floats(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::F32 => {
            for (x, raw) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *x = f32::from_le_bytes(*raw);
            }
        }
        DType::BF16 => {
            for (x, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *x = half::bf16::from_le_bytes(*raw).to_f32();
            }
        }
        DType::F16 => {
            for (x, raw) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *x = half::f16::from_le_bytes(*raw).to_f32();
            }
        }
        _ => {
            for (x, raw) in out.iter_mut().zip(bytes.chunks_exact(dtype.bytes())) {
                *x = float_at(dtype, raw) as f32;
            }
        }
    }
}

/// Rows whose elements lie apart; `[begin, down, right]` in elements. Walks along the direction in
/// which they lie closer.
fn across(
    dtype: DType,
    bytes: &[u8],
    [begin, down, right]: [usize; 3],
    columns: usize,
    out: &mut [f32],
) {
    let (width, rows) = (dtype.bytes(), out.len() / columns);
    if down != 1 {
        for (row, out) in out.chunks_exact_mut(columns).enumerate() {
            for (k, x) in out.iter_mut().enumerate() {
                let place = (begin + row * down + k * right) * width;
                *x = float_at(dtype, &bytes[place..place + width]) as f32;
            }
        }
        return;
    }
    let mut line = vec![0.0; rows];
    for k in 0..columns {
        let place = (begin + k * right) * width;
        floats(dtype, &bytes[place..][..rows * width], &mut line);
        for (row, x) in line.iter().enumerate() {
            out[row * columns + k] = *x;
        }
    }
}
