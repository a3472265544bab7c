//! Finds the three regions of a compiled model in an ELF file that is not running.
//!
//! Only what that needs is read: the file header, the program headers, our note and, through its
//! displacements, the segments that hold the regions. Every number comes from a file that may be
//! broken, so all arithmetic is checked and nothing is mapped before its place is known to be
//! inside the file. Layout: System V ABI, chapter 5 (program headers) and "Note Section".

use std::fs::File;
use std::os::unix::fs::FileExt;

use weir_abi::{END_MARK, ModelSlot, NOTE_NAME, NOTE_SLOT, SLOT_EMPTY, SLOT_FILLED};

use super::error::{ModelFault, malformed};

/// Bytes of a file that hold one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileRange {
    pub offset: u64,
    pub bytes: u64,
}

/// Where the regions lie in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileRegions {
    pub code: FileRange,
    pub tables: FileRange,
    pub weights: FileRange,
}

const HEADER_BYTES: usize = 64;
const PROGRAM_HEADER_BYTES: usize = 56;
/// A table longer than this is not one of ours; the writer's have about fifteen entries.
const MOST_PROGRAM_HEADERS: usize = 128;
/// Notes longer than this are not ours.
const MOST_NOTE_BYTES: u64 = 64 << 10;
const PT_LOAD: u32 = 1;
const PT_NOTE: u32 = 4;
const NOTE_HEAD_BYTES: usize = 24;
const SLOT_BYTES: usize = size_of::<ModelSlot>();

/// One program header, as far as we need it.
#[derive(Clone, Copy)]
struct ProgramHeader {
    kind: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
}

/// Finds the regions in `file`, whose length is `file_bytes`.
pub(super) fn find_regions(file: &File, file_bytes: u64) -> Result<FileRegions, ModelFault> {
    let headers = program_headers(file, file_bytes)?;
    let (slot, slot_address) = find_slot(file, file_bytes, &headers)?;
    let segment = |name: &str, displacement: i64, bytes: u64| {
        region(&headers, file_bytes, slot_address, name, displacement, bytes)
    };
    let code = segment("code", slot.code, slot.code_bytes)?;
    let tables = segment("tables", slot.tables, slot.tables_bytes)?;
    let mark = END_MARK.len() as u64;
    let marked_bytes = slot
        .weights_bytes
        .checked_add(mark)
        .ok_or_else(|| malformed("the length of the weights is absurd"))?;
    let marked = segment("weights", slot.weights, marked_bytes)?;
    let weights = FileRange { offset: marked.offset, bytes: marked.bytes - mark };
    let mut end = [0; END_MARK.len()];
    file.read_exact_at(&mut end, weights.offset + weights.bytes)?;
    if end != END_MARK {
        return Err(ModelFault::Truncated("the mark at the end of the weights is missing".into()));
    }
    Ok(FileRegions { code, tables, weights })
}

fn program_headers(file: &File, file_bytes: u64) -> Result<Vec<ProgramHeader>, ModelFault> {
    if file_bytes < HEADER_BYTES as u64 {
        return Err(ModelFault::NoModel("it is too short for an ELF file"));
    }
    let mut header = [0; HEADER_BYTES];
    file.read_exact_at(&mut header, 0)?;
    if header[..4] != *b"\x7fELF" {
        return Err(ModelFault::NoModel("it is not an ELF file"));
    }
    if header[4..6] != [2, 1] {
        return Err(ModelFault::NoModel("it is not a 64-bit little-endian ELF file"));
    }
    let table_offset = u64_at(&header, 32);
    let entry_bytes = u16_at(&header, 54) as usize;
    let count = u16_at(&header, 56) as usize;
    if count == 0 {
        return Err(ModelFault::NoModel("it has no program headers"));
    }
    if entry_bytes != PROGRAM_HEADER_BYTES || count > MOST_PROGRAM_HEADERS {
        return Err(malformed(format!("{count} program headers of {entry_bytes} bytes")));
    }
    let table_bytes = count * PROGRAM_HEADER_BYTES;
    if table_offset.checked_add(table_bytes as u64).is_none_or(|end| end > file_bytes) {
        return Err(ModelFault::Truncated("the program headers are missing".into()));
    }
    let mut table = vec![0; table_bytes];
    file.read_exact_at(&mut table, table_offset)?;
    Ok(table
        .chunks_exact(PROGRAM_HEADER_BYTES)
        .map(|entry| ProgramHeader {
            kind: u32_at(entry, 0),
            offset: u64_at(entry, 8),
            address: u64_at(entry, 16),
            file_bytes: u64_at(entry, 32),
        })
        .collect())
}

