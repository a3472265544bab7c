//! The compiled model: finds its three regions, maps them and checks them.
//!
//! A model lies in this program (the usual case: the kernel has mapped it before `main`), in the
//! file of another program, in memory that the compiler has just written, or in an object that was
//! linked. All four end in a [`CompiledModel`], and whatever it hands out has been checked when it
//! was made: magic, version, lengths, the header's and the code's checksums, and every bound of
//! every table. [`CompiledModel::verify`] reads all bytes and compares all checksums.
//!
//! Code is mapped read-execute, everything else read-only; nothing is ever writable and executable.
//! This is one of the few files that may use `unsafe`.

#![allow(unsafe_code)]

mod elf;
mod error;
mod tables;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::{Mmap, MmapOptions};
use weir_abi::{
    CacheLayout, END_MARK, HeadResult, IsaLevel, KindCode, KindEntry, LayerEntry, LevelEntry,
    ModelHeader, ModelSlot, NOTE_NAME, NOTE_ROOM, NOTE_ROOM_BYTES, NOTE_SLOT, NoteHead, Probe,
    SLOT_EMPTY, SLOT_FILLED, Segment, SymbolEntry,
};

use crate::machine::LARGE_PAGE;
pub use error::{ModelError, ModelFault, Region};
use tables::Tables;

/// The notes that the container writer looks for: room for more program headers, then the slot.
///
/// The linker puts notes directly behind the program headers, so the writer can add headers without
/// moving anything; it fills the slot in the file.
#[repr(C, align(8))]
struct ModelNotes {
    room_head: NoteHead,
    room: [u8; NOTE_ROOM_BYTES],
    slot_head: NoteHead,
    slot: ModelSlot,
}

#[used]
#[unsafe(link_section = ".note.weir")]
static MODEL_NOTES: ModelNotes = ModelNotes {
    room_head: NoteHead {
        name_bytes: NOTE_NAME.len() as u32,
        description_bytes: NOTE_ROOM_BYTES as u32,
        kind: NOTE_ROOM,
        name: NOTE_NAME,
    },
    room: [0; NOTE_ROOM_BYTES],
    slot_head: NoteHead {
        name_bytes: NOTE_NAME.len() as u32,
        description_bytes: size_of::<ModelSlot>() as u32,
        kind: NOTE_SLOT,
        name: NOTE_NAME,
    },
    slot: ModelSlot {
        magic: SLOT_EMPTY,
        code: 0,
        tables: 0,
        weights: 0,
        code_bytes: 0,
        tables_bytes: 0,
        weights_bytes: 0,
    },
};

/// The segments of one layer kind.
#[derive(Clone, Copy, Debug)]
pub struct KindSegments {
    /// Hidden rows in place, cache rows written and read.
    pub layer: Segment,
    /// Scores of the candidates of a prompt.
    pub observe: Segment,
    /// Selection and write into the slot.
    pub compact: Segment,
}

/// The segments of one ISA level. They are valid as long as the model they came from.
#[derive(Clone, Debug)]
pub struct LevelSegments {
    /// The level.
    pub level: IsaLevel,
    /// Token ids to hidden rows.
    pub embed: Segment,
    /// Chosen hidden rows to logits.
    pub head: Segment,
    /// Per layer kind.
    pub kinds: Vec<KindSegments>,
}

/// A named function of the code region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSymbol<'a> {
    /// Its name.
    pub name: &'a str,
    /// First byte, from the start of the code.
    pub offset: usize,
    /// Length in bytes.
    pub bytes: usize,
}

/// Regions of a model that lie in memory and whoever keeps them there.
struct Regions {
    code: (*const u8, usize),
    tables: (*const u8, usize),
    weights: (*const u8, usize),
    /// Dropped with the model: mappings, or buffers of the just-in-time compiler.
    _owner: Box<dyn Any + Send + Sync>,
}

impl Regions {
    fn slice(&self, (start, bytes): (*const u8, usize)) -> &[u8] {
        // SAFETY: whoever made these regions promised that each is readable and unchanging for as
        // long as the owner lives, and the owner lives as long as `self`.
        unsafe { std::slice::from_raw_parts(start, bytes) }
    }
}

/// Segments that measure the machine, as far as a code region has them.
#[derive(Clone)]
pub struct Probes {
    segments: Vec<(Probe, Segment)>,
    /// Keeps the code, if nobody else does.
    _code: Option<Arc<Mmap>>,
}

