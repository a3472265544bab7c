//! Rounds input rows for `Bf16`, `Int8` and `Int8Row` products, once per input, before the team's
//! barrier.
//!
//! `Int8`: a block of B elements becomes a record of B codes, their scale, minus the sum of the codes,
//! and what sums in pairs begin with (`[i8; B]`, f32, i32, i32). With m = max |x|: scale = m / 120.1,
//! code = x · (120.1 / m) rounded to nearest even, −120 to 120; blocks with m ≤ 1e-30 have codes 0. A
//! value that is not a number makes the scale, and so every output of the row, not a number. Elements
//! beyond K are 0.
//!
//! Where the weights are int4 with short scales ([`ScaleType::Short`]) about an implied zero point, the
//! block's scale is a power of two, the least s with m ≤ 120.5 s: codes are x / s rounded, at most 120, and
//! a code times its scale is exact in bf16. Blocks with m ≤ 2⁻⁸⁰ have scale 0 and codes 0, those with
//! m ≥ 2¹⁰⁰ a scale that is not a number: products of such numbers with such weights neither leave the range
//! of f32 nor become subnormal.
//!
//! For tiles of bf16 such a record has, 64 bytes behind its beginning, its values once more: in bf16,
//! exactly, in the order in which weights are taken apart.
//!
//! `Int8Row`: the same records, but m is the largest magnitude of the whole row ([`Scaling::Row`]), so
//! that all of them have one scale, and one value that is not a number leaves none of them a code. A
//! thread that has any part of a row finds it by itself.
//!
//! 120.1 is no whole number because rows are often made of few: those of an int4 table are multiples
//! of m / 8, and with norm weights of 8 bits between them many would lie in the very middle of two
//! codes, where the last bit of the norm decides.
//!
//! # Sums that begin as floats
//!
//! With a power of two s an integer sum t becomes the float s·t without a conversion: the bits of
//! 1.5 · 2²³ · s, the *anchor*, plus t are those of the anchor plus s·t, exactly, as long as |t| < 2²² (the
//! old way to convert integers, with the scale in its constant). So records of such blocks have other
//! numbers behind their codes, in the same places: the anchor (f32), its bits − 8 Σ a, and its bits with
//! what sums in pairs begin with (i32). A version begins with one of the latter, adds its products, takes
//! the anchor off as a float, which is exact, too, and has s·t, which it multiplies by the weight's scale as
//! it adds it: the product of both scales is not computed at all, and bits are the same, for a power of two
//! rounds nothing. The anchor of scale 0 is 0; that of a scale that is not a number is none, and since
//! codes are 0 there it remains so.
//!
//! # Sums in pairs
//!
//! Winograd's inner product (*A new algorithm for inner product*, IEEE Transactions on Computers 17,
//! 1968) takes two products for one multiplication:
//!
//! `(a₁ + 128 + w₂)(a₂ + w₁) = a₁ w₁ + a₂ w₂ + (a₁ + 128) a₂ + (w₂ + 128) w₁`
//!
//! with w the codes of int4 about 8. The third term is the row's own, the fourth the channel's. Codes
//! end at ±120 so that both factors are bytes, the first unsigned. A version may sum the first
//! ⌊3 B / 32⌋ eights of a block so, the first four elements of each being a₁ and the others a₂; its
//! integer sums then begin with the record's last number, −Σ (a₁ + 128) a₂ over these eights − 8 Σ a
//! over the rest.
//!
//! `Bf16`: values rounded to nearest even with 8 bits, kept as f32; or two of them in 32 bits, the first
//! in the upper half, where `vdpbf16ps` multiplies them with weights of bf16 (an odd one with nothing).

use weir_abi::IsaLevel;

use super::{Compute, MatmulSpec, has_pair_products};
use crate::emit::{
    Assembly, Body, EmitError, FLOAT, FloatCC, FuncId, INT, INTS, InstBuilder, IntCC, LANES, Lanes,
    POINTER, Value, signature, types,
};
use crate::pack::{Blocks, ScaleType, WeightFormat, ZeroPoint};

/// Below this no element is distinguished from zero: 120.1 / m would overflow soon.
pub(in crate::kernels) const NEGLIGIBLE: f32 = 1e-30;

