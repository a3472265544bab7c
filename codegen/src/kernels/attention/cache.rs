//! The cache as kernels see it: its shape, its number format, the places of rows.
//!
//! Numbers are rounded once, to nearest even, when a row is written; every reader widens them, which
//! is exact, and computes in f32. So a row's own key is rounded before its own query meets it, and
//! all readers see the same numbers whatever company the row had. A finite number beyond the range of
//! f16 becomes the largest of its sign ([`f16::MAX`](half::f16::MAX), 65504); infinities and what is
//! no number stay what they are and end the request, as they do in an f32 cache. bf16 has the range of
//! f32: only what lies within half a unit of 2¹²⁸ would round to infinity, and becomes the largest
//! number as well.
//!
//! int8 keeps codes, and one scale for all numbers of a row and head: with m = max |x|, scale = m / 127
//! and code = x · (127 / m) to nearest even, 0 where m ≤ 1e-30; the scale is no number where any x is
//! not finite. Sums of products of codes are exact, so scales come in once a score, and once a tile of
//! values. Codes lie so that four that are summed are neighbours, in blocks of [`KEY_BLOCK`] rows:
//!
//! | plane | codes | where code d of row r of a block lies | behind the codes |
//! |---|---|---|---|
//! | keys | code + 128, unsigned | `d / 4 · 64 + r · 4 + d % 4` | 16 scales (f32) |
//! | values | code | `r / 4 · 4 · width + d · 4 + r % 4` | 16 scales (f32) |
//!
//! int4 keeps the nearest of 16 levels to such a code (`weir_ir::interpret::codes`), by its number, and
//! m as a half instead of the scale, which is 1/127 of it. A byte holds number g of a group of eight of
//! one row in its lower half and number g + 4 in its upper one, so a byte is one row's alone and halves
//! of words are quads of int8. With h bytes for such a row, `width / 8` rounded up times 4:
//!
//! | plane | where byte `g = d / 8 · 4 + d % 4` of row r of a block lies | behind them |
//! |---|---|---|
//! | keys | `g / 4 · 64 + r · 4 + g % 4` | 16 halves |
//! | values | `r / 4 · 4 · h + g · 4 + r % 4` | 16 halves |
//!
//! Attention [unpacks](super::unpack) tiles to int8.

use std::mem::offset_of;

use weir_abi::{KEY_BLOCK, LayerCall};
use weir_ir::CacheFormat;

use super::{layer_field, unpack};
use crate::emit::{Body, FLOAT, FloatCC, INTS, InstBuilder, Lanes, Type, Value, types};

/// Number format of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// Single precision.
    F32,
    /// IEEE halves.
    F16,
    /// The upper half of single precision.
    Bf16,
    /// Signed bytes with a scale for each row and head.
    Int8,
    /// Levels among these, two in a byte, with a scale for each row and head.
    Int4,
}

/// What an int8 key's code is stored with, so that it is unsigned.
pub(in crate::kernels) const KEY_OFFSET: i32 = 128;
/// Largest code.
pub(in crate::kernels) const TOP_CODE: f32 = 127.0;
/// Codes that are summed together, and rows of values whose codes are neighbours.
pub(in crate::kernels) const QUAD: usize = 4;
/// Codes of int4 that lie in the lower and the upper halves of four bytes.
pub(in crate::kernels) const GROUP: usize = 2 * QUAD;

impl CacheType {
    /// All formats.
    pub const ALL: [CacheType; 5] =
        [CacheType::F32, CacheType::F16, CacheType::Bf16, CacheType::Int8, CacheType::Int4];

    /// The format of a declared cache.
    pub fn of(format: CacheFormat) -> CacheType {
        match format {
            CacheFormat::F32 => CacheType::F32,
            CacheFormat::F16 => CacheType::F16,
            CacheFormat::BF16 => CacheType::Bf16,
            CacheFormat::I8 => CacheType::Int8,
            CacheFormat::I4 => CacheType::Int4,
        }
    }

