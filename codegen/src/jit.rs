//! Machine code in executable memory: the same bytes that a container would hold.
//!
//! Invariant: memory is never writable and executable at once. The unsafe step is to enter code:
//! it is sound because the bytes come from our own emitters, which access only what the arguments
//! point to.

use std::fs::File;
use std::sync::Arc;

use memmap2::{Advice, Mmap, MmapMut};
use rayon::iter::{IntoParallelIterator, ParallelIterator};

use crate::container::regions::{check_image, fill_piece, seal_tables};
use crate::container::{ContainerError, Progress};
use crate::image::{CodeImage, ModelImage, Symbol, WeightImage, WeightPiece};

/// A compiled model in memory: what a container holds, without the file.
pub struct ModelInMemory {
    /// The code region, read-execute.
    pub code: Mmap,
    /// The tables region; all checksums but that of the weights are filled.
    pub tables: Vec<u8>,
    /// The weights region, read-only; several models may share it.
    pub weights: Arc<Mmap>,
}

/// A packed weights region in memory, for one model or several that differ in their code alone.
pub struct PackedWeights {
    region: Arc<Mmap>,
    /// Where each weight lies, and how many bytes it has.
    places: Vec<(String, u64, u64)>,
}

/// Weights from this size on lie in a temporary file, so that they compete with other memory as the
/// pages of a compiled file do, and do not have to fit.
const FILE_FROM: u64 = 2 << 30;

impl PackedWeights {
    /// Packs weights.
    pub fn pack<'a>(
        weights: &WeightImage<'_>,
        progress: &'a mut Progress<'a>,
    ) -> Result<PackedWeights, ContainerError> {
        let region = Arc::new(load_weights(weights, progress)?);
        Ok(PackedWeights { region, places: places(weights) })
    }

    /// Whether these are the weights of an image of the same model.
    pub fn holds(&self, weights: &WeightImage<'_>) -> bool {
        self.region.len() as u64 == weights.bytes && self.places == places(weights)
    }
}

fn places(weights: &WeightImage<'_>) -> Vec<(String, u64, u64)> {
    let place = |piece: &WeightPiece<'_>| (piece.name.clone(), piece.offset, piece.bytes);
    weights.pieces.iter().map(place).collect()
}

impl ModelInMemory {
    /// Packs a model's weights and makes its code executable.
    pub fn load<'a>(
        image: &ModelImage<'_>,
        progress: &'a mut Progress<'a>,
    ) -> Result<ModelInMemory, ContainerError> {
        check_image(image)?;
        Self::with_weights(image, &PackedWeights::pack(&image.weights, progress)?)
    }

    /// Makes a model's code executable, over its weights that are packed already.
    pub fn with_weights(
        image: &ModelImage<'_>,
        weights: &PackedWeights,
    ) -> Result<ModelInMemory, ContainerError> {
        check_image(image)?;
        let code = executable(&image.code.bytes).map_err(in_memory)?;
        let code_digest = *blake3::hash(&image.code.bytes).as_bytes();
        let tables = seal_tables(image, code_digest, [0; 32]);
        Ok(ModelInMemory { code, tables, weights: Arc::clone(&weights.region) })
    }
}

fn in_memory(source: std::io::Error) -> ContainerError {
    ContainerError::Io { path: "memory for the model".into(), source }
}

/// Writable memory of zeros, in large pages where the system has them: decoding reads all weights, up to
/// a sixth faster from them.
fn room(bytes: u64) -> std::io::Result<MmapMut> {
    let map = if bytes < FILE_FROM {
        MmapMut::map_anon(bytes as usize)?
    } else {
        let file = tempfile::tempfile()?;
        file.set_len(bytes)?;
        // SAFETY: the file has no name, so nobody else changes or truncates it.
        unsafe { MmapMut::map_mut(&file)? }
    };
    // A hint: without large pages it is refused.
    let _ = map.advise(Advice::HugePage);
    Ok(map)
}

