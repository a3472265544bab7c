//! Packed weights: the layout that every kernel of every ISA level reads.
//!
//! A weight `W[N, K]` (N output channels, K the reduction) is packed in groups of [`GROUP`]
//! channels, so that one 64-byte row holds one 32-bit unit of sixteen channels: one AVX-512
//! register, two of AVX2, four of the portable level.
//!
//! | format | bytes of a group |
//! |---|---|
//! | `F32` | `[K][16]` floats |
//! | `F16` | `[K/2][16][2]` halves |
//! | `Bf16` | the same, the later element of two first |
//! | `Int8` | per block: scales `[16]`, zero points `[16]`, `[block/4][16][4]` bytes |
//! | `Int4` | per block: scales `[16]`, zero points `[16]`, `[block/8][16][4]` bytes |
//! | with short scales | behind its blocks: units `[16]` |
//!
//! A byte of `Int4` holds element `8i + j` in its low nibble and `8i + 4 + j` in its high one (`j`
//! is the byte of the unit), so that a mask and a shift give two rows in the order of `Int8`. Codes
//! are unsigned: an element is `(code - zero) · scale`, computed in f32 with one rounding when the
//! zero point is whole. Where the zero point is implied it is 8 or 128 and takes no room.
//!
//! Channels beyond N have code (or value) 0 and scale 0. Elements beyond K, up to a whole block, do
//! not contribute: kernels multiply them with activations that are zero or do not read them. A group
//! begins at a multiple of 64 bytes.

mod fill;

#[cfg(test)]
mod tests;

pub use fill::{DenseRows, QuantRows, pack_bias, pack_dense, pack_quantised};

/// Output channels of a group.
pub const GROUP: usize = 16;

/// Storage type of block scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScaleType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// A signed byte that counts units of the channel, a power of two for all its blocks, which is an IEEE
    /// single behind the group's blocks. The scale has few significant bits ([`weir_ir::quantise`]): a code
    /// of four bits about its middle, times the scale, is exact in bf16.
    Short,
}

impl ScaleType {
    /// Bytes of one scale.
    pub fn bytes(self) -> usize {
        match self {
            ScaleType::F32 => 4,
            ScaleType::F16 => 2,
            ScaleType::Short => 1,
        }
    }

    /// Bytes of a channel's unit.
    pub fn unit_bytes(self) -> usize {
        if self == ScaleType::Short { 4 } else { 0 }
    }
}

/// How the zero points of blocks are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZeroPoint {
    /// Not stored: the middle of the code range (8 or 128).
    Implied,
    /// A code, one byte.
    Code,
    /// A float, which need not be whole.
    Float,
}

impl ZeroPoint {
    /// Bytes of one zero point.
    pub fn bytes(self) -> usize {
        match self {
            ZeroPoint::Implied => 0,
            ZeroPoint::Code => 1,
            ZeroPoint::Float => 4,
        }
    }
}

/// Blocks along the reduction that share scale and zero point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    /// Elements of a block: a multiple of 16, 16 ..= 256.
    pub block: usize,
    /// Storage of scales.
    pub scale: ScaleType,
    /// Storage of zero points.
    pub zero: ZeroPoint,
}

impl Blocks {
    /// Most elements of a block.
    pub const LARGEST: usize = 256;

    /// Size of packed blocks for a weight whose source has blocks of `source` elements: the largest
    /// that divides it, so that packed blocks repeat the scale of the source block they lie in. A
    /// source block that holds the whole reduction may be cut anywhere. Nothing if `source` is not
    /// a multiple of 16.
    pub fn size_for(source: usize, reduction: usize) -> Option<usize> {
        if source >= reduction {
            // Larger blocks would only lengthen the padding of the last one.
            return Some(reduction.next_multiple_of(16).clamp(16, 128));
        }
        let divides = |size: &usize| source > 0 && source.is_multiple_of(*size);
        (1..=Self::LARGEST / 16).rev().map(|sixteens| sixteens * 16).find(divides)
    }
}

/// Storage of a weight's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of an IEEE single.
    Bf16,
    /// Unsigned bytes with a scale per block.
    Int8(Blocks),
    /// Unsigned nibbles with a scale per block.
    Int4(Blocks),
}

impl WeightFormat {
    /// Blocks of a quantised format.
    pub fn blocks(self) -> Option<Blocks> {
        match self {
            WeightFormat::Int8(blocks) | WeightFormat::Int4(blocks) => Some(blocks),
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 => None,
        }
    }

    /// The zero point of codes whose zero point is implied.
    pub fn implied_zero(self) -> f32 {
        if matches!(self, WeightFormat::Int4(_)) { 8.0 } else { 128.0 }
    }

    /// Name in symbols and listings: equal exactly for equal formats.
    pub fn name(self) -> String {
        let (base, blocks) = match self {
            WeightFormat::F32 => return "f32".to_owned(),
            WeightFormat::F16 => return "f16".to_owned(),
            WeightFormat::Bf16 => return "bf16".to_owned(),
            WeightFormat::Int8(blocks) => ("int8", blocks),
            WeightFormat::Int4(blocks) => ("int4", blocks),
        };
        let scale = match blocks.scale {
            ScaleType::F32 => "f32",
            ScaleType::F16 => "f16",
            ScaleType::Short => "short",
        };
        let zero = match blocks.zero {
            ZeroPoint::Implied => "",
            ZeroPoint::Code => "z",
            ZeroPoint::Float => "zf",
        };
        format!("{base}b{}{scale}{zero}", blocks.block)
    }
}

/// Where the parts of a packed weight lie. All offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PackedLayout {
    /// Output channels N.
    pub channels: usize,
    /// Reduction K.
    pub reduction: usize,
    /// Storage.
    pub format: WeightFormat,
}