/// As [`NEGLIGIBLE`], where scales are powers of two.
pub(in crate::kernels) const NEGLIGIBLE_OF_POWERS: f32 = from_power(-80);

/// The least magnitude that powers of two do not serve.
pub(in crate::kernels) const LIMIT_OF_POWERS: f32 = from_power(100);

/// A power of two as a scale, of the bits of the largest magnitude: what is added to them before all
/// below the exponent is dropped, so that a significand above that of 120.5 counts to the next power;
/// and what is subtracted then, for 120.5 is 1.88 · 2⁶.
pub(in crate::kernels) const POWER_CARRY: u32 =
    0x0080_0000 - (120.5f32.to_bits() & 0x007f_ffff) - 1;
/// See [`POWER_CARRY`].
pub(in crate::kernels) const POWER_LOWERED: u32 = 6 << 23;
/// Bits of an exponent.
pub(in crate::kernels) const EXPONENT: u32 = 0x7f80_0000;
/// The bits of a power of two's inverse are this minus its own, before they are lowered.
pub(in crate::kernels) const POWER_INVERSE: u32 = 2 * (127 << 23) + POWER_LOWERED;

/// From the bits of a scale that is a power of two to those of its anchor, 1.5 · 2²³ times as much.
pub(in crate::kernels) const TO_ANCHOR: u32 = (23 << 23) | (1 << 22);

const fn from_power(exponent: i32) -> f32 {
    f32::from_bits(((127 + exponent) as u32) << 23)
}

/// Units that the largest magnitude under a scale has. Its code is 120: with one of int4 about its
/// middle added, still a byte.
pub(in crate::kernels) const UNITS: f32 = 120.1;

/// Bytes of a block's record from its scale on.
const RECORD_TAIL: usize = 12;
/// Where a record has minus the sum of its codes, from its scale on.
pub(in crate::kernels) const MINUS_SUM: usize = 4;
/// Where a record with an anchor, which stands in the scale's place, has what sums begin with.
pub(in crate::kernels) const BEGIN: usize = MINUS_SUM;
/// Where a record has what sums in pairs begin with, from its scale on.
pub(in crate::kernels) const PAIRS_BEGIN: usize = 8;

/// How many eights of a block may be summed in pairs: three quarters leave multipliers and adders
/// (which on Zen 4 are units of their own) equally busy.
pub(in crate::kernels) const fn paired_eights(block: usize) -> usize {
    block * 3 / 32
}

/// Where a record has its values in bf16.
pub(in crate::kernels) const fn values_at(block: usize) -> usize {
    (block + RECORD_TAIL).next_multiple_of(64)
}

/// Which elements of each eight the values in bf16 are: the order in which nibbles of int4 are taken
/// apart (`matmul/amx/values/apart.rs`).
pub(in crate::kernels) const VALUE_ORDER: [usize; 8] = [4, 6, 1, 3, 5, 7, 2, 0];

/// Elements of an item of `Bf16`.
pub(in crate::kernels) const CHUNK: usize = 64;

/// Over what rounded activations share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scaling {
    /// Each block has its own.
    Block,
    /// Each block has its own, a power of two; records have its anchor.
    Power,
    /// All blocks of a row have the row's.
    Row,
}

/// What a block's record is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::kernels) struct Form {
    /// Elements of the block.
    pub(in crate::kernels) block: usize,
    /// What its scale is.
    pub(in crate::kernels) scaling: Scaling,
    /// Whether it has its values in bf16.
    pub(in crate::kernels) in_bf16: bool,
}

impl Form {
    /// Bytes of the record: its codes and what belongs to them, and if it is to have them its values in
    /// bf16, in lines of their own.
    pub(in crate::kernels) fn record_bytes(self) -> usize {
        let Form { block, in_bf16, .. } = self;
        if in_bf16 { values_at(block) + block * 2 } else { block + RECORD_TAIL }
    }

    /// The form that a level's kernels make and read: only tiles read values in bf16.
    pub(in crate::kernels) fn at(self, level: IsaLevel) -> Form {
        Form { in_bf16: self.in_bf16 && level == IsaLevel::Amx, ..self }
    }
}

