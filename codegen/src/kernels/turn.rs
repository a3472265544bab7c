//! Turns heads by the matrix that keys of a cache with codes of four bits are turned by, and their
//! queries: products, then sums of two, in the order of [`weir_ir::interpret::turn`], whose bits these
//! are on every level.
//!
//! Runs of up to 64 numbers lie in registers for all their sums; sums of numbers further from each
//! other go through memory. A head of n numbers is n log₂ n additions, so this is one kernel by
//! itself: between the rotation of a row's queries and attention over thousands of rows it is small.

use weir_ir::interpret::turn::{factor, part};

use crate::emit::{
    Assembly, BYTES, Body, EmitError, FLOAT, FuncId, INTS, InstBuilder, LANES, POINTER, Value,
    signature,
};

/// Numbers whose sums are made in registers: sixteen vectors.
const RUN: usize = 64;
/// Numbers of a vector.
const FOUR: usize = 4;

/// Shapes of a turn; strides count floats.
#[derive(Clone, Copy, Debug)]
pub struct TurnSpec {
    /// Heads of a row.
    pub heads: usize,
    /// Numbers of a head.
    pub head_width: usize,
    /// From row to row of x, from head to head.
    pub x: (usize, usize),
    /// From row to row of y, from head to head.
    pub y: (usize, usize),
}

/// Emits (x, y, first row, row behind the last). y may be x.
pub fn emit_turn(assembly: &mut Assembly, spec: &TurnSpec) -> Result<FuncId, EmitError> {
    let TurnSpec { heads, head_width, x, y } = *spec;
    let symbol = format!("turn-{heads}x{head_width}-x{}.{}-y{}.{}", x.0, x.1, y.0, y.1);
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 4], &[]))?;
    assembly.define(id, |b| {
        let [from_rows, to_rows, begin, end] = b.params();
        b.for_range(begin, end, 1, |b, row| {
            let from_row = b.element(from_rows, row, x.0 as i64 * 4);
            let to_row = b.element(to_rows, row, y.0 as i64 * 4);
            b.for_count(heads as i64, 1, |b, head| {
                let from = b.element(from_row, head, x.1 as i64 * 4);
                let to = b.element(to_row, head, y.1 as i64 * 4);
                turn_head(b, from, to, head_width);
            });
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

fn turn_head(b: &mut Body<'_>, from: Value, to: Value, width: usize) {
    let part = part(width);
    let run = part.min(RUN);
    for first in (0..width).step_by(run) {
        if run < FOUR {
            turn_numbers(b, from, to, first..first + run, part);
        } else {
            turn_run(b, from, to, first..first + run, part);
        }
    }
    let mut distance = run;
    while distance < part {
        // Twice the distance goes into every part, and parts into the head.
        b.for_count(width as i64, 2 * distance as i64, |b, first| {
            let first = b.element(to, first, 4);
            b.for_count(distance as i64, FOUR as i64, |b, index| {
                let place = b.element(first, index, 4);
                let far = distance as i32 * 4;
                let (a, c) = (b.load(LANES, place, 0), b.load(LANES, place, far));
                let (sum, difference) = (b.fadd(a, c), b.fsub(a, c));
                b.store(sum, place, 0);
                b.store(difference, place, far);
            });
        });
        distance *= 2;
    }
}

/// A part of one or two numbers.
fn turn_numbers(
    b: &mut Body<'_>,
    from: Value,
    to: Value,
    places: std::ops::Range<usize>,
    part: usize,
) {
    let numbers: Vec<Value> = places
        .clone()
        .map(|place| {
            let number = b.load(FLOAT, from, place as i32 * 4);
            let factor = b.float(factor(place, part));
            b.fmul(number, factor)
        })
        .collect();
    let turned = match numbers[..] {
        [a, c] => vec![b.fadd(a, c), b.fsub(a, c)],
        _ => numbers,
    };
    for (place, number) in places.zip(turned) {
        b.store(number, to, place as i32 * 4);
    }
}

/// A run of whole vectors: its numbers' products, and their sums with each other.
fn turn_run(b: &mut Body<'_>, from: Value, to: Value, places: std::ops::Range<usize>, part: usize) {
    // What is added instead of subtracted has its sign changed, which is the same number.
    let [odd, upper] = [[0, 1, 0, 1], [0, 0, 1, 1]].map(|lanes: [u32; 4]| lanes.map(|l| l << 31));
    let (odd, upper) = (constant(b, odd), constant(b, upper));
    let mut vectors: Vec<Value> = places
        .clone()
        .step_by(FOUR)
        .map(|place| {
            let numbers = b.load(LANES, from, place as i32 * 4);
            let factors = [0, 1, 2, 3].map(|lane| factor(place + lane, part).to_bits());
            let factors = constant(b, factors);
            let factors = b.bitcast(LANES, factors);
            let numbers = b.fmul(numbers, factors);
            let numbers = pair_lanes(b, numbers, [[0, 0, 2, 2], [1, 1, 3, 3]], odd);
            pair_lanes(b, numbers, [[0, 1, 0, 1], [2, 3, 2, 3]], upper)
        })
        .collect();
    let mut distance = 1;
    while distance < vectors.len() {
        for first in (0..vectors.len()).filter(|index| index & distance == 0) {
            let (a, c) = (vectors[first], vectors[first + distance]);
            vectors[first] = b.fadd(a, c);
            vectors[first + distance] = b.fsub(a, c);
        }
        distance *= 2;
    }
    for (place, numbers) in places.step_by(FOUR).zip(vectors) {
        b.store(numbers, to, place as i32 * 4);
    }
}

/// The sum of two choices of a vector's lanes, the second with other signs.
fn pair_lanes(b: &mut Body<'_>, vector: Value, choices: [[u8; 4]; 2], signs: Value) -> Value {
    let bytes = b.bitcast(BYTES, vector);
    let [first, second] = choices.map(|lanes| {
        let mask: Vec<u8> =
            lanes.iter().flat_map(|l| [0, 1, 2, 3].map(|byte| l * 4 + byte)).collect();
        let mask = b.builder().func.dfg.immediates.push(mask.into());
        b.ins().shuffle(bytes, bytes, mask)
    });
    let second = b.bitcast(INTS, second);
    let second = b.ins().bxor(second, signs);
    let (first, second) = (b.bitcast(LANES, first), b.bitcast(LANES, second));
    b.fadd(first, second)
}

/// Four words.
fn constant(b: &mut Body<'_>, words: [u32; 4]) -> Value {
    let mut bytes = [0; 16];
    for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    let bytes = b.constant_bytes(bytes);
    b.bitcast(INTS, bytes)
}