    /// Bytes of a number; of int4 of the two that share them.
    pub fn bytes(self) -> usize {
        match self {
            CacheType::F32 => 4,
            CacheType::F16 | CacheType::Bf16 => 2,
            CacheType::Int8 | CacheType::Int4 => 1,
        }
    }

    /// Bytes of a scale of a row and head.
    pub(in crate::kernels) fn scale_bytes(self) -> usize {
        match self {
            CacheType::Int8 => 4,
            CacheType::Int4 => 2,
            _ => 0,
        }
    }

    /// Whether rows are codes with a scale, and attention computes with codes.
    pub fn is_coded(self) -> bool {
        matches!(self, CacheType::Int8 | CacheType::Int4)
    }

    /// The format that attention computes with.
    pub(in crate::kernels) fn unpacked(self) -> CacheType {
        match self {
            CacheType::Int4 => CacheType::Int8,
            number => number,
        }
    }

    /// Name in symbols.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Bf16 => "bf16",
            CacheType::Int8 => "int8",
            CacheType::Int4 => "int4",
        }
    }

    /// Magnitude that finite numbers are held to.
    pub(in crate::kernels) fn largest(self) -> f32 {
        match self {
            CacheType::F32 | CacheType::Int8 | CacheType::Int4 => f32::MAX,
            CacheType::F16 => 65504.0,
            CacheType::Bf16 => f32::from_bits(0x7f7f_0000),
        }
    }

    /// The format that a number has when its row lies aside, dense: codes are floats there.
    pub(in crate::kernels) fn aside(self) -> CacheType {
        match self {
            CacheType::Int8 | CacheType::Int4 => CacheType::F32,
            number => number,
        }
    }

    /// Loads numbers that lie aside and widens them.
    pub(in crate::kernels) fn load(
        self,
        b: &mut Body<'_>,
        lanes: Lanes,
        address: Value,
        offset: i32,
    ) -> Value {
        match self {
            CacheType::F32 | CacheType::Int8 | CacheType::Int4 => {
                b.load(lanes.float(), address, offset)
            }
            CacheType::F16 => b.load_f16(lanes, address, offset),
            CacheType::Bf16 => b.load_bf16(lanes, address, offset),
        }
    }

    /// Rounds and stores numbers that lie aside. Formats with codes round whole rows, later.
    pub(in crate::kernels) fn store(
        self,
        b: &mut Body<'_>,
        value: Value,
        address: Value,
        offset: i32,
    ) {
        let narrow = |b: &mut Body<'_>| {
            let ty = b.type_of(value);
            let most = b.constant(ty, self.largest());
            let magnitude = b.fabs(value);
            // What is infinite or no number is left alone.
            let infinity = b.constant(ty, f32::INFINITY);
            let is_finite = b.fcompare(FloatCC::LessThan, magnitude, infinity);
            let least = b.fneg(most);
            let inside = b.fmin(value, most);
            let inside = b.fmax(inside, least);
            b.select(is_finite, inside, value)
        };
        match self {
            CacheType::F32 | CacheType::Int8 | CacheType::Int4 => b.store(value, address, offset),
            CacheType::F16 => {
                let value = narrow(b);
                b.store_f16(value, address, offset);
            }
            CacheType::Bf16 => {
                let value = narrow(b);
                b.store_bf16(value, address, offset);
            }
        }
    }

    /// The machine's type of a number that is copied as it is.
    fn bits(self) -> Type {
        match self {
            CacheType::F32 => types::I32,
            CacheType::F16 | CacheType::Bf16 => types::I16,
            CacheType::Int8 | CacheType::Int4 => types::I8,
        }
    }
}

/// Shapes of a cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheShape {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Values of a key row.
    pub key_width: usize,
    /// Values of a value row.
    pub value_width: usize,
    /// Number format.
    pub number: CacheType,
    /// That of the immutable block, if it is another one.
    pub block: Option<CacheType>,
    /// Whether heads of a layer may have different numbers of rows ([`weir_abi::HeadRows`]).
    pub by_head: bool,
}

impl CacheShape {
    /// The shape of the block's rows, where they have their own format.
    pub fn of_block(&self) -> Option<CacheShape> {
        self.block.map(|number| CacheShape { number, block: None, ..*self })
    }