impl PackedLayout {
    /// Groups of channels.
    pub fn groups(&self) -> usize {
        self.channels.div_ceil(GROUP)
    }

    /// Blocks along the reduction (1 for formats without blocks).
    pub fn block_count(&self) -> usize {
        self.format.blocks().map_or(1, |blocks| self.reduction.div_ceil(blocks.block))
    }

    /// Offset of a block's zero points from the block's scales.
    pub fn zeros_offset(&self) -> usize {
        self.format.blocks().map_or(0, |blocks| GROUP * blocks.scale.bytes())
    }

    /// Offset of a block's codes from the block's scales.
    pub fn codes_offset(&self) -> usize {
        self.zeros_offset() + self.format.blocks().map_or(0, |blocks| GROUP * blocks.zero.bytes())
    }

    /// Bytes of one block of a group, scales and zero points included.
    pub fn block_bytes(&self) -> usize {
        match self.format {
            WeightFormat::F32 => self.reduction * GROUP * 4,
            WeightFormat::F16 | WeightFormat::Bf16 => self.reduction.div_ceil(2) * GROUP * 4,
            WeightFormat::Int8(blocks) => self.codes_offset() + blocks.block * GROUP,
            WeightFormat::Int4(blocks) => self.codes_offset() + blocks.block * GROUP / 2,
        }
    }

    /// Offset of the units of a group's scales from the group.
    pub fn units_offset(&self) -> usize {
        self.block_count() * self.block_bytes()
    }

    /// Bytes from one group to the next.
    pub fn group_bytes(&self) -> usize {
        let units = self.format.blocks().map_or(0, |blocks| GROUP * blocks.scale.unit_bytes());
        (self.units_offset() + units).next_multiple_of(64)
    }

    /// Bytes of the whole weight.
    pub fn bytes(&self) -> usize {
        self.groups() * self.group_bytes()
    }

    /// Byte offset of the unit that holds element (channel, k), and the element's first bit in it.
    pub fn element(&self, channel: usize, k: usize) -> (usize, u32) {
        let group = channel / GROUP * self.group_bytes();
        let lane = channel % GROUP;
        let unit = |row: usize| (row * GROUP + lane) * 4;
        match self.format {
            WeightFormat::F32 => (group + unit(k), 0),
            WeightFormat::F16 => (group + unit(k / 2), 16 * (k % 2) as u32),
            // `vdpbf16ps` begins with the upper half.
            WeightFormat::Bf16 => (group + unit(k / 2), 16 - 16 * (k % 2) as u32),
            WeightFormat::Int8(blocks) => {
                let at = k % blocks.block;
                let codes = group + k / blocks.block * self.block_bytes() + self.codes_offset();
                (codes + unit(at / 4), 8 * (at % 4) as u32)
            }
            WeightFormat::Int4(blocks) => {
                let at = k % blocks.block;
                let codes = group + k / blocks.block * self.block_bytes() + self.codes_offset();
                (codes + unit(at / 8), 8 * (at % 4) as u32 + 4 * (at % 8 / 4) as u32)
            }
        }
    }

    /// Byte offsets of scale and zero point of a channel's block.
    pub fn block_parameters(&self, channel: usize, block: usize) -> Option<(usize, usize)> {
        let blocks = self.format.blocks()?;
        let base = channel / GROUP * self.group_bytes() + block * self.block_bytes();
        let lane = channel % GROUP;
        Some((
            base + lane * blocks.scale.bytes(),
            base + self.zeros_offset() + lane * blocks.zero.bytes(),
        ))
    }

    /// Element (channel, k) of a packed weight: the layout's definition, and the reference of the
    /// tests.
    pub fn value(&self, packed: &[u8], channel: usize, k: usize) -> f32 {
        let (offset, shift) = self.element(channel, k);
        let unit = fill::read_u32(packed, offset);
        let code = match self.format {
            WeightFormat::F32 => return f32::from_bits(unit),
            WeightFormat::F16 => return half::f16::from_bits((unit >> shift) as u16).to_f32(),
            WeightFormat::Bf16 => return half::bf16::from_bits((unit >> shift) as u16).to_f32(),
            WeightFormat::Int8(_) => (unit >> shift) & 0xff,
            WeightFormat::Int4(_) => (unit >> shift) & 0xf,
        };
        let (scale, zero) = self.parameters(packed, channel, k);
        (code as f32 - zero) * scale
    }

    /// Scale and zero point of element (channel, k); 1 and 0 for formats without blocks.
    pub fn parameters(&self, packed: &[u8], channel: usize, k: usize) -> (f32, f32) {
        let Some(blocks) = self.format.blocks() else { return (1.0, 0.0) };
        let Some((scale, zero)) = self.block_parameters(channel, k / blocks.block) else {
            return (1.0, 0.0);
        };
        let scale = match blocks.scale {
            ScaleType::F32 => f32::from_bits(fill::read_u32(packed, scale)),
            ScaleType::F16 => half::f16::from_le_bytes([packed[scale], packed[scale + 1]]).to_f32(),
            ScaleType::Short => {
                let group = channel / GROUP * self.group_bytes();
                let unit =
                    fill::read_u32(packed, group + self.units_offset() + channel % GROUP * 4);
                f32::from(packed[scale] as i8) * f32::from_bits(unit)
            }
        };
        let zero = match blocks.zero {
            ZeroPoint::Implied => self.format.implied_zero(),
            ZeroPoint::Code => f32::from(packed[zero]),
            ZeroPoint::Float => f32::from_bits(fill::read_u32(packed, zero)),
        };
        (scale, zero)
    }
}
