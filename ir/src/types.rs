//! Types of values: an element type and a shape.
//!
//! Quantised weights are an element type, not a pattern of dequantise nodes:
//! `int4<block=32, scale=f16, zero=codes>[N, K]`.

use std::fmt;

use crate::dim::Dim;

/// A plain element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    /// IEEE single precision, the type of all arithmetic from `Canonical` on.
    F32,
    /// IEEE half precision.
    F16,
    /// Upper half of `F32`.
    BF16,
    /// IEEE double precision.
    F64,
    /// Signed 64 bits.
    I64,
    /// Signed 32 bits.
    I32,
    /// Signed 16 bits.
    I16,
    /// Signed 8 bits.
    I8,
    /// Unsigned 64 bits.
    U64,
    /// Unsigned 32 bits.
    U32,
    /// Unsigned 16 bits.
    U16,
    /// Unsigned 8 bits.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// All plain types.
    pub const ALL: [DType; 13] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::F64,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::I8,
        DType::U64,
        DType::U32,
        DType::U16,
        DType::U8,
        DType::Bool,
    ];

    /// Name in the text form.
    pub fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F64 => "f64",
            DType::I64 => "i64",
            DType::I32 => "i32",
            DType::I16 => "i16",
            DType::I8 => "i8",
            DType::U64 => "u64",
            DType::U32 => "u32",
            DType::U16 => "u16",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            DType::F64 | DType::I64 | DType::U64 => 8,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::I8 | DType::U8 | DType::Bool => 1,
        }
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16 | DType::F64)
    }

    /// Whether it is an integer type (not `Bool`).
    pub fn is_integer(self) -> bool {
        !self.is_float() && self != DType::Bool
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is subtracted from a code before it is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZeroPoints {
    /// The same number for every block.
    Fixed(u8),
    /// A code per block, of the width of the weights' codes.
    Codes,
    /// A float per block, of the type of the scales.
    Float,
}

/// Block-quantised rows: `weight[n, k] = (code - zero) * scale`, code unsigned, scale and zero per
/// row n and block of consecutive k.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuantFormat {
    /// Bits of a code: 4 or 8.
    pub bits: u8,
    /// Consecutive k that share a scale; the last block may be partial.
    pub block: u32,
    /// Type of the scales: `F32`, `F16` or `BF16`. Scales may be negative.
    pub scale: DType,
    /// Scales are short: halves of few bits with one unit for each row, as [`crate::quantise`] says.
    pub short: bool,
    /// Zero points.
    pub zero: ZeroPoints,
}

/// An element type: plain or quantised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element {
    /// A plain type.
    Plain(DType),
    /// Block-quantised; only constants of shape `[N, K]` have it.
    Quant(QuantFormat),
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Plain(dtype) => dtype.fmt(f),
            Element::Quant(format) => {
                let short = if format.short { ", short" } else { "" };
                write!(
                    f,
                    "int{}<block={}, scale={}{short}, zero=",
                    format.bits, format.block, format.scale
                )?;
                match format.zero {
                    ZeroPoints::Fixed(zero) => write!(f, "{zero}>"),
                    ZeroPoints::Codes => f.write_str("codes>"),
                    ZeroPoints::Float => f.write_str("float>"),
                }
            }
        }
    }
}

/// Type of a value.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Element type.
    pub element: Element,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: Vec<Dim>,
}

impl TensorType {
    /// A tensor of plain elements.
    pub fn new(dtype: DType, shape: Vec<Dim>) -> Self {
        Self { element: Element::Plain(dtype), shape }
    }

    /// The plain element type, if it is not quantised.
    pub fn dtype(&self) -> Option<DType> {
        match self.element {
            Element::Plain(dtype) => Some(dtype),
            Element::Quant(_) => None,
        }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// All sizes as numbers, if none is symbolic or negative.
    pub fn sizes(&self) -> Option<Vec<usize>> {
        self.shape.iter().map(Dim::as_size).collect()
    }

    /// Number of elements, if all sizes are numbers and no product of some of them overflows.
    pub fn element_count(&self) -> Option<usize> {
        let sizes = self.sizes()?;
        let bound =
            sizes.iter().try_fold(1usize, |count, size| count.checked_mul((*size).max(1)))?;
        Some(if sizes.contains(&0) { 0 } else { bound })
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[", self.element)?;
        for (index, dim) in self.shape.iter().enumerate() {
            write!(f, "{}{dim}", if index == 0 { "" } else { ", " })?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
