//! A compiled model in memory: whole tables of one level, one kind and one layer, whose code returns
//! at once. Nothing calls it.

use std::mem::offset_of;
use std::net::{Ipv4Addr, SocketAddr};

use memmap2::{Mmap, MmapMut};
use weir_abi::{ABI_VERSION, CacheLayout, KindCode, KindEntry, MAGIC, ModelHeader};
use weir_runtime::serve::{ServerOptions, memory_ceiling};
use weir_runtime::{CompiledModel, Model, RuntimeOptions};

const HEADER_BYTES: usize = size_of::<ModelHeader>();
const WEIGHTS: [u8; 64] = [7; 64];
/// `ret`, padded.
const CODE: [u8; 16] = [0xc3; 16];
/// Bytes that an input may add behind the tables.
const LONGEST: usize = 16 << 10;

/// Opens tables that differ from whole ones by `changes`, bit by bit, and reads all that is in them.
pub fn check(changes: &[u8]) {
    let mut tables = whole();
    tables.resize(tables.len().max(changes.len().min(LONGEST)), 0);
    tables.iter_mut().zip(changes).for_each(|(byte, change)| *byte ^= change);
    seal(&mut tables);
    let Ok(compiled) = open(tables) else { return };
    compiled.verify().expect("the checksums are right");
    for layer in compiled.layers() {
        let _ = (compiled.selected_by_head(layer), compiled.layer_weights(layer));
    }
    let _ = (compiled.embed_weights(), compiled.head_weights(), compiled.tokenizer());
    let _ = (compiled.levels().len(), compiled.symbols().count(), compiled.probes());
    let Ok(model) = Model::new(compiled) else { return };
    let _ = (model.encode("Hello"), model.template().is_ok(), model.sampling_defaults());
    let _ = model.memory_ceiling(&RuntimeOptions::default());
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let _ = memory_ceiling(&model, &ServerOptions::at(address));
}

/// A model that is whole; it can be asked for its facts.
pub fn model() -> Model {
    let mut tables = whole();
    seal(&mut tables);
    let compiled = open(tables).expect("whole tables open");
    Model::new(compiled).expect("its facts are an object")
}

fn open(tables: Vec<u8>) -> Result<CompiledModel, weir_runtime::ModelError> {
    CompiledModel::from_parts(mapped(&CODE), tables, mapped(&WEIGHTS).into())
}

fn mapped(bytes: &[u8]) -> Mmap {
    let mut map = MmapMut::map_anon(bytes.len()).expect("memory");
    map.copy_from_slice(bytes);
    map.make_read_only().expect("a protection")
}

fn whole() -> Vec<u8> {
    let mut tables = vec![0; HEADER_BYTES];
    set(&mut tables, offset_of!(ModelHeader, magic), &MAGIC);
    set(&mut tables, offset_of!(ModelHeader, abi_version), &ABI_VERSION.to_le_bytes());
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
        set(&mut tables, offset, &1_u32.to_le_bytes());
    }
    let code = append(&mut tables, &[0; size_of::<KindCode>()]);
    let level = [0_u64, 4, 8, code, 1].map(u64::to_le_bytes).concat();
    table(&mut tables, offset_of!(ModelHeader, levels), &level, 1);
    let mut kind = [2_u32, 1, 4, 4, 16, 16].map(u32::to_le_bytes).concat();
    kind.resize(size_of::<KindEntry>(), 0);
    table(&mut tables, offset_of!(ModelHeader, kinds), &kind, 1);
    let layer = [0_u32, 0, 0, 1].map(u32::to_le_bytes).concat();
    table(&mut tables, offset_of!(ModelHeader, layers), &layer, 1);
    let mut layout = [0_u32, 0, 0, 0, 8, 8].map(u32::to_le_bytes).concat();
    layout.resize(size_of::<CacheLayout>(), 0);
    table(&mut tables, offset_of!(ModelHeader, layouts), &layout, 1);
    table(&mut tables, offset_of!(ModelHeader, weight_offsets), &32_u64.to_le_bytes(), 1);
    table(&mut tables, offset_of!(ModelHeader, facts), b"{}", 2);
    tables
}

/// Fills lengths and checksums.
fn seal(tables: &mut [u8]) {
    let lengths = [
        (offset_of!(ModelHeader, tables_bytes), tables.len()),
        (offset_of!(ModelHeader, code_bytes), CODE.len()),
        (offset_of!(ModelHeader, weights_bytes), WEIGHTS.len()),
    ];
    for (offset, bytes) in lengths {
        set(tables, offset, &(bytes as u64).to_le_bytes());
    }
    let digests = [
        (offset_of!(ModelHeader, tables_digest), blake3::hash(&tables[HEADER_BYTES..])),
        (offset_of!(ModelHeader, code_digest), blake3::hash(&CODE)),
        (offset_of!(ModelHeader, weights_digest), blake3::hash(&WEIGHTS)),
    ];
    for (offset, digest) in digests {
        set(tables, offset, digest.as_bytes());
    }
    set(tables, offset_of!(ModelHeader, header_digest), &[0; 32]);
    let digest = blake3::hash(&tables[..HEADER_BYTES]);
    set(tables, offset_of!(ModelHeader, header_digest), digest.as_bytes());
}

fn set(tables: &mut [u8], offset: usize, bytes: &[u8]) {
    tables[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn append(tables: &mut Vec<u8>, bytes: &[u8]) -> u64 {
    let offset = tables.len();
    tables.extend_from_slice(bytes);
    tables.resize(tables.len().next_multiple_of(8), 0);
    offset as u64
}

fn table(tables: &mut Vec<u8>, field: usize, bytes: &[u8], count: u64) {
    let offset = append(tables, bytes);
    set(tables, field, &offset.to_le_bytes());
    set(tables, field + 8, &count.to_le_bytes());
}