/// How values rounded to bf16 lie in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Halves {
    /// As f32.
    Floats,
    /// As f32, for products that levels with `vdpbf16ps` have in pairs.
    FloatsOrPairs,
    /// In pairs of 32 bits.
    Pairs,
}

impl Halves {
    /// How a level's kernels have them.
    fn at(self, level: IsaLevel) -> Halves {
        match self {
            Halves::FloatsOrPairs if has_pair_products(level) => Halves::Pairs,
            other => other,
        }
    }
}

/// Form of a kernel's input rows, if they are not the f32 rows themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Rounded to bf16.
    Bf16 {
        /// K.
        reduction: usize,
        /// Floats from one row of the quantiser's input to the next.
        input_stride: usize,
        /// How the values lie.
        halves: Halves,
    },
    /// Signed bytes with scale and sum per block.
    Int8 {
        /// K.
        reduction: usize,
        /// Elements of a block.
        block: usize,
        /// Blocks of a row, those beyond K included.
        blocks: usize,
        /// Floats from one row of the quantiser's input to the next.
        input_stride: usize,
        /// What a scale is taken over.
        scaling: Scaling,
        /// Whether records have their values in bf16 beside the codes.
        in_bf16: bool,
    },
}

impl Activation {
    pub(super) fn of(spec: &MatmulSpec) -> Option<Self> {
        let reduction = spec.layout.reduction;
        let input_stride = spec.input_stride;
        match (spec.compute.scaling(), spec.layout.format.blocks()) {
            (Some(scaling), Some(blocks)) => {
                let is_short = matches!(
                    spec.layout.format,
                    WeightFormat::Int4(Blocks {
                        scale: ScaleType::Short,
                        zero: ZeroPoint::Implied,
                        ..
                    })
                );
                let scaling = match scaling {
                    Scaling::Block if is_short => Scaling::Power,
                    _ => scaling,
                };
                // The largest part of a weight block up to 64 elements: few enough for exact sums
                // of 16 bits after one widening, many enough to spread the cost of the scale. Of
                // 32, what a tile of bf16 sums exactly, where there may be such tiles.
                let most = if scaling == Scaling::Power { 2 } else { 4 };
                let block = (1..=most).rev().map(|n| 16 * n).find(|part| blocks.block % part == 0);
                let block = block.unwrap_or(16);
                let blocks = spec.layout.block_count() * (blocks.block / block);
                let in_bf16 = spec.in_bf16;
                Some(Activation::Int8 { reduction, block, blocks, input_stride, scaling, in_bf16 })
            }
            _ if spec.compute == Compute::F32 => None,
            _ => {
                let halves = match spec.layout.format {
                    WeightFormat::Bf16 if spec.in_bf16 => Halves::Pairs,
                    WeightFormat::Bf16 => Halves::FloatsOrPairs,
                    _ => Halves::Floats,
                };
                Some(Activation::Bf16 { reduction, input_stride, halves })
            }
        }
    }

    /// The form of a block's record; nothing where rows have none.
    pub(in crate::kernels) fn form(self) -> Option<Form> {
        match self {
            Activation::Int8 { block, scaling, in_bf16, .. } => {
                Some(Form { block, scaling, in_bf16 })
            }
            Activation::Bf16 { .. } => None,
        }
    }

    /// The rows that a level's kernels make and read.
    pub fn at(mut self, level: IsaLevel) -> Self {
        match &mut self {
            Activation::Bf16 { halves, .. } => *halves = halves.at(level),
            Activation::Int8 { block, scaling, in_bf16, .. } => {
                let form = Form { block: *block, scaling: *scaling, in_bf16: *in_bf16 };
                *in_bf16 = form.at(level).in_bf16;
            }
        }
        self
    }

    /// Bytes of a row of the buffer that [`emit_quantise`] fills: it needs rows times this, aligned
    /// to 64 bytes. An odd number of cache lines, so that one column of many rows does not crowd into
    /// few sets of the cache.
    pub fn row_bytes(self) -> usize {
        let bytes = match self {
            Activation::Bf16 { reduction, halves: Halves::Pairs, .. } => reduction.div_ceil(2) * 4,
            Activation::Bf16 { reduction, .. } => reduction * 4,
            Activation::Int8 { blocks, block, scaling, in_bf16, .. } => {
                blocks * Form { block, scaling, in_bf16 }.record_bytes()
            }
        };
        bytes.next_multiple_of(64) | 64
    }

