//! Extends the prebuilt static runtime by a model: one ELF executable that the kernel maps whole.
//!
//! The file, in order:
//!
//! | part | mapped |
//! |---|---|
//! | the runtime as it was linked, its program header table grown in place, its slot filled | as before |
//! | symbols of runtime and model, their names, section headers | no |
//! | code | read, execute |
//! | tables, tokenizer, template, facts | read |
//! | weights, then the end mark | read |
//!
//! Nothing of the runtime moves, so none of its addresses changes. Room for more program headers is
//! a note that the runtime carries for this purpose: linkers put notes directly behind the table.
//! The code begins behind the file image of the last linked segment *including* its zero-initialised
//! part, because `perf` takes file offsets for addresses and would give our functions the names of
//! variables there.

use std::ops::Range;
use std::path::Path;

use object::elf::{
    FileHeader64, PF_R, PF_X, PT_GNU_PROPERTY, PT_LOAD, PT_NOTE, PT_PHDR, ProgramFlags,
    ProgramHeader64, ProgramType, SHF_ALLOC, SHF_EXECINSTR, SHF_INFO_LINK, SHT_NOTE, SHT_PROGBITS,
    SHT_STRTAB, SHT_SYMTAB, STB_LOCAL, STT_FUNC, SectionFlags, SectionHeader64, Sym64, SymbolOther,
    SymbolSection,
};
use object::endian::{LittleEndian as LE, U16, U32, U64};
use object::pod::bytes_of;
use object::read::elf::{
    FileHeader as _, ProgramHeader as _, SectionHeader as _, SectionTable, Sym as _,
};
use weir_abi::{END_MARK, NOTE_NAME, NOTE_ROOM, NOTE_ROOM_BYTES, NOTE_SLOT, NoteHead};
use weir_abi::{ModelSlot, SLOT_EMPTY, SLOT_FILLED};

use super::output::{OutputFile, PROGRAM};
use super::regions::{Meter, check_image, seal_tables, write_code, write_weights};
use super::sections::{Section, Sections, Symbol, Symbols, align};
use super::{ContainerError, LARGE_PAGE_BYTES, PAGE_BYTES, Progress, runtime};
use crate::image::ModelImage;

/// Weights of this size or more are aligned to large pages in file and memory, which costs up to as
/// much address space and a hole in the file. Processors remember the addresses of some 2,000 pages:
/// below it small ones do.
const LARGE_PAGES_FROM: u64 = 8 << 20;

const HEADER_BYTES: usize = size_of::<FileHeader64<LE>>();
const PROGRAM_HEADER_BYTES: usize = size_of::<ProgramHeader64<LE>>();
const NOTE_HEAD_BYTES: usize = size_of::<NoteHead>();
const SLOT_BYTES: usize = size_of::<ModelSlot>();

/// Writes the model as an executable. `progress` hears about the bytes of the regions.
pub fn write_executable<'a>(
    image: &ModelImage<'_>,
    output: &Path,
    progress: &'a mut Progress<'a>,
) -> Result<(), ContainerError> {
    extend_program(runtime::program()?, image, output, progress)
}

/// [`write_executable`] on a given runtime.
pub(super) fn extend_program<'a>(
    program: &[u8],
    image: &ModelImage<'_>,
    output: &Path,
    progress: &'a mut Progress<'a>,
) -> Result<(), ContainerError> {
    check_image(image)?;
    let program = Program::parse(program)?;
    let (head, layout) = head(&program, image)?;
    let mut meter = Meter::new(image, progress);
    let mut file = OutputFile::create(output, PROGRAM)?;
    file.write(&head)?;
    file.pad_to(layout.code.offset)?;
    let code_digest = write_code(image, &mut file, &mut meter)?;
    file.pad_to(layout.tables.offset)?;
    file.write(&image.tables)?;
    meter.add(image.tables.len());
    file.pad_to(layout.weights.offset)?;
    let weights_digest = write_weights(&image.weights, &mut file, &mut meter)?;
    file.write(&END_MARK)?;
    file.rewrite(&seal_tables(image, code_digest, weights_digest), layout.tables.offset)?;
    file.finish()
}

