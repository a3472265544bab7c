//! The tables of a compiled model, checked once and held as typed copies.
//!
//! After [`Tables::parse`] every index is inside its table, every offset inside its region and
//! every text is UTF-8, so that nothing later has to ask. The tables are small (a few kilobytes);
//! tokenizer, template and facts are not copied, only their places are kept.

use std::ops::Range;

use weir_abi::{
    ABI_VERSION, Blob, CacheLayout, CachePolicy, HeadResult, IsaLevel, KindCode, KindEntry,
    LayerEntry, LevelEntry, MAGIC, ModelHeader, SymbolEntry, Table,
};

use super::error::{ModelFault, Region, malformed};
use super::{Plain, read_plain};

/// Code offsets of one ISA level.
pub(super) struct Level {
    pub level: IsaLevel,
    pub embed: u64,
    pub head: u64,
    pub kinds: Vec<KindCode>,
}

/// A function of the code region.
pub(super) struct Symbol {
    pub name: Range<usize>,
    pub code: Range<usize>,
}

/// All tables of a model.
pub(super) struct Tables {
    pub header: ModelHeader,
    pub head_result: HeadResult,
    pub levels: Vec<Level>,
    pub kinds: Vec<KindEntry>,
    pub layers: Vec<LayerEntry>,
    pub layouts: Vec<CacheLayout>,
    pub head_rows: Vec<u32>,
    pub weight_offsets: Vec<u64>,
    pub symbols: Vec<Symbol>,
    pub tokenizer: Range<usize>,
    pub chat_template: Range<usize>,
    pub facts: Range<usize>,
}

/// Offset of `header_digest` in the header.
const DIGEST_OFFSET: usize = std::mem::offset_of!(ModelHeader, header_digest);
const HEADER_BYTES: usize = size_of::<ModelHeader>();

impl Tables {
    /// Reads and checks the tables region of a model whose other regions have the given lengths.
    pub(super) fn parse(
        tables: &[u8],
        code_bytes: usize,
        weights_bytes: usize,
    ) -> Result<Tables, ModelFault> {
        let header = check_header(tables, code_bytes, weights_bytes)?;
        let kinds: Vec<KindEntry> = read_table(tables, header.kinds, "layer kinds")?;
        let layers: Vec<LayerEntry> = read_table(tables, header.layers, "layers")?;
        let layouts: Vec<CacheLayout> = read_table(tables, header.layouts, "cache layouts")?;
        let head_rows: Vec<u32> = read_table(tables, header.head_rows, "rows of heads")?;
        let weight_offsets: Vec<u64> = read_table(tables, header.weight_offsets, "weight offsets")?;
        check_limits(&header)?;
        let head_result = head_result(&header)?;
        kinds.iter().enumerate().try_for_each(|(index, kind)| check_kind(index, kind))?;
        layouts.iter().enumerate().try_for_each(|(index, layout)| check_layout(index, layout))?;
        check_layers(&layers, kinds.len(), layouts.len(), weight_offsets.len())?;
        for (index, layer) in layers.iter().enumerate() {
            let heads = kinds[layer.kind as usize].kv_heads;
            check_heads(&layouts[layer.layout as usize], heads, &head_rows)
                .map_err(|what| malformed(format!("layer {index}: {what}")))?;
        }
        let has_block = |layer: &LayerEntry| layouts[layer.layout as usize].block_rows > 0;
        let formats = |layer: &LayerEntry| kinds[layer.kind as usize].block_key_row_bytes;
        if layers.iter().any(|layer| has_block(layer) && formats(layer) == 0) {
            return Err(malformed("a layer's block has a number format that its kind has not"));
        }
        if let Some(offset) = weight_offsets.iter().find(|offset| **offset > header.weights_bytes) {
            return Err(malformed(format!("weight offset {offset} is outside the weights")));
        }
        for (name, first) in [("embed", header.embed_weights), ("head", header.head_weights)] {
            if first as usize > weight_offsets.len() {
                return Err(malformed(format!("the weights of {name} are outside their table")));
            }
        }
        let levels = read_levels(tables, &header, kinds.len())?;
        let names = blob_range(tables, header.names, "names")?;
        let symbols = read_symbols(tables, &header, names)?;
        let chat_template = text_range(tables, header.chat_template, "chat template")?;
        let facts = text_range(tables, header.facts, "facts")?;
        let tokenizer = blob_range(tables, header.tokenizer, "tokenizer")?;
        Ok(Tables {
            header,
            head_result,
            levels,
            kinds,
            layers,
            layouts,
            head_rows,
            weight_offsets,
            symbols,
            tokenizer,
            chat_template,
            facts,
        })
    }
}

