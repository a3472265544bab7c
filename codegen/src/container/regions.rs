//! Writes the regions of a model image and computes their checksums on the way.
//!
//! Weights are packed a batch of pieces at a time: in parallel within the batch, written and hashed
//! in order, so that memory stays bounded and the bytes are the same every time.

use std::mem::offset_of;

use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use weir_abi::{MAGIC, ModelHeader};

use super::output::OutputFile;
use super::{ContainerError, Progress};
use crate::image::{ModelImage, WeightImage, WeightPiece};

/// Packed bytes that are held in memory at a time, unless a single piece is larger.
const BATCH_BYTES: u64 = 128 << 20;

/// A BLAKE3 checksum.
pub(super) type Digest = [u8; 32];

/// Counts what was written and tells the caller.
pub(super) struct Meter<'a> {
    done: u64,
    total: u64,
    progress: &'a mut Progress<'a>,
}

impl<'a> Meter<'a> {
    pub(super) fn new(image: &ModelImage<'_>, progress: &'a mut Progress<'a>) -> Meter<'a> {
        let parts = [image.code.bytes.len() as u64, image.tables.len() as u64, image.weights.bytes];
        Meter { done: 0, total: parts.iter().sum(), progress }
    }

    pub(super) fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        (self.progress)(self.done, self.total);
    }
}

/// Checks what the writers rely on, before anything is written.
pub(crate) fn check_image(image: &ModelImage<'_>) -> Result<(), ContainerError> {
    let fault = |text: String| Err(ContainerError::Image(text));
    let code_bytes = image.code.bytes.len() as u64;
    if image.tables.len() < size_of::<ModelHeader>() || image.tables[..8] != MAGIC {
        return fault("the tables have no header".into());
    }
    let lengths = [
        ("code", offset_of!(ModelHeader, code_bytes), code_bytes),
        ("tables", offset_of!(ModelHeader, tables_bytes), image.tables.len() as u64),
        ("weights", offset_of!(ModelHeader, weights_bytes), image.weights.bytes),
    ];
    for (name, offset, present) in lengths {
        let mut stated = [0; 8];
        stated.copy_from_slice(&image.tables[offset..offset + 8]);
        let stated = u64::from_le_bytes(stated);
        if stated != present {
            return fault(format!("its header states {stated} bytes of {name}, not {present}"));
        }
    }
    for symbol in &image.code.symbols {
        if symbol.offset.checked_add(symbol.bytes).is_none_or(|end| end > code_bytes) {
            return fault(format!("symbol {} lies outside the code", symbol.name));
        }
    }
    let mut end = 0;
    for piece in &image.weights.pieces {
        if piece.offset < end {
            return fault(format!("weight {} overlaps the one before it", piece.name));
        }
        end = match piece.offset.checked_add(piece.bytes) {
            Some(end) if end <= image.weights.bytes => end,
            _ => return fault(format!("weight {} lies outside the region", piece.name)),
        };
    }
    Ok(())
}

/// Writes the code and returns its checksum.
pub(super) fn write_code(
    image: &ModelImage<'_>,
    output: &mut OutputFile,
    meter: &mut Meter<'_>,
) -> Result<Digest, ContainerError> {
    output.write(&image.code.bytes)?;
    meter.add(image.code.bytes.len());
    Ok(*blake3::hash(&image.code.bytes).as_bytes())
}

/// Packs and writes the weights region and returns its checksum.
pub(super) fn write_weights(
    weights: &WeightImage<'_>,
    output: &mut OutputFile,
    meter: &mut Meter<'_>,
) -> Result<Digest, ContainerError> {
    let mut hasher = blake3::Hasher::new();
    pack(weights, |bytes| {
        hasher.update(bytes);
        output.write(bytes)?;
        meter.add(bytes.len());
        Ok(())
    })?;
    Ok(*hasher.finalize().as_bytes())
}

/// Hands the bytes of the weights region to `sink` in order.
fn pack(
    weights: &WeightImage<'_>,
    mut sink: impl FnMut(&[u8]) -> Result<(), ContainerError>,
) -> Result<(), ContainerError> {
    let zeros = vec![0; 1 << 20];
    let fill_gap = |sink: &mut dyn FnMut(&[u8]) -> Result<(), ContainerError>, mut gap: u64| {
        while gap > 0 {
            let part = gap.min(zeros.len() as u64);
            sink(&zeros[..part as usize])?;
            gap -= part;
        }
        Ok(())
    };
    let mut position = 0;
    let mut rest = weights.pieces.as_slice();
    while !rest.is_empty() {
        let (batch, later) = rest.split_at(batch_length(rest));
        rest = later;
        let packed: Vec<Result<Vec<u8>, ContainerError>> = batch
            .par_iter()
            .map(|piece| {
                let mut bytes = vec![0; piece.bytes as usize];
                fill_piece(piece, &mut bytes)?;
                Ok(bytes)
            })
            .collect();
        for (piece, bytes) in batch.iter().zip(packed) {
            let bytes = bytes?;
            fill_gap(&mut sink, piece.offset - position)?;
            // In parts, so that progress moves and the hash reads what is still in the caches.
            bytes.chunks(1 << 20).try_for_each(&mut sink)?;
            position = piece.offset + piece.bytes;
        }
    }
    fill_gap(&mut sink, weights.bytes - position)
}

/// Packs one piece into its place, which is zeroed.
pub(crate) fn fill_piece(piece: &WeightPiece<'_>, place: &mut [u8]) -> Result<(), ContainerError> {
    (piece.fill)(place).map_err(|fault| ContainerError::Weight { name: piece.name.clone(), fault })
}

/// Number of pieces at the front of `pieces` that are packed together; at least one.
fn batch_length(pieces: &[WeightPiece<'_>]) -> usize {
    let mut bytes = 0;
    let fitting = pieces.iter().take_while(|piece| {
        bytes += piece.bytes;
        bytes <= BATCH_BYTES
    });
    fitting.count().max(1)
}

/// The tables with all checksums in their header. `weights` is all zeros when nobody hashed them.
pub(crate) fn seal_tables(image: &ModelImage<'_>, code: Digest, weights: Digest) -> Vec<u8> {
    let mut tables = image.tables.clone();
    let header_bytes = size_of::<ModelHeader>();
    let tables_digest = *blake3::hash(&tables[header_bytes..]).as_bytes();
    let mut set = |offset: usize, digest: Digest| {
        tables[offset..offset + digest.len()].copy_from_slice(&digest);
    };
    set(offset_of!(ModelHeader, tables_digest), tables_digest);
    set(offset_of!(ModelHeader, code_digest), code);
    set(offset_of!(ModelHeader, weights_digest), weights);
    // The header's own checksum is over the header with that field zero.
    set(offset_of!(ModelHeader, header_digest), [0; 32]);
    let header_digest = *blake3::hash(&tables[..header_bytes]).as_bytes();
    let offset = offset_of!(ModelHeader, header_digest);
    tables[offset..offset + header_digest.len()].copy_from_slice(&header_digest);
    tables
}