/// The runtime as the linker left it.
struct Program<'a> {
    bytes: &'a [u8],
    header: &'a FileHeader64<LE>,
    segments: &'a [ProgramHeader64<LE>],
    sections: SectionTable<'a, FileHeader64<LE>>,
    /// File offset of the slot's note.
    slot_note: usize,
    /// Address of the slot's note.
    slot_note_address: u64,
    /// End of the file image of all segments.
    file_end: u64,
    /// The same, as if zero-initialised data were in the file too.
    file_end_with_zeros: u64,
    /// End of all segments in memory.
    address_end: u64,
}

impl<'a> Program<'a> {
    fn parse(bytes: &'a [u8]) -> Result<Program<'a>, ContainerError> {
        let fault = |what: &str| ContainerError::Runtime(what.into());
        let unreadable = |error: object::read::Error| ContainerError::Runtime(error.to_string());
        let header = FileHeader64::<LE>::parse(bytes).map_err(unreadable)?;
        let segments = header.program_headers(LE, bytes).map_err(unreadable)?;
        let sections = header.sections(LE, bytes).map_err(unreadable)?;
        let loads = || segments.iter().filter(|segment| segment.p_type(LE) == PT_LOAD);
        let file_end = loads().map(|s| s.p_offset(LE) + s.p_filesz(LE)).max();
        let with_zeros = loads().map(|s| s.p_offset(LE) + s.p_memsz(LE)).max();
        let address_end = loads().map(|s| s.p_vaddr(LE) + s.p_memsz(LE)).max();
        let (Some(file_end), Some(file_end_with_zeros), Some(address_end)) =
            (file_end, with_zeros, address_end)
        else {
            return Err(fault("it has no segments"));
        };
        let (slot_note, slot_note_address) = segments
            .iter()
            .filter(|segment| segment.p_type(LE) == PT_NOTE)
            .find_map(|segment| {
                let start = segment.p_offset(LE) as usize;
                let place = find_slot_note(segment.data(LE, bytes).ok()?)?;
                Some((start + place, segment.p_vaddr(LE) + place as u64))
            })
            .ok_or_else(|| fault("it has no note for a model"))?;
        Ok(Program {
            bytes,
            header,
            segments,
            sections,
            slot_note,
            slot_note_address,
            file_end,
            file_end_with_zeros,
            address_end,
        })
    }

    fn slot_address(&self) -> u64 {
        self.slot_note_address + NOTE_HEAD_BYTES as u64
    }

    /// End of the program header table when it has `count` entries. Whatever it grows over must be
    /// notes: nothing reads those any more.
    fn grown_table(&self, count: usize) -> Result<Range<usize>, ContainerError> {
        let start = self.header.e_phoff(LE) as usize;
        let old_end = start + size_of_val(self.segments);
        let end = start + count * PROGRAM_HEADER_BYTES;
        let only_notes = self.sections.iter().all(|section| {
            let place = section.sh_offset(LE) as usize;
            let outside = place >= end || place + section.sh_size(LE) as usize <= old_end;
            let unmapped = !has(section, SHF_ALLOC);
            outside || unmapped || section.sh_type(LE) == SHT_NOTE
        });
        if only_notes && end <= self.slot_note && start >= HEADER_BYTES {
            Ok(start..end)
        } else {
            Err(ContainerError::Runtime("no room for program headers".into()))
        }
    }
}

fn has(section: &SectionHeader64<LE>, flag: SectionFlags) -> bool {
    section.sh_flags(LE).0 & flag.0 != 0
}

/// Offset of the slot's note, which follows the room's.
fn find_slot_note(notes: &[u8]) -> Option<usize> {
    let head = |kind: u32, bytes: usize| {
        let words = [NOTE_NAME.len() as u32, bytes as u32, kind];
        let mut head: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        head.extend_from_slice(&NOTE_NAME);
        head
    };
    let room = head(NOTE_ROOM, NOTE_ROOM_BYTES);
    let place = notes.windows(room.len()).position(|window| window == room)?;
    let slot_note = place + NOTE_HEAD_BYTES + NOTE_ROOM_BYTES;
    let mut expected = head(NOTE_SLOT, SLOT_BYTES);
    expected.extend_from_slice(&SLOT_EMPTY);
    notes
        .get(slot_note..slot_note + NOTE_HEAD_BYTES + SLOT_BYTES)?
        .starts_with(&expected)
        .then_some(slot_note)
}

/// Where a region lies.
#[derive(Clone, Copy)]
struct Place {
    offset: u64,
    address: u64,
    bytes: u64,
    alignment: u64,
    flags: ProgramFlags,
}

struct Layout {
    code: Place,
    tables: Place,
    weights: Place,
}

impl Layout {
    fn new(program: &Program<'_>, image: &ModelImage<'_>, head_bytes: u64) -> Layout {
        let weights_bytes = image.weights.bytes + END_MARK.len() as u64;
        let weights_alignment =
            if weights_bytes >= LARGE_PAGES_FROM { LARGE_PAGE_BYTES } else { PAGE_BYTES };
        let mut offset = head_bytes.max(program.file_end_with_zeros);
        let mut address = program.address_end;
        let mut place = |bytes: u64, alignment: u64, flags: ProgramFlags| {
            let start = Place {
                offset: align(offset, alignment),
                address: align(address, alignment),
                bytes,
                alignment,
                flags,
            };
            offset = start.offset + bytes;
            address = start.address + bytes;
            start
        };
        Layout {
            code: place(image.code.bytes.len() as u64, PAGE_BYTES, PF_R | PF_X),
            tables: place(image.tables.len() as u64, PAGE_BYTES, PF_R),
            weights: place(weights_bytes, weights_alignment, PF_R),
        }
    }