/// Finds our slot among the notes, and the address that it has before loading.
fn find_slot(
    file: &File,
    file_bytes: u64,
    headers: &[ProgramHeader],
) -> Result<(ModelSlot, u64), ModelFault> {
    for header in headers.iter().filter(|header| header.kind == PT_NOTE) {
        if header.file_bytes > MOST_NOTE_BYTES {
            continue;
        }
        if header.offset.checked_add(header.file_bytes).is_none_or(|end| end > file_bytes) {
            return Err(ModelFault::Truncated("a note is missing".into()));
        }
        let mut notes = vec![0; header.file_bytes as usize];
        file.read_exact_at(&mut notes, header.offset)?;
        let Some(place) = slot_in_notes(&notes) else { continue };
        let slot = parse_slot(&notes[place..place + SLOT_BYTES]);
        let address = header
            .address
            .checked_add(place as u64)
            .ok_or_else(|| malformed("the address of the model's note is absurd"))?;
        return match slot.magic {
            SLOT_FILLED => Ok((slot, address)),
            SLOT_EMPTY => Err(ModelFault::NoModel("it is a runtime without a model")),
            _ => Err(malformed("the model's slot has no magic")),
        };
    }
    Err(ModelFault::NoModel("it is a program of another kind"))
}

/// Offset of the slot in a run of notes, if one of them is ours.
fn slot_in_notes(notes: &[u8]) -> Option<usize> {
    let mut at = 0_usize;
    while let Some(head) = notes.get(at..at.checked_add(NOTE_HEAD_BYTES)?) {
        let name_bytes = u32_at(head, 0) as usize;
        let description_bytes = u32_at(head, 4) as usize;
        let kind = u32_at(head, 8);
        let ours = name_bytes == NOTE_NAME.len() && head[12..] == NOTE_NAME;
        if ours && kind == NOTE_SLOT && description_bytes == SLOT_BYTES {
            let place = at + NOTE_HEAD_BYTES;
            return notes.get(place..place + SLOT_BYTES).map(|_| place);
        }
        let name_end = at.checked_add(12)?.checked_add(name_bytes)?.checked_next_multiple_of(4)?;
        at = name_end.checked_add(description_bytes)?.checked_next_multiple_of(4)?;
    }
    None
}

fn parse_slot(bytes: &[u8]) -> ModelSlot {
    let mut magic = [0; 16];
    magic.copy_from_slice(&bytes[..16]);
    ModelSlot {
        magic,
        code: u64_at(bytes, 16) as i64,
        tables: u64_at(bytes, 24) as i64,
        weights: u64_at(bytes, 32) as i64,
        code_bytes: u64_at(bytes, 40),
        tables_bytes: u64_at(bytes, 48),
        weights_bytes: u64_at(bytes, 56),
    }
}

/// The part of the file behind the addresses of one region.
fn region(
    headers: &[ProgramHeader],
    file_bytes: u64,
    slot_address: u64,
    name: &str,
    displacement: i64,
    bytes: u64,
) -> Result<FileRange, ModelFault> {
    let outside = || malformed(format!("the {name} lie outside every segment of the program"));
    let address = slot_address.checked_add_signed(displacement).ok_or_else(outside)?;
    let end = address.checked_add(bytes).ok_or_else(outside)?;
    let segment = headers
        .iter()
        .find(|segment| {
            segment.kind == PT_LOAD
                && segment.address <= address
                && segment.address.checked_add(segment.file_bytes).is_some_and(|e| end <= e)
        })
        .ok_or_else(outside)?;
    let offset = segment.offset.checked_add(address - segment.address).ok_or_else(outside)?;
    let file_end = offset.checked_add(bytes).ok_or_else(outside)?;
    if file_end > file_bytes {
        return Err(ModelFault::Truncated(format!(
            "the {name} end at byte {file_end}, the file at byte {file_bytes}"
        )));
    }
    Ok(FileRange { offset, bytes })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