impl Probes {
    /// Probes in memory that the just-in-time compiler has filled, at these offsets.
    pub fn from_parts(code: Mmap, offsets: &[(Probe, u64)]) -> Probes {
        let inside = offsets.iter().filter(|(_, offset)| *offset < code.len() as u64);
        let segments = inside.map(|(probe, offset)| (*probe, segment(&code, *offset))).collect();
        Probes { segments, _code: Some(Arc::new(code)) }
    }

    /// The segment of a probe. It is valid as long as this and the model that it came from.
    pub fn segment(&self, probe: Probe) -> Option<Segment> {
        self.segments.iter().find(|(known, _)| *known == probe).map(|(_, segment)| *segment)
    }
}

/// A compiled model whose tables have been checked.
pub struct CompiledModel {
    regions: Regions,
    tables: Tables,
    levels: Vec<LevelSegments>,
    place: Place,
}

/// Where a model came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The program that runs.
    ThisProgram,
    /// An object that was linked into it.
    Linked,
    /// The just-in-time compiler.
    Memory,
    /// The file of a compiled program.
    File(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::ThisProgram => f.write_str("this program"),
            Place::Linked => f.write_str("the linked model"),
            Place::Memory => f.write_str("the model in memory"),
            Place::File(path) => path.display().fmt(f),
        }
    }
}

// SAFETY: the regions are immutable memory, and their owner is `Send + Sync`.
unsafe impl Send for CompiledModel {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for CompiledModel {}

impl CompiledModel {
    /// The model in this program.
    pub fn from_self() -> Result<CompiledModel, ModelError> {
        // SAFETY: the static's slot is valid for reads. Volatile, because the container writer
        // changes it in the file, which the compiler of this crate cannot know.
        let slot = unsafe { (&raw const MODEL_NOTES.slot).read_volatile() };
        // SAFETY: a filled slot was filled by the container writer, whose regions the kernel has
        // mapped for the life of the process.
        unsafe { Self::from_slot(&slot, &raw const MODEL_NOTES.slot, Place::ThisProgram) }
    }

    /// A model that was linked into this program from an object of `weir compile --emit obj`.
    ///
    /// # Safety
    ///
    /// `slot` is the address of such an object's `weir_model`.
    pub unsafe fn from_linked(slot: *const ModelSlot) -> Result<CompiledModel, ModelError> {
        let place = Place::Linked;
        if slot.is_null() || !slot.is_aligned() {
            return Err(malformed_slot("its address is no model's").at(&place));
        }
        // SAFETY: the caller promises a slot at this address.
        let copy = unsafe { slot.read_volatile() };
        // SAFETY: the linker has resolved the slot's displacements.
        unsafe { Self::from_slot(&copy, slot, place) }
    }

    /// The model in the file of a compiled program, mapped into this one.
    ///
    /// The file must not be changed while the model is in use.
    pub fn open(path: &Path) -> Result<CompiledModel, ModelError> {
        let place = Place::File(path.to_owned());
        Self::open_file(path, &place).map_err(|fault| fault.at(&place))
    }

