//! Weights of the keys of a block: exponentials of scores relative to the logarithm of a query's sum.
//!
//! The steps are those of [`Body::exp`](crate::emit::Body::exp), in whose order they are taken, so that
//! both give the same bits: 2ⁿ is there applied in two halves, of which the first product is exact, as
//! the series lies between ½ and 2.

use std::f32::consts::LOG2_E;

use iced_x86::code_asm::*;
use weir_abi::KEY_BLOCK;

use super::blocks::bind;
use crate::emit::{EXP_RANGE, EXP_SERIES, MINUS_LN2};
use crate::kernels::attention::vector::{Emitted, Vectors};

/// Registers of scores that are worked on at a time.
const SCORES: usize = 4;

/// Numbers, each in every lane, at these offsets (times 64) from the constants' label; behind them the
/// series, the constant term first.
const NUMBERS: [f32; 6] = [
    EXP_RANGE[0],
    EXP_RANGE[1],
    LOG2_E,
    MINUS_LN2[0],
    MINUS_LN2[1],
    // The exponent's bias as an integer.
    f32::from_bits(127),
];
const LOW: usize = 0;
const HIGH: usize = 1;
const PER_LN2: usize = 2;
const LN2: [usize; 2] = [3, 4];
const BIAS: usize = 5;
const SERIES: std::ops::Range<usize> = NUMBERS.len()..NUMBERS.len() + EXP_SERIES.len();
/// The scores' factor.
const SCALE: usize = SERIES.end;

fn constant(index: usize) -> AsmMemoryOperand {
    r10 + index * 64
}

/// `(products, queries, logarithms, bytes from one to the next, scales)`: products `[query][KEY_BLOCK]`
/// become weights in place. The scales, of each key, are read where keys are codes.
pub(in crate::kernels::attention) fn block_weights(
    v: &mut Vectors<'_>,
    scale: f32,
    is_coded: bool,
) -> Emitted {
    let bytes = v.bytes();
    // Registers of a query, and queries of a turn.
    let registers = KEY_BLOCK / v.width.lanes();
    let together = SCORES / registers;
    let [mut turn, mut rest, mut done, mut constants] = [(); 4].map(|()| v.code.create_label());
    v.code.lea(r10, ptr(constants))?;
    v.load(15, constant(SCALE))?;
    bind(v, &mut turn)?;
    v.code.sub(rsi, together as i32)?;
    v.code.jl(rest)?;
    weights(v, [together, registers], is_coded)?;
    v.code.add(rdi, (SCORES * bytes) as i32)?;
    v.code.jmp(turn)?;
    bind(v, &mut rest)?;
    v.code.add(rsi, together as i32)?;
    v.code.jz(done)?;
    let mut one = v.code.create_label();
    bind(v, &mut one)?;
    weights(v, [1, registers], is_coded)?;
    v.code.add(rdi, (KEY_BLOCK * 4) as i32)?;
    v.code.dec(rsi)?;
    v.code.jnz(one)?;
    bind(v, &mut done)?;
    v.code.vzeroupper()?;
    v.code.ret()?;
    v.code.set_label(&mut constants)?;
    for number in NUMBERS.into_iter().chain(EXP_SERIES).chain([scale]) {
        v.code.dd(&[number.to_bits(); 16])?;
    }
    Ok(())
}

/// Weights of some queries, of so many registers each. Moves on to the logarithms behind theirs.
fn weights(v: &mut Vectors<'_>, [queries, registers]: [usize; 2], is_coded: bool) -> Emitted {
    // Scores, then what is left of them; whole powers; the series.
    let (x, n, y, scratch) = (0, SCORES, 2 * SCORES, 3 * SCORES);
    let bytes = v.bytes();
    let count = queries * registers;
    let each = |v: &mut Vectors<'_>,
                emit: &dyn Fn(&mut Vectors<'_>, usize) -> Emitted|
     -> Emitted { (0..count).try_for_each(|index| emit(v, index)) };
    each(v, &|v, i| {
        if !is_coded {
            return v.mul(x + i, 15, rdi + i * bytes);
        }
        v.load(x + i, rdi + i * bytes)?;
        v.mul(x + i, x + i, r8 + i % registers * bytes)?;
        v.mul(x + i, x + i, 15)
    })?;
    for query in 0..queries {
        v.broadcast(scratch, rdx.into())?;
        v.code.add(rdx, rcx)?;
        for index in 0..registers {
            let x = x + query * registers + index;
            v.sub(x, x, scratch)?;
        }
    }
    // The second is taken where one is no number, and so stays none.
    v.load(scratch, constant(LOW))?;
    each(v, &|v, i| v.max(x + i, scratch, x + i))?;
    v.load(scratch, constant(HIGH))?;
    each(v, &|v, i| v.min(x + i, scratch, x + i))?;
    v.load(scratch, constant(PER_LN2))?;
    each(v, &|v, i| v.mul(n + i, x + i, scratch))?;
    each(v, &|v, i| v.round(n + i, n + i))?;
    for part in LN2 {
        v.load(scratch, constant(part))?;
        each(v, &|v, i| v.multiply_add(x + i, n + i, scratch))?;
    }
    each(v, &|v, i| v.load(y + i, constant(SERIES.end - 1)))?;
    for coefficient in SERIES.rev().skip(1) {
        v.load(scratch, constant(coefficient))?;
        each(v, &|v, i| v.multiply_then_add(y + i, x + i, scratch))?;
    }
    each(v, &|v, i| v.scale_by_power(y + i, n + i, scratch, constant(BIAS)))?;
    each(v, &|v, i| v.store(rdi + i * bytes, y + i))
}
