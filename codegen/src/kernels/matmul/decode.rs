//! Decodes packed units with Cranelift: scalars (one channel) and lanes (four channels) alike.

use cranelift_codegen::ir::MemFlagsData;

use crate::emit::{Body, FLOAT, INT, INTS, InstBuilder, LANES, Lanes, Type, Value, types};
use crate::pack::{Blocks, PackedLayout, ScaleType, WeightFormat, ZeroPoint};

fn float_of(int: Type) -> Type {
    if int == INTS { LANES } else { FLOAT }
}

/// Elements of one 32-bit unit.
pub(super) fn unit_elements(format: WeightFormat) -> usize {
    match format {
        WeightFormat::F32 => 1,
        WeightFormat::F16 | WeightFormat::Bf16 => 2,
        WeightFormat::Int8(_) => 4,
        WeightFormat::Int4(_) => 8,
    }
}

/// By how many bits a unit of a quantised format is shifted right to have the code of an element in
/// its lowest bits, and whether nothing but the code is left then.
pub(super) fn code_shift(format: WeightFormat, element: usize) -> (usize, bool) {
    let (shift, bits) = match format {
        WeightFormat::Int4(_) => (8 * (element % 4) + 4 * (element / 4), 4),
        _ => (8 * element, 8),
    };
    (shift, shift + bits == 32)
}

/// Element `index` of each unit: the value, or the code as a float.
pub(super) fn element(b: &mut Body<'_>, format: WeightFormat, unit: Value, index: usize) -> Value {
    let int = b.type_of(unit);
    let float = float_of(int);
    let code = |b: &mut Body<'_>, shift: i32, mask: i32| {
        let shift = b.int32(shift);
        let mask = b.constant_int(int, mask);
        let shifted = b.ins().ushr(unit, shift);
        b.ins().band(shifted, mask)
    };
    match format {
        WeightFormat::F32 => b.bitcast(float, unit),
        WeightFormat::F16 => {
            let half = code(b, 16 * index as i32, 0xffff);
            b.half_to_float(half)
        }
        WeightFormat::Bf16 => {
            let bits = if index == 1 {
                let sixteen = b.int32(16);
                b.ins().ishl(unit, sixteen)
            } else {
                let upper = b.constant_int(int, 0xffff_0000_u32 as i32);
                b.ins().band(unit, upper)
            };
            b.bitcast(float, bits)
        }
        WeightFormat::Int8(_) | WeightFormat::Int4(_) => {
            let mask = if matches!(format, WeightFormat::Int4(_)) { 0xf } else { 0xff };
            let code = code(b, code_shift(format, index).0 as i32, mask);
            b.to_float(code)
        }
    }
}

/// Of a load of eight bytes of which four count: codes follow, so all are there.
const EIGHT_BYTES: MemFlagsData = MemFlagsData::new().with_notrap();

/// Scales and zero points of a block for four channels. `group` and `block` are the addresses of the
/// channels' group and block: scales and zero points of the first of the channels lie at `lane` (a
/// number known to the compiler) times their sizes.
pub(super) fn parameters(
    b: &mut Body<'_>,
    layout: &PackedLayout,
    blocks: Blocks,
    [group, block]: [Value; 2],
    lane: usize,
) -> (Value, Value) {
    let scale_at = (lane * blocks.scale.bytes()) as i32;
    let zero_at = (layout.zeros_offset() + lane * blocks.zero.bytes()) as i32;
    let scale = match blocks.scale {
        ScaleType::F32 => b.load(LANES, block, scale_at),
        ScaleType::F16 => b.load_f16(Lanes::Four, block, scale_at),
        ScaleType::Short => {
            let units = b.ins().sload8x8(EIGHT_BYTES, block, scale_at);
            let units = b.ins().swiden_low(units);
            let units = b.to_float(units);
            let unit = b.load(LANES, group, (layout.units_offset() + lane * 4) as i32);
            b.fmul(units, unit)
        }
    };
    let zero = match blocks.zero {
        ZeroPoint::Implied => b.constant(LANES, layout.format.implied_zero()),
        ZeroPoint::Float => b.load(LANES, block, zero_at),
        ZeroPoint::Code => {
            let codes = b.ins().uload8x8(EIGHT_BYTES, block, zero_at);
            let codes = b.ins().uwiden_low(codes);
            b.to_float(codes)
        }
    };
    (scale, zero)
}

/// Scale and zero point of one channel's block; `lane` is the channel's number in its group.
pub(super) fn channel_parameters(
    b: &mut Body<'_>,
    layout: &PackedLayout,
    blocks: Blocks,
    [group, block]: [Value; 2],
    lane: Value,
) -> (Value, Value) {
    let scale_at = b.element(block, lane, blocks.scale.bytes() as i64);
    let scale = match blocks.scale {
        ScaleType::F32 => b.load(FLOAT, scale_at, 0),
        ScaleType::F16 => b.load_f16(Lanes::One, scale_at, 0),
        ScaleType::Short => {
            let units = b.load(types::I8, scale_at, 0);
            let units = b.ins().sextend(INT, units);
            let units = b.to_float(units);
            let unit_at = b.element(group, lane, 4);
            let unit = b.load(FLOAT, unit_at, layout.units_offset() as i32);
            b.fmul(units, unit)
        }
    };
    let zeros = layout.zeros_offset() as i32;
    let zero = match blocks.zero {
        ZeroPoint::Implied => b.float(layout.format.implied_zero()),
        ZeroPoint::Float => {
            let at = b.element(block, lane, 4);
            b.load(FLOAT, at, zeros)
        }
        ZeroPoint::Code => {
            let at = b.add(block, lane);
            let code = b.load(types::I8, at, zeros);
            let code = b.ins().uextend(INT, code);
            b.to_float(code)
        }
    };
    (scale, zero)
}
