//! A layer's planes as tests fill them, and as kernels see them.

use weir_abi::{KEY_BLOCK, KEY_TILE, LayerCall, RowSpans};
use weir_ir::CacheFormat;
use weir_ir::interpret::stored;

use super::attention_exact::places;
use super::*;
use crate::kernels::attention::{CacheShape, CacheType};

pub(super) const SLOTS: usize = 3;
pub(super) const CACHE_ROWS: usize = 1300;
/// Rows of the block, where it has its own format: the last of a tile and of a chunk begun.
pub(super) const BLOCK_ROWS: usize = 700;

/// Where the ring's rows begin in memory: the tile in which the block ends.
fn ring_begin(block_rows: usize) -> usize {
    block_rows / KEY_TILE * KEY_TILE
}

/// Number formats of a cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Formats {
    pub(super) ring: CacheType,
    pub(super) block: Option<CacheType>,
}

impl From<CacheType> for Formats {
    fn from(ring: CacheType) -> Formats {
        Formats { ring, block: None }
    }
}

impl Formats {
    pub(super) fn name(self) -> String {
        let block = self.block.map_or("", CacheType::name);
        format!("{}{block}", self.ring.name())
    }

    /// One format for all rows, or two.
    pub(super) fn all() -> Vec<Formats> {
        let parts = PARTS.map(|(block, ring)| Formats { ring, block: Some(block) });
        CacheType::ALL.map(Formats::from).into_iter().chain(parts).collect()
    }
}

/// Formats of the block and of the ring.
pub(super) const PARTS: [(CacheType, CacheType); 4] = [
    (CacheType::Int4, CacheType::Int8),
    (CacheType::Int4, CacheType::F16),
    (CacheType::Int8, CacheType::F32),
    (CacheType::Int8, CacheType::Bf16),
];

/// Planes of a layer; rows that no range names hold poison. Numbers are as they are stored, so that
/// the bytes hold them exactly; those of codes are as they were before.
pub(super) struct Planes {
    pub(super) shape: CacheShape,
    pub(super) keys: Vec<f32>,
    pub(super) values: Vec<f32>,
    /// Keys and values as kernels see them, between pages without access.
    pub(super) guarded: Option<[Guarded; 2]>,
}

pub(super) fn format(number: CacheType) -> CacheFormat {
    match number {
        CacheType::F32 => CacheFormat::F32,
        CacheType::F16 => CacheFormat::F16,
        CacheType::Bf16 => CacheFormat::BF16,
        CacheType::Int8 => CacheFormat::I8,
        CacheType::Int4 => CacheFormat::I4,
    }
}

/// Codes of a row and head, and their scale, by the definition (`kernels::attention`'s `cache`).
pub(super) fn codes(row: &[f32]) -> (Vec<i8>, f32) {
    let largest = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let is_finite = row.iter().all(|x| x.is_finite());
    let scale = if is_finite { largest / 127.0 } else { f32::NAN };
    let inverse = if is_finite && largest > 1e-30 { 127.0 / largest } else { 0.0 };
    (row.iter().map(|x| (x * inverse).round_ties_even() as i8).collect(), scale)
}

/// Levels of int4, by their number.
const LEVELS: [i8; 16] = [-122, -90, -68, -50, -36, -24, -13, -4, 4, 13, 24, 36, 50, 68, 90, 122];

/// Numbers of the levels that are nearest to codes, those further from zero of two, and the half that
/// stands for a scale.
fn levels(row: &[f32]) -> (Vec<usize>, half::f16) {
    let (codes, _) = codes(row);
    let largest = row.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let is_finite = row.iter().all(|x| x.is_finite());
    let largest = if is_finite { largest.min(65504.0) } else { f32::NAN };
    let number = |code: i8| {
        let by_distance = |number: &usize| {
            let level = i32::from(LEVELS[*number]);
            ((level - i32::from(code)).abs(), -level.abs(), -level)
        };
        (0..LEVELS.len()).min_by_key(by_distance).expect("there are levels")
    };
    (codes.into_iter().map(number).collect(), half::f16::from_f32(largest))
}

/// Codes of 8 bits that a row and head stand for in a cache of codes, and their scale.
pub(super) fn codes_in(number: CacheType, row: &[f32]) -> (Vec<i8>, f32) {
    if number == CacheType::Int8 {
        return codes(row);
    }
    let (numbers, largest) = levels(row);
    let codes = numbers.into_iter().map(|number| LEVELS[number]).collect();
    (codes, largest.to_f32() * (1.0 / 127.0))
}

