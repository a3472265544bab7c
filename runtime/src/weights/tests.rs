//! Compiled models that are whole, damaged, truncated, or something else.

use std::mem::offset_of;

use memmap2::{Mmap, MmapMut};
use weir_abi::{ABI_VERSION, CacheLayout, KindEntry, MAGIC, ModelHeader, Table};

use super::*;

const HEADER_BYTES: usize = size_of::<ModelHeader>();
const WEIGHTS: [u8; 64] = [7; 64];
/// `ret`, padded.
const CODE: [u8; 16] = [0xc3; 16];

/// Tables of a model with one level, one kind and one layer.
struct Builder {
    bytes: Vec<u8>,
}

impl Builder {
    fn whole() -> Builder {
        let mut tables = Builder { bytes: vec![0; HEADER_BYTES] };
        tables.set(offset_of!(ModelHeader, magic), &MAGIC);
        tables.number(offset_of!(ModelHeader, abi_version), ABI_VERSION);
        for offset in [
            offset_of!(ModelHeader, vocabulary),
            offset_of!(ModelHeader, hidden_width),
            offset_of!(ModelHeader, context),
            offset_of!(ModelHeader, max_rows),
            offset_of!(ModelHeader, max_head_rows),
            offset_of!(ModelHeader, slots),
            offset_of!(ModelHeader, rotary_sets),
            offset_of!(ModelHeader, head_width),
        ] {
            tables.number(offset, 1);
        }
        let code = tables.append(&[0; size_of::<KindCode>()]);
        let level = [0_u64, 4, 8, code, 1].map(u64::to_le_bytes).concat();
        tables.table(offset_of!(ModelHeader, levels), &level, 1);
        // What follows in these two entries is none: no block with a format of its own, no window.
        let mut kind = [2_u32, 1, 4, 4, 16, 16].map(u32::to_le_bytes).concat();
        kind.resize(size_of::<KindEntry>(), 0);
        tables.table(offset_of!(ModelHeader, kinds), &kind, 1);
        let layer = [0_u32, 0, 0, 1].map(u32::to_le_bytes).concat();
        tables.table(offset_of!(ModelHeader, layers), &layer, 1);
        let mut layout = [0_u32, 0, 0, 0, 8, 8].map(u32::to_le_bytes).concat();
        layout.resize(size_of::<CacheLayout>(), 0);
        tables.table(offset_of!(ModelHeader, layouts), &layout, 1);
        tables.table(offset_of!(ModelHeader, weight_offsets), &32_u64.to_le_bytes(), 1);
        tables.table(offset_of!(ModelHeader, facts), b"{}", 2);
        tables
    }

