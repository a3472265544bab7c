//! Section, symbol and string tables of the ELF files that we write.
//!
//! Layout: System V ABI, chapter 4. The structures are those of the `object` crate.

use object::elf::{
    Rela64, RelocationType, SectionFlags, SectionHeader64, SectionType, Sym64, SymbolInfo,
    SymbolOther, SymbolSection,
};
use object::endian::{I64, LittleEndian as LE, U16, U32, U64};
use object::pod::bytes_of;

/// A string table: strings by offset, the first one empty.
pub(super) struct Strings {
    pub(super) bytes: Vec<u8>,
}

impl Strings {
    pub(super) fn new() -> Strings {
        Strings { bytes: vec![0] }
    }

    /// Adds a string and returns its offset.
    pub(super) fn add(&mut self, string: &[u8]) -> u32 {
        let offset = self.bytes.len() as u32;
        self.bytes.extend_from_slice(string);
        self.bytes.push(0);
        offset
    }
}

/// Rounds up to a multiple of `alignment`, a power of two.
pub(super) fn align(value: u64, alignment: u64) -> u64 {
    value.next_multiple_of(alignment)
}

/// What a section header says, without the name.
#[derive(Clone, Copy, Default)]
pub(super) struct Section {
    pub(super) kind: SectionType,
    pub(super) flags: SectionFlags,
    pub(super) address: u64,
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) link: u32,
    pub(super) info: u32,
    pub(super) alignment: u64,
    pub(super) entry_bytes: u64,
}

/// The section headers of a file and the names they refer to.
pub(super) struct Sections {
    pub(super) headers: Vec<SectionHeader64<LE>>,
    pub(super) names: Strings,
}

impl Sections {
    /// A table with the null section that every one begins with.
    pub(super) fn new() -> Sections {
        let mut sections = Sections { headers: Vec::new(), names: Strings::new() };
        sections.headers.push(header(0, Section::default()));
        sections
    }

    /// Adds a section and returns its number.
    pub(super) fn add(&mut self, name: &str, section: Section) -> SymbolSection {
        let name = self.names.add(name.as_bytes());
        self.headers.push(header(name, section));
        SymbolSection((self.headers.len() - 1) as u16)
    }

    /// The table as bytes.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.headers.iter().flat_map(bytes_of).copied().collect()
    }
}

fn header(name: u32, section: Section) -> SectionHeader64<LE> {
    SectionHeader64 {
        sh_name: U32::new(LE, name),
        sh_type: U32::new(LE, section.kind),
        sh_flags: U64::new(LE, section.flags),
        sh_addr: U64::new(LE, section.address),
        sh_offset: U64::new(LE, section.offset),
        sh_size: U64::new(LE, section.bytes),
        sh_link: U32::new(LE, section.link),
        sh_info: U32::new(LE, section.info),
        sh_addralign: U64::new(LE, section.alignment),
        sh_entsize: U64::new(LE, section.entry_bytes),
    }
}

/// A symbol table in the making. Local symbols must all come before global ones.
pub(super) struct Symbols {
    pub(super) entries: Vec<Sym64<LE>>,
    pub(super) names: Strings,
}

/// What a symbol says, without the name. `info` is binding and type.
#[derive(Clone, Copy, Default)]
pub(super) struct Symbol {
    pub(super) info: SymbolInfo,
    pub(super) other: SymbolOther,
    pub(super) section: SymbolSection,
    pub(super) value: u64,
    pub(super) bytes: u64,
}

impl Symbols {
    /// A table with the null symbol that every one begins with.
    pub(super) fn new() -> Symbols {
        let mut symbols = Symbols { entries: Vec::new(), names: Strings::new() };
        symbols.add(b"", Symbol::default());
        symbols
    }

    /// Adds a symbol and returns its number.
    pub(super) fn add(&mut self, name: &[u8], symbol: Symbol) -> u32 {
        let name = if name.is_empty() { 0 } else { self.names.add(name) };
        self.entries.push(Sym64 {
            st_name: U32::new(LE, name),
            st_info: symbol.info,
            st_other: symbol.other,
            st_shndx: U16::new(LE, symbol.section),
            st_value: U64::new(LE, symbol.value),
            st_size: U64::new(LE, symbol.bytes),
        });
        (self.entries.len() - 1) as u32
    }

    /// The number that the next symbol gets.
    pub(super) fn next(&self) -> u32 {
        self.entries.len() as u32
    }

    /// The table as bytes.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        self.entries.iter().flat_map(bytes_of).copied().collect()
    }
}

/// One relocation as bytes.
pub(super) fn relocation(offset: u64, symbol: u32, kind: RelocationType, addend: i64) -> Vec<u8> {
    let entry = Rela64::<LE> {
        r_offset: U64::new(LE, offset),
        r_info: U64::new(LE, u64::from(symbol) << 32 | u64::from(kind.0)),
        r_addend: I64::new(LE, addend),
    };
    bytes_of(&entry).to_vec()
}