    /// The shape of the other rows.
    pub fn of_ring(&self) -> CacheShape {
        CacheShape { block: None, ..*self }
    }

    /// Bytes of a key row, or a value row, of one head outside the block, its scale included.
    pub(in crate::kernels) fn bytes_of_row(&self, is_key: bool) -> usize {
        if is_key { self.key_bytes() } else { self.value_bytes() }
    }

    /// Bytes of a key row of one head, its scale included.
    pub fn key_bytes(&self) -> usize {
        self.bytes_of(true) + self.number.scale_bytes()
    }

    /// Bytes of a value row of one head, its scale included.
    pub fn value_bytes(&self) -> usize {
        self.bytes_of(false) + self.number.scale_bytes()
    }

    /// Bytes of the numbers of a key row, or a value row, of one head.
    pub(in crate::kernels) fn bytes_of(&self, is_key: bool) -> usize {
        let width = if is_key { self.key_width } else { self.value_width };
        match self.number {
            CacheType::Int8 if is_key => width.next_multiple_of(QUAD),
            CacheType::Int4 => width.div_ceil(GROUP) * QUAD,
            number => width * number.bytes(),
        }
    }

    /// The shape of tiles that attention computes with.
    pub(in crate::kernels) fn unpacked(&self) -> CacheShape {
        CacheShape { number: self.number.unpacked(), block: None, ..*self }
    }

    /// Bytes of a row of all heads, keys and values.
    pub fn row_bytes(&self) -> usize {
        self.kv_heads * (self.key_bytes() + self.value_bytes())
    }

    /// Where a row lies in the plane of a head.
    pub(in crate::kernels) fn place(
        &self,
        b: &mut Body<'_>,
        is_key: bool,
        plane: Value,
        row: Value,
    ) -> RowPlace {
        let (width, bytes) = match is_key {
            true => (self.key_width, self.key_bytes()),
            false => (self.value_width, self.value_bytes()),
        };
        let is_coded = self.number.is_coded();
        if !is_key && !is_coded {
            let start = b.element(plane, row, bytes as i64);
            let runs = Runs { count: width, run: 1, step: self.number.bytes() };
            return RowPlace { start, runs, scale: None, number: self.number };
        }
        let lane = b.ins().band_imm_s(row, KEY_BLOCK as i64 - 1);
        let block = b.sub(row, lane);
        let block = b.element(plane, block, bytes as i64);
        let codes = self.bytes_of(is_key);
        let (start, runs) = match (is_coded, is_key) {
            (true, true) => {
                let runs = Runs { count: codes / QUAD, run: QUAD, step: KEY_BLOCK * QUAD };
                (b.element(block, lane, QUAD as i64), runs)
            }
            (true, false) => {
                let within = b.ins().band_imm_s(lane, QUAD as i64 - 1);
                let quad = b.sub(lane, within);
                let quad = b.element(block, quad, codes as i64);
                (b.add(quad, within), Runs { count: codes, run: 1, step: QUAD })
            }
            (false, _) => {
                let size = self.number.bytes();
                let runs = Runs { count: width, run: 1, step: KEY_BLOCK * size };
                (b.element(block, lane, size as i64), runs)
            }
        };
        let scale = is_coded.then(|| {
            let scales = b.add_const(block, (KEY_BLOCK * codes) as i64);
            b.element(scales, lane, self.number.scale_bytes() as i64)
        });
        RowPlace { start, runs, scale, number: self.number }
    }