    fn set(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn number(&mut self, offset: usize, value: u32) {
        self.set(offset, &value.to_le_bytes());
    }

    fn append(&mut self, bytes: &[u8]) -> u64 {
        let offset = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
        offset as u64
    }

    fn table(&mut self, field: usize, bytes: &[u8], count: u64) {
        let offset = self.append(bytes);
        self.set(field, &offset.to_le_bytes());
        self.set(field + 8, &count.to_le_bytes());
    }

    /// Fills lengths and checksums.
    fn seal(mut self) -> Vec<u8> {
        let lengths = [
            (offset_of!(ModelHeader, tables_bytes), self.bytes.len()),
            (offset_of!(ModelHeader, code_bytes), CODE.len()),
            (offset_of!(ModelHeader, weights_bytes), WEIGHTS.len()),
        ];
        for (offset, bytes) in lengths {
            self.set(offset, &(bytes as u64).to_le_bytes());
        }
        let digests = [
            (offset_of!(ModelHeader, tables_digest), blake3::hash(&self.bytes[HEADER_BYTES..])),
            (offset_of!(ModelHeader, code_digest), blake3::hash(&CODE)),
            (offset_of!(ModelHeader, weights_digest), blake3::hash(&WEIGHTS)),
        ];
        for (offset, digest) in digests {
            self.set(offset, digest.as_bytes());
        }
        let digest = blake3::hash(&self.bytes[..HEADER_BYTES]);
        self.set(offset_of!(ModelHeader, header_digest), digest.as_bytes());
        self.bytes
    }
}

fn mapped(bytes: &[u8]) -> Mmap {
    let mut map = MmapMut::map_anon(bytes.len()).unwrap();
    map.copy_from_slice(bytes);
    map.make_read_only().unwrap()
}

fn open(tables: Vec<u8>) -> Result<CompiledModel, ModelError> {
    CompiledModel::from_parts(mapped(&CODE), tables, mapped(&WEIGHTS).into())
}

fn error_of(tables: Vec<u8>) -> String {
    open(tables).unwrap_err().to_string()
}

#[test]
fn a_whole_model_opens_and_verifies() {
    let model = open(Builder::whole().seal()).unwrap();
    model.verify().unwrap();
    assert_eq!(model.facts(), "{}");
    assert_eq!(model.chat_template(), "");
    assert_eq!(model.layer_weights(&model.layers()[0]), [32]);
    let level = &model.levels()[0];
    assert_eq!(level.embed as usize - model.code().as_ptr() as usize, 4);
    assert_eq!(level.kinds.len(), model.kinds().len());
    assert_eq!(model.layouts()[0].rows, 8);
}

#[test]
fn a_flipped_bit_anywhere_in_the_tables_is_found() {
    let whole = Builder::whole().seal();
    for bit in (0..whole.len() * 8).step_by(3) {
        let mut broken = whole.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        // Either a bound is violated, or the checksum does not match.
        assert!(open(broken).is_err(), "bit {bit}");
    }
}

#[test]
fn flipped_code_and_weights_are_named() {
    let tables = Builder::whole().seal();
    let mut code = CODE;
    code[3] ^= 1;
    let error = CompiledModel::from_parts(mapped(&code), tables.clone(), mapped(&WEIGHTS).into());
    assert!(matches!(error.unwrap_err().fault, ModelFault::Damaged(Region::Code)));
    let mut weights = WEIGHTS;
    weights[60] ^= 4;
    let model = CompiledModel::from_parts(mapped(&CODE), tables, mapped(&weights).into()).unwrap();
    let fault = model.verify().unwrap_err().fault;
    assert!(matches!(fault, ModelFault::Damaged(Region::Weights)));
}

#[test]
fn tables_of_every_shorter_length_are_refused() {
    let whole = Builder::whole().seal();
    for length in 0..whole.len() {
        assert!(open(whole[..length].to_vec()).is_err(), "{length} bytes");
    }
}

#[test]
fn another_version_is_named() {
    let mut tables = Builder::whole();
    tables.number(offset_of!(ModelHeader, abi_version), ABI_VERSION + 1);
    assert!(error_of(tables.seal()).contains("compile it again"));
}

#[test]
fn bounds_of_tables_are_checked_behind_a_right_checksum() {
    let absurd = |field: usize, value: u64| {
        let mut tables = Builder::whole();
        tables.set(field, &value.to_le_bytes());
        error_of(tables.seal())
    };
    let count = offset_of!(Table, count);
    for (field, name) in [
        (offset_of!(ModelHeader, levels), "ISA levels"),
        (offset_of!(ModelHeader, kinds), "layer kinds"),
        (offset_of!(ModelHeader, layers), "layers"),
        (offset_of!(ModelHeader, layouts), "cache layouts"),
        (offset_of!(ModelHeader, weight_offsets), "weight offsets"),
        (offset_of!(ModelHeader, symbols), "symbols"),
    ] {
        for value in [1000, u64::MAX, u64::MAX / size_of::<KindEntry>() as u64 + 1] {
            let error = absurd(field + count, value);
            assert!(error.contains(name), "{name}: {error}");
        }
    }
    let facts = offset_of!(ModelHeader, facts);
    assert!(absurd(facts, u64::MAX).contains("facts"));
    assert!(absurd(offset_of!(ModelHeader, arena_bytes), u64::MAX).contains("arena"));
    // The kind of the head, and its width behind it.
    let head = offset_of!(ModelHeader, head_result);
    assert!(absurd(head, 1 << 32 | 2).contains("a head of kind 2"));
    assert!(absurd(head, 3 << 32).contains("3 logits for a vocabulary of 1"));
    assert!(absurd(head, 1).contains("width of the head"));
}

#[test]
fn entries_that_refer_to_nothing_are_refused() {
    let whole = Builder::whole().seal();
    let header: ModelHeader = read_plain(&whole, 0).unwrap();
    let broken = |offset: u64, value: u32| {
        let mut tables = Builder { bytes: whole.clone() };
        tables.set(offset_of!(ModelHeader, header_digest), &[0; 32]);
        tables.number(offset as usize, value);
        error_of(tables.seal())
    };
    assert!(broken(header.layers.offset, 1).contains("layer 0"));
    assert!(broken(header.layers.offset + 8, 1).contains("layer 0"));
    assert!(broken(header.layouts.offset, 99).contains("policy 99"));
    let rows = offset_of!(CacheLayout, rows) as u64;
    assert!(broken(header.layouts.offset + rows, 7).contains("add up"));
    let further = offset_of!(CacheLayout, further) as u64;
    assert!(broken(header.layouts.offset + further, 3).contains("its heads are outside"));
    assert!(broken(header.levels.offset, 9).contains("ISA level 9"));
    assert!(broken(header.levels.offset + 8, 16).contains("outside the code"));
    assert!(broken(header.weight_offsets.offset, 65).contains("outside the weights"));
    assert!(broken(header.kinds.offset + 4, 0).contains("zero"));
}

#[test]
fn other_files_are_no_models() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for bytes in [&b""[..], b"text", &[0; 100], b"\x7fELF", &[0x7f; 4096]] {
        std::fs::write(&path, bytes).unwrap();
        let error = CompiledModel::open(&path).unwrap_err();
        assert!(matches!(error.fault, ModelFault::NoModel(_)), "{error}");
    }
    assert!(CompiledModel::open(folder.path()).is_err());
    let missing = CompiledModel::open(&folder.path().join("missing")).unwrap_err();
    assert!(missing.to_string().contains("missing"));
    // This test program contains the empty slot.
    let this = CompiledModel::open(&std::env::current_exe().unwrap()).unwrap_err();
    assert!(this.to_string().contains("runtime without a model"), "{this}");
    let error = CompiledModel::from_self().unwrap_err();
    assert!(matches!(error.fault, ModelFault::NoModel(_)));
}
