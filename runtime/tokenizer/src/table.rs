//! Layout of the packed table and checked reads from it.
//!
//! Invariant: no function here panics or reads out of bounds for any bytes. A damaged table is an
//! error at opening where that is cheap to see, and a failed look-up (`None`) later otherwise.

use crate::TokenizerError;

/// First eight bytes of every table.
pub(crate) const MAGIC: [u8; 8] = *b"WEIRTOK\0";
/// Version of the layout. Readers accept exactly their own.
pub(crate) const VERSION: u32 = 1;

/// The sections, in the order of the directory and of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub(crate) enum Section {
    /// Components and model options: a byte stream of tagged records.
    Config,
    /// Compiled split patterns.
    Patterns,
    /// `u32[ids + 1]`: where each id's text starts in `Texts`.
    TextOffsets,
    /// UTF-8 texts of all ids, back to back.
    Texts,
    /// `u8[ids]`: [`MODEL`], [`ADDED`], [`SPECIAL`].
    Flags,
    /// `u32[2^k]`: open addressing from text to id + 1; 0 is empty.
    VocabSlots,
    /// `[left, right, joined]: u32[3]` per merge, in order of rank.
    Merges,
    /// `u32[2^k]`: open addressing from pair to rank + 1; 0 is empty.
    MergeSlots,
    /// `[offset, length, id, flags]: u32[4]` per added-token pattern, each group sorted by bytes.
    Added,
    /// Bytes of the added-token patterns.
    AddedTexts,
    /// `f64[ids]` log probabilities of a unigram model; empty for other models.
    Scores,
}

/// All sections with their names.
pub(crate) const SECTIONS: [(Section, &str); 11] = [
    (Section::Config, "config"),
    (Section::Patterns, "patterns"),
    (Section::TextOffsets, "text offsets"),
    (Section::Texts, "texts"),
    (Section::Flags, "flags"),
    (Section::VocabSlots, "vocabulary slots"),
    (Section::Merges, "merges"),
    (Section::MergeSlots, "merge slots"),
    (Section::Added, "added tokens"),
    (Section::AddedTexts, "added texts"),
    (Section::Scores, "scores"),
];

/// Bytes before the first section: magic, version, total length, then offset and length each.
#[cfg(feature = "pack")]
pub(crate) const HEADER_LEN: usize = 16 + 8 * SECTIONS.len();
/// Sections start at multiples of this, so that a mapped table's words lie on one cache line.
#[cfg(feature = "pack")]
pub(crate) const SECTION_ALIGN: usize = 16;

/// The id is in the model's vocabulary.
pub(crate) const MODEL: u8 = 1;
/// The id is an added token.
pub(crate) const ADDED: u8 = 2;
/// Decoding may skip the id's text.
pub(crate) const SPECIAL: u8 = 4;

/// Reads the `index`-th little-endian word.
pub(crate) fn word(bytes: &[u8], index: usize) -> Option<u32> {
    let start = index.checked_mul(4)?;
    let chunk = bytes.get(start..start.checked_add(4)?)?;
    Some(u32::from_le_bytes(chunk.try_into().ok()?))
}

/// FNV-1a, finished by a multiplication so that its high bits are well mixed too.
pub(crate) fn hash_text(text: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for &byte in text {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    }
    mix(hash)
}

/// Hash of a pair of ids.
pub(crate) fn hash_pair(left: u32, right: u32) -> u64 {
    mix(u64::from(left) << 32 | u64::from(right))
}

fn mix(hash: u64) -> u64 {
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    hash ^ (hash >> 29)
}

/// Borrowed sections of one table.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    sections: [&'a [u8]; SECTIONS.len()],
}

