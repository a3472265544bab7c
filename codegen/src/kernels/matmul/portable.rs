//! The matrix product in 128-bit vectors: every format and arithmetic.
//!
//! A tile is a few rows by some quarters of a group (a quarter is four channels, one vector). Its
//! accumulators stay in registers over the whole reduction. For each group of channels all rows are
//! computed, so that weights come from memory once, and then from the cache.

use super::{Apart, BEGIN, MINUS_SUM, MatmulSpec, decode};
use crate::emit::{
    Assembly, BYTES, Body, EmitError, FLOAT, FuncId, INT, INTS, InstBuilder, IntCC, LANES, Value,
    types,
};
use crate::pack::{Blocks, GROUP, WeightFormat};

/// Units of four codes whose 16-bit sums cannot overflow: 8 · 2 · 15 · 120 < 2¹⁵.
const UNITS_OF_16_BITS: usize = 8;

/// Rows and quarters of a tile.
#[derive(Clone, Copy)]
struct Tile {
    rows: usize,
    first_quarter: usize,
    quarters: usize,
}

impl Tile {
    /// (row, quarter) of every accumulator, in order.
    fn places(self) -> impl Iterator<Item = (usize, usize)> {
        (0..self.rows).flat_map(move |row| (0..self.quarters).map(move |quarter| (row, quarter)))
    }

    fn quarter_lanes(self) -> impl Iterator<Item = usize> {
        (self.first_quarter..self.first_quarter + self.quarters).map(|quarter| quarter * 4)
    }
}

/// Addresses of a tile: input row, weight group, output, bias and residual at the group's channels.
#[derive(Clone, Copy)]
struct Place {
    input: Value,
    weights: Value,
    output: Value,
    bias: Value,
    residual: Value,
    is_last: Value,
}

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    spec: &MatmulSpec,
) -> Result<(), EmitError> {
    let layout = spec.layout;
    // As many rows as leave room for the accumulators in 16 registers.
    let many = if spec.compute.is_integer() { 2 } else { 4 };
    assembly.define(id, |b| {
        let [input, weights, output, bias, residual, rows, begin, end, _] = b.params();
        b.for_range(begin, end, 1, |b, group| {
            let is_last = b.compare_const(IntCC::Equal, group, layout.groups() as i64 - 1);
            let at_group = |b: &mut Body<'_>, base| b.element(base, group, GROUP as i64 * 4);
            let output = match spec.apart {
                None => at_group(b, output),
                Some(Apart { groups, stride }) => {
                    let run = b.ins().ushr_imm_u(group, i64::from(groups.trailing_zeros()));
                    let of_run = b.ins().band_imm_s(group, groups as i64 - 1);
                    let run = b.element(output, run, stride as i64 * 4);
                    b.element(run, of_run, GROUP as i64 * 4)
                }
            };
            let at = Place {
                input,
                weights: b.element(weights, group, layout.group_bytes() as i64),
                output,
                bias: at_group(b, bias),
                residual: at_group(b, residual),
                is_last,
            };
            let at_row = |b: &mut Body<'_>, row| Place {
                input: b.element(at.input, row, spec.input_row_bytes() as i64),
                output: b.element(at.output, row, spec.output_stride as i64 * 4),
                residual: b.element(at.residual, row, spec.output_stride as i64 * 4),
                ..at
            };
            let zero = b.int(0);
            let whole = b.ins().band_imm_s(rows, -(many as i64));
            b.for_range(zero, whole, many as i64, |b, row| {
                let at = at_row(b, row);
                for first_quarter in [0, 2] {
                    tile(b, spec, at, Tile { rows: many, first_quarter, quarters: 2 });
                }
            });
            b.for_range(whole, rows, 1, |b, row| {
                let at = at_row(b, row);
                tile(b, spec, at, Tile { rows: 1, first_quarter: 0, quarters: 4 });
            });
        });
        b.ret(&[]);
    })
}

