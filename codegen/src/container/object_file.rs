//! A relocatable object: the model as part of somebody else's program.
//!
//! The object defines one global symbol, `weir_model`, a filled `ModelSlot` whose displacements the
//! linker computes (`R_X86_64_PC64`: any distance, constant at link time, so that position
//! independent programs need no relocation of it when they start). The weights lie in a section with
//! `SHF_X86_64_LARGE`: linkers put such sections where they do not push small ones out of the reach
//! of 32-bit displacements, whatever their size.

use std::path::Path;

use object::elf::{
    self, EM_X86_64, ET_REL, FileHeader64, R_X86_64_PC64, SHF_ALLOC, SHF_EXECINSTR, SHF_INFO_LINK,
    SHT_PROGBITS, SHT_RELA, SHT_STRTAB, SHT_SYMTAB, STB_GLOBAL, STB_LOCAL, STT_FUNC, STT_OBJECT,
    STT_SECTION, SectionFlags, SectionHeader64, Sym64, SymbolOther, SymbolSection,
};
use object::endian::{LittleEndian as LE, U16, U32, U64};
use object::pod::bytes_of;
use weir_abi::{END_MARK, ModelSlot, SLOT_FILLED};

use super::output::{DATA, OutputFile};
use super::regions::{Meter, check_image, seal_tables, write_code, write_weights};
use super::sections::{Section, Sections, Symbol, Symbols, align, relocation};
use super::{ContainerError, PAGE_BYTES, Progress};
use crate::image::ModelImage;

/// The symbol that programs pass to the runtime.
pub(super) const MODEL_SYMBOL: &str = "weir_model";

/// Section beyond the reach of 32-bit displacements (x86-64 psABI, large sections).
const SHF_X86_64_LARGE: SectionFlags = SectionFlags(0x1000_0000);

const HEADER_BYTES: u64 = size_of::<FileHeader64<LE>>() as u64;

/// Writes the model as a relocatable object. `progress` hears about the bytes of the regions.
pub fn write_object<'a>(
    image: &ModelImage<'_>,
    output: &Path,
    progress: &'a mut Progress<'a>,
) -> Result<(), ContainerError> {
    let mut file = OutputFile::create(output, DATA)?;
    stream_object(image, &mut file, progress)?;
    file.finish()
}

/// Writes the object into an open file.
pub(super) fn stream_object<'a>(
    image: &ModelImage<'_>,
    file: &mut OutputFile,
    progress: &'a mut Progress<'a>,
) -> Result<(), ContainerError> {
    check_image(image)?;
    let mut meter = Meter::new(image, progress);
    let layout = Layout::new(image);
    let tail = Tail::new(image, &layout);
    file.write(bytes_of(&tail.header(&layout)))?;
    file.pad_to(layout.code.offset)?;
    let code_digest = write_code(image, file, &mut meter)?;
    file.pad_to(layout.weights.offset)?;
    let weights_digest = write_weights(&image.weights, file, &mut meter)?;
    file.write(&END_MARK)?;
    file.pad_to(layout.tables.offset)?;
    file.write(&seal_tables(image, code_digest, weights_digest))?;
    meter.add(image.tables.len());
    file.pad_to(layout.slot.offset)?;
    file.write(&slot_bytes(image))?;
    file.write(&tail.relocations)?;
    file.write(&tail.symbols.to_bytes())?;
    file.write(&tail.symbols.names.bytes)?;
    file.write(&tail.sections.names.bytes)?;
    file.pad_to(tail.sections_offset)?;
    file.write(&tail.sections.to_bytes())
}

/// The sections with contents. Weights come before tables, whose header holds their checksum.
struct Layout {
    code: Section,
    weights: Section,
    tables: Section,
    slot: Section,
}

impl Layout {
    fn new(image: &ModelImage<'_>) -> Layout {
        let mut end = HEADER_BYTES;
        let mut place = |bytes: u64, alignment: u64, flags: SectionFlags| {
            let offset = align(end, alignment);
            end = offset + bytes;
            let flags = SHF_ALLOC | flags;
            Section { kind: SHT_PROGBITS, flags, offset, bytes, alignment, ..Section::default() }
        };
        let mark = END_MARK.len() as u64;
        Layout {
            code: place(image.code.bytes.len() as u64, PAGE_BYTES, SHF_EXECINSTR),
            weights: place(image.weights.bytes + mark, PAGE_BYTES, SHF_X86_64_LARGE),
            tables: place(image.tables.len() as u64, PAGE_BYTES, SectionFlags(0)),
            slot: place(size_of::<ModelSlot>() as u64, 8, SectionFlags(0)),
        }
    }
}

/// The slot before the linker has added the displacements.
fn slot_bytes(image: &ModelImage<'_>) -> Vec<u8> {
    let lengths = [image.code.bytes.len() as u64, image.tables.len() as u64, image.weights.bytes];
    let words = [0; 3].into_iter().chain(lengths).flat_map(u64::to_le_bytes);
    SLOT_FILLED.into_iter().chain(words).collect()
}

