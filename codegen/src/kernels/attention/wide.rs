//! The frame of wide attention: which rows share a tile, which cache rows they walk, what is
//! combined with what.
//!
//! Consecutive rows of a step that read the same slots, from nearly the same rows on, form a tile;
//! with the query heads of one key/value head it is a unit of work. Threads take units in turn; with many
//! rows they have those of their heads, whose queries and cache rows they wrote, and who is done takes
//! another's. A unit walks its ranges in chunks of [`CHUNK`] cache rows and
//! those in tiles of [`KEY_TILE`], which begin at multiples of it in the planes, so that rows whose
//! ranges begin at different places (a sliding window's) share them. Scores and values are products of
//! register blocks (`tile`), for keys lie in blocks of one number after another. Tiles that no row
//! reads are skipped. A single row whose key/value heads cannot be dealt out evenly is divided by
//! chunks as well (`split`).
//!
//! # Order of sums
//!
//! Of one query, whatever shares its tile: ranges in order; in a range, chunks and tiles that begin
//! at multiples of their lengths in the plane. Scores s are in base 2: log₂ e is in their factor.
//! Within a chunk, per tile with maximum t:
//! `m' = max(m, t); f = 2^(m - m'); w[j] = 2^(s[j] - m'); l = f·l + Σ w; o = f·o, then
//! o = fma(w[j], v[j], o)` for j ascending (`tile` has the order inside each sum). Then, per chunk,
//! into the query's sums: `M' = max(M, m); F = 2^(M - M'); e = 2^(m - M'); L = fma(L, F, l·e);
//! O = fma(O, F, o·e)`. The result is O / L. M and L begin at the sink's logit and 1, or at the
//! least float and 0. Chunks and tiles without a key of the query leave its sums as they are.
//!
//! Over a cache of bf16 queries are rounded to bf16, and so is each w[j] in front of its value, not in
//! the total; `vdpbf16ps` has the same order, two steps at a time.
//!
//! Over a cache of codes a tile's weights, times their values' scales, become codes with the step
//! g = c / 255, c the largest of them, and `o = fma(float(Σ code·v), g, f·o)`; sums of codes are exact.
//!
//! # Error bound
//!
//! With u = 2⁻²⁴: a score sums `key_width` products in one chain, |Δs| ≤ (key_width + 1)·u·Σ|q·k|·scale;
//! log₂ e and its product with the factor add 2·u·|s|; the shift rounds once and the power adds 2 ulp,
//! 4u. Each later tile of its chunk, and its chunk's and each later combination, may rescale it: a
//! shift, a power and a product, 5u and one u of the span of all scores. That makes the relative error
//! E of a weight. Total and weighted sum round once a row;
//! |Δy| ≤ (2·E + (2·rows + 2)·u) · Σ weight·|value|.
//! Over a cache of bf16 each weight's rounding adds 2⁻⁸ to E, for the sums alone.
//! Over an int8 cache a score is an exact sum times four factors, |Δs| ≤ 5·u·|s|. A code is that of
//! the definition, or its neighbour where E may move it over the middle of two, which adds g·|v| to y
//! for each such key; how far the definition is from float32 stands in `docs/numerics.md`.

mod ahead;
mod ends;
mod split;
mod steps;
mod tiles;

use std::mem::offset_of;

use weir_abi::{
    CacheRange, KEY_TILE, LayerCall, MAX_RANGES, MOST_ITEMS, RowSpans, StepContext, TakeOf,
};

use super::block::{Part, is_block};
use super::heads::range_of_head;
use super::scratch::Scratch;
use super::tile::{self, Tile};
use super::vector::Instructions;
use super::{AttendSpec, ROWS_BY_HEAD, RangeOfRow, Records, Unpack, layer_field, range_of_row};
use crate::emit::{
    Assembly, Body, EmitError, FuncId, InstBuilder, IntCC, LANES, POINTER, Value, Work,
};

use self::ahead::{Ahead, Next};
pub(super) use self::split::bytes as shared_bytes;
use self::steps::Steps;