    /// Items of a row: threads divide rows times this.
    pub fn items_per_row(self) -> usize {
        match self {
            Activation::Bf16 { reduction, .. } => reduction.div_ceil(CHUNK),
            Activation::Int8 { blocks, .. } => blocks,
        }
    }

    /// Bytes of an item in a row.
    pub(in crate::kernels) fn item_bytes(self) -> usize {
        match self {
            Activation::Bf16 { halves: Halves::Pairs, .. } => CHUNK * 2,
            Activation::Bf16 { .. } => CHUNK * 4,
            Activation::Int8 { block, scaling, in_bf16, .. } => {
                Form { block, scaling, in_bf16 }.record_bytes()
            }
        }
    }

    /// Whether a row is so many parts of so many elements that are rounded one without the others.
    pub(in crate::kernels) fn is_of_parts(self, count: usize, elements: usize) -> bool {
        match self {
            Activation::Bf16 { reduction, .. } => {
                reduction == count * elements && elements.is_multiple_of(CHUNK)
            }
            Activation::Int8 { reduction, block, blocks, scaling, .. } => {
                let is_whole = reduction == count * elements && reduction == blocks * block;
                is_whole && elements.is_multiple_of(block) && scaling != Scaling::Row
            }
        }
    }

    /// The same of a part of each row, of so many elements, which begin `stride` floats apart.
    pub(in crate::kernels) fn of_part(mut self, elements: usize, stride: usize) -> Self {
        match &mut self {
            Activation::Bf16 { reduction, input_stride, .. } => {
                (*reduction, *input_stride) = (elements, stride);
            }
            Activation::Int8 { reduction, block, blocks, input_stride, .. } => {
                (*reduction, *input_stride) = (elements, stride);
                *blocks = elements.div_ceil(*block);
            }
        }
        self
    }

    /// Symbol of the quantiser.
    pub fn symbol(self) -> String {
        match self {
            Activation::Bf16 { reduction, input_stride, halves } => {
                let pairs = if halves == Halves::Pairs { "-pairs" } else { "" };
                format!("quantise-bf16{pairs}-{reduction}-x{input_stride}")
            }
            Activation::Int8 { reduction, block, blocks, input_stride, scaling, in_bf16 } => {
                let values = if in_bf16 { "-bf16" } else { "" };
                let scaling = match scaling {
                    Scaling::Block => "",
                    Scaling::Power => "-power-",
                    Scaling::Row => "-row-",
                };
                format!(
                    "quantise-int8{scaling}b{block}-{reduction}-{blocks}-x{input_stride}{values}"
                )
            }
        }
    }
}