impl<'a> Table<'a> {
    /// Checks magic, version, length and the bounds of every section.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<Self, TokenizerError> {
        let header = |reason| TokenizerError::Table { section: "header", reason };
        if bytes.get(..8) != Some(&MAGIC[..]) {
            return Err(header("not a tokenizer table"));
        }
        let tail = &bytes[8..];
        if word(tail, 0).ok_or(header("cut short"))? != VERSION {
            return Err(header("written by another version of Weir"));
        }
        let total = word(tail, 1).ok_or(header("cut short"))? as usize;
        let body = bytes.get(..total).ok_or(header("shorter than it says"))?;
        let mut sections: [&[u8]; SECTIONS.len()] = [&[]; SECTIONS.len()];
        for (index, (_, name)) in SECTIONS.iter().enumerate() {
            let section = |reason| TokenizerError::Table { section: name, reason };
            let start = word(tail, 2 + 2 * index).ok_or(header("cut short"))? as usize;
            let len = word(tail, 3 + 2 * index).ok_or(header("cut short"))? as usize;
            let end = start.checked_add(len).ok_or(section("out of bounds"))?;
            sections[index] = body.get(start..end).ok_or(section("out of bounds"))?;
        }
        let table = Self { sections };
        table.check_sizes()?;
        Ok(table)
    }

    /// Sizes that belong together: one pass over eleven lengths, not over their contents.
    fn check_sizes(&self) -> Result<(), TokenizerError> {
        let ids = self.ids();
        let fail = |section, reason| Err(TokenizerError::Table { section, reason });
        if self.section(Section::TextOffsets).len() != (ids + 1) * 4 {
            return fail("text offsets", "not one per id");
        }
        for (section, name) in
            [(Section::VocabSlots, "vocabulary slots"), (Section::MergeSlots, "merge slots")]
        {
            let len = self.section(section).len();
            if !len.is_multiple_of(4) || !(len / 4).is_power_of_two() {
                return fail(name, "not a power of two");
            }
        }
        if !self.section(Section::Merges).len().is_multiple_of(12) {
            return fail("merges", "not whole records");
        }
        if !self.section(Section::Added).len().is_multiple_of(16) {
            return fail("added tokens", "not whole records");
        }
        let scores = self.section(Section::Scores).len();
        if scores != 0 && scores != ids * 8 {
            return fail("scores", "not one per id");
        }
        Ok(())
    }

    pub(crate) fn section(&self, section: Section) -> &'a [u8] {
        self.sections[section as usize]
    }

    /// Number of ids, holes included: the largest id + 1.
    pub(crate) fn ids(&self) -> usize {
        self.section(Section::Flags).len()
    }

    pub(crate) fn flags(&self, id: u32) -> u8 {
        self.section(Section::Flags).get(id as usize).copied().unwrap_or(0)
    }

    fn raw_text(&self, id: u32) -> Option<&'a [u8]> {
        let offsets = self.section(Section::TextOffsets);
        let start = word(offsets, id as usize)? as usize;
        let end = word(offsets, (id as usize).checked_add(1)?)? as usize;
        self.section(Section::Texts).get(start..end)
    }

    /// The id's text as the file spells it.
    pub(crate) fn text(&self, id: u32) -> Option<&'a str> {
        if self.flags(id) & (MODEL | ADDED) == 0 {
            return None;
        }
        std::str::from_utf8(self.raw_text(id)?).ok()
    }

    /// The id with exactly this text and at least one of the `wanted` flags.
    pub(crate) fn find(&self, text: &[u8], wanted: u8) -> Option<u32> {
        self.find_hashed(text, hash_text(text), wanted)
    }

    fn find_hashed(&self, text: &[u8], hash: u64, wanted: u8) -> Option<u32> {
        let slots = self.section(Section::VocabSlots);
        let mask = (slots.len() / 4).checked_sub(1)?;
        let mut slot = hash as usize & mask;
        for _ in 0..=mask {
            let id = word(slots, slot)?.checked_sub(1)?;
            if self.raw_text(id) == Some(text) {
                return (self.flags(id) & wanted != 0).then_some(id);
            }
            slot = (slot + 1) & mask;
        }
        None
    }

    /// Rank and joined id of a pair.
    pub(crate) fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let slots = self.section(Section::MergeSlots);
        let merges = self.section(Section::Merges);
        let mask = (slots.len() / 4).checked_sub(1)?;
        let mut slot = hash_pair(left, right) as usize & mask;
        for _ in 0..=mask {
            let rank = word(slots, slot)?.checked_sub(1)?;
            let record = (rank as usize).checked_mul(3)?;
            if word(merges, record)? == left && word(merges, record + 1)? == right {
                return Some((rank, word(merges, record + 2)?));
            }
            slot = (slot + 1) & mask;
        }
        None
    }

    /// The unigram score of an id.
    pub(crate) fn score(&self, id: u32) -> Option<f64> {
        let start = (id as usize).checked_mul(8)?;
        let chunk = self.section(Section::Scores).get(start..start.checked_add(8)?)?;
        Some(f64::from_le_bytes(chunk.try_into().ok()?))
    }
}

/// Sequential checked reads of a byte stream (the config and patterns sections).
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    section: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], section: &'static str) -> Self {
        Self { bytes, section }
    }

    pub(crate) fn fail<T>(&self, reason: &'static str) -> Result<T, TokenizerError> {
        Err(TokenizerError::Table { section: self.section, reason })
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], TokenizerError> {
        let Some((head, tail)) = self.bytes.split_at_checked(len) else {
            return self.fail("cut short");
        };
        self.bytes = tail;
        Ok(head)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, TokenizerError> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn flag(&mut self) -> Result<bool, TokenizerError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => self.fail("a flag is neither 0 nor 1"),
        }
    }

    pub(crate) fn word(&mut self) -> Result<u32, TokenizerError> {
        let bytes = self.take(4)?;
        word(bytes, 0).map_or_else(|| self.fail("cut short"), Ok)
    }

    /// A count of records of at least `record_len` bytes each, so that no count can make the
    /// reader reserve more memory than the table holds.
    pub(crate) fn count(&mut self, record_len: usize) -> Result<usize, TokenizerError> {
        let count = self.word()? as usize;
        if count.checked_mul(record_len).is_none_or(|len| len > self.bytes.len()) {
            return self.fail("a count exceeds its section");
        }
        Ok(count)
    }

    pub(crate) fn text(&mut self) -> Result<String, TokenizerError> {
        let len = self.count(1)?;
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => self.fail("a text is not UTF-8"),
        }
    }

    pub(crate) fn character(&mut self) -> Result<char, TokenizerError> {
        let code = self.word()?;
        char::from_u32(code).map_or_else(|| self.fail("not a character"), Ok)
    }
}

/// The writing half of [`Reader`].
#[cfg(feature = "pack")]
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

#[cfg(feature = "pack")]
impl Writer {
    pub(crate) fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub(crate) fn flag(&mut self, value: bool) {
        self.0.push(u8::from(value));
    }

    pub(crate) fn word(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Counts come from collections whose bytes end up in a table of less than 4 GiB, which
    /// `assemble` checks.
    pub(crate) fn count(&mut self, value: usize) {
        self.word(u32::try_from(value).unwrap_or(u32::MAX));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }
}