/// Cache rows of a chunk, a multiple of [`KEY_TILE`].
pub(super) const CHUNK: i64 = 512;
const TILE: i64 = KEY_TILE as i64;
const SPAN: i64 = size_of::<RowSpans>() as i64;
pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    spec: &AttendSpec,
    instructions: Instructions,
    scratch: &Scratch,
    records: Option<Records>,
) -> Result<(), EmitError> {
    // Means that are rounded lie in place of their sums, which whole items of records leave no gap between.
    let output_row = match records {
        Some(_) => scratch.heads * scratch.sum_row,
        None => spec.output_row * 4,
    };
    let tile = Tile {
        scratch,
        group: scratch.heads,
        key_width: spec.cache.key_width,
        value_width: spec.cache.value_width,
        scale: spec.score.scale,
        softcap: spec.score.softcap,
        dots: instructions.dots,
        number: spec.cache.number.unpacked(),
        is_paired: instructions.is_paired,
        strides: tile::Strides {
            query_row: spec.query.0 * 4,
            query_head: spec.query.1 * 4,
            output_row,
        },
    };
    let unpack = Unpack::of(assembly, &spec.cache, true)?;
    let steps = Steps::assemble(assembly, id, instructions.width, &tile)?;
    assembly.define(id, |b| {
        let [context, query, sinks, output, partials, thread, threads, work] = b.params();
        let rows = b.load_count(context, offset_of!(StepContext, rows) as i32);
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let spans = layer_field(b, layer, offset_of!(LayerCall, spans));
        let memory = b.stack(scratch.bytes as u32 + 64);
        let memory = b.add_const(memory, 63);
        let memory = b.ins().band_imm_s(memory, -64);
        let weight_codes = tile.weight_codes().0;
        let unit = Unit {
            spec,
            scratch,
            steps,
            unpack,
            records,
            weight_codes,
            is_paired: tile.is_paired,
            context,
            layer,
            spans,
            memory,
        };
        let ones = b.int(unit.queries() as i64);
        unit.fill(b, scratch.ones, ones, 1.0);
        let operands = Operands { query, sinks, output, partials };
        // No step has more units than rows with all parts; more cannot be taken.
        let most_units = spec.max_rows.saturating_mul(unit.parts() as usize);
        let are_takeable = most_units < MOST_ITEMS as usize;
        let least = if are_takeable { ROWS_BY_HEAD } else { i64::MAX as usize };
        let by_head = b.has_rows(rows, threads, least);
        let team = Team { thread, threads, work, by_head };
        // No unit has more queries than all rows together.
        let queries = b.mul_const(rows, unit.heads());
        let least = b.int(tile::amx::LEAST as i64);
        let are_many = b.compare(IntCC::SignedGreaterThanOrEqual, queries, least);
        b.if_then(are_many, |b| {
            if let Some(matrix) = &unit.steps.matrix {
                b.call(matrix.configure, &[]);
            }
            if let Some(lanes) = scratch.all_lanes() {
                // Those of queries that are not there are computed with, too: ordinary numbers, since
                // processors take long over others.
                let floats = b.int((lanes.len() / 4) as i64);
                unit.fill(b, lanes.start, floats, 1.0);
            }
        });
        let splits = split::pays(b, &unit, rows, threads);
        b.if_else(
            splits,
            |b| {
                split::attend(b, &unit, &operands, &team);
                Vec::new()
            },
            |b| {
                unit.all_units(b, rows, &operands, &team);
                Vec::new()
            },
        );
        if let Some(matrix) = &unit.steps.matrix {
            b.if_then(are_many, |b| {
                b.call(matrix.release, &[]);
            });
        }
        b.ret(&[]);
    })
}

/// What all units of a call share.
struct Unit<'a> {
    spec: &'a AttendSpec,
    scratch: &'a Scratch,
    steps: Steps,
    /// What unpacks tiles, where the cache is not read as it is.
    unpack: Option<Unpack>,
    /// What rounds means, where they are to be.
    records: Option<Records>,
    /// Place of the weights as codes in the scratch.
    weight_codes: usize,
    /// Whether weights are pairs of bf16, and values are read by two rows.
    is_paired: bool,
    context: Value,
    layer: Value,
    spans: Value,
    /// The scratch.
    memory: Value,
}

/// The rows of a unit and its query heads; and where those begin that its thread takes next.
struct RowsOfTile {
    start: Value,
    count: Value,
    /// Number of the part among all parts of all groups.
    part: Value,
    next: Next,
}