/// Emits the quantiser: input rows (f32), output buffer, first item, item behind the last.
pub fn emit_quantise(assembly: &mut Assembly, activation: Activation) -> Result<FuncId, EmitError> {
    let symbol = activation.symbol();
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 4], &[]))?;
    assembly.define(id, |b| {
        let [input, output, begin, end] = b.params();
        for_rows(b, [begin, end], activation.items_per_row(), |b, row, [first, last]| {
            let to = b.element(output, row, activation.row_bytes() as i64);
            match activation {
                Activation::Bf16 { reduction, input_stride, halves } => {
                    let from = b.element(input, row, input_stride as i64 * 4);
                    b.for_range(first, last, 1, |b, part| {
                        let begin = b.mul_const(part, CHUNK as i64);
                        let limit = b.int(reduction as i64);
                        let end = b.add_const(begin, CHUNK as i64);
                        let end = b.min(end, limit);
                        round_chunk(b, halves, [from, to], [begin, end], reduction);
                    });
                }
                Activation::Int8 { reduction, block, input_stride, scaling, in_bf16, .. } => {
                    let form = Form { block, scaling, in_bf16 };
                    let row = b.element(input, row, input_stride as i64 * 4);
                    let of_row = (scaling == Scaling::Row).then(|| {
                        largest_of_row(b, reduction, |b, index, lanes| {
                            let from = b.element(row, index, 4);
                            b.load(lanes.float(), from, 0)
                        })
                    });
                    b.for_range(first, last, 1, |b, part| {
                        let from = b.element(row, part, block as i64 * 4);
                        let to = b.element(to, part, form.record_bytes() as i64);
                        let whole = reduction / block;
                        let is_whole = b.compare_const(IntCC::SignedLessThan, part, whole as i64);
                        b.if_else(
                            is_whole,
                            |b| {
                                quantise_block(b, from, to, form, of_row);
                                Vec::new()
                            },
                            |b| {
                                let staged = stage_end(b, from, block, part, reduction);
                                quantise_block(b, staged, to, form, of_row);
                                Vec::new()
                            },
                        );
                    });
                }
            }
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

/// Takes a share of the items of all rows, counted through, row by row: `body` gets the row's number,
/// its first item of the share and the one behind its last.
pub(in crate::kernels) fn for_rows(
    b: &mut Body<'_>,
    [begin, end]: [Value; 2],
    per_row: usize,
    body: impl FnOnce(&mut Body<'_>, Value, [Value; 2]),
) {
    let items = b.int(per_row as i64);
    let zero = b.int(0);
    let first_row = b.ins().udiv(begin, items);
    let behind = b.add_const(end, per_row as i64 - 1);
    let end_row = b.ins().udiv(behind, items);
    b.for_range(first_row, end_row, 1, |b, row| {
        let before = b.mul(row, items);
        let first = b.sub(begin, before);
        let first = b.max(first, zero);
        let last = b.sub(end, before);
        let last = b.min(last, items);
        body(b, row, [first, last]);
    });
}

/// Rounds the elements from `begin` to `end` of a row of `reduction`: an item, or the rest of a row.
pub(in crate::kernels) fn round_chunk(
    b: &mut Body<'_>,
    halves: Halves,
    [from, to]: [Value; 2],
    elements: [Value; 2],
    reduction: usize,
) {
    match halves {
        Halves::Pairs => round_pairs(b, from, to, elements, reduction),
        Halves::Floats | Halves::FloatsOrPairs => round_floats(b, from, to, elements),
    }
}

fn round_floats(b: &mut Body<'_>, from: Value, to: Value, [begin, end]: [Value; 2]) {
    b.for_lanes(begin, end, |b, index, lanes| {
        let from = b.element(from, index, 4);
        let to = b.element(to, index, 4);
        let x = b.load(lanes.float(), from, 0);
        let rounded = b.round_to_bf16(x);
        b.store(rounded, to, 0);
    });
}

/// Of a row of `reduction` elements those from `begin`, a multiple of four, on.
fn round_pairs(
    b: &mut Body<'_>,
    from: Value,
    to: Value,
    [begin, end]: [Value; 2],
    reduction: usize,
) {
    let whole = b.ins().band_imm_s(end, -4);
    b.for_range(begin, whole, 4, |b, index| {
        let from = b.element(from, index, 4);
        let to = b.element(to, index, 2);
        let x = b.load(LANES, from, 0);
        let rounded = b.round_to_bf16(x);
        // Two values in 64 bits, the first in the lower half of these.
        let values = b.bitcast(types::I64X2, rounded);
        let forty_eight = b.int32(48);
        let second = b.ins().ushr(values, forty_eight);
        let pairs = b.ins().bor(values, second);
        for pair in 0..2 {
            let pair_of = b.lane(pairs, pair);
            let bits = b.ins().ireduce(INT, pair_of);
            b.store(bits, to, i32::from(pair) * 4);
        }
    });
    let rest = reduction % 4;
    if rest == 0 {
        return;
    }
    let is_last = b.compare_const(IntCC::Equal, end, reduction as i64);
    b.if_then(is_last, |b| {
        for first in (reduction - rest..reduction).step_by(2) {
            let value = |b: &mut Body<'_>, k: usize| {
                let x = b.load(FLOAT, from, k as i32 * 4);
                let rounded = b.round_to_bf16(x);
                b.bitcast(INT, rounded)
            };
            let mut pair = value(b, first);
            if first + 1 < reduction {
                let second = value(b, first + 1);
                let sixteen = b.int32(16);
                let second = b.ins().ushr(second, sixteen);
                pair = b.ins().bor(pair, second);
            }
            b.store(pair, to, first as i32 * 2);
        }
    });
}

/// A block's scale and its inverse, the latter 0 where no code counts.
fn scale_of(b: &mut Body<'_>, largest: Value, scaling: Scaling) -> (Value, Value) {
    if scaling == Scaling::Power {
        return power_of(b, largest);
    }
    let levels = b.float(UNITS);
    let scale = b.fdiv(largest, levels);
    let inverse = b.fdiv(levels, largest);
    let negligible = b.float(NEGLIGIBLE);
    let zero = b.float(0.0);
    let counts = b.fcompare(FloatCC::GreaterThan, largest, negligible);
    (scale, b.select(counts, inverse, zero))
}

/// The scale of [`Scaling::Power`] and its inverse.
fn power_of(b: &mut Body<'_>, largest: Value) -> (Value, Value) {
    let [carry, exponent, lowered, inverse, nothing, not_a_number] =
        [POWER_CARRY, EXPONENT, POWER_LOWERED, POWER_INVERSE, 0, u32::MAX]
            .map(|word| b.int32(word as i32));
    let bits = b.bitcast(INT, largest);
    let raised = b.add(bits, carry);
    let power = b.ins().band(raised, exponent);
    let scale = b.sub(power, lowered);
    let inverse = b.sub(inverse, power);
    // Magnitudes are in the order of their bits, those that are not numbers behind all others.
    let least = i64::from(NEGLIGIBLE_OF_POWERS.to_bits());
    let limit = i64::from(LIMIT_OF_POWERS.to_bits());
    let counts = b.compare_const(IntCC::SignedGreaterThan, bits, least);
    let fits = b.compare_const(IntCC::SignedLessThan, bits, limit);
    let scale = b.select(counts, scale, nothing);
    let scale = b.select(fits, scale, not_a_number);
    let inverse = b.select(counts, inverse, nothing);
    let inverse = b.select(fits, inverse, nothing);
    (b.bitcast(FLOAT, scale), b.bitcast(FLOAT, inverse))
}

/// The anchor of a scale of [`Scaling::Power`].
fn anchor_of(b: &mut Body<'_>, scale: Value) -> Value {
    // Exact, and what is 0 or not a number remains so; the latter with the bits that assembled versions
    // have.
    let raised = b.float(from_power(23) * 1.5);
    b.fmul(scale, raised)
}

/// The largest magnitude of `count` elements, at most those of a row; not a number if one is.
pub(in crate::kernels) fn largest_of_row(
    b: &mut Body<'_>,
    count: usize,
    mut element: impl FnMut(&mut Body<'_>, Value, Lanes) -> Value,
) -> Value {
    let whole = count & !3;
    let none = b.constant(LANES, 0.0);
    let lanes = b.fold_count(whole as i64, 4, &[none], |b, index, largest| {
        let x = element(b, index, Lanes::Four);
        let magnitude = b.fabs(x);
        vec![b.fmax(largest[0], magnitude)]
    });
    let mut largest = b.max_lanes(lanes[0]);
    for rest in whole..count {
        let index = b.int(rest as i64);
        let x = element(b, index, Lanes::One);
        let magnitude = b.fabs(x);
        largest = b.fmax(largest, magnitude);
    }
    largest
}

fn largest_of_block(b: &mut Body<'_>, from: Value, block: usize) -> Value {
    let mut largest = b.constant(LANES, 0.0);
    for quad in 0..block / 4 {
        let x = b.load(LANES, from, quad as i32 * 16);
        let magnitude = b.fabs(x);
        largest = b.fmax(largest, magnitude);
    }
    b.max_lanes(largest)
}

/// The record of a whole block; `of_row` is the largest magnitude of its row where rows have one scale.
pub(in crate::kernels) fn quantise_block(
    b: &mut Body<'_>,
    from: Value,
    to: Value,
    Form { block, scaling, in_bf16 }: Form,
    of_row: Option<Value>,
) {
    let largest = of_row.unwrap_or_else(|| largest_of_block(b, from, block));
    let (scale, inverse) = scale_of(b, largest, scaling);
    let inverse = b.splat(inverse);
    let [mut sum, mut pairs] = [(); 2].map(|()| b.constant_int(INTS, 0));
    let scales = b.splat(scale);
    let middle = b.constant_int(INTS, 128);
    let eights = b.constant_int(INTS, 8);
    for sixteen in 0..block / 16 {
        let [q0, q1, q2, q3] = [0, 1, 2, 3].map(|quad| {
            let x = b.load(LANES, from, (sixteen * 4 + quad) as i32 * 16);
            let scaled = b.fmul(x, inverse);
            let whole = b.round(scaled);
            let code = b.to_int(whole);
            if in_bf16 {
                let value = b.to_float(code);
                let value = b.fmul(value, scales);
                store_values(b, value, to, block, sixteen * 4 + quad);
            }
            sum = b.add(sum, code);
            code
        });
        for (eight, [first, second]) in [[q0, q1], [q2, q3]].into_iter().enumerate() {
            let term = if sixteen * 2 + eight < paired_eights(block) {
                let shifted = b.add(first, middle);
                b.mul(shifted, second)
            } else {
                let both = b.add(first, second);
                b.mul(both, eights)
            };
            pairs = b.add(pairs, term);
        }
        let low = b.ins().snarrow(q0, q1);
        let high = b.ins().snarrow(q2, q3);
        let codes = b.ins().snarrow(low, high);
        b.store(codes, to, sixteen as i32 * 16);
    }
    let (kept, begin) = match scaling {
        Scaling::Power => {
            let anchor = anchor_of(b, scale);
            sum = b.mul(sum, eights);
            (anchor, b.bitcast(INT, anchor))
        }
        Scaling::Block | Scaling::Row => (scale, b.int32(0)),
    };
    b.store(kept, to, block as i32);
    for (sum, offset) in [(sum, MINUS_SUM), (pairs, PAIRS_BEGIN)] {
        let mut total = b.lane(sum, 0);
        for lane in 1..4 {
            let value = b.lane(sum, lane);
            total = b.add(total, value);
        }
        let total = b.sub(begin, total);
        b.store(total, to, (block + offset) as i32);
    }
}

/// The upper halves of a quad of values at their places.
fn store_values(b: &mut Body<'_>, values: Value, to: Value, block: usize, quad: usize) {
    let bits = b.bitcast(INTS, values);
    let sixteen = b.int32(16);
    let halves = b.ins().ushr(bits, sixteen);
    for lane in 0..4 {
        let element = quad * 4 + lane;
        let place = VALUE_ORDER.iter().position(|which| *which == element % 8).unwrap_or(0);
        let at = values_at(block) + (element / 8 * 8 + place) * 2;
        let half = b.lane(halves, lane as u8);
        b.store16(half, to, at as i32);
    }
}

/// Copies a block that K cuts or that lies beyond it, with zeros behind K.
fn stage_end(b: &mut Body<'_>, from: Value, block: usize, part: Value, reduction: usize) -> Value {
    let staged = b.stack(block as u32 * 4);
    let begin = b.mul_const(part, block as i64);
    let limit = b.int(reduction as i64);
    let valid = b.sub(limit, begin);
    let zero = b.int(0);
    let valid = b.max(valid, zero);
    b.for_range(zero, valid, 1, |b, index| {
        let at = b.element(from, index, 4);
        let x = b.load(FLOAT, at, 0);
        let place = b.element(staged, index, 4);
        b.store(x, place, 0);
    });
    zeros_behind(b, staged, valid, block);
    staged
}

/// Makes values of a block from `valid` on 0.
pub(in crate::kernels) fn zeros_behind(
    b: &mut Body<'_>,
    values: Value,
    valid: Value,
    block: usize,
) {
    let nothing = b.float(0.0);
    let size = b.int(block as i64);
    b.for_range(valid, size, 1, |b, index| {
        let place = b.element(values, index, 4);
        b.store(nothing, place, 0);
    });
}