/// What follows the slot.
struct Tail {
    relocations: Vec<u8>,
    symbols: Symbols,
    sections: Sections,
    sections_offset: u64,
}

impl Tail {
    fn new(image: &ModelImage<'_>, layout: &Layout) -> Tail {
        let mut sections = Sections::new();
        let code = sections.add(".text.weir", layout.code);
        let weights = sections.add(".lrodata.weir", layout.weights);
        let tables = sections.add(".rodata.weir", layout.tables);
        let slot = sections.add(".rodata.weir.slot", layout.slot);

        let mut symbols = Symbols::new();
        let mut section_symbol = |section: SymbolSection| {
            let info = STT_SECTION | STB_LOCAL;
            symbols.add(b"", Symbol { info, section, ..Symbol::default() })
        };
        // In the order of the displacements in the slot.
        let targets = [code, tables, weights].map(&mut section_symbol);
        for function in &image.code.symbols {
            let info = STT_FUNC | STB_LOCAL;
            let (value, bytes) = (function.offset, function.bytes);
            symbols.add(
                function.name.as_bytes(),
                Symbol { info, other: SymbolOther(0), section: code, value, bytes },
            );
        }
        let first_global = symbols.next();
        let info = STT_OBJECT | STB_GLOBAL;
        let bytes = layout.slot.bytes;
        symbols.add(
            MODEL_SYMBOL.as_bytes(),
            Symbol { info, other: SymbolOther(0), section: slot, value: 0, bytes },
        );

        let first = std::mem::offset_of!(ModelSlot, code) as u64;
        let relocations: Vec<u8> = (first..)
            .step_by(8)
            .zip(targets)
            // A displacement counts from the slot, a relocation from the field itself.
            .flat_map(|(at, symbol)| relocation(at, symbol, R_X86_64_PC64, at as i64))
            .collect();

        let mut end = layout.slot.offset + layout.slot.bytes;
        let mut place = |bytes: usize, section: Section| {
            let offset = end;
            end += bytes as u64;
            Section { offset, bytes: bytes as u64, ..section }
        };
        let symtab_number = sections.headers.len() as u32 + 2;
        let relocation_section = Section {
            kind: SHT_RELA,
            flags: SHF_INFO_LINK,
            link: symtab_number,
            info: u32::from(slot.0),
            alignment: 8,
            entry_bytes: size_of::<elf::Rela64<LE>>() as u64,
            ..Section::default()
        };
        sections.add(".rela.rodata.weir.slot", place(relocations.len(), relocation_section));
        // Says that the object wants no executable stack.
        let no_stack = Section { kind: SHT_PROGBITS, alignment: 1, ..Section::default() };
        sections.add(".note.GNU-stack", place(0, no_stack));
        let symbol_table = Section {
            kind: SHT_SYMTAB,
            link: symtab_number + 1,
            info: first_global,
            alignment: 8,
            entry_bytes: size_of::<Sym64<LE>>() as u64,
            ..Section::default()
        };
        let symbol_bytes = symbols.entries.len() * size_of::<Sym64<LE>>();
        sections.add(".symtab", place(symbol_bytes, symbol_table));
        let strings = Section { kind: SHT_STRTAB, alignment: 1, ..Section::default() };
        sections.add(".strtab", place(symbols.names.bytes.len(), strings));
        let name_bytes = sections.names.bytes.len() + ".shstrtab".len() + 1;
        sections.add(".shstrtab", place(name_bytes, strings));
        let sections_offset = align(end, 8);
        Tail { relocations, symbols, sections, sections_offset }
    }

    fn header(&self, layout: &Layout) -> FileHeader64<LE> {
        debug_assert!(layout.slot.offset < self.sections_offset);
        let count = self.sections.headers.len() as u16;
        FileHeader64 {
            e_ident: elf::Ident {
                magic: elf::ELFMAG,
                class: elf::ELFCLASS64,
                data: elf::ELFDATA2LSB,
                version: elf::EV_CURRENT,
                os_abi: elf::ELFOSABI_NONE,
                abi_version: 0,
                padding: [0; 7],
            },
            e_type: U16::new(LE, ET_REL),
            e_machine: U16::new(LE, EM_X86_64),
            e_version: U32::new(LE, u32::from(elf::EV_CURRENT.0)),
            e_entry: U64::new(LE, 0),
            e_phoff: U64::new(LE, 0),
            e_shoff: U64::new(LE, self.sections_offset),
            e_flags: U32::new(LE, elf::FileFlags(0)),
            e_ehsize: U16::new(LE, HEADER_BYTES as u16),
            e_phentsize: U16::new(LE, 0),
            e_phnum: U16::new(LE, 0),
            e_shentsize: U16::new(LE, size_of::<SectionHeader64<LE>>() as u16),
            e_shnum: U16::new(LE, count),
            e_shstrndx: U16::new(LE, SymbolSection(count - 1)),
        }
    }
}