fn tile(b: &mut Body<'_>, spec: &MatmulSpec, at: Place, tile: Tile) {
    let sums = match (spec.compute.is_integer(), spec.layout.format.blocks()) {
        (true, Some(blocks)) => integer_sums(b, spec, blocks, at, tile),
        (_, Some(blocks)) => block_sums(b, spec, blocks, at, tile),
        (_, None) => {
            let zero = b.constant(LANES, 0.0);
            let sums = vec![zero; tile.rows * tile.quarters];
            unit_sums(b, spec, at.input, at.weights, tile, sums, None, spec.layout.reduction)
        }
    };
    if spec.tail() == 0 {
        store_whole(b, spec, at, tile, &sums);
    } else {
        b.if_else(
            at.is_last,
            |b| {
                store_part(b, spec, at, tile, &sums);
                Vec::new()
            },
            |b| {
                store_whole(b, spec, at, tile, &sums);
                Vec::new()
            },
        );
    }
}

/// One block after another, each with its scale and zero point.
fn block_sums(
    b: &mut Body<'_>,
    spec: &MatmulSpec,
    blocks: Blocks,
    at: Place,
    tile: Tile,
) -> Vec<Value> {
    let layout = spec.layout;
    let zero = b.constant(LANES, 0.0);
    let initial = vec![zero; tile.rows * tile.quarters];
    let sum_block = |b: &mut Body<'_>, index: Value, sums: Vec<Value>, elements: usize| {
        let input = b.element(at.input, index, blocks.block as i64 * 4);
        let block = b.element(at.weights, index, layout.block_bytes() as i64);
        let parameters: Vec<(Value, Value)> = tile
            .quarter_lanes()
            .map(|lane| decode::parameters(b, &layout, blocks, [at.weights, block], lane))
            .collect();
        let units = b.add_const(block, layout.codes_offset() as i64);
        unit_sums(b, spec, input, units, tile, sums, Some(&parameters), elements)
    };
    let whole = layout.reduction / blocks.block;
    let sums = b.fold_count(whole as i64, 1, &initial, |b, index, sums| {
        sum_block(b, index, sums.to_vec(), blocks.block)
    });
    match layout.reduction % blocks.block {
        0 => sums,
        rest => {
            let index = b.int(whole as i64);
            sum_block(b, index, sums, rest)
        }
    }
}

/// `elements` elements that lie in consecutive units, k ascending.
#[allow(clippy::too_many_arguments, reason = "the operands of one sum")]
fn unit_sums(
    b: &mut Body<'_>,
    spec: &MatmulSpec,
    input: Value,
    units: Value,
    tile: Tile,
    sums: Vec<Value>,
    parameters: Option<&[(Value, Value)]>,
    elements: usize,
) -> Vec<Value> {
    let format = spec.layout.format;
    let per_unit = decode::unit_elements(format);
    let row_bytes = spec.input_row_bytes() as i32;
    let add_unit = |b: &mut Body<'_>, index: Value, mut sums: Vec<Value>, valid: usize| {
        let at = b.element(units, index, GROUP as i64 * 4);
        let from = b.element(input, index, per_unit as i64 * 4);
        let words: Vec<Value> =
            tile.quarter_lanes().map(|lane| b.load(INTS, at, lane as i32 * 4)).collect();
        for element in 0..valid {
            let weights: Vec<Value> = words
                .iter()
                .enumerate()
                .map(|(quarter, word)| {
                    let value = decode::element(b, format, *word, element);
                    match parameters {
                        None => value,
                        Some(parameters) => {
                            let (scale, zero) = parameters[quarter];
                            let centred = b.fsub(value, zero);
                            b.fmul(centred, scale)
                        }
                    }
                })
                .collect();
            for row in 0..tile.rows {
                let x = b.load(FLOAT, from, row as i32 * row_bytes + element as i32 * 4);
                let x = b.splat(x);
                for (quarter, weight) in weights.iter().enumerate() {
                    let sum = &mut sums[row * tile.quarters + quarter];
                    *sum = b.fma(x, *weight, *sum);
                }
            }
        }
        sums
    };
    let whole = elements / per_unit;
    let sums = b.fold_count(whole as i64, 1, &sums, |b, index, sums| {
        add_unit(b, index, sums.to_vec(), per_unit)
    });
    match elements % per_unit {
        0 => sums,
        rest => {
            let index = b.int(whole as i64);
            add_unit(b, index, sums, rest)
        }
    }
}