/// Numbers as a cache of codes holds them.
pub(super) fn rounded(number: CacheType, row: &[f32]) -> Vec<f64> {
    let (codes, scale) = codes_in(number, row);
    codes.into_iter().map(|code| f64::from(code) * f64::from(scale)).collect()
}

/// Rows `[head][row][width]` of `rows` rows a head as levels: as [`code_blocks`], with two numbers a
/// byte. What lies behind the width of a row that is there is zero.
fn level_blocks(plane: &[f32], rows: usize, width: usize, is_key: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let wide = width.div_ceil(8) * 4;
    for head in plane.chunks(rows * width) {
        for block in (0..rows.next_multiple_of(KEY_TILE)).step_by(KEY_BLOCK) {
            let start = bytes.len();
            bytes.resize(start + KEY_BLOCK * (wide + 2), 0xb5);
            let bytes = &mut bytes[start..];
            for lane in 0..KEY_BLOCK.min(rows.saturating_sub(block)) {
                let row = &head[(block + lane) * width..][..width];
                let is_there = row[0] != POISON;
                let (numbers, largest) = levels(row);
                let number = |d: usize| numbers.get(d).copied().unwrap_or(0) as u8;
                for byte in (0..wide).filter(|_| is_there) {
                    let d = byte / 4 * 8 + byte % 4;
                    let at = match is_key {
                        true => byte / 4 * 64 + lane * 4 + byte % 4,
                        false => lane / 4 * 4 * wide + byte * 4 + lane % 4,
                    };
                    bytes[at] = number(d) | number(d + 4) << 4;
                }
                let largest = if is_there { largest } else { half::f16::NAN };
                bytes[KEY_BLOCK * wide + lane * 2..][..2].copy_from_slice(&largest.to_le_bytes());
            }
        }
    }
    bytes
}

/// Rows `[head][row][width]` of `rows` rows a head as codes: blocks of 16 rows of keys, four numbers
/// of a row side by side, or of values, a number of four rows side by side; scales behind each block.
/// Blocks are filled up to whole tiles with codes and scales that mean nothing.
fn code_blocks(plane: &[f32], rows: usize, width: usize, is_key: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let wide = if is_key { width.next_multiple_of(4) } else { width };
    for head in plane.chunks(rows * width) {
        for block in (0..rows.next_multiple_of(KEY_TILE)).step_by(KEY_BLOCK) {
            let start = bytes.len();
            bytes.resize(start + KEY_BLOCK * (wide + 4), 0xb5);
            let bytes = &mut bytes[start..];
            for lane in 0..KEY_BLOCK.min(rows.saturating_sub(block)) {
                let row = &head[(block + lane) * width..][..width];
                let is_there = row[0] != POISON;
                let (codes, scale) = codes(row);
                for (d, code) in codes.into_iter().enumerate().filter(|_| is_there) {
                    if is_key {
                        bytes[d / 4 * 64 + lane * 4 + d % 4] = (code as u8).wrapping_add(128);
                    } else {
                        bytes[lane / 4 * 4 * width + d * 4 + lane % 4] = code as u8;
                    }
                }
                let scale = if is_there { scale } else { f32::NAN };
                bytes[KEY_BLOCK * wide + lane * 4..][..4].copy_from_slice(&scale.to_le_bytes());
            }
        }
    }
    bytes
}

pub(super) fn encoded(number: CacheType, values: &[f32]) -> Vec<u8> {
    match number {
        CacheType::F32 | CacheType::Int8 | CacheType::Int4 => bytes(values),
        CacheType::F16 => {
            values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect()
        }
        CacheType::Bf16 => {
            values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect()
        }
    }
}

/// Keys `[head][row][width]` of `rows` rows a head as kernels see them: in blocks of one number of all
/// rows after another, filled up with poison to whole tiles.
pub(super) fn key_blocks(keys: &[f32], rows: usize, width: usize) -> Vec<f32> {
    let mut blocks = Vec::new();
    for head in keys.chunks(rows * width) {
        for block in (0..rows.next_multiple_of(KEY_TILE)).step_by(KEY_BLOCK) {
            for d in 0..width {
                let rows = block..block + KEY_BLOCK;
                blocks.extend(rows.map(|row| head.get(row * width + d).copied().unwrap_or(POISON)));
            }
        }
    }
    blocks
}

