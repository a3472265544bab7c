//! Rows of keys, or of values, as a cache's number format holds them.

use half::{bf16, f16};

use super::codes::{codes_to_levels, encode, encode_levels, encode_levels_again};
use super::{EvalFault, Tensor, checked_count};
use crate::graph::{CacheFormat, RowFormats};
use crate::types::DType;

/// Numbers `[row][kv head][width]`, all in f32; of a format with codes the codes. A row of a block with
/// a format of its own lies here as attention reads it: as numbers of the ring's format, if that has no
/// codes.
#[derive(Clone, Debug)]
pub(super) struct Plane {
    format: CacheFormat,
    /// The block's own format.
    block: Option<CacheFormat>,
    heads: usize,
    width: usize,
    numbers: Vec<f32>,
    /// What codes are multiplied with, `[row][kv head]`; 1 in formats without.
    scales: Vec<f32>,
}

impl Plane {
    /// No rows.
    pub fn new(formats: RowFormats, heads: usize, width: usize) -> Plane {
        let RowFormats { ring: format, block } = formats;
        Plane { format, block, heads, width, numbers: Vec::new(), scales: Vec::new() }
    }

    /// No rows of the same form.
    pub fn emptied(&self) -> Plane {
        let formats = RowFormats { ring: self.format, block: self.block };
        Plane::new(formats, self.heads, self.width)
    }

    /// Numbers of a row.
    pub fn row(&self) -> usize {
        self.heads * self.width
    }

    /// Rounds and writes a row of all heads, one of the block or of the ring.
    pub fn write(&mut self, row: usize, values: &[f32], is_block: bool) -> Result<(), EvalFault> {
        self.reserve(row)?;
        let (ring, block) = (self.format, self.block.filter(|_| is_block));
        for head in 0..self.heads {
            let values = &values[head * self.width..][..self.width];
            let (place, scale) = self.place(row, head);
            *scale = match block.unwrap_or(ring) {
                CacheFormat::I8 => encode(values, place),
                CacheFormat::I4 => encode_levels(values, place),
                format => {
                    place.iter_mut().zip(values).for_each(|(to, from)| *to = stored(*from, format));
                    1.0
                }
            };
            if block.is_some() {
                read_as(ring, place, scale);
            }
        }
        Ok(())
    }

    /// A head of a row and its scale.
    fn place(&mut self, row: usize, head: usize) -> (&mut [f32], &mut f32) {
        let index = row * self.heads + head;
        (&mut self.numbers[index * self.width..][..self.width], &mut self.scales[index])
    }

    /// Rounds a head of a row, which has the ring's format, to the block's, if that is another one.
    pub fn round_to_block(&mut self, row: usize, head: usize) {
        let (ring, Some(block)) = (self.format, self.block) else { return };
        let (place, scale) = self.place(row, head);
        *scale = if ring == CacheFormat::I8 {
            codes_to_levels(place, *scale)
        } else {
            let values = place.to_vec();
            match block {
                CacheFormat::I4 => encode_levels_again(&values, place),
                _ => encode(&values, place),
            }
        };
        read_as(ring, place, scale);
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

/// Codes of a block with this scale as attention over a ring of this format reads them.
fn read_as(ring: CacheFormat, codes: &mut [f32], scale: &mut f32) {
    if !ring.is_coded() {
        codes.iter_mut().for_each(|code| *code = stored(*code * *scale, ring));
        *scale = 1.0;
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
