//! Weights of the model as pieces of the weights region: which form each use needs, where each
//! piece lies, how its bytes are made.
//!
//! A constant that is used twice in the same form (a tied head, a table of many layers) lies there
//! once. Pieces are page aligned and packed only when they are written.

use std::collections::HashMap;

use weir_ir::types::ZeroPoints;
use weir_ir::{
    Const, ConstData, Constant, DType, Element, Graph, QuantFormat, QuantRow, TensorType,
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
        Some(codes @ (Compute::Int8 | Compute::Int8Row)) if quantised => codes,
        Some(Compute::Int8 | Compute::Int8Row) | None => own,
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
    let scale = match format.scale {
        DType::F16 if format.short => ScaleType::Short,
        DType::F16 => ScaleType::F16,
        _ => ScaleType::F32,
    };
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
        let key = (constant, form);
        let constant = &self.graph.constants[constant];
        let bytes = match form {
            WeightForm::Packed(layout) => layout.bytes(),
            WeightForm::Plain => {
                (constant.ty.element_count().unwrap_or(0).max(1) * 4).next_multiple_of(64)
            }
        } as u64;
        let offset = self.image.bytes.next_multiple_of(PAGE);
        let fill: FillWeight<'a> = match form {
            WeightForm::Packed(layout) if layout.format.blocks().is_some() => {
                let rows = CodeRows { constant, layout };
                Box::new(move |out| {
                    pack_quantised(&layout, &rows, out).map_err(|fault| in_source(constant, fault))
                })
            }
            WeightForm::Packed(layout) => {
                Box::new(move |out| pack_dense(&layout, &Rows(constant), out))
            }
            WeightForm::Plain => Box::new(move |out| fill_plain(constant, out)),
        };
        self.image.pieces.push(WeightPiece { offset, bytes, name: constant.name.clone(), fill });
        self.image.bytes = offset + bytes;
        self.known.insert(key, offset);
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
        self.0.row_f32(channel, out);
    }

    fn rows(&self, first: usize, reduction: usize, out: &mut [f32]) {
        debug_assert!(out.len().is_multiple_of(reduction.max(1)));
        self.0.rows_f32(first, out);
    }
}

struct CodeRows<'a> {
    constant: &'a Constant,
    layout: PackedLayout,
}

impl QuantRows for CodeRows<'_> {
    fn row(&self, channel: usize, codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]) {
        self.rows(channel, codes, scales, zeros, 1);
    }

    fn rows(
        &self,
        first: usize,
        codes: &mut [u8],
        scales: &mut [f32],
        zeros: &mut [f32],
        count: usize,
    ) {
        let Element::Quant(format) = self.constant.ty.element else { return };
        let mut rows = vec![QuantRow::default(); count];
        self.constant.quant_rows(first, &mut rows);
        // A block of the file is one or several of the layout.
        let part = self.layout.format.blocks().map_or(1, |blocks| blocks.block);
        let block_of = |index: usize| index * part / format.block as usize;
        let (blocks, reduction) = (self.layout.block_count(), self.layout.reduction);
        for (n, row) in rows.iter().enumerate() {
            codes[n * reduction..][..reduction].copy_from_slice(&row.codes);
            for index in 0..blocks {
                scales[n * blocks + index] = row.scales[block_of(index)];
                zeros[n * blocks + index] = row.zeros[block_of(index)];
            }
        }
    }
}

/// What is wrong with a weight in terms of the numbers that it was rounded from.
fn in_source(constant: &Constant, fault: NotFinite) -> NotFinite {
    let ConstData::Rounded(source) = &constant.data else { return fault };
    let columns = constant.matrix().map_or(0, |[_, columns]| columns);
    let mut row = vec![0.0; columns];
    source.row_f32(fault.row, &mut row);
    NotFinite::check("element", fault.row, &row).err().unwrap_or(fault)
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
        ConstData::Quantised(_) | ConstData::Rounded(_) => {
            let [rows, width] = constant.matrix().unwrap_or_default();
            let mut row = vec![0.0; width];
            for (channel, place) in out.chunks_exact_mut((width * 4).max(4)).enumerate().take(rows)
            {
                constant.row_f32(channel, &mut row);
                NotFinite::check("element", channel, &row)?;
                for (to, value) in place.chunks_exact_mut(4).zip(&row) {
                    to.copy_from_slice(&value.to_le_bytes());
                }
            }
        }
    }
    Ok(())
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