    fn open_file(path: &Path, place: &Place) -> Result<CompiledModel, ModelFault> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(ModelFault::NoModel("it is not a file"));
        }
        let places = elf::find_regions(&file, metadata.len())?;
        let code = map(&file, places.code, Access::Execute)?;
        let tables = map(&file, places.tables, Access::Read)?;
        let weights = map(&file, places.weights, Access::Read)?;
        let regions = Regions {
            code: (code.as_ptr(), code.len()),
            tables: (tables.as_ptr(), tables.len()),
            weights: (weights.as_ptr(), weights.len()),
            _owner: Box::new([code, tables, weights]),
        };
        Self::from_regions(regions, place)
    }

    /// A model in memory that the just-in-time compiler has filled: code mapped read-execute, of
    /// nobody else, and weights read-only, which other models may share.
    pub fn from_parts(code: Mmap, tables: Vec<u8>, weights: Arc<Mmap>) -> Result<Self, ModelError> {
        // Whole words, so that the copy is aligned as tables in a file are.
        let words: Box<[u64]> = tables
            .chunks(8)
            .map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_ne_bytes(word)
            })
            .collect();
        let regions = Regions {
            code: (code.as_ptr(), code.len()),
            tables: (words.as_ptr().cast(), tables.len()),
            weights: (weights.as_ptr(), weights.len()),
            _owner: Box::new((words, code, weights)),
        };
        let place = Place::Memory;
        Self::from_regions(regions, &place).map_err(|fault| fault.at(&place))
    }

    /// # Safety
    ///
    /// If the slot is filled, its regions, as far as they are mapped at all, never change.
    unsafe fn from_slot(
        slot: &ModelSlot,
        address: *const ModelSlot,
        place: Place,
    ) -> Result<CompiledModel, ModelError> {
        let inner = || {
            match slot.magic {
                SLOT_FILLED => {}
                SLOT_EMPTY => return Err(ModelFault::NoModel("it is a runtime without a model")),
                _ => return Err(malformed_slot("it has no magic")),
            }
            let base = address as usize;
            let code = slot_region(base, slot.code, slot.code_bytes)?;
            let tables = slot_region(base, slot.tables, slot.tables_bytes)?;
            let weights = slot_region(base, slot.weights, slot.weights_bytes)?;
            check_end_mark(weights)?;
            check_present(code, "code")?;
            check_present(tables, "tables")?;
            let regions = Regions { code, tables, weights, _owner: Box::new(()) };
            Self::from_regions(regions, &place)
        };
        inner().map_err(|fault| fault.at(&place))
    }

    fn from_regions(regions: Regions, place: &Place) -> Result<CompiledModel, ModelFault> {
        let code = regions.slice(regions.code);
        let tables = Tables::parse(regions.slice(regions.tables), code.len(), regions.weights.1)?;
        ask_for_large_pages(regions.weights);
        // Damaged code must not run, nor code that damaged tables lead to, or over memory that they
        // have measured. Both are a few megabytes, hashed in a millisecond or two; the weights are
        // only hashed by `verify`.
        let header = &tables.header;
        let behind_header = &regions.slice(regions.tables)[size_of::<ModelHeader>()..];
        check_digest(Region::Tables, behind_header, &header.tables_digest)?;
        check_digest(Region::Code, code, &header.code_digest)?;
        let levels = tables
            .levels
            .iter()
            .map(|level| LevelSegments {
                level: level.level,
                embed: segment(code, level.embed),
                head: segment(code, level.head),
                kinds: level
                    .kinds
                    .iter()
                    .map(|kind| KindSegments {
                        layer: segment(code, kind.layer),
                        observe: segment(code, kind.observe),
                        compact: segment(code, kind.compact),
                    })
                    .collect(),
            })
            .collect();
        Ok(CompiledModel { regions, tables, levels, place: place.clone() })
    }

    /// Reads the whole model and compares all checksums. The error names the damaged part.
    pub fn verify(&self) -> Result<(), ModelError> {
        let header = self.header();
        let tables = self.regions.slice(self.regions.tables);
        let parts = [
            (Region::Tables, &tables[size_of::<ModelHeader>()..], &header.tables_digest),
            (Region::Code, self.code(), &header.code_digest),
            (Region::Weights, self.weights(), &header.weights_digest),
        ];
        parts
            .into_iter()
            .try_for_each(|(region, bytes, digest)| check_digest(region, bytes, digest))
            .map_err(|fault| fault.at(&self.place))
    }

    /// Where the model came from.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Limits, sizes and checksums.
    pub fn header(&self) -> &ModelHeader {
        &self.tables.header
    }

    /// What the head gives for a row.
    pub fn head_result(&self) -> HeadResult {
        self.tables.head_result
    }

    /// The layers, in order. Their kinds and layouts exist.
    pub fn layers(&self) -> &[LayerEntry] {
        &self.tables.layers
    }

    /// The layer kinds.
    pub fn kinds(&self) -> &[KindEntry] {
        &self.tables.kinds
    }

    /// The cache layouts; their policies are known.
    pub fn layouts(&self) -> &[CacheLayout] {
        &self.tables.layouts
    }

    /// K of each key/value head of a layer; nothing where all heads have the same.
    pub fn selected_by_head(&self, layer: &LayerEntry) -> &[u32] {
        let Tables { layouts, kinds, head_rows, .. } = &self.tables;
        let heads = kinds[layer.kind as usize].kv_heads;
        let layout = &layouts[layer.layout as usize];
        tables::selected_by_head(layout, heads, head_rows).unwrap_or_default()
    }

    /// Segments of every ISA level, lowest level first; at least one. `kinds` of each has the
    /// length of [`CompiledModel::kinds`].
    pub fn levels(&self) -> &[LevelSegments] {
        &self.levels
    }

    /// Weight offsets of the embed segment (and whatever follows them in the table).
    pub fn embed_weights(&self) -> &[u64] {
        &self.tables.weight_offsets[self.tables.header.embed_weights as usize..]
    }

    /// Weight offsets of the head segment (and whatever follows them in the table).
    pub fn head_weights(&self) -> &[u64] {
        &self.tables.weight_offsets[self.tables.header.head_weights as usize..]
    }

    /// Weight offsets of a layer of [`CompiledModel::layers`].
    pub fn layer_weights(&self, layer: &LayerEntry) -> &[u64] {
        let first = layer.weights as usize;
        &self.tables.weight_offsets[first..first + layer.weight_count as usize]
    }

    /// The code region.
    pub fn code(&self) -> &[u8] {
        self.regions.slice(self.regions.code)
    }

    /// The weights region.
    pub fn weights(&self) -> &[u8] {
        self.regions.slice(self.regions.weights)
    }

    /// The packed tokenizer, empty if there is none.
    pub fn tokenizer(&self) -> &[u8] {
        &self.regions.slice(self.regions.tables)[self.tables.tokenizer.clone()]
    }

    /// The chat template, empty if there is none.
    pub fn chat_template(&self) -> &str {
        self.text(self.tables.chat_template.clone())
    }

    /// Facts of the model as JSON, empty if there are none.
    pub fn facts(&self) -> &str {
        self.text(self.tables.facts.clone())
    }

    /// The functions of the code region.
    pub fn symbols(&self) -> impl ExactSizeIterator<Item = CodeSymbol<'_>> {
        self.tables.symbols.iter().map(|symbol| CodeSymbol {
            name: self.text(symbol.name.clone()),
            offset: symbol.code.start,
            bytes: symbol.code.len(),
        })
    }

    /// The segments that measure the machine; none in files of earlier compilers.
    pub fn probes(&self) -> Probes {
        let known = |symbol: CodeSymbol<'_>| {
            let probe = Probe::ALL.into_iter().find(|probe| probe.symbol() == symbol.name)?;
            Some((probe, segment(self.code(), symbol.offset as u64)))
        };
        Probes { segments: self.symbols().filter_map(known).collect(), _code: None }
    }

    /// A text of the tables region; `parse` has seen that it is UTF-8.
    fn text(&self, range: std::ops::Range<usize>) -> &str {
        std::str::from_utf8(&self.regions.slice(self.regions.tables)[range]).unwrap_or_default()
    }
}