/// Keys `[head][row][width]` of `rows` rows a head in blocks, and values, as kernels see them.
pub(super) fn encoded_planes(
    shape: &CacheShape,
    [keys, values]: [&[f32]; 2],
    rows: usize,
) -> [Vec<u8>; 2] {
    let coded = match shape.number {
        CacheType::Int8 => Some(code_blocks as fn(&[f32], usize, usize, bool) -> Vec<u8>),
        CacheType::Int4 => Some(level_blocks as _),
        _ => None,
    };
    if let Some(blocks) = coded {
        return [(keys, shape.key_width, true), (values, shape.value_width, false)]
            .map(|(plane, width, is_key)| blocks(plane, rows, width, is_key));
    }
    let keys = key_blocks(keys, rows, shape.key_width);
    [&keys, values].map(|plane| encoded(shape.number, plane))
}

/// Rows of a plane of values that has so many: codes lie in whole tiles.
pub(super) fn value_rows(number: CacheType, rows: usize) -> usize {
    if number.is_coded() { rows.next_multiple_of(KEY_TILE) } else { rows }
}

/// The same of `rows` rows a head of which the first `block_rows` have the block's format, if it has its
/// own.
pub(super) fn encoded_parts(
    shape: &CacheShape,
    planes: [&[f32]; 2],
    [rows, block_rows]: [usize; 2],
) -> [Vec<u8>; 2] {
    let Some(block) = shape.of_block() else { return encoded_planes(shape, planes, rows) };
    let widths = [shape.key_width, shape.value_width];
    let begin = ring_begin(block_rows);
    let mut all = [Vec::new(), Vec::new()];
    for head in 0..planes[0].len() / (rows * widths[0]) {
        let part = |rows_of: std::ops::Range<usize>| {
            [0, 1].map(|index| {
                let head = &planes[index][head * rows * widths[index]..][..rows * widths[index]];
                head[rows_of.start * widths[index]..rows_of.end * widths[index]].to_vec()
            })
        };
        let of_block = part(0..block_rows);
        let mut of_ring = part(begin..rows);
        for (plane, width) in of_ring.iter_mut().zip(widths) {
            plane[..(block_rows - begin) * width].fill(POISON);
        }
        let blocks = encoded_planes(&block, [&of_block[0], &of_block[1]], block_rows);
        let ring = [&of_ring[0][..], &of_ring[1]];
        let rings = encoded_planes(&shape.of_ring(), ring, rows - begin);
        for (all, part) in all.iter_mut().zip(blocks.into_iter().zip(rings)) {
            all.extend(part.0);
            all.extend(part.1);
        }
    }
    all
}

/// Bytes of a head of such planes, and from its first to where row 0 of the ring's format would lie.
pub(super) fn head_bytes(
    shape: &CacheShape,
    is_key: bool,
    [rows, block_rows]: [usize; 2],
) -> [u64; 2] {
    let of = |shape: &CacheShape, rows: usize| match is_key {
        true => rows.next_multiple_of(KEY_TILE) * shape.key_bytes(),
        false => value_rows(shape.number, rows) * shape.value_bytes(),
    };
    let Some(block) = shape.of_block() else { return [of(shape, rows) as u64, 0] };
    let of_block = of(&block, block_rows) as u64;
    let ring = shape.bytes_of_row(is_key) * ring_begin(block_rows);
    [of_block + of(shape, rows - ring_begin(block_rows)) as u64, of_block.wrapping_sub(ring as u64)]
}

/// What a row of the block stands for where attention computes with floats.
pub(super) fn widened(block: CacheType, ring: CacheType, row: &[f32]) -> Vec<f32> {
    let (codes, scale) = codes_in(block, row);
    codes.into_iter().map(|code| stored(f32::from(code) * scale, format(ring))).collect()
}

impl Planes {
    pub(super) fn new(shape: CacheShape) -> Planes {
        let rows = SLOTS * shape.kv_heads * CACHE_ROWS;
        Planes {
            shape,
            keys: vec![POISON; rows * shape.key_width],
            values: vec![POISON; rows * shape.value_width],
            guarded: None,
        }
    }

    /// Sets a row; its numbers are rounded to what the cache holds, but for codes.
    pub(super) fn set(&mut self, at: usize, key: &[f32], value: &[f32]) {
        let ty = format(self.number(at));
        for (plane, row) in [(&mut self.keys, key), (&mut self.values, value)] {
            let place = &mut plane[at * row.len()..][..row.len()];
            place.iter_mut().zip(row).for_each(|(to, from)| *to = stored(*from, ty));
        }
    }