fn load_weights(
    weights: &WeightImage<'_>,
    progress: &mut Progress<'_>,
) -> Result<Mmap, ContainerError> {
    let mut map = room(weights.bytes).map_err(in_memory)?;
    let mut rest = &mut map[..];
    let mut position = 0;
    let mut done = 0;
    for batch in weights.pieces.chunks(rayon::current_num_threads()) {
        let mut places = Vec::with_capacity(batch.len());
        for piece in batch {
            let (_, after_gap) = rest.split_at_mut((piece.offset - position) as usize);
            let (place, later) = after_gap.split_at_mut(piece.bytes as usize);
            places.push((piece, place));
            rest = later;
            position = piece.offset + piece.bytes;
        }
        places.into_par_iter().try_for_each(|(piece, place)| fill_piece(piece, place))?;
        done += batch.iter().map(|piece| piece.bytes).sum::<u64>();
        progress(done, weights.bytes);
    }
    map.make_read_only().map_err(in_memory)
}

/// Code in memory that is executable and no longer writable.
pub fn executable(code: &[u8]) -> std::io::Result<Mmap> {
    let mut map = MmapMut::map_anon(code.len())?;
    map.copy_from_slice(code);
    map.make_exec()
}

/// A file that the container writer has just written, mapped for reading.
pub(crate) fn map_own_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the caller's own temporary file, which nobody else writes.
    unsafe { Mmap::map(file) }
}

/// A code region mapped read-execute.
pub struct ExecutableCode {
    map: Mmap,
    symbols: Vec<Symbol>,
}

/// An argument of a kernel that is called by itself.
pub enum Argument<'a> {
    /// Address of memory that the kernel reads.
    Read(&'a [u8]),
    /// Address of memory that the kernel reads and writes.
    Write(&'a mut [u8]),
    /// A number.
    Count(u64),
    /// No memory.
    Null,
}

/// Most arguments of a kernel that is called by itself.
const MAX_ARGUMENTS: usize = 9;

impl ExecutableCode {
    /// Copies a code region into executable memory.
    pub fn new(image: &CodeImage) -> std::io::Result<Self> {
        let mut map = MmapMut::map_anon(image.bytes.len().max(1))?;
        map[..image.bytes.len()].copy_from_slice(&image.bytes);
        Ok(Self { map: map.make_exec()?, symbols: image.symbols.clone() })
    }

    /// Start of the region.
    pub fn base(&self) -> *const u8 {
        self.map.as_ptr()
    }

    /// Calls a kernel that takes pointers and counts and returns nothing: the door for tests and
    /// benchmarks of single kernels. The caller gives as much memory as the kernel's specification
    /// says.
    ///
    /// # Panics
    ///
    /// If there is no function of this name, or there are more than eight arguments.
    pub fn call_kernel(&self, name: &str, arguments: &mut [Argument<'_>]) {
        let symbol = self.symbols.iter().find(|symbol| symbol.name == name);
        let offset = symbol.expect("the kernel is in the image").offset as usize;
        let mut words = [0u64; MAX_ARGUMENTS];
        assert!(arguments.len() <= MAX_ARGUMENTS, "a kernel takes at most nine arguments");
        for (word, argument) in words.iter_mut().zip(arguments) {
            *word = match argument {
                Argument::Read(bytes) => bytes.as_ptr() as u64,
                Argument::Write(bytes) => bytes.as_mut_ptr() as u64,
                Argument::Count(count) => *count,
                Argument::Null => 0,
            };
        }
        type Kernel = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64);
        let [a, b, c, d, e, f, g, h, i] = words;
        // SAFETY: the offset is that of a function of the image, mapped read-execute and alive for
        // the call; by the System V convention a callee with fewer integer parameters ignores the
        // rest; memory that it touches is that of the arguments, by its specification.
        let kernel = unsafe { std::mem::transmute::<*const u8, Kernel>(self.base().add(offset)) };
        kernel(a, b, c, d, e, f, g, h, i);
    }
}