    fn places(&self) -> [Place; 3] {
        [self.code, self.tables, self.weights]
    }
}

/// Everything in front of the code: the runtime with its new headers and slot, and the tables for
/// tools.
fn head(
    program: &Program<'_>,
    image: &ModelImage<'_>,
) -> Result<(Vec<u8>, Layout), ContainerError> {
    let mut head = program.bytes[..program.file_end as usize].to_vec();
    // The lengths of the tables for tools do not depend on where the regions lie; the values in
    // them do. So they are made twice: once to be measured.
    let measured = ToolTables::new(program, image, &Layout::new(program, image, 0))?;
    let symbols_offset = align(program.file_end, 8);
    let head_bytes = symbols_offset + measured.bytes();
    let layout = Layout::new(program, image, head_bytes);
    let mut tools = ToolTables::new(program, image, &layout)?;
    head.resize(symbols_offset as usize, 0);
    let sections_offset = tools.append_to(&mut head);

    let segments = program_headers(program, &layout);
    let table = program.grown_table(segments.len())?;
    let mut header = *program.header;
    header.e_phnum = U16::new(LE, segments.len() as u16);
    header.e_shoff = U64::new(LE, sections_offset);
    header.e_shnum = U16::new(LE, tools.sections.headers.len() as u16);
    header.e_shstrndx = U16::new(LE, SymbolSection(tools.sections.headers.len() as u16 - 1));
    head[..HEADER_BYTES].copy_from_slice(bytes_of(&header));
    // What is left of the notes between the table and ours would be half a note.
    head[table.end..program.slot_note].fill(0);
    for (index, segment) in segments.iter().enumerate() {
        let at = table.start + index * PROGRAM_HEADER_BYTES;
        head[at..at + PROGRAM_HEADER_BYTES].copy_from_slice(bytes_of(segment));
    }
    let slot = program.slot_note + NOTE_HEAD_BYTES;
    head[slot..slot + SLOT_BYTES].copy_from_slice(&slot_bytes(program.slot_address(), &layout));
    Ok((head, layout))
}

fn slot_bytes(slot_address: u64, layout: &Layout) -> Vec<u8> {
    let mut bytes = SLOT_FILLED.to_vec();
    for place in layout.places() {
        bytes.extend_from_slice(&place.address.wrapping_sub(slot_address).to_le_bytes());
    }
    let weights_bytes = layout.weights.bytes - END_MARK.len() as u64;
    for length in [layout.code.bytes, layout.tables.bytes, weights_bytes] {
        bytes.extend_from_slice(&length.to_le_bytes());
    }
    bytes
}

fn program_headers(program: &Program<'_>, layout: &Layout) -> Vec<ProgramHeader64<LE>> {
    let kept: Vec<_> = program
        .segments
        .iter()
        .filter(|segment| !matches!(segment.p_type(LE), PT_NOTE | PT_GNU_PROPERTY))
        .copied()
        .collect();
    let count = kept.len() + layout.places().len() + 1;
    let table_bytes = (count * PROGRAM_HEADER_BYTES) as u64;
    let last_load = kept.iter().rposition(|segment| segment.p_type(LE) == PT_LOAD);
    let mut headers = Vec::with_capacity(count);
    for (index, mut segment) in kept.into_iter().enumerate() {
        if segment.p_type(LE) == PT_PHDR {
            segment.p_filesz = U64::new(LE, table_bytes);
            segment.p_memsz = U64::new(LE, table_bytes);
        }
        headers.push(segment);
        // Segments to load are in order of their addresses.
        if Some(index) == last_load {
            headers.extend(layout.places().map(|place| program_header(PT_LOAD, place)));
        }
    }
    let note = Place {
        offset: program.slot_note as u64,
        address: program.slot_note_address,
        bytes: (NOTE_HEAD_BYTES + SLOT_BYTES) as u64,
        alignment: 8,
        flags: PF_R,
    };
    headers.push(program_header(PT_NOTE, note));
    headers
}

fn program_header(kind: ProgramType, place: Place) -> ProgramHeader64<LE> {
    ProgramHeader64 {
        p_type: U32::new(LE, kind),
        p_flags: U32::new(LE, place.flags),
        p_offset: U64::new(LE, place.offset),
        p_vaddr: U64::new(LE, place.address),
        p_paddr: U64::new(LE, place.address),
        p_filesz: U64::new(LE, place.bytes),
        p_memsz: U64::new(LE, place.bytes),
        p_align: U64::new(LE, place.alignment),
    }
}

/// Symbols and sections of runtime and model, for `perf`, `gdb`, `objdump` and `strip`.
struct ToolTables {
    symbols: Symbols,
    sections: Sections,
    first_global: u32,
}

impl ToolTables {
    fn new(
        program: &Program<'_>,
        image: &ModelImage<'_>,
        layout: &Layout,
    ) -> Result<ToolTables, ContainerError> {
        let unreadable = |error: object::read::Error| ContainerError::Runtime(error.to_string());
        let (mut sections, numbers) = mapped_sections(program)?;
        let mut region = |name: &str, place: Place, flags: SectionFlags| {
            let section = Section {
                kind: SHT_PROGBITS,
                flags,
                address: place.address,
                offset: place.offset,
                bytes: place.bytes,
                alignment: place.alignment,
                ..Section::default()
            };
            sections.add(name, section)
        };
        let code_section = region(".weir.code", layout.code, SHF_ALLOC | SHF_EXECINSTR);
        region(".weir.tables", layout.tables, SHF_ALLOC);
        region(".weir.weights", layout.weights, SHF_ALLOC);

        let linked = program.sections.symbols(LE, program.bytes, SHT_SYMTAB).map_err(unreadable)?;
        let mut symbols = Symbols::new();
        let copy = |symbols: &mut Symbols, local: bool| -> Result<(), ContainerError> {
            for symbol in linked.iter().skip(1).filter(|s| (s.st_bind() == STB_LOCAL) == local) {
                let old = symbol.st_shndx(LE);
                let section = match old.index().map(|index| numbers.get(index as usize)) {
                    None => old,
                    Some(Some(number)) if *number != 0 => SymbolSection(*number),
                    Some(_) => continue,
                };
                let name = linked.symbol_name(LE, symbol).map_err(unreadable)?;
                symbols.add(
                    name,
                    Symbol {
                        info: symbol.st_info(),
                        other: symbol.st_other(),
                        section,
                        value: symbol.st_value(LE),
                        bytes: symbol.st_size(LE),
                    },
                );
            }
            Ok(())
        };
        copy(&mut symbols, true)?;
        for function in &image.code.symbols {
            symbols.add(
                function.name.as_bytes(),
                Symbol {
                    info: STT_FUNC | STB_LOCAL,
                    other: SymbolOther(0),
                    section: code_section,
                    value: layout.code.address + function.offset,
                    bytes: function.bytes,
                },
            );
        }
        let first_global = symbols.next();
        copy(&mut symbols, false)?;
        // Reserved here, so that the tables have their final length; `append_to` places them.
        for name in [".symtab", ".strtab", ".shstrtab"] {
            sections.add(name, Section::default());
        }
        Ok(ToolTables { symbols, sections, first_global })
    }

