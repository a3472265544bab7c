//! Weights of the model as pieces of the weights region: which form each use needs, where each
//! piece lies, how its bytes are made.
//!
//! A constant that is used twice in the same form (a tied head, a table of many layers) lies there
//! once. Pieces are page aligned and packed only when they are written.

use std::collections::HashMap;

use weir_ir::types::ZeroPoints;
use weir_ir::{
    Const, ConstData, Constant, DType, Element, Graph, QuantData, QuantFormat, TensorType,
};

use crate::image::{FillWeight, NotFinite, WeightImage, WeightPiece};
use crate::kernels::matmul::{Compute, MatmulSpec};
use crate::pack::{
    Blocks, DenseRows, PackedLayout, QuantRows, ScaleType, WeightFormat, ZeroPoint, pack_dense,
    pack_quantised,
};

#[cfg(test)]
mod tests;

/// Pieces begin at multiples of this.
const PAGE: u64 = 4096;

/// How a weight lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightForm {
    /// In groups of output channels, for products and embeddings.
    Packed(PackedLayout),
    /// f32 in row-major order, padded to whole cache lines.
    Plain,
}

/// Which weight: a parameter of a layer kind, or a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightSource {
    /// Number of the kind's weight parameter.
    Parameter(usize),
    /// A constant of the graph.
    Constant(Const),
}

/// A weight of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WeightSlot {
    /// Which weight.
    pub source: WeightSource,
    /// Its form.
    pub form: WeightForm,
}

/// The format and arithmetic of a product with a weight of this type, under the user's choice.
pub fn product(ty: &TensorType, choice: Option<Compute>) -> Option<(PackedLayout, Compute)> {
    let sizes = ty.sizes()?;
    let [channels, reduction] = sizes.as_slice() else { return None };
    let mut layout = stored(ty)?;
    let quantised = layout.format.blocks().is_some();
    let own = match layout.format {
        _ if quantised => Compute::Int8,
        WeightFormat::Bf16 => Compute::Bf16,
        _ => Compute::F32,
    };
    let compute = match choice {
        Some(Compute::Int8) | None => own,
        Some(Compute::Bf16) => {
            if !quantised {
                layout.format = WeightFormat::Bf16;
            }
            Compute::Bf16
        }
        Some(Compute::F32) => Compute::F32,
    };
    debug_assert_eq!((*channels, *reduction), (layout.channels, layout.reduction));
    MatmulSpec::new(layout, compute).supported().is_ok().then_some((layout, compute))
}

/// The layout that keeps the file's precision.
pub fn stored(ty: &TensorType) -> Option<PackedLayout> {
    let sizes = ty.sizes()?;
    let [channels, reduction] = sizes.as_slice() else { return None };
    let format = match ty.element {
        Element::Plain(DType::F16) => WeightFormat::F16,
        Element::Plain(DType::BF16) => WeightFormat::Bf16,
        Element::Plain(DType::F32 | DType::F64) => WeightFormat::F32,
        Element::Plain(_) => return None,
        Element::Quant(format) => quantised(format),
    };
    Some(PackedLayout { channels: *channels, reduction: *reduction, format })
}

/// Quantised storage; f32 where blocks have a length that no kernel takes.
fn quantised(format: QuantFormat) -> WeightFormat {
    let block = format.block as usize;
    // Longer blocks are cut: their parts repeat scale and zero point.
    let Some(block) = (1..=16).rev().map(|n| n * 16).find(|part| block.is_multiple_of(*part))
    else {
        return WeightFormat::F32;
    };
    let scale = if format.scale == DType::F16 { ScaleType::F16 } else { ScaleType::F32 };
    let zero = match format.zero {
        ZeroPoints::Fixed(zero) if u32::from(zero) == 1 << (format.bits - 1) => ZeroPoint::Implied,
        ZeroPoints::Fixed(_) | ZeroPoints::Codes => ZeroPoint::Code,
        ZeroPoints::Float => ZeroPoint::Float,
    };
    let blocks = Blocks { block, scale, zero };
    if format.bits == 4 { WeightFormat::Int4(blocks) } else { WeightFormat::Int8(blocks) }
}