    pub(super) fn row(&self, slot: usize, head: usize, row: usize) -> usize {
        (slot * self.shape.kv_heads + head) * CACHE_ROWS + row
    }

    /// The format of the row with this index among all.
    pub(super) fn number(&self, at: usize) -> CacheType {
        let block = self.shape.block.filter(|_| at % CACHE_ROWS < BLOCK_ROWS);
        block.unwrap_or(self.shape.number)
    }

    /// Numbers as attention sees them.
    fn held(&self, at: usize, row: &[f32]) -> Vec<f64> {
        let (number, ring) = (self.number(at), self.shape.number);
        match number.is_coded() {
            true if ring.is_coded() => rounded(number, row),
            true => double(&widened(number, ring, row)),
            false => double(row),
        }
    }

    pub(super) fn key(&self, slot: usize, head: usize, row: usize) -> Vec<f64> {
        let (at, width) = (self.row(slot, head, row), self.shape.key_width);
        self.held(at, &self.keys[at * width..][..width])
    }

    pub(super) fn value(&self, slot: usize, head: usize, row: usize) -> Vec<f64> {
        let (at, width) = (self.row(slot, head, row), self.shape.value_width);
        self.held(at, &self.values[at * width..][..width])
    }

    /// Codes of a value and their scale.
    pub(super) fn coded_value(&self, slot: usize, head: usize, row: usize) -> (Vec<i8>, f32) {
        let (at, width) = (self.row(slot, head, row), self.shape.value_width);
        codes_in(self.number(at), &self.values[at * width..][..width])
    }

    /// Keys in blocks, and values, as kernels see them.
    pub(super) fn encoded(&self) -> [Vec<u8>; 2] {
        encoded_parts(&self.shape, [&self.keys, &self.values], [CACHE_ROWS, BLOCK_ROWS])
    }

    /// The same up to the last row that is read, keys and codes to the end of its tile.
    pub(super) fn encoded_to_last(&self, spans: &[RowSpans]) -> [Vec<u8>; 2] {
        let heads = self.shape.kv_heads;
        let last = spans.iter().flat_map(places).max();
        let (slot, row) = last.expect("a row reads something");
        let head = slot * heads + heads - 1;
        let [mut keys, mut values] = self.encoded();
        let tile = (row / KEY_TILE + 1) * KEY_TILE;
        for (plane, is_key) in [(&mut keys, true), (&mut values, false)] {
            let [head_bytes, ring] = head_bytes(&self.shape, is_key, [CACHE_ROWS, BLOCK_ROWS]);
            let end = match self.shape.of_block().filter(|_| row < BLOCK_ROWS) {
                Some(block) => (tile * block.bytes_of_row(is_key)) as u64,
                None => {
                    let is_tiled = is_key || self.shape.number.is_coded();
                    let end = if is_tiled { tile } else { row + 1 };
                    ring.wrapping_add((end * self.shape.bytes_of_row(is_key)) as u64)
                }
            };
            plane.truncate(head * head_bytes as usize + end as usize);
        }
        [keys, values]
    }

    /// The call of a layer with these planes.
    pub(super) fn call(
        &mut self,
        planes: [Vec<u8>; 2],
        spans: &[RowSpans],
        side: Side,
    ) -> LayerCall {
        let [keys, values] = self.guarded.insert(planes.map(|plane| Guarded::new(&plane, side)));
        let [keys, values] = [keys, values].map(|plane| plane.bytes().as_mut_ptr());
        self.call_at(keys, values, spans)
    }

    pub(super) fn call_at(&self, keys: *mut u8, values: *mut u8, spans: &[RowSpans]) -> LayerCall {
        let [key_head, key_ring] = head_bytes(&self.shape, true, [CACHE_ROWS, BLOCK_ROWS]);
        let [value_head, value_ring] = head_bytes(&self.shape, false, [CACHE_ROWS, BLOCK_ROWS]);
        LayerCall {
            keys,
            values,
            key_slot_stride: key_head * self.shape.kv_heads as u64,
            key_head_stride: key_head,
            value_slot_stride: value_head * self.shape.kv_heads as u64,
            value_head_stride: value_head,
            spans: spans.as_ptr(),
            observed_queries: null_mut(),
            observed_lse: null_mut(),
            observed_from: 0,
            layer: 0,
            key_ring,
            value_ring,
            block_rows: if self.shape.block.is_some() { BLOCK_ROWS as u32 } else { 0 },
            heads: null(),
        }
    }
}
