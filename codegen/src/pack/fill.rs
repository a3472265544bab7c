//! Writes packed weights, group by group in parallel.
//!
//! Invariant: every byte of the output is written or was zero before, so the same rows give the
//! same bytes whatever the number of threads.

use rayon::prelude::*;

use crate::image::NotFinite;

use super::{GROUP, PackedLayout, ScaleType, WeightFormat, ZeroPoint};

/// Rows of an unquantised weight.
pub trait DenseRows: Sync {
    /// Writes the K elements of output channel `channel`.
    fn row(&self, channel: usize, out: &mut [f32]);
}

/// Rows of a weight quantised in blocks along K.
pub trait QuantRows: Sync {
    /// Writes what belongs to output channel `channel`: K unsigned codes (0 ..= 15 or 0 ..= 255),
    /// and per block a scale and a zero point in the codes' terms. Zero points are ignored where the
    /// layout implies them.
    fn row(&self, channel: usize, codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]);
}

pub(super) fn read_u32(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

/// Runs `fill(group, bytes of the group)` for all groups.
fn each_group(
    layout: &PackedLayout,
    out: &mut [u8],
    fill: impl Fn(usize, &mut [u8]) -> Result<(), NotFinite> + Sync,
) -> Result<(), NotFinite> {
    assert_eq!(out.len(), layout.bytes(), "a packed weight has the size of its layout");
    if out.is_empty() {
        return Ok(());
    }
    // The first fault, whatever the threads' order.
    let fault =
        out.par_chunks_mut(layout.group_bytes()).enumerate().find_map_first(|(group, bytes)| {
            bytes.fill(0);
            fill(group, bytes).err()
        });
    fault.map_or(Ok(()), Err)
}

/// Packs a weight of format `F32`, `F16` or `Bf16`; halves are rounded to nearest even. Fails at an
/// element that is no finite number.
pub fn pack_dense(
    layout: &PackedLayout,
    rows: &dyn DenseRows,
    out: &mut [u8],
) -> Result<(), NotFinite> {
    assert!(layout.format.blocks().is_none(), "a dense format");
    // Offsets inside a group are those of the first group.
    each_group(layout, out, |group, bytes| {
        let mut row = vec![0.0; layout.reduction];
        for lane in 0..GROUP.min(layout.channels - group * GROUP) {
            let channel = group * GROUP + lane;
            rows.row(channel, &mut row);
            NotFinite::check("element", channel, &row)?;
            for (k, value) in row.iter().enumerate() {
                let (offset, shift) = layout.element(lane, k);
                let at = offset + shift as usize / 8;
                match layout.format {
                    WeightFormat::F16 => {
                        let bits = half::f16::from_f32(*value).to_le_bytes();
                        bytes[at..at + 2].copy_from_slice(&bits);
                    }
                    WeightFormat::Bf16 => {
                        let bits = half::bf16::from_f32(*value).to_le_bytes();
                        bytes[at..at + 2].copy_from_slice(&bits);
                    }
                    _ => bytes[at..at + 4].copy_from_slice(&value.to_le_bytes()),
                }
            }
        }
        Ok(())
    })
}

/// Packs a weight of format `Int8` or `Int4`. Fails at a scale or a zero point that is no finite
/// number.
pub fn pack_quantised(
    layout: &PackedLayout,
    rows: &dyn QuantRows,
    out: &mut [u8],
) -> Result<(), NotFinite> {
    let blocks = layout.format.blocks().expect("a format with blocks");
    let count = layout.block_count();
    each_group(layout, out, |group, bytes| {
        let mut codes = vec![0; layout.reduction];
        let mut scales = vec![0.0; count];
        let mut zeros = vec![0.0; count];
        for lane in 0..GROUP.min(layout.channels - group * GROUP) {
            let channel = group * GROUP + lane;
            rows.row(channel, &mut codes, &mut scales, &mut zeros);
            NotFinite::check("scale", channel, &scales)?;
            NotFinite::check("zero point", channel, &zeros)?;
            for block in 0..count {
                let (scale, zero) =
                    layout.block_parameters(lane, block).expect("a format with blocks");
                match blocks.scale {
                    ScaleType::F32 => {
                        bytes[scale..scale + 4].copy_from_slice(&scales[block].to_le_bytes());
                    }
                    ScaleType::F16 => bytes[scale..scale + 2]
                        .copy_from_slice(&half::f16::from_f32(scales[block]).to_le_bytes()),
                }
                match blocks.zero {
                    ZeroPoint::Implied => {}
                    ZeroPoint::Code => bytes[zero] = zeros[block] as u8,
                    ZeroPoint::Float => {
                        bytes[zero..zero + 4].copy_from_slice(&zeros[block].to_le_bytes());
                    }
                }
            }
            for (k, code) in codes.iter().enumerate() {
                let (offset, shift) = layout.element(lane, k);
                bytes[offset + shift as usize / 8] |= code << (shift % 8);
            }
        }
        Ok(())
    })
}

/// Packs a bias: N floats, then zeros up to a whole group.
pub fn pack_bias(bias: &[f32], out: &mut [u8]) {
    assert_eq!(out.len(), bias.len().next_multiple_of(GROUP) * 4, "a bias fills whole groups");
    out.fill(0);
    for (place, value) in out.chunks_exact_mut(4).zip(bias) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}