/// Exact integer sums per activation block, scaled and added block after block.
fn integer_sums(
    b: &mut Body<'_>,
    spec: &MatmulSpec,
    blocks: Blocks,
    at: Place,
    tile: Tile,
) -> Vec<Value> {
    let layout = spec.layout;
    let Some(super::Activation::Int8 { block, .. }) = spec.activation() else {
        return Vec::new();
    };
    let parts = blocks.block / block;
    let record = spec.record_bytes() as i64;
    let code_bytes = match layout.format {
        WeightFormat::Int4(_) => block * GROUP / 2,
        _ => block * GROUP,
    };
    let nothing = b.constant(LANES, 0.0);
    let initial = vec![nothing; tile.rows * tile.quarters];
    b.fold_count(layout.block_count() as i64, 1, &initial, |b, index, sums| {
        let weights = b.element(at.weights, index, layout.block_bytes() as i64);
        let input = b.element(at.input, index, record * parts as i64);
        let parameters: Vec<(Value, Value)> = tile
            .quarter_lanes()
            .map(|lane| decode::parameters(b, &layout, blocks, [at.weights, weights], lane))
            .collect();
        b.fold_count(parts as i64, 1, sums, |b, part, sums| {
            let codes = b.element(weights, part, code_bytes as i64);
            let codes = b.add_const(codes, layout.codes_offset() as i64);
            let input = b.element(input, part, record);
            let whole = exact_sums(b, spec, codes, input, tile, block);
            let mut next = Vec::new();
            for (place, (row, quarter)) in tile.places().enumerate() {
                let scale_at = row as i32 * spec.input_row_bytes() as i32 + block as i32;
                let scale = b.load(FLOAT, input, scale_at);
                let scale = b.splat(scale);
                let (weight_scale, zero) = parameters[quarter];
                if spec.is_anchored() {
                    let begin = b.load(INT, input, scale_at + BEGIN as i32);
                    let begin = b.splat(begin);
                    let bits = b.add(whole[place], begin);
                    let anchored = b.bitcast(LANES, bits);
                    let product = b.fsub(anchored, scale);
                    next.push(b.fma(product, weight_scale, sums[place]));
                    continue;
                }
                let minus_sum = b.load(INT, input, scale_at + MINUS_SUM as i32);
                let minus_sum = b.to_float(minus_sum);
                let minus_sum = b.splat(minus_sum);
                let product = b.to_float(whole[place]);
                let product = b.fma(zero, minus_sum, product);
                let scale = b.fmul(weight_scale, scale);
                next.push(b.fma(product, scale, sums[place]));
            }
            next
        })
    })
}