impl fmt::Debug for CompiledModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledModel").field("place", &self.place).finish_non_exhaustive()
    }
}

fn malformed_slot(what: &str) -> ModelFault {
    error::malformed(format!("the model's slot: {what}"))
}

/// Address and length of a region from the slot's displacement.
fn slot_region(
    base: usize,
    displacement: i64,
    bytes: u64,
) -> Result<(*const u8, usize), ModelFault> {
    let start = base
        .checked_add_signed(displacement as isize)
        .filter(|start| {
            bytes <= isize::MAX as u64
                && start.checked_add(bytes as usize + END_MARK.len()).is_some()
        })
        .filter(|start| *start != 0)
        .ok_or_else(|| malformed_slot("a region lies outside the address space"))?;
    Ok((std::ptr::with_exposed_provenance(start), bytes as usize))
}

/// Asks for what is read of a region's file from now on, and is not in memory yet, to be read by large
/// pages: a step that reads all weights waits for fewer translations of addresses.
fn ask_for_large_pages((start, bytes): (*const u8, usize)) {
    let first = start.addr().next_multiple_of(LARGE_PAGE);
    let whole = (start.addr() + bytes).saturating_sub(first) / LARGE_PAGE * LARGE_PAGE;
    if whole > 0 {
        let first = start.with_addr(first).cast_mut().cast();
        // SAFETY: the range lies inside of the region, and the advice changes neither what is in memory nor
        // how it may be used. It is a hint: where the system has no large pages it is refused.
        let _ = unsafe { rustix::mm::madvise(first, whole, rustix::mm::Advice::LinuxHugepage) };
    }
}

/// Sees whether both ends of a region are in memory or in the file. With the mark at the end of the
/// file in place only a damaged slot can fail this.
fn check_present((start, bytes): (*const u8, usize), name: &str) -> Result<(), ModelFault> {
    let mut byte = [0; 1];
    for offset in [0, bytes.saturating_sub(1)] {
        if !read_unmapped(start.wrapping_add(offset), &mut byte)? {
            return Err(malformed_slot(&format!("the {name} are not where it says")));
        }
    }
    Ok(())
}