/// Collects pieces and gives them their offsets.
pub struct WeightRegion<'a> {
    graph: &'a Graph,
    image: WeightImage<'a>,
    known: HashMap<(Const, WeightForm), u64>,
}

impl<'a> WeightRegion<'a> {
    /// An empty region.
    pub fn new(graph: &'a Graph) -> Self {
        Self { graph, image: WeightImage::default(), known: HashMap::new() }
    }

    /// Offset of a constant in a form.
    pub fn place(&mut self, constant: Const, form: WeightForm) -> u64 {
        if let Some(offset) = self.known.get(&(constant, form)) {
            return *offset;
        }
        let data = &self.graph.constants[constant];
        let bytes = match form {
            WeightForm::Packed(layout) => layout.bytes(),
            WeightForm::Plain => {
                (data.ty.element_count().unwrap_or(0).max(1) * 4).next_multiple_of(64)
            }
        } as u64;
        let offset = self.image.bytes.next_multiple_of(PAGE);
        let fill: FillWeight<'a> = match form {
            WeightForm::Packed(layout) if layout.format.blocks().is_some() => {
                Box::new(move |out| pack_quantised(&layout, &CodeRows { data, layout }, out))
            }
            WeightForm::Packed(layout) => {
                Box::new(move |out| pack_dense(&layout, &Rows(data), out))
            }
            WeightForm::Plain => Box::new(move |out| fill_plain(data, out)),
        };
        self.image.pieces.push(WeightPiece { offset, bytes, name: data.name.clone(), fill });
        self.image.bytes = offset + bytes;
        self.known.insert((constant, form), offset);
        offset
    }

    /// The region.
    pub fn finish(self) -> WeightImage<'a> {
        self.image
    }
}

struct Rows<'a>(&'a Constant);

impl DenseRows for Rows<'_> {
    fn row(&self, channel: usize, out: &mut [f32]) {
        dense_row(self.0, channel, out);
    }
}

/// One row of a matrix as f32.
fn dense_row(constant: &Constant, channel: usize, out: &mut [f32]) {
    match &constant.data {
        ConstData::Dense { bytes, strides } => {
            let dtype = constant.ty.dtype().unwrap_or(DType::F32);
            for (k, value) in out.iter_mut().enumerate() {
                *value = float(bytes, dtype, channel * strides[0] + k * strides[1]);
            }
        }
        ConstData::Quantised(data) => {
            let Element::Quant(format) = constant.ty.element else { return };
            for (k, value) in out.iter_mut().enumerate() {
                let block = k / format.block as usize;
                let code =
                    f32::from(code(data, &data.codes, format.bits, data.code_strides, channel, k));
                *value = (code - zero(data, format, channel, block))
                    * scale(data, format, channel, block);
            }
        }
        ConstData::Stacked(parts) => {
            if let Some((part, row)) = part_of(parts, channel) {
                dense_row(part, row, out);
            }
        }
    }
}

/// The part of a stack that holds a row, and the row's number there.
fn part_of(parts: &[Constant], mut row: usize) -> Option<(&Constant, usize)> {
    for part in parts {
        let rows = part.ty.shape.first()?.as_size()?;
        if row < rows {
            return Some((part, row));
        }
        row -= rows;
    }
    None
}

struct CodeRows<'a> {
    data: &'a Constant,
    layout: PackedLayout,
}

impl QuantRows for CodeRows<'_> {
    fn row(&self, channel: usize, codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]) {
        let part_block = self.layout.format.blocks().map_or(1, |blocks| blocks.block);
        code_row(self.data, part_block, channel, codes, scales, zeros);
    }
}

fn code_row(
    constant: &Constant,
    part_block: usize,
    channel: usize,
    codes: &mut [u8],
    scales: &mut [f32],
    zeros: &mut [f32],
) {
    match (&constant.data, constant.ty.element) {
        (ConstData::Quantised(data), Element::Quant(format)) => {
            for (k, value) in codes.iter_mut().enumerate() {
                *value = code(data, &data.codes, format.bits, data.code_strides, channel, k);
            }
            for (part, (scale_out, zero_out)) in scales.iter_mut().zip(zeros).enumerate() {
                let block = part * part_block / format.block as usize;
                *scale_out = scale(data, format, channel, block);
                *zero_out = zero(data, format, channel, block);
            }
        }
        (ConstData::Stacked(parts), _) => {
            if let Some((part, row)) = part_of(parts, channel) {
                code_row(part, part_block, row, codes, scales, zeros);
            }
        }
        _ => {}
    }
}