/// Σ code · a over one activation block, exactly: products of bytes in pairs of 16 bits, widened
/// before they can overflow. Bytes of `Int8` are taken as two nibbles, for 2 · 255 · 120 would not
/// fit 16 bits.
fn exact_sums(
    b: &mut Body<'_>,
    spec: &MatmulSpec,
    codes: Value,
    input: Value,
    tile: Tile,
    block: usize,
) -> Vec<Value> {
    let is_int4 = matches!(spec.layout.format, WeightFormat::Int4(_));
    let per_unit = decode::unit_elements(spec.layout.format);
    // A unit of int4 gives two products of four elements to one sum, of int8 one to each of two.
    let units_of_sum = if is_int4 { UNITS_OF_16_BITS / 2 } else { UNITS_OF_16_BITS };
    let mask = b.constant_int(INTS, 0x0f0f_0f0f);
    let four = b.int32(4);
    let mut totals: Vec<Option<Value>> = vec![None; tile.rows * tile.quarters];
    let units: Vec<usize> = (0..block / per_unit).collect();
    for chunk in units.chunks(units_of_sum) {
        let mut low_sums: Vec<Option<Value>> = vec![None; totals.len()];
        let mut high_sums = low_sums.clone();
        for unit in chunk {
            let nibbles: Vec<(Value, Value)> = tile
                .quarter_lanes()
                .map(|lane| {
                    let word = b.load(INTS, codes, (unit * GROUP * 4 + lane * 4) as i32);
                    let low = b.ins().band(word, mask);
                    let shifted = b.ins().ushr(word, four);
                    let high = b.ins().band(shifted, mask);
                    (b.bitcast(BYTES, low), b.bitcast(BYTES, high))
                })
                .collect();
            for row in 0..tile.rows {
                let from = (row * spec.input_row_bytes() + unit * per_unit) as i32;
                let first = activations(b, input, from);
                let second = if is_int4 { activations(b, input, from + 4) } else { first };
                for (quarter, (low, high)) in nibbles.iter().enumerate() {
                    let place = row * tile.quarters + quarter;
                    let low = b.ins().x86_pmaddubsw(first, *low);
                    let high = b.ins().x86_pmaddubsw(second, *high);
                    accumulate(b, &mut low_sums[place], low);
                    let sums = if is_int4 { &mut low_sums } else { &mut high_sums };
                    accumulate(b, &mut sums[place], high);
                }
            }
        }
        for (place, total) in totals.iter_mut().enumerate() {
            if let Some(low) = low_sums[place] {
                let wide = widen(b, low);
                accumulate(b, total, wide);
            }
            if let Some(high) = high_sums[place] {
                let wide = widen(b, high);
                let weighted = b.ins().ishl(wide, four);
                accumulate(b, total, weighted);
            }
        }
    }
    totals.into_iter().flatten().collect()
}

fn accumulate(b: &mut Body<'_>, sum: &mut Option<Value>, term: Value) {
    *sum = Some(match *sum {
        None => term,
        Some(sum) => b.add(sum, term),
    });
}

/// Four activation codes in every lane.
fn activations(b: &mut Body<'_>, input: Value, offset: i32) -> Value {
    let word = b.load(INT, input, offset);
    let words = b.splat(word);
    b.bitcast(BYTES, words)
}

/// Sums of neighbouring 16-bit lanes in 32 bits.
fn widen(b: &mut Body<'_>, sums: Value) -> Value {
    debug_assert_eq!(b.type_of(sums), types::I16X8);
    let low = b.ins().swiden_low(sums);
    let high = b.ins().swiden_high(sums);
    b.ins().iadd_pairwise(low, high)
}

fn store_whole(b: &mut Body<'_>, spec: &MatmulSpec, at: Place, tile: Tile, sums: &[Value]) {
    for (sum, (row, quarter)) in sums.iter().zip(tile.places()) {
        let channel = (tile.first_quarter + quarter) as i32 * 16;
        let offset = (row * spec.output_stride * 4) as i32 + channel;
        let mut value = *sum;
        if spec.bias {
            let bias = b.load(LANES, at.bias, channel);
            value = b.fadd(value, bias);
        }
        if spec.residual {
            let residual = b.load(LANES, at.residual, offset);
            value = b.fadd(value, residual);
        }
        b.store(value, at.output, offset);
    }
}

/// The last group, which is not full: lane by lane.
fn store_part(b: &mut Body<'_>, spec: &MatmulSpec, at: Place, tile: Tile, sums: &[Value]) {
    for (sum, (row, quarter)) in sums.iter().zip(tile.places()) {
        for lane in 0..4 {
            let channel = (tile.first_quarter + quarter) * 4 + lane;
            if channel >= spec.tail() {
                continue;
            }
            let offset = (row * spec.output_stride + channel) as i32 * 4;
            let mut value = b.lane(*sum, lane as u8);
            if spec.bias {
                let bias = b.load(FLOAT, at.bias, channel as i32 * 4);
                value = b.fadd(value, bias);
            }
            if spec.residual {
                let residual = b.load(FLOAT, at.residual, offset);
                value = b.fadd(value, residual);
            }
            b.store(value, at.output, offset);
        }
    }
}