    /// Length of all tables together when they begin at a multiple of 8.
    fn bytes(&self) -> u64 {
        let symbols = size_of_val(self.symbols.entries.as_slice());
        let names = self.symbols.names.bytes.len() + self.sections.names.bytes.len();
        align((symbols + names) as u64, 8) + size_of_val(self.sections.headers.as_slice()) as u64
    }

    /// Appends the tables and returns the offset of the section headers.
    fn append_to(&mut self, file: &mut Vec<u8>) -> u64 {
        let count = self.sections.headers.len();
        let parts = [
            (SHT_SYMTAB, self.symbols.to_bytes()),
            (SHT_STRTAB, self.symbols.names.bytes.clone()),
            (SHT_STRTAB, self.sections.names.bytes.clone()),
        ];
        for ((kind, bytes), header) in
            parts.into_iter().zip(&mut self.sections.headers[count - 3..])
        {
            header.sh_type = U32::new(LE, kind);
            header.sh_offset = U64::new(LE, file.len() as u64);
            header.sh_size = U64::new(LE, bytes.len() as u64);
            header.sh_addralign = U64::new(LE, 1);
            if kind == SHT_SYMTAB {
                header.sh_link = U32::new(LE, count as u32 - 2);
                header.sh_info = U32::new(LE, self.first_global);
                header.sh_entsize = U64::new(LE, size_of::<Sym64<LE>>() as u64);
                header.sh_addralign = U64::new(LE, 8);
            }
            file.extend_from_slice(&bytes);
        }
        file.resize(file.len().next_multiple_of(8), 0);
        let offset = file.len() as u64;
        file.extend_from_slice(&self.sections.to_bytes());
        offset
    }
}

/// The sections of the runtime that are mapped, and for each old section number the new one (0 if
/// it is gone). Of the notes only ours stays: program headers lie over others, and the linker's
/// identification of the runtime would make tools take all models for one program.
fn mapped_sections(program: &Program<'_>) -> Result<(Sections, Vec<u16>), ContainerError> {
    let unreadable = |error: object::read::Error| ContainerError::Runtime(error.to_string());
    let kept = |section: &SectionHeader64<LE>| {
        let mapped = has(section, SHF_ALLOC);
        let start = section.sh_offset(LE) as usize;
        let end = start + section.sh_size(LE) as usize;
        let note = section.sh_type(LE) == SHT_NOTE;
        mapped && (!note || (start..end).contains(&program.slot_note))
    };
    let mut numbers = vec![0];
    for section in program.sections.iter().skip(1) {
        let last = numbers.iter().copied().max().unwrap_or(0);
        numbers.push(if kept(section) { last + 1 } else { 0 });
    }
    let renumber = |old: u32| u32::from(numbers.get(old as usize).copied().unwrap_or(0));
    let mut sections = Sections::new();
    for section in program.sections.iter().skip(1).filter(|section| kept(section)) {
        let name = program.sections.section_name(LE, section).map_err(unreadable)?;
        let mut copy = Section {
            kind: section.sh_type(LE),
            flags: section.sh_flags(LE),
            address: section.sh_addr(LE),
            offset: section.sh_offset(LE),
            bytes: section.sh_size(LE),
            link: renumber(section.sh_link(LE)),
            info: if has(section, SHF_INFO_LINK) {
                renumber(section.sh_info(LE))
            } else {
                section.sh_info(LE)
            },
            alignment: section.sh_addralign(LE),
            entry_bytes: section.sh_entsize(LE),
        };
        let slot_note = program.slot_note as u64;
        if (copy.offset..copy.offset + copy.bytes).contains(&slot_note) {
            copy.bytes -= slot_note - copy.offset;
            copy.offset = slot_note;
            copy.address = program.slot_note_address;
        }
        sections.add(&String::from_utf8_lossy(name), copy);
    }
    Ok((sections, numbers))
}