fn check_header(
    tables: &[u8],
    code_bytes: usize,
    weights_bytes: usize,
) -> Result<ModelHeader, ModelFault> {
    let header: ModelHeader = read_plain(tables, 0)
        .ok_or_else(|| ModelFault::Truncated("the header of the tables is missing".into()))?;
    if header.magic != MAGIC {
        return Err(malformed("the header has no magic"));
    }
    // Before the checksum: another version may have another header.
    if header.abi_version != ABI_VERSION {
        return Err(ModelFault::OtherVersion { found: header.abi_version, expected: ABI_VERSION });
    }
    let mut bytes = [0; HEADER_BYTES];
    bytes.copy_from_slice(&tables[..HEADER_BYTES]);
    bytes[DIGEST_OFFSET..DIGEST_OFFSET + 32].fill(0);
    if *blake3::hash(&bytes).as_bytes() != header.header_digest {
        return Err(ModelFault::Damaged(Region::Header));
    }
    let lengths = [
        ("tables", header.tables_bytes, tables.len()),
        ("code", header.code_bytes, code_bytes),
        ("weights", header.weights_bytes, weights_bytes),
    ];
    for (name, stated, present) in lengths {
        if stated != present as u64 {
            return Err(malformed(format!(
                "the header states {stated} bytes of {name}, there are {present}"
            )));
        }
    }
    Ok(header)
}

fn check_limits(header: &ModelHeader) -> Result<(), ModelFault> {
    let limits = [
        ("vocabulary", header.vocabulary),
        ("hidden width", header.hidden_width),
        ("context", header.context),
        ("rows of a step", header.max_rows),
        ("rows of the head", header.max_head_rows),
        ("slots", header.slots),
        ("rotary sets", header.rotary_sets),
        ("width of the head", header.head_width),
    ];
    if let Some((name, _)) = limits.into_iter().find(|(_, value)| *value == 0) {
        return Err(malformed(format!("{name}: 0")));
    }
    if header.rotary_sets > 2 {
        return Err(malformed(format!("{} rotary sets", header.rotary_sets)));
    }
    if header.arena_bytes > isize::MAX as u64 {
        return Err(malformed(format!("an arena of {} bytes", header.arena_bytes)));
    }
    Ok(())
}

fn head_result(header: &ModelHeader) -> Result<HeadResult, ModelFault> {
    let ModelHeader { head_result, head_width, vocabulary, .. } = *header;
    match HeadResult::from_number(head_result) {
        Some(HeadResult::Logits) if head_width != vocabulary => {
            Err(malformed(format!("{head_width} logits for a vocabulary of {vocabulary}")))
        }
        Some(head_result) => Ok(head_result),
        None => Err(malformed(format!("a head of kind {head_result}"))),
    }
}

fn check_kind(index: usize, kind: &KindEntry) -> Result<(), ModelFault> {
    let fields = [
        kind.heads,
        kind.kv_heads,
        kind.key_width,
        kind.value_width,
        kind.key_row_bytes,
        kind.value_row_bytes,
    ];
    if fields.contains(&0) {
        return Err(malformed(format!("layer kind {index} has a zero dimension")));
    }
    if (kind.block_key_row_bytes == 0) != (kind.block_value_row_bytes == 0) {
        return Err(malformed(format!(
            "layer kind {index} has a block of keys or of values alone"
        )));
    }
    if !kind.heads.is_multiple_of(kind.kv_heads) {
        return Err(malformed(format!(
            "layer kind {index}: {} heads over {} key/value heads",
            kind.heads, kind.kv_heads
        )));
    }
    Ok(())
}

fn check_layout(index: usize, layout: &CacheLayout) -> Result<(), ModelFault> {
    if CachePolicy::from_number(layout.policy).is_none() {
        return Err(malformed(format!("cache layout {index} has policy {}", layout.policy)));
    }
    let parts = [layout.sinks, layout.selected, layout.recent].map(u64::from).iter().sum::<u64>();
    if layout.rows == 0 || parts > u64::from(layout.rows) || layout.elastic > 1 {
        return Err(malformed(format!("cache layout {index} does not add up")));
    }
    Ok(())
}

/// Whether the table has the numbers of the heads of a layer with such a layout.
fn check_heads(layout: &CacheLayout, heads: u32, head_rows: &[u32]) -> Result<(), String> {
    if layout.further == 0 {
        return Ok(());
    }
    let rows = selected_by_head(layout, heads, head_rows)
        .ok_or("the rows of its heads are outside their table")?;
    let most = layout.selected.checked_add(layout.further);
    if rows.iter().min() != Some(&layout.selected) || rows.iter().max().copied() != most {
        return Err(format!(
            "{rows:?} rows of its heads with at least {} and {} more",
            layout.selected, layout.further
        ));
    }
    Ok(())
}

