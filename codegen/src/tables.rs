//! Writes the tables region: header, levels, kinds, layers, layouts, weight offsets, symbols, names,
//! tokenizer, template, facts.
//!
//! Structures are written field by field in the order of their declarations in `weir_abi`, which
//! have no padding; the tests read them back through these declarations' offsets. Every part begins
//! at a multiple of 8 bytes.

use weir_abi::{
    ABI_VERSION, Blob, CacheLayout, HeadResult, KindCode, KindEntry, LayerEntry, MAGIC,
    ModelHeader, Table,
};

use crate::image::Symbol;

/// Segments of one level: offsets from the start of the code.
pub struct LevelCode {
    /// Number of the level.
    pub level: u32,
    /// Segment `embed`.
    pub embed: u64,
    /// Segment `head`.
    pub head: u64,
    /// Segments per layer kind.
    pub kinds: Vec<KindCode>,
}

/// What the tables say, without the places where they lie.
pub struct Tables<'a> {
    /// Counts and widths; regions' places and checksums are filled here or by the container.
    pub header: ModelHeader,
    /// Levels, lowest first.
    pub levels: Vec<LevelCode>,
    /// Layer kinds.
    pub kinds: Vec<KindEntry>,
    /// Layers.
    pub layers: Vec<LayerEntry>,
    /// Distinct cache layouts.
    pub layouts: Vec<CacheLayout>,
    /// Selected rows by head that layouts refer to.
    pub head_rows: Vec<u32>,
    /// Weight offsets.
    pub weight_offsets: Vec<u64>,
    /// Functions of the code.
    pub symbols: &'a [Symbol],
    /// Packed tokenizer.
    pub tokenizer: &'a [u8],
    /// Chat template.
    pub chat_template: &'a [u8],
    /// Facts.
    pub facts: &'a [u8],
}

/// A header with zeros for everything that is not fixed by the version.
pub fn empty_header() -> ModelHeader {
    ModelHeader {
        magic: MAGIC,
        abi_version: ABI_VERSION,
        reserved: 0,
        header_digest: [0; 32],
        tables_digest: [0; 32],
        code_digest: [0; 32],
        weights_digest: [0; 32],
        tables_bytes: 0,
        code_bytes: 0,
        weights_bytes: 0,
        vocabulary: 0,
        hidden_width: 0,
        context: 0,
        max_rows: 0,
        max_head_rows: 0,
        slots: 0,
        rotary_sets: 1,
        rotary_switch: 0,
        head_result: HeadResult::Logits as u32,
        head_width: 0,
        arena_bytes: 0,
        levels: Table::default(),
        kinds: Table::default(),
        layers: Table::default(),
        layouts: Table::default(),
        head_rows: Table::default(),
        weight_offsets: Table::default(),
        embed_weights: 0,
        head_weights: 0,
        tokenizer: Blob::default(),
        chat_template: Blob::default(),
        facts: Blob::default(),
        symbols: Table::default(),
        names: Blob::default(),
    }
}

