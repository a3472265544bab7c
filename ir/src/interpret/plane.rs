//! Rows of keys, or of values, as a cache's number format holds them.

use half::{bf16, f16};

use super::codes::{encode, encode_levels};
use super::{EvalFault, Tensor, checked_count};
use crate::graph::CacheFormat;
use crate::types::DType;

/// Numbers `[row][kv head][width]`, all in f32; of a format with codes the codes.
#[derive(Clone, Debug)]
pub(super) struct Plane {
    format: CacheFormat,
    heads: usize,
    width: usize,
    numbers: Vec<f32>,
    /// What codes are multiplied with, `[row][kv head]`; 1 in formats without.
    scales: Vec<f32>,
}

impl Plane {
    /// No rows.
    pub fn new(format: CacheFormat, heads: usize, width: usize) -> Plane {
        Plane { format, heads, width, numbers: Vec::new(), scales: Vec::new() }
    }

    /// No rows of the same form.
    pub fn emptied(&self) -> Plane {
        Plane::new(self.format, self.heads, self.width)
    }

    /// Numbers of a row.
    pub fn row(&self) -> usize {
        self.heads * self.width
    }

    /// Rounds and writes a row of all heads.
    pub fn write(&mut self, row: usize, values: &[f32]) -> Result<(), EvalFault> {
        self.reserve(row)?;
        for head in 0..self.heads {
            let values = &values[head * self.width..][..self.width];
            let index = row * self.heads + head;
            let place = &mut self.numbers[index * self.width..][..self.width];
            self.scales[index] = match self.format {
                CacheFormat::I8 => encode(values, place),
                CacheFormat::I4 => encode_levels(values, place),
                format => {
                    place.iter_mut().zip(values).for_each(|(to, from)| *to = stored(*from, format));
                    1.0
                }
            };
        }
        Ok(())
    }

    /// Copies what is stored of another plane's row of a head.
    pub fn copy(
        &mut self,
        row: usize,
        head: usize,
        from: &Plane,
        other: usize,
    ) -> Result<(), EvalFault> {
        self.reserve(row)?;
        let index = row * self.heads + head;
        let (numbers, scale) = from.coded(other, head);
        self.numbers[index * self.width..][..self.width].copy_from_slice(numbers);
        self.scales[index] = scale;
        Ok(())
    }

    /// Copies what is stored of a head in another row of this plane.
    pub fn copy_within(&mut self, row: usize, head: usize, other: usize) -> Result<(), EvalFault> {
        self.reserve(row)?;
        let [to, from] = [row, other].map(|row| row * self.heads + head);
        self.numbers.copy_within(from * self.width..(from + 1) * self.width, to * self.width);
        self.scales[to] = self.scales[from];
        Ok(())
    }

    fn reserve(&mut self, row: usize) -> Result<(), EvalFault> {
        checked_count(&[row + 1, self.row()])?;
        if self.scales.len() < (row + 1) * self.heads {
            self.numbers.resize((row + 1) * self.row(), f32::NAN);
            self.scales.resize((row + 1) * self.heads, f32::NAN);
        }
        Ok(())
    }

    /// A head of a row in a format without codes.
    pub fn numbers(&self, row: usize, head: usize) -> &[f32] {
        self.coded(row, head).0
    }

    /// A head of a row and its scale.
    pub fn coded(&self, row: usize, head: usize) -> (&[f32], f32) {
        let index = row * self.heads + head;
        (&self.numbers[index * self.width..][..self.width], self.scales[index])
    }

    /// The values that a head of a row stands for.
    pub fn widened(&self, row: usize, head: usize) -> Vec<f32> {
        let (numbers, scale) = self.coded(row, head);
        numbers.iter().map(|number| number * scale).collect()
    }

    /// The values of all rows, `[rows, kv heads, width]`.
    pub fn tensor(&self) -> Tensor {
        let rows = self.scales.len().checked_div(self.heads).unwrap_or(0);
        let heads = (0..rows).flat_map(|row| (0..self.heads).map(move |head| (row, head)));
        let values = heads.flat_map(|(row, head)| self.widened(row, head)).collect();
        Tensor::from_f32(DType::F32, vec![rows, self.heads, self.width], values)
    }
}

/// What a cache of a format without codes keeps of a value: the nearest number, halves to even; of a
/// finite value beyond the format's range the largest number. What is infinite or no number stays so.
pub fn stored(value: f32, format: CacheFormat) -> f32 {
    let held = |value: f32, largest: f32| {
        if value.is_finite() { value.clamp(-largest, largest) } else { value }
    };
    match format {
        CacheFormat::F16 => f16::from_f32(held(value, f16::MAX.to_f32())).to_f32(),
        CacheFormat::BF16 => bf16::from_f32(held(value, bf16::MAX.to_f32())).to_f32(),
        _ => value,
    }
}
