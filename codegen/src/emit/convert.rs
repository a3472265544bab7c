//! Narrow storage: IEEE halves, bf16 and signed bytes in memory, floats in registers.
//!
//! Widening is exact. Narrowing rounds to nearest, ties to even, and keeps infinity and
//! not-a-number what they are. One and four lanes give the same bits.

use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
use cranelift_codegen::ir::{InstBuilder, MemFlagsData, types};

use super::{BYTES, Body, FLOAT, INT, INTS, LANES, Lanes, Type, Value};

fn float_of(int: Type) -> Type {
    if int == INTS { LANES } else { FLOAT }
}

fn int_of(float: Type) -> Type {
    if float == LANES { INTS } else { INT }
}

impl Body<'_> {
    /// Logical shift of every lane to the left.
    fn shift_left(&mut self, value: Value, bits: i32) -> Value {
        let bits = self.int32(bits);
        self.ins().ishl(value, bits)
    }

    /// Logical shift of every lane to the right.
    fn shift_right(&mut self, value: Value, bits: i32) -> Value {
        let bits = self.int32(bits);
        self.ins().ushr(value, bits)
    }

    /// IEEE halves in the low 16 bits of each lane (the others zero) as floats.
    ///
    /// Moved to the place of an f32 the exponent is 112 too small; a product with 2¹¹² mends it,
    /// also for subnormals. Infinity and not-a-number keep their exponent.
    pub fn half_to_float(&mut self, half: Value) -> Value {
        let int = self.type_of(half);
        let float = float_of(int);
        let magnitude_mask = self.constant_int(int, 0x7fff);
        let sign_mask = self.constant_int(int, 0x8000);
        let magnitude = self.ins().band(half, magnitude_mask);
        let sign = self.ins().band(half, sign_mask);
        let moved = self.shift_left(magnitude, 13);
        let sign = self.shift_left(sign, 16);
        let scale = self.constant(float, f32::from_bits((127 + 112) << 23));
        let moved_float = self.bitcast(float, moved);
        let value = self.fmul(moved_float, scale);
        let value = self.bitcast(int, value);
        let exponent = self.constant_int(int, 0x7f80_0000);
        let special = self.ins().bor(moved, exponent);
        let first_special = self.constant_int(int, 0x7c00);
        let is_special = self.compare(IntCC::SignedGreaterThanOrEqual, magnitude, first_special);
        let bits = self.select(is_special, special, value);
        let bits = self.ins().bor(bits, sign);
        self.bitcast(float, bits)
    }

    /// Floats as IEEE halves in the low 16 bits of each lane.
    ///
    /// Normal results are rounded in integers. Adding ½ to a smaller magnitude aligns its bits with
    /// the subnormal halves and rounds them on the way.
    pub fn float_to_half(&mut self, value: Value) -> Value {
        let float = self.type_of(value);
        let int = int_of(float);
        let bits = self.bitcast(int, value);
        let magnitude_mask = self.constant_int(int, 0x7fff_ffff);
        let magnitude = self.ins().band(bits, magnitude_mask);
        let sign = self.ins().band_not(bits, magnitude_mask);
        let sign = self.shift_right(sign, 16);

        let thirteen = self.shift_right(magnitude, 13);
        let one = self.constant_int(int, 1);
        let odd = self.ins().band(thirteen, one);
        // Exponent bias 15 instead of 127, and just under half a unit.
        let rebias = self.constant_int(int, ((15 - 127) << 23) + 0xfff);
        let normal = self.add(magnitude, rebias);
        let normal = self.add(normal, odd);
        let normal = self.shift_right(normal, 13);

        let half = self.constant(float, 0.5);
        let small = self.bitcast(float, magnitude);
        let small = self.fadd(small, half);
        let small = self.bitcast(int, small);
        let half_bits = self.constant_int(int, 0x3f00_0000);
        let small = self.sub(small, half_bits);

        let least_normal = self.constant_int(int, 0x3880_0000);
        let is_small = self.compare(IntCC::SignedLessThan, magnitude, least_normal);
        let finite = self.select(is_small, small, normal);

        let infinity = self.constant_int(int, 0x7f80_0000);
        let is_nan = self.compare(IntCC::SignedGreaterThan, magnitude, infinity);
        let half_nan = self.constant_int(int, 0x7e00);
        let half_infinity = self.constant_int(int, 0x7c00);
        let large = self.select(is_nan, half_nan, half_infinity);
        let beyond = self.constant_int(int, 0x4780_0000);
        let is_large = self.compare(IntCC::SignedGreaterThanOrEqual, magnitude, beyond);
        let half = self.select(is_large, large, finite);
        self.ins().bor(half, sign)
    }

    /// Floats rounded to the nearest bf16, still as floats.
    pub fn round_to_bf16(&mut self, value: Value) -> Value {
        let float = self.type_of(value);
        let int = int_of(float);
        let bits = self.bitcast(int, value);
        let one = self.constant_int(int, 1);
        let below_half = self.constant_int(int, 0x7fff);
        let upper = self.constant_int(int, 0xffff_0000_u32 as i32);
        let shifted = self.shift_right(bits, 16);
        let odd = self.ins().band(shifted, one);
        let sum = self.add(bits, below_half);
        let sum = self.add(sum, odd);
        let rounded = self.ins().band(sum, upper);
        let rounded = self.bitcast(float, rounded);
        // The sum may carry a not-a-number to infinity, or lose its last bits.
        let quiet = self.constant_int(int, 0x7fc0_0000);
        let quiet = self.bitcast(float, quiet);
        let ordered = self.fcompare(FloatCC::Equal, value, value);
        self.select(ordered, rounded, quiet)
    }

    /// One or four 16-bit values, zero-extended.
    fn load_16_bits(&mut self, lanes: Lanes, address: Value, offset: i32) -> Value {
        match lanes {
            Lanes::One => {
                let value = self.load(types::I16, address, offset);
                self.ins().uextend(INT, value)
            }
            Lanes::Four => self.ins().uload16x4(MemFlagsData::new().with_notrap(), address, offset),
        }
    }

    /// Stores the low 16 bits of each lane; the others are zero.
    fn store_16_bits(&mut self, value: Value, address: Value, offset: i32) {
        if self.type_of(value) == INT {
            return self.store16(value, address, offset);
        }
        let narrow = self.ins().unarrow(value, value);
        let words = self.bitcast(types::I64X2, narrow);
        let low = self.lane(words, 0);
        self.store(low, address, offset);
    }

    /// Loads IEEE halves as floats.
    pub fn load_f16(&mut self, lanes: Lanes, address: Value, offset: i32) -> Value {
        let half = self.load_16_bits(lanes, address, offset);
        self.half_to_float(half)
    }

    /// Stores floats as IEEE halves.
    pub fn store_f16(&mut self, value: Value, address: Value, offset: i32) {
        let half = self.float_to_half(value);
        self.store_16_bits(half, address, offset);
    }

    /// Loads bf16 as floats.
    pub fn load_bf16(&mut self, lanes: Lanes, address: Value, offset: i32) -> Value {
        let upper = self.load_16_bits(lanes, address, offset);
        let bits = self.shift_left(upper, 16);
        self.bitcast(lanes.float(), bits)
    }

    /// Stores floats as bf16.
    pub fn store_bf16(&mut self, value: Value, address: Value, offset: i32) {
        let rounded = self.round_to_bf16(value);
        let int = int_of(self.type_of(value));
        let bits = self.bitcast(int, rounded);
        let upper = self.shift_right(bits, 16);
        self.store_16_bits(upper, address, offset);
    }

    /// Loads signed bytes as 32-bit integers.
    pub fn load_i8(&mut self, lanes: Lanes, address: Value, offset: i32) -> Value {
        match lanes {
            Lanes::One => {
                let value = self.load(types::I8, address, offset);
                self.ins().sextend(INT, value)
            }
            Lanes::Four => {
                let word = self.load(INT, address, offset);
                let words = self.splat(word);
                let bytes = self.bitcast(BYTES, words);
                let halves = self.ins().swiden_low(bytes);
                self.ins().swiden_low(halves)
            }
        }
    }

    /// Stores 32-bit integers from -128 to 127 as signed bytes.
    pub fn store_i8(&mut self, value: Value, address: Value, offset: i32) {
        if self.type_of(value) == INT {
            return self.store8(value, address, offset);
        }
        let halves = self.ins().snarrow(value, value);
        let bytes = self.ins().snarrow(halves, halves);
        let words = self.bitcast(INTS, bytes);
        let low = self.lane(words, 0);
        self.store(low, address, offset);
    }
}