/// The region's bytes; `tables_digest` and `tables_bytes` are filled.
pub fn write_tables(tables: &Tables<'_>) -> Vec<u8> {
    let mut out = Writer { bytes: vec![0; size_of::<ModelHeader>()] };
    let mut header = tables.header;
    let kind_codes: Vec<Table> = tables
        .levels
        .iter()
        .map(|level| {
            out.table(level.kinds.len(), |out| {
                for kind in &level.kinds {
                    out.words(&[kind.layer, kind.observe, kind.compact]);
                }
            })
        })
        .collect();
    header.levels = out.table(tables.levels.len(), |out| {
        for (level, kinds) in tables.levels.iter().zip(&kind_codes) {
            out.halves(&[level.level, 0]);
            out.words(&[level.embed, level.head, kinds.offset, kinds.count]);
        }
    });
    header.kinds = out.table(tables.kinds.len(), |out| {
        for kind in &tables.kinds {
            out.halves(&[
                kind.heads,
                kind.kv_heads,
                kind.key_width,
                kind.value_width,
                kind.key_row_bytes,
                kind.value_row_bytes,
                kind.block_key_row_bytes,
                kind.block_value_row_bytes,
            ]);
        }
    });
    header.layers = out.table(tables.layers.len(), |out| {
        for layer in &tables.layers {
            out.halves(&[layer.kind, layer.layout, layer.weights, layer.weight_count]);
        }
    });
    header.layouts = out.table(tables.layouts.len(), |out| {
        for layout in &tables.layouts {
            out.halves(&[
                layout.policy,
                layout.elastic,
                layout.sinks,
                layout.selected,
                layout.recent,
                layout.rows,
                layout.window,
                layout.observed,
                layout.pool,
                layout.growth,
                layout.in_flight,
                layout.reservoir,
                layout.reselect,
                layout.redundancy,
                layout.block_rows,
                layout.further,
                layout.first_head,
                layout.second,
                layout.second_share,
            ]);
        }
    });
    header.head_rows = out.table(tables.head_rows.len(), |out| out.halves(&tables.head_rows));
    header.weight_offsets =
        out.table(tables.weight_offsets.len(), |out| out.words(&tables.weight_offsets));
    let mut names = Vec::new();
    header.symbols = out.table(tables.symbols.len(), |out| {
        for symbol in tables.symbols {
            out.halves(&[names.len() as u32, symbol.name.len() as u32]);
            out.words(&[symbol.offset, symbol.bytes]);
            names.extend_from_slice(symbol.name.as_bytes());
        }
    });
    header.names = out.blob(&names);
    header.tokenizer = out.blob(tables.tokenizer);
    header.chat_template = out.blob(tables.chat_template);
    header.facts = out.blob(tables.facts);
    out.align();
    header.tables_bytes = out.bytes.len() as u64;
    header.tables_digest = *blake3::hash(&out.bytes[size_of::<ModelHeader>()..]).as_bytes();
    let head = header_bytes(&header);
    out.bytes[..head.len()].copy_from_slice(&head);
    out.bytes
}

fn header_bytes(header: &ModelHeader) -> Vec<u8> {
    let mut out = Writer { bytes: Vec::with_capacity(size_of::<ModelHeader>()) };
    out.bytes.extend_from_slice(&header.magic);
    out.halves(&[header.abi_version, header.reserved]);
    for digest in
        [header.header_digest, header.tables_digest, header.code_digest, header.weights_digest]
    {
        out.bytes.extend_from_slice(&digest);
    }
    out.words(&[header.tables_bytes, header.code_bytes, header.weights_bytes]);
    out.halves(&[
        header.vocabulary,
        header.hidden_width,
        header.context,
        header.max_rows,
        header.max_head_rows,
        header.slots,
        header.rotary_sets,
        header.rotary_switch,
        header.head_result,
        header.head_width,
    ]);
    out.words(&[header.arena_bytes]);
    for table in [
        header.levels,
        header.kinds,
        header.layers,
        header.layouts,
        header.head_rows,
        header.weight_offsets,
    ] {
        out.words(&[table.offset, table.count]);
    }
    out.halves(&[header.embed_weights, header.head_weights]);
    for blob in [header.tokenizer, header.chat_template, header.facts] {
        out.words(&[blob.offset, blob.bytes]);
    }
    out.words(&[header.symbols.offset, header.symbols.count]);
    out.words(&[header.names.offset, header.names.bytes]);
    debug_assert_eq!(out.bytes.len(), size_of::<ModelHeader>());
    out.bytes
}

struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(8), 0);
    }

    fn words(&mut self, values: &[u64]) {
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn halves(&mut self, values: &[u32]) {
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn table(&mut self, count: usize, entries: impl FnOnce(&mut Self)) -> Table {
        self.align();
        let offset = self.bytes.len() as u64;
        entries(self);
        Table { offset, count: count as u64 }
    }

    fn blob(&mut self, bytes: &[u8]) -> Blob {
        if bytes.is_empty() {
            return Blob::default();
        }
        self.align();
        let offset = self.bytes.len() as u64;
        self.bytes.extend_from_slice(bytes);
        Blob { offset, bytes: bytes.len() as u64 }
    }
}
