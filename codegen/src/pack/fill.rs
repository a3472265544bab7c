//! Writes packed weights, group by group in parallel.
//!
//! Invariant: every byte of the output is written or was zero before, so the same rows give the
//! same bytes whatever the number of threads.

use rayon::prelude::*;
use weir_ir::quantise::{short_scale, unit_of_scales};

use crate::image::NotFinite;

use super::{GROUP, PackedLayout, ScaleType, WeightFormat, ZeroPoint};

/// Rows of an unquantised weight.
pub trait DenseRows: Sync {
    /// Writes the K elements of output channel `channel`.
    fn row(&self, channel: usize, out: &mut [f32]);

    /// Writes the elements of several channels from `first` on, `reduction` for each.
    fn rows(&self, first: usize, reduction: usize, out: &mut [f32]) {
        for (index, row) in out.chunks_exact_mut(reduction.max(1)).enumerate() {
            self.row(first + index, row);
        }
    }
}

/// Rows of a weight quantised in blocks along K.
pub trait QuantRows: Sync {
    /// Writes what belongs to output channel `channel`: K unsigned codes (0 ..= 15 or 0 ..= 255),
    /// and per block a scale and a zero point in the codes' terms. Zero points are ignored where the
    /// layout implies them.
    fn row(&self, channel: usize, codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]);

    /// Writes what belongs to `count` channels from `first` on, channel after channel.
    fn rows(
        &self,
        first: usize,
        codes: &mut [u8],
        scales: &mut [f32],
        zeros: &mut [f32],
        count: usize,
    ) {
        let (reduction, blocks) = (codes.len() / count, scales.len() / count);
        for index in 0..count {
            self.row(
                first + index,
                &mut codes[index * reduction..][..reduction],
                &mut scales[index * blocks..][..blocks],
                &mut zeros[index * blocks..][..blocks],
            );
        }
    }
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
    source: &dyn DenseRows,
    out: &mut [u8],
) -> Result<(), NotFinite> {
    assert!(layout.format.blocks().is_none(), "a dense format");
    each_group(layout, out, |group, bytes| {
        let (first, reduction) = (group * GROUP, layout.reduction);
        let mut rows = vec![0.0; GROUP.min(layout.channels - first) * reduction];
        source.rows(first, reduction, &mut rows);
        for (lane, row) in rows.chunks_exact(reduction.max(1)).enumerate() {
            NotFinite::check("element", first + lane, row)?;
            // A unit of 32 bits holds one element or two; one of the same lane comes 16 units later.
            match layout.format {
                WeightFormat::F16 | WeightFormat::Bf16 => {
                    let is_f16 = layout.format == WeightFormat::F16;
                    for (pair, values) in row.chunks(2).enumerate() {
                        for (half, value) in values.iter().enumerate() {
                            let (half, bits) = if is_f16 {
                                (half, half::f16::from_f32(*value).to_bits())
                            } else {
                                (1 - half, half::bf16::from_f32(*value).to_bits())
                            };
                            let at = (pair * GROUP + lane) * 4 + half * 2;
                            bytes[at..at + 2].copy_from_slice(&bits.to_le_bytes());
                        }
                    }
                }
                _ => {
                    for (k, value) in row.iter().enumerate() {
                        let at = (k * GROUP + lane) * 4;
                        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                    }
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
    source: &dyn QuantRows,
    out: &mut [u8],
) -> Result<(), NotFinite> {
    let blocks = layout.format.blocks().expect("a format with blocks");
    let (count, reduction) = (layout.block_count(), layout.reduction);
    each_group(layout, out, |group, bytes| {
        let first = group * GROUP;
        let lanes = GROUP.min(layout.channels - first);
        let mut codes = vec![0; lanes * reduction];
        let mut scales = vec![0.0; lanes * count];
        let mut zeros = vec![0.0; lanes * count];
        source.rows(first, &mut codes, &mut scales, &mut zeros, lanes);
        for lane in 0..lanes {
            let row = first + lane;
            NotFinite::check("scale", row, &scales[lane * count..][..count])?;
            NotFinite::check("zero point", row, &zeros[lane * count..][..count])?;
        }
        let units: Vec<f32> = scales.chunks(count).map(unit_of_scales).collect();
        if blocks.scale == ScaleType::Short {
            let places = bytes[layout.units_offset()..].chunks_exact_mut(4);
            places.zip(&units).for_each(|(place, unit)| place.copy_from_slice(&unit.to_le_bytes()));
        }
        for (index, place) in bytes.chunks_exact_mut(layout.block_bytes()).take(count).enumerate() {
            let (parameters, packed) = place.split_at_mut(layout.codes_offset());
            let (scale_place, zero_place) = parameters.split_at_mut(layout.zeros_offset());
            let begin = index * blocks.block;
            for lane in 0..lanes {
                let scale = scales[lane * count + index];
                put_scale(scale_place, blocks.scale, lane, [scale, units[lane]]);
                put_zero(zero_place, blocks.zero, lane, zeros[lane * count + index]);
                let row = &codes[lane * reduction..][..reduction];
                let codes = &row[begin..reduction.min(begin + blocks.block)];
                match layout.format {
                    WeightFormat::Int4(_) => put_nibbles(packed, lane, codes),
                    _ => put_bytes(packed, lane, codes),
                }
            }
        }
        Ok(())
    })
}

fn put_scale(place: &mut [u8], ty: ScaleType, lane: usize, [scale, unit]: [f32; 2]) {
    match ty {
        ScaleType::F32 => place[lane * 4..][..4].copy_from_slice(&scale.to_le_bytes()),
        ScaleType::F16 => {
            place[lane * 2..][..2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
        }
        // What is promised to be short is, whatever the source gives.
        ScaleType::Short => place[lane] = (short_scale(scale, unit) / unit) as i8 as u8,
    }
}

fn put_zero(place: &mut [u8], kind: ZeroPoint, lane: usize, zero: f32) {
    match kind {
        ZeroPoint::Implied => {}
        ZeroPoint::Code => place[lane] = zero as u8,
        ZeroPoint::Float => place[lane * 4..][..4].copy_from_slice(&zero.to_le_bytes()),
    }
}

/// A lane's codes of a block, four to a unit.
fn put_bytes(packed: &mut [u8], lane: usize, codes: &[u8]) {
    for (unit, codes) in packed.chunks_exact_mut(GROUP * 4).zip(codes.chunks(4)) {
        unit[lane * 4..][..codes.len()].copy_from_slice(codes);
    }
}

/// A lane's codes of a block, eight to a unit: four low nibbles, then four high ones.
fn put_nibbles(packed: &mut [u8], lane: usize, codes: &[u8]) {
    for (unit, codes) in packed.chunks_exact_mut(GROUP * 4).zip(codes.chunks(8)) {
        let mut eight = [0; 8];
        eight[..codes.len()].copy_from_slice(codes);
        let low = u32::from_le_bytes([eight[0], eight[1], eight[2], eight[3]]);
        let high = u32::from_le_bytes([eight[4], eight[5], eight[6], eight[7]]);
        unit[lane * 4..][..4].copy_from_slice(&(low | high << 4).to_le_bytes());
    }
}

/// Packs a bias: N floats, then zeros up to a whole group.
pub fn pack_bias(bias: &[f32], out: &mut [u8]) {
    assert_eq!(out.len(), bias.len().next_multiple_of(GROUP) * 4, "a bias fills whole groups");
    out.fill(0);
    for (place, value) in out.chunks_exact_mut(4).zip(bias) {
        place.copy_from_slice(&value.to_le_bytes());
    }
}