/// The arguments of a call.
struct Operands {
    query: Value,
    sinks: Value,
    output: Value,
    partials: Value,
}

/// Who calls.
struct Team {
    thread: Value,
    threads: Value,
    /// Number of the work.
    work: Value,
    /// Whether threads have units of their heads and help each other, instead of taking units in turn.
    by_head: Value,
}

/// The units of a step, by tiles of rows and parts of their heads.
struct Units {
    /// First row of each tile, and the row behind the last; 32 bits each.
    starts: Value,
    tiles: Value,
    count: Value,
    /// Whether a part's units follow each other, instead of a tile's.
    by_head: Value,
    /// Of a tile's units one after the other, how many runs of parts they are taken from by turns, and parts
    /// of a run: as many as there are threads, so that a thread's heads lie beside each other, or one.
    runs: [Value; 2],
}

/// The range that is being walked, and what is asked for meanwhile.
struct Walk {
    range: Value,
    part: Part,
    /// Row behind the last one.
    end: Value,
    /// What all rows read: from the latest first key to the earliest end.
    common: [Value; 2],
    /// Where it stands whether the scratch says of all rows that they read a whole tile.
    says_whole: Value,
    ahead: Ahead,
}

/// Tiles of a chunk: the first one's first cache row, and the row behind the last key.
struct Chunk {
    begin: Value,
    end: Value,
}

impl Team {
    /// The units that a thread computes first: from one to behind another, in steps.
    fn first_units(&self, b: &mut Body<'_>, context: Value, count: Value) -> [Value; 3] {
        let taken = |b: &mut Body<'_>| {
            let [begin, end] = self.take(b, context, count);
            vec![begin, end, b.int(1)]
        };
        let units = b.if_else(self.by_head, taken, |_| vec![self.thread, count, self.threads]);
        [units[0], units[1], units[2]]
    }

    /// A part of this thread's units, or of another one's where all of these are taken.
    fn take(&self, b: &mut Body<'_>, context: Value, items: Value) -> [Value; 2] {
        let work = Work { number: self.work, items, together: 1, of: TakeOf::Any };
        b.take([context, self.thread], &work)
    }

    /// Whether the next number is this thread's; numbers are counted in `state + offset`.
    fn takes_next(&self, b: &mut Body<'_>, state: Value, offset: i32) -> Value {
        let number = b.load(POINTER, state, offset);
        let turn = b.ins().urem(number, self.threads);
        let next = b.add_const(number, 1);
        b.store(next, state, offset);
        b.compare(IntCC::Equal, turn, self.thread)
    }
}