/// K of each head of a layer with such a layout; nothing where all have the same.
pub(super) fn selected_by_head<'a>(
    layout: &CacheLayout,
    heads: u32,
    head_rows: &'a [u32],
) -> Option<&'a [u32]> {
    if layout.further == 0 {
        return Some(&[]);
    }
    let first = layout.first_head as usize;
    head_rows.get(first..first.checked_add(heads as usize)?)
}

fn check_layers(
    layers: &[LayerEntry],
    kinds: usize,
    layouts: usize,
    weight_offsets: usize,
) -> Result<(), ModelFault> {
    for (index, layer) in layers.iter().enumerate() {
        let weights_end = u64::from(layer.weights) + u64::from(layer.weight_count);
        if layer.kind as usize >= kinds
            || layer.layout as usize >= layouts
            || weights_end > weight_offsets as u64
        {
            return Err(malformed(format!("layer {index} refers to what is not there")));
        }
    }
    Ok(())
}

fn read_levels(
    tables: &[u8],
    header: &ModelHeader,
    kinds: usize,
) -> Result<Vec<Level>, ModelFault> {
    let entries: Vec<LevelEntry> = read_table(tables, header.levels, "ISA levels")?;
    if entries.is_empty() {
        return Err(malformed("there is no code for any ISA level"));
    }
    let mut levels: Vec<Level> = Vec::with_capacity(entries.len());
    for entry in entries {
        let level = IsaLevel::from_number(entry.level)
            .filter(|level| levels.last().is_none_or(|last| last.level < *level))
            .ok_or_else(|| malformed(format!("ISA level {} is out of place", entry.level)))?;
        let code: Vec<KindCode> = read_table(tables, entry.kinds, "segments")?;
        let name = level.name();
        if code.len() != kinds {
            return Err(malformed(format!(
                "level {name} has code for {} of {kinds} layer kinds",
                code.len()
            )));
        }
        let segments = code.iter().flat_map(|kind| [kind.layer, kind.observe, kind.compact]);
        if let Some(offset) =
            segments.chain([entry.embed, entry.head]).find(|offset| *offset >= header.code_bytes)
        {
            return Err(malformed(format!(
                "level {name} has a segment at {offset}, outside the code"
            )));
        }
        levels.push(Level { level, embed: entry.embed, head: entry.head, kinds: code });
    }
    Ok(levels)
}

fn read_symbols(
    tables: &[u8],
    header: &ModelHeader,
    names: Range<usize>,
) -> Result<Vec<Symbol>, ModelFault> {
    let entries: Vec<SymbolEntry> = read_table(tables, header.symbols, "symbols")?;
    entries
        .iter()
        .enumerate()
        .map(|(index, entry)| {
            let name_start = names.start + entry.name_offset as usize;
            let name = name_start..name_start + entry.name_bytes as usize;
            let code_end = entry.code_offset.checked_add(entry.code_bytes);
            let inside = name.end <= names.end
                && code_end.is_some_and(|end| end <= header.code_bytes)
                && entry.code_offset < header.code_bytes
                && std::str::from_utf8(&tables[name.clone()]).is_ok();
            let start = entry.code_offset as usize;
            inside
                .then(|| Symbol { name, code: start..start + entry.code_bytes as usize })
                .ok_or_else(|| malformed(format!("symbol {index} is outside the code or names")))
        })
        .collect()
}

fn read_table<T: Plain>(tables: &[u8], table: Table, name: &str) -> Result<Vec<T>, ModelFault> {
    let bytes = table.count.checked_mul(size_of::<T>() as u64);
    let range = bytes
        .and_then(|bytes| range_in(tables, table.offset, bytes))
        .filter(|range| table.count == 0 || range.start.is_multiple_of(8))
        .ok_or_else(|| malformed(format!("the table of {name} is outside its region")))?;
    Ok(tables[range]
        .chunks_exact(size_of::<T>())
        .filter_map(|entry| read_plain(entry, 0))
        .collect())
}

fn blob_range(tables: &[u8], blob: Blob, name: &str) -> Result<Range<usize>, ModelFault> {
    if blob.bytes == 0 {
        return Ok(0..0);
    }
    range_in(tables, blob.offset, blob.bytes)
        .ok_or_else(|| malformed(format!("the {name} are outside the tables")))
}

fn text_range(tables: &[u8], blob: Blob, name: &str) -> Result<Range<usize>, ModelFault> {
    let range = blob_range(tables, blob, name)?;
    match std::str::from_utf8(&tables[range.clone()]) {
        Ok(_) => Ok(range),
        Err(_) => Err(malformed(format!("the {name} are not UTF-8"))),
    }
}

fn range_in(tables: &[u8], offset: u64, bytes: u64) -> Option<Range<usize>> {
    let end = offset.checked_add(bytes)?;
    (end <= tables.len() as u64).then_some(offset as usize..end as usize)
}