/// The weights are the last of a file: if its last bytes are there, all are.
fn check_end_mark((start, bytes): (*const u8, usize)) -> Result<(), ModelFault> {
    let mut mark = [0; END_MARK.len()];
    let present = read_unmapped(start.wrapping_add(bytes), &mut mark)?;
    if present && mark == END_MARK {
        return Ok(());
    }
    Err(ModelFault::Truncated("the weights are not all there".into()))
}

/// Copies memory that may not be there, and says whether it is.
///
/// The kernel maps a truncated program without complaint and sends a signal when the missing part
/// is read. If the kernel itself does the reading, it reports an error instead: so the bytes go
/// through a pipe.
fn read_unmapped(address: *const u8, bytes: &mut [u8]) -> Result<bool, ModelFault> {
    let (mut reader, writer) = std::io::pipe()?;
    // SAFETY: the descriptor is open; a bad address makes the call fail with EFAULT.
    let written = unsafe { libc::write(writer.as_raw_fd(), address.cast(), bytes.len()) };
    if usize::try_from(written) == Ok(bytes.len()) {
        reader.read_exact(bytes)?;
        return Ok(true);
    }
    let error = std::io::Error::last_os_error();
    match (written, error.raw_os_error()) {
        (-1, Some(libc::EFAULT)) => Ok(false),
        (-1, _) => Err(error.into()),
        // Part of the range is there: not enough.
        _ => Ok(false),
    }
}

/// How a region of a file is mapped.
#[derive(Clone, Copy)]
enum Access {
    Read,
    Execute,
}

fn map(file: &File, range: elf::FileRange, access: Access) -> Result<Mmap, ModelFault> {
    let bytes = usize::try_from(range.bytes)
        .map_err(|_| error::malformed("a region is larger than the address space"))?;
    let mut options = MmapOptions::new();
    options.offset(range.offset).len(bytes);
    // SAFETY: `open` documents that the file must not change while the model is in use. The range
    // lies inside the file.
    let mapping = unsafe {
        match access {
            Access::Read => options.map(file),
            Access::Execute => options.map_exec(file),
        }
    };
    Ok(mapping?)
}

/// Compares a checksum. All zeros mean that none was recorded: the just-in-time compiler does not
/// hash weights that nobody stores. The header's own checksum protects that statement.
fn check_digest(region: Region, bytes: &[u8], digest: &[u8; 32]) -> Result<(), ModelFault> {
    if *digest == [0; 32] || blake3::hash(bytes).as_bytes() == digest {
        return Ok(());
    }
    Err(ModelFault::Damaged(region))
}

fn segment(code: &[u8], offset: u64) -> Segment {
    let start: *const u8 = &raw const code[offset as usize];
    // SAFETY: the address is inside mapped, executable code whose checksum is right, and the
    // compiler wrote this offset into the tables as that of a segment. Calling it is the caller's
    // promise: the type is `unsafe extern "C" fn`.
    unsafe { std::mem::transmute::<*const u8, Segment>(start) }
}

/// Structures that may be read from any bytes.
///
/// # Safety
///
/// Every bit pattern is a value, and there is no padding.
unsafe trait Plain: Copy {}

// SAFETY: an integer.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: `repr(C)`, integers and arrays of integers only, no padding.
unsafe impl Plain for ModelHeader {}
// SAFETY: as above.
unsafe impl Plain for LevelEntry {}
// SAFETY: as above.
unsafe impl Plain for KindCode {}
// SAFETY: as above.
unsafe impl Plain for KindEntry {}
// SAFETY: as above.
unsafe impl Plain for LayerEntry {}
// SAFETY: as above.
unsafe impl Plain for CacheLayout {}
// SAFETY: as above.
unsafe impl Plain for SymbolEntry {}

/// The value at an offset, if all of it is there.
fn read_plain<T: Plain>(bytes: &[u8], offset: usize) -> Option<T> {
    let part = bytes.get(offset..offset.checked_add(size_of::<T>())?)?;
    // SAFETY: `part` has the size of `T`, every bit pattern is a `T`, and the read is unaligned.
    Some(unsafe { part.as_ptr().cast::<T>().read_unaligned() })
}