impl Unit<'_> {
    fn at(&self, b: &mut Body<'_>, offset: usize) -> Value {
        b.add_const(self.memory, offset as i64)
    }

    /// Queries that the arrays of the scratch have room for.
    fn queries(&self) -> usize {
        (self.scratch.rows * self.scratch.heads).next_multiple_of(16)
    }

    /// Query heads of a unit.
    fn heads(&self) -> i64 {
        self.scratch.heads as i64
    }

    /// Units of a tile of rows.
    fn parts(&self) -> i64 {
        (self.spec.score.heads / self.scratch.heads) as i64
    }

    /// The key/value head of a part.
    fn kv_head(&self, b: &mut Body<'_>, part: Value) -> Value {
        match (self.spec.group() / self.scratch.heads) as i64 {
            1 => part,
            parts => {
                let parts = b.int(parts);
                b.ins().udiv(part, parts)
            }
        }
    }

    /// Queries of a unit.
    fn count(&self, b: &mut Body<'_>, rows: &RowsOfTile) -> Value {
        b.mul_const(rows.count, self.heads())
    }

    /// Sets floats of the scratch, a multiple of four.
    fn fill(&self, b: &mut Body<'_>, offset: usize, floats: Value, value: f32) {
        let to = self.at(b, offset);
        let zero = b.int(0);
        b.for_range(zero, floats, 4, |b, index| {
            let to = b.element(to, index, 4);
            let lanes = b.constant(LANES, value);
            b.store(lanes, to, 0);
        });
    }

    /// All units of the step that are this thread's.
    fn all_units(&self, b: &mut Body<'_>, rows: Value, operands: &Operands, team: &Team) {
        let units = self.divide(b, rows, team);
        let [first, end, step] = team.first_units(b, self.context, units.count);
        b.for_numbers(
            [first, end],
            |b, number| {
                let [start, behind, part] = self.place(b, &units, number);
                let next = b.add(number, step);
                let rows = RowsOfTile {
                    start,
                    count: b.sub(behind, start),
                    part,
                    next: self.next(b, &units, next),
                };
                self.prepare(b, &rows, operands);
                self.each_chunk(b, &rows, |b, walk, chunk| {
                    self.chunk(b, &rows, walk, chunk);
                    self.combine(b, &rows);
                });
                self.finish(b, &rows, operands);
                next
            },
            |b| {
                let none = |b: &mut Body<'_>| vec![b.int(0), b.int(0)];
                let more = |b: &mut Body<'_>| team.take(b, self.context, units.count).to_vec();
                let more = b.if_else(team.by_head, more, none);
                [more[0], more[1]]
            },
        );
    }

    /// Finds the tiles of a step's rows.
    fn divide(&self, b: &mut Body<'_>, rows: Value, team: &Team) -> Units {
        let starts = b.stack((self.spec.max_rows as u32 + 1) * 4);
        let [zero, one] = [0, 1].map(|number| b.int(number));
        b.store_count(zero, starts, 0);
        // The tile that grows: its number and its first row.
        let first = b.min(rows, one);
        let found = b.fold_range(one, rows, 1, &[first, zero], |b, row, found| {
            let [tiles, start] = [found[0], found[1]];
            let ends = self.divides(b, start, row);
            let ends = b.compare_const(IntCC::NotEqual, ends, 0);
            // Written in any case; where the tile goes on the next row is written there again.
            let place = b.element(starts, tiles, 4);
            b.store_count(row, place, 0);
            let behind = b.add_const(tiles, 1);
            vec![b.select(ends, behind, tiles), b.select(ends, row, start)]
        });
        let tiles = found[0];
        let place = b.element(starts, tiles, 4);
        b.store_count(rows, place, 0);
        let count = b.mul_const(tiles, self.parts());
        let parts = b.int(self.parts());
        let left = b.ins().urem(parts, team.threads);
        let is_even = b.compare_const(IntCC::Equal, left, 0);
        let runs = b.select(is_even, team.threads, one);
        let runs = [runs, b.ins().udiv(parts, runs)];
        Units { starts, tiles, count, by_head: team.by_head, runs }
    }

    /// The rows of a unit, from the first to behind the last, and the part of their heads.
    fn place(&self, b: &mut Body<'_>, units: &Units, number: Value) -> [Value; 3] {
        let parts = b.int(self.parts());
        let divisor = b.select(units.by_head, units.tiles, parts);
        let quotient = b.ins().udiv(number, divisor);
        let whole = b.mul(quotient, divisor);
        let rest = b.sub(number, whole);
        let tile = b.select(units.by_head, rest, quotient);
        let [runs, of_run] = units.runs;
        let in_run = b.ins().udiv(rest, runs);
        let before = b.mul(in_run, runs);
        let run = b.sub(rest, before);
        let first = b.mul(run, of_run);
        let in_turn = b.add(first, in_run);
        let part = b.select(units.by_head, quotient, in_turn);
        let place = b.element(units.starts, tile, 4);
        [b.load_count(place, 0), b.load_count(place, 4), part]
    }

    /// Not 0 if `row` begins a new tile: the one that begins at `start` is full, or reads other
    /// slots, or begins far away or in another part in one of them.
    fn divides(&self, b: &mut Body<'_>, start: Value, row: Value) -> Value {
        let [first, other] = [start, row].map(|row| b.element(self.spans, row, SPAN));
        let field =
            |b: &mut Body<'_>, span: Value, offset: usize| b.load_count(span, offset as i32);
        let count = offset_of!(RowSpans, range_count);
        let [mut differs, counts] = [first, other].map(|span| field(b, span, count));
        differs = b.ins().bxor(differs, counts);
        let reach = 2 * self.scratch.rows as i64;
        for range in 0..MAX_RANGES {
            let at = offset_of!(RowSpans, ranges) + range * size_of::<CacheRange>();
            let slots = [first, other].map(|s| field(b, s, at + offset_of!(CacheRange, slot)));
            let slots = b.ins().bxor(slots[0], slots[1]);
            differs = b.ins().bor(differs, slots);
            let firsts = [first, other].map(|s| field(b, s, at + offset_of!(CacheRange, first)));
            // Within `reach` of each other: the unsigned quotient is 0.
            let apart = b.sub(firsts[1], firsts[0]);
            let apart = b.add_const(apart, reach);
            let width = b.int(2 * reach + 1);
            let apart = b.ins().udiv(apart, width);
            differs = b.ins().bor(differs, apart);
            if self.spec.cache.block.is_some() {
                let parts = firsts.map(|first| is_block(b, self.layer, first));
                let parts = b.ins().bxor(parts[0], parts[1]);
                let parts = b.ins().uextend(POINTER, parts);
                differs = b.ins().bor(differs, parts);
            }
        }
        let rows = b.sub(row, start);
        let full = b.int(self.scratch.rows as i64);
        let full = b.ins().udiv(rows, full);
        b.ins().bor(differs, full)
    }

    /// Range number `range` of a row as a part of its heads reads it.
    fn range(&self, b: &mut Body<'_>, row: [Value; 2], part: Value) -> RangeOfRow {
        if !self.spec.cache.by_head {
            return range_of_row(b, row[0], row[1]);
        }
        let head = self.kv_head(b, part);
        range_of_head(b, &self.spec.cache, self.layer, row, head)
    }

    /// First key of a row's range and the one behind its last.
    fn bounds(&self, b: &mut Body<'_>, rows: &RowsOfTile, row: Value, range: Value) -> [Value; 2] {
        let row = b.add(rows.start, row);
        let span = b.element(self.spans, row, SPAN);
        let RangeOfRow { first, rows, .. } = self.range(b, [span, range], rows.part);
        [first, b.add(first, rows)]
    }

    /// For each range of a tile of rows and each of its chunks, in order.
    fn each_chunk(
        &self,
        b: &mut Body<'_>,
        rows: &RowsOfTile,
        body: impl FnOnce(&mut Body<'_>, &Walk, &Chunk),
    ) {
        let span = b.element(self.spans, rows.start, SPAN);
        let ranges = b.load_count(span, offset_of!(RowSpans, range_count) as i32);
        let zero = b.int(0);
        let says_whole = b.stack(8);
        b.for_range(zero, ranges, 1, |b, range| {
            let RangeOfRow { slot, first, .. } = self.range(b, [span, range], rows.part);
            let kv_head = self.kv_head(b, rows.part);
            let most = b.int(i64::MAX);
            let begin = [most, zero, zero, most];
            let ends = b.fold_range(zero, rows.count, 1, &begin, |b, row, ends| {
                let [first, end] = self.bounds(b, rows, row, range);
                vec![
                    b.min(ends[0], first),
                    b.max(ends[1], end),
                    b.max(ends[2], first),
                    b.min(ends[3], end),
                ]
            });
            let part = Part::of(b, &self.spec.cache, self.layer, first, [slot, kv_head]);
            let first_chunk = b.ins().band_imm_s(ends[0], -CHUNK);
            let first_tile = b.ins().band_imm_s(ends[0], -TILE);
            b.store(zero, says_whole, 0);
            let walk = Walk {
                range,
                part,
                end: ends[1],
                common: [ends[2], ends[3]],
                says_whole,
                ahead: Ahead::of(b, self, rows.next, range, [first_tile, ends[1]]),
            };
            b.for_range(first_chunk, ends[1], CHUNK, |b, start| {
                let begin = b.max(start, first_tile);
                let end = b.add_const(start, CHUNK);
                let end = b.min(end, ends[1]);
                body(b, &walk, &Chunk { begin, end });
            });
        });
    }

    /// The sums of a chunk, from nothing.
    fn chunk(&self, b: &mut Body<'_>, rows: &RowsOfTile, walk: &Walk, chunk: &Chunk) {
        let count = self.count(b, rows);
        b.call(self.steps.begin, &[self.memory, count]);
        b.for_range(chunk.begin, chunk.end, TILE, |b, place| self.tile(b, rows, walk, place));
    }

    /// The sums of a chunk go into those of all rows.
    fn combine(&self, b: &mut Body<'_>, rows: &RowsOfTile) {
        let count = self.count(b, rows);
        b.call(self.steps.combine, &[self.memory, count]);
    }
}
