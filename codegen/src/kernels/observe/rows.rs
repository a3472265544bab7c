//! Numbers of the rows of a block of keys, and what is made of them.

use weir_abi::KEY_BLOCK;

use crate::emit::{Body, INT, INTS, InstBuilder, Value};

/// Vectors of a number of each row of a block.
pub(super) const FOURS: usize = KEY_BLOCK / 4;

/// A number of each row of a block: four vectors of four.
pub(super) type Rows = [Value; FOURS];

pub(super) fn rows_of(values: &[Value]) -> Rows {
    std::array::from_fn(|four| values[four])
}

/// The numbers of the rows of the block that begins with this one.
pub(super) fn rows_from(b: &mut Body<'_>, first: Value) -> Rows {
    let lanes = b.int32(0);
    let mut lanes = b.splat(lanes);
    for lane in 1..4 {
        let number = b.int32(i32::from(lane));
        lanes = b.ins().insertlane(lanes, number, lane);
    }
    let first = b.ins().ireduce(INT, first);
    let first = b.splat(first);
    let mut next = b.add(first, lanes);
    let four = b.constant_int(INTS, 4);
    std::array::from_fn(|_| {
        let rows = next;
        next = b.add(next, four);
        rows
    })
}

pub(super) fn each(left: Rows, right: Rows, mut join: impl FnMut(Value, Value) -> Value) -> Rows {
    std::array::from_fn(|four| join(left[four], right[four]))
}

/// (0 + 2) + (1 + 3) of the vectors, always in this order.
pub(super) fn joined<'b>(
    b: &mut Body<'b>,
    [v0, v1, v2, v3]: Rows,
    join: fn(&mut Body<'b>, Value, Value) -> Value,
) -> Value {
    let even = join(b, v0, v2);
    let odd = join(b, v1, v3);
    join(b, even, odd)
}

/// A sum divided by how many there are.
pub(super) fn divided(b: &mut Body<'_>, sum: Value, count: Value) -> Value {
    let count = b.ins().ireduce(INT, count);
    let count = b.to_float(count);
    b.fdiv(sum, count)
}

/// Attention: a score relative to the logarithm of a sum.
pub(super) fn weight_of(b: &mut Body<'_>, score: Value, sum: Value) -> Value {
    let difference = b.fsub(score, sum);
    b.exp(difference)
}
