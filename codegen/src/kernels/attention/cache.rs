//! The cache as kernels see it: its shape, its number format, the places of rows.
//!
//! Numbers are rounded once, to nearest even, when a row is written; every reader widens them, which
//! is exact, and computes in f32. So a row's own key is rounded before its own query meets it, and
//! all readers see the same numbers whatever company the row had. A finite number beyond the range of
//! f16 becomes the largest of its sign ([`f16::MAX`](half::f16::MAX), 65504); infinities and what is
//! no number stay what they are and end the request, as they do in an f32 cache. bf16 has the range of
//! f32: only what lies within half a unit of 2¹²⁸ would round to infinity, and becomes the largest
//! number as well.

use std::mem::offset_of;

use weir_abi::{KEY_BLOCK, LayerCall};
use weir_ir::DType;

use super::layer_field;
use crate::emit::{Body, FloatCC, InstBuilder, Lanes, Value, types};
use crate::kernels::rows::copy_floats;

/// Number format of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// Single precision.
    F32,
    /// IEEE halves.
    F16,
    /// The upper half of single precision.
    Bf16,
}

impl CacheType {
    /// All formats.
    pub const ALL: [CacheType; 3] = [CacheType::F32, CacheType::F16, CacheType::Bf16];

    /// The format of a declared cache; nothing for types that no kernel reads.
    pub fn of(dtype: DType) -> Option<CacheType> {
        match dtype {
            DType::F32 => Some(CacheType::F32),
            DType::F16 => Some(CacheType::F16),
            DType::BF16 => Some(CacheType::Bf16),
            _ => None,
        }
    }

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            CacheType::F32 => 4,
            CacheType::F16 | CacheType::Bf16 => 2,
        }
    }

    /// Name in symbols.
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Bf16 => "bf16",
        }
    }

    /// Magnitude that finite numbers are held to.
    pub(in crate::kernels) fn largest(self) -> f32 {
        match self {
            CacheType::F32 => f32::MAX,
            CacheType::F16 => 65504.0,
            CacheType::Bf16 => f32::from_bits(0x7f7f_0000),
        }
    }

    /// Loads and widens.
    pub(in crate::kernels) fn load(
        self,
        b: &mut Body<'_>,
        lanes: Lanes,
        address: Value,
        offset: i32,
    ) -> Value {
        match self {
            CacheType::F32 => b.load(lanes.float(), address, offset),
            CacheType::F16 => b.load_f16(lanes, address, offset),
            CacheType::Bf16 => b.load_bf16(lanes, address, offset),
        }
    }

    /// Rounds and stores.
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
            CacheType::F32 => b.store(value, address, offset),
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

    /// Copies numbers from cache to cache as they are.
    pub(in crate::kernels) fn copy(self, b: &mut Body<'_>, from: Value, to: Value, width: usize) {
        match self {
            CacheType::F32 => copy_floats(b, from, to, width),
            CacheType::F16 | CacheType::Bf16 => {
                copy_floats(b, from, to, width / 2);
                if !width.is_multiple_of(2) {
                    let last = b.load(types::I16, from, width as i32 * 2 - 2);
                    b.store(last, to, width as i32 * 2 - 2);
                }
            }
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
}

impl CacheShape {
    /// Bytes of a key row of one head.
    pub fn key_bytes(&self) -> usize {
        self.key_width * self.number.bytes()
    }

    /// Where number 0 of key row `row` lies in the plane of a head; the others follow at distances of
    /// [`key_step`](Self::key_step).
    pub(in crate::kernels) fn key_place(
        &self,
        b: &mut Body<'_>,
        plane: Value,
        row: Value,
    ) -> Value {
        let lane = b.ins().band_imm_s(row, KEY_BLOCK as i64 - 1);
        let block = b.sub(row, lane);
        let block = b.element(plane, block, self.key_bytes() as i64);
        b.element(block, lane, self.number.bytes() as i64)
    }

    /// Bytes from one number of a key to the next.
    pub(in crate::kernels) fn key_step(&self) -> usize {
        KEY_BLOCK * self.number.bytes()
    }

    /// Copies the numbers of a key as they are, `steps` bytes from one to the next on each side.
    pub(in crate::kernels) fn copy_key(
        &self,
        b: &mut Body<'_>,
        [from, to]: [Value; 2],
        steps: [usize; 2],
    ) {
        let ty = match self.number {
            CacheType::F32 => types::I32,
            CacheType::F16 | CacheType::Bf16 => types::I16,
        };
        b.for_count(self.key_width as i64, 1, |b, index| {
            let [from, to] = [(from, steps[0]), (to, steps[1])]
                .map(|(place, step)| b.element(place, index, step as i64));
            let number = b.load(ty, from, 0);
            b.store(number, to, 0);
        });
    }

    /// Copies a key row out of its block, dense, to `to`.
    pub(in crate::kernels) fn gather_key(
        &self,
        b: &mut Body<'_>,
        plane: Value,
        row: Value,
        to: Value,
    ) {
        let from = self.key_place(b, plane, row);
        self.copy_key(b, [from, to], [self.key_step(), self.number.bytes()]);
    }

    /// Bytes of a value row of one head.
    pub fn value_bytes(&self) -> usize {
        self.value_width * self.number.bytes()
    }

    /// The shape in symbols.
    pub(in crate::kernels) fn symbol(&self) -> String {
        let CacheShape { kv_heads, key_width, value_width, number } = self;
        format!("{kv_heads}x{key_width}.{value_width}-{}", number.name())
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