    /// Copies a key row out of its block, dense, to `to`, as numbers lie
    /// [aside](CacheType::aside). Not of int4, which is unpacked before.
    pub(in crate::kernels) fn gather_key(
        &self,
        b: &mut Body<'_>,
        plane: Value,
        row: Value,
        to: Value,
    ) -> KeyAside {
        let from = self.place(b, true, plane, row);
        let Some(scale) = from.scale else {
            let steps = [from.runs.step, self.number.bytes()];
            from.runs.copy(b, self.number, [from.start, to], steps);
            return KeyAside { numbers: to, scale: None };
        };
        b.for_count(self.key_width as i64, 1, |b, index| {
            let code = from.number(b, index);
            let code = b.load(types::I8, code, 0);
            let code = b.ins().uextend(types::I32, code);
            let code = b.ins().iadd_imm_s(code, -i64::from(KEY_OFFSET));
            let code = b.to_float(code);
            let to = b.element(to, index, 4);
            b.store(code, to, 0);
        });
        KeyAside { numbers: to, scale: Some(b.load(FLOAT, scale, 0)) }
    }

    /// The keys of a block as they lie, of a format without codes.
    pub(in crate::kernels) fn block_of_keys(
        &self,
        b: &mut Body<'_>,
        plane: Value,
        first_row: Value,
    ) -> BlockOfKeys {
        let numbers = b.element(plane, first_row, self.key_bytes() as i64);
        BlockOfKeys { numbers, scales: None }
    }

    /// The keys of a block in single precision, `[width][KEY_BLOCK]`: where they lie, if that is what
    /// they are, or else widened to memory of [`Self::wide_block_bytes`].
    pub(in crate::kernels) fn widen_block(
        &self,
        b: &mut Body<'_>,
        plane: Value,
        first_row: Value,
        to: Value,
    ) -> BlockOfKeys {
        let block = b.element(plane, first_row, self.key_bytes() as i64);
        match self.number {
            CacheType::F32 => BlockOfKeys { numbers: block, scales: None },
            CacheType::F16 | CacheType::Bf16 => {
                b.for_count((self.key_width * KEY_BLOCK) as i64, 4, |b, index| {
                    let from = b.element(block, index, self.number.bytes() as i64);
                    let four = self.number.load(b, Lanes::Four, from, 0);
                    let to = b.element(to, index, 4);
                    b.store(four, to, 0);
                });
                BlockOfKeys { numbers: to, scales: None }
            }
            CacheType::Int8 => {
                let quads = self.key_width.div_ceil(QUAD);
                b.for_count(quads as i64, 1, |b, quad| {
                    let from = b.element(block, quad, (KEY_BLOCK * QUAD) as i64);
                    let to = b.element(to, quad, (KEY_BLOCK * QUAD * 4) as i64);
                    // Four codes of a row are one word.
                    for rows in (0..KEY_BLOCK as i32).step_by(4) {
                        let words = b.load(INTS, from, rows * QUAD as i32);
                        for place in 0..QUAD as i32 {
                            let shift = b.int32(place * 8);
                            let code = b.ins().ushr(words, shift);
                            let byte = b.constant_int(INTS, 0xff);
                            let code = b.ins().band(code, byte);
                            let offset = b.constant_int(INTS, KEY_OFFSET);
                            let code = b.sub(code, offset);
                            let code = b.to_float(code);
                            b.store(code, to, (place * KEY_BLOCK as i32 + rows) * 4);
                        }
                    }
                });
                let scales = b.add_const(block, (KEY_BLOCK * self.bytes_of(true)) as i64);
                BlockOfKeys { numbers: to, scales: Some(scales) }
            }
            CacheType::Int4 => unpack::widen_block(b, self, block, to),
        }
    }

    /// Bytes that [`Self::widen_block`] writes.
    pub(in crate::kernels) fn wide_block_bytes(&self) -> usize {
        match self.number {
            CacheType::F32 => 0,
            // Whole groups, and scales in single precision.
            CacheType::Int4 => (self.key_width.next_multiple_of(GROUP) + 1) * KEY_BLOCK * 4,
            _ => self.key_width.next_multiple_of(QUAD) * KEY_BLOCK * 4,
        }
    }

    /// Bytes of a key row that lies [aside](CacheType::aside).
    pub(in crate::kernels) fn key_bytes_aside(&self) -> usize {
        self.key_width * self.number.aside().bytes()
    }