fn code(
    data: &QuantData,
    bytes: &[u8],
    bits: u8,
    strides: [usize; 2],
    row: usize,
    column: usize,
) -> u8 {
    let at = row * strides[0] + column * strides[1];
    let (raw, half) =
        if bits == 4 { (bytes[at / 2] >> (4 * (at % 2)) & 0xf, 8) } else { (bytes[at], 128) };
    if data.signed { raw ^ half } else { raw }
}

fn scale(data: &QuantData, format: QuantFormat, row: usize, block: usize) -> f32 {
    float(&data.scales, format.scale, row * data.scale_strides[0] + block * data.scale_strides[1])
}

fn zero(data: &QuantData, format: QuantFormat, row: usize, block: usize) -> f32 {
    let at = row * data.zero_strides[0] + block * data.zero_strides[1];
    match (format.zero, &data.zeros) {
        (ZeroPoints::Codes, Some(zeros)) => {
            f32::from(code(data, zeros, format.bits, data.zero_strides, row, block))
        }
        (ZeroPoints::Float, Some(zeros)) => float(zeros, format.scale, at),
        (ZeroPoints::Fixed(zero), _) => f32::from(zero),
        _ => 0.0,
    }
}

/// Element `index` of a run of floats.
fn float(bytes: &[u8], dtype: DType, index: usize) -> f32 {
    let at = index * dtype.bytes();
    let raw = &bytes[at..at + dtype.bytes()];
    match dtype {
        DType::F16 => half::f16::from_le_bytes([raw[0], raw[1]]).to_f32(),
        DType::BF16 => half::bf16::from_le_bytes([raw[0], raw[1]]).to_f32(),
        DType::F64 => raw.try_into().map_or(0.0, |raw| f64::from_le_bytes(raw) as f32),
        _ => raw.try_into().map_or(0.0, f32::from_le_bytes),
    }
}

/// All elements in row-major order as f32. Fails at one that is no number, or infinite: only a
/// scalar may be, as the bound of a comparison.
fn fill_plain(constant: &Constant, out: &mut [u8]) -> Result<(), NotFinite> {
    match &constant.data {
        ConstData::Dense { bytes, strides } => {
            let dtype = constant.ty.dtype().unwrap_or(DType::F32);
            let sizes = constant.ty.sizes().unwrap_or_default();
            let count: usize = sizes.iter().product();
            for (flat, place) in out.chunks_exact_mut(4).take(count).enumerate() {
                let mut rest = flat;
                let mut at = 0;
                for (size, stride) in sizes.iter().zip(strides).rev() {
                    at += rest % size * stride;
                    rest /= size;
                }
                let number = float(bytes, dtype, at);
                if number.is_nan() || number.is_infinite() && !sizes.is_empty() {
                    let width = sizes.last().copied().unwrap_or(1);
                    let (row, index) = (flat / width, flat % width);
                    return Err(NotFinite { what: "element", index, row, number });
                }
                place.copy_from_slice(&number.to_le_bytes());
            }
        }
        ConstData::Stacked(parts) => {
            let mut at = 0;
            for part in parts {
                let bytes = part.ty.element_count().unwrap_or(0) * 4;
                fill_plain(part, &mut out[at..at + bytes])?;
                at += bytes;
            }
        }
        ConstData::Quantised(_) => {
            let width = constant.ty.shape.last().and_then(|size| size.as_size()).unwrap_or(1);
            let mut row = vec![0.0; width];
            for (channel, place) in out.chunks_exact_mut(width * 4).enumerate() {
                if channel < constant.ty.shape[0].as_size().unwrap_or(0) {
                    dense_row(constant, channel, &mut row);
                    NotFinite::check("element", channel, &row)?;
                    for (to, value) in place.chunks_exact_mut(4).zip(&row) {
                        to.copy_from_slice(&value.to_le_bytes());
                    }
                }
            }
        }
    }
    Ok(())
}
