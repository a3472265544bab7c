//! Lots of cache rows: the hash of `weir_ir::interpret::select` as code.

use crate::emit::{Body, INT, InstBuilder, Value};

/// 32 bits for a row by its layer (32 bits), head and position (64 bits, of which the lower half
/// counts).
pub(super) fn hash(
    b: &mut Body<'_>,
    seed: u32,
    layer: Value,
    head: Value,
    position: Value,
) -> Value {
    let mut hash = b.int32(seed as i32);
    let [head, position] = [head, position].map(|number| b.ins().ireduce(INT, number));
    let parts = [(layer, 0x85eb_ca6b), (head, 0xc2b2_ae35), (position, 0x9e37_79b1)];
    for (number, factor) in parts {
        let part = times(b, number, factor);
        hash = b.ins().iadd(hash, part);
    }
    for (bits, factor) in [(16, 0x85eb_ca6b), (13, 0xc2b2_ae35)] {
        hash = folded(b, hash, bits);
        hash = times(b, hash, factor);
    }
    folded(b, hash, 16)
}

fn times(b: &mut Body<'_>, number: Value, factor: u32) -> Value {
    let factor = b.int32(factor as i32);
    b.ins().imul(number, factor)
}

fn folded(b: &mut Body<'_>, hash: Value, bits: i32) -> Value {
    let bits = b.int32(bits);
    let high = b.ins().ushr(hash, bits);
    b.ins().bxor(hash, high)
}