    /// The shape in symbols.
    pub(in crate::kernels) fn symbol(&self) -> String {
        let CacheShape { kv_heads, key_width, value_width, number, block, by_head } = self;
        let block = block.map_or(String::new(), |block| format!("-block-{}", block.name()));
        let by_head = if *by_head { "-by-head" } else { "" };
        format!("{kv_heads}x{key_width}.{value_width}-{}{block}{by_head}", number.name())
    }
}

/// A key that was gathered.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct KeyAside {
    /// Its numbers, dense.
    pub(in crate::kernels) numbers: Value,
    /// What products with them are multiplied by.
    pub(in crate::kernels) scale: Option<Value>,
}

/// Keys of a block: rows are neighbours.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct BlockOfKeys {
    /// Number `i` of row `r` at `i · KEY_BLOCK + r`.
    pub(in crate::kernels) numbers: Value,
    /// What products with them are multiplied by: a factor for each row.
    pub(in crate::kernels) scales: Option<Value>,
}

/// Where a row of a head lies.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct RowPlace {
    /// Its first number.
    pub(in crate::kernels) start: Value,
    /// How its numbers follow.
    pub(in crate::kernels) runs: Runs,
    /// Its scale, where it has one.
    pub(in crate::kernels) scale: Option<Value>,
    number: CacheType,
}

/// Numbers that lie in runs of neighbours, a step from each other.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Runs {
    /// Runs.
    pub(in crate::kernels) count: usize,
    /// Numbers of a run.
    pub(in crate::kernels) run: usize,
    /// Bytes from run to run.
    pub(in crate::kernels) step: usize,
}

impl Runs {
    /// Copies runs as they are, with `steps` bytes from one to the next on each side.
    pub(in crate::kernels) fn copy(
        self,
        b: &mut Body<'_>,
        number: CacheType,
        [from, to]: [Value; 2],
        steps: [usize; 2],
    ) {
        let ty = if self.run == 1 { number.bits() } else { types::I32 };
        b.for_count(self.count as i64, 1, |b, index| {
            let [from, to] = [(from, steps[0]), (to, steps[1])]
                .map(|(place, step)| b.element(place, index, step as i64));
            let run = b.load(ty, from, 0);
            b.store(run, to, 0);
        });
    }
}

impl RowPlace {
    /// Where number `index` lies; of int4 byte `index`.
    pub(in crate::kernels) fn number(&self, b: &mut Body<'_>, index: Value) -> Value {
        let within = b.ins().band_imm_s(index, self.runs.run as i64 - 1);
        let run = b.sub(index, within);
        let run = b.element(self.start, run, (self.runs.step / self.runs.run) as i64);
        b.element(run, within, self.number.bytes() as i64)
    }

    /// Copies the row to another place of the same shape, as it is.
    pub(in crate::kernels) fn copy(&self, b: &mut Body<'_>, to: &RowPlace) {
        self.runs.copy(b, self.number, [self.start, to.start], [self.runs.step, to.runs.step]);
        if let (Some(from), Some(to)) = (self.scale, to.scale) {
            let ty = if self.number == CacheType::Int4 { types::I16 } else { types::I32 };
            let scale = b.load(ty, from, 0);
            b.store(scale, to, 0);
        }
    }
}

/// Start of the rows of a slot and head in a plane of the layer.
pub(in crate::kernels) fn plane_rows(
    b: &mut Body<'_>,
    layer: Value,
    values: bool,
    slot: Value,
    head: Value,
) -> Value {
    let (plane, slot_stride, head_stride) = if values {
        (
            offset_of!(LayerCall, values),
            offset_of!(LayerCall, value_slot_stride),
            offset_of!(LayerCall, value_head_stride),
        )
    } else {
        (
            offset_of!(LayerCall, keys),
            offset_of!(LayerCall, key_slot_stride),
            offset_of!(LayerCall, key_head_stride),
        )
    };
    let plane = layer_field(b, layer, plane);
    let slot_stride = layer_field(b, layer, slot_stride);
    let head_stride = layer_field(b, layer, head_stride);
    let slot = b.mul(slot, slot_stride);
    let head = b.mul(head, head_stride);
    let at = b.add(plane, slot);
    b.add(at, head)
}
