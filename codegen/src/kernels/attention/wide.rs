//! The frame of wide attention: which rows share a tile, which cache rows they walk, what is
//! combined with what.
//!
//! Consecutive rows of a step that read the same slots, from nearly the same rows on, form a tile;
//! with the query heads of one key/value head it is a unit of work, and threads take units in turn, or
//! with many rows as they come to them. A unit walks its ranges in chunks of [`CHUNK`] cache rows and
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
//! Over an int8 cache a score is an exact sum times four factors, |Δs| ≤ 5·u·|s|. A code is that of
//! the definition, or its neighbour where E may move it over the middle of two, which adds g·|v| to y
//! for each such key; how far the definition is from float32 stands in `docs/numerics.md`.

mod ahead;
mod ends;
mod split;
mod steps;

use std::mem::offset_of;

use weir_abi::{CacheRange, KEY_BLOCK, KEY_TILE, LayerCall, MAX_RANGES, RowSpans, StepContext};

use super::block::{Part, is_block};
use super::heads::range_of_head;
use super::scratch::{SCORE_ROW, Scratch};
use super::tile::{self, Tile};
use super::unpack::Memory;
use super::vector::{Dots, Width};
use super::{AttendSpec, RangeOfRow, Unpack, layer_field, range_of_row};
use crate::emit::{Assembly, Body, EmitError, FuncId, InstBuilder, IntCC, LANES, POINTER, Value};

use self::ahead::{Ahead, Next};
pub(super) use self::split::bytes as shared_bytes;
use self::steps::Steps;

/// Cache rows of a chunk, a multiple of [`KEY_TILE`].
pub(super) const CHUNK: i64 = 512;
const TILE: i64 = KEY_TILE as i64;
const SPAN: i64 = size_of::<RowSpans>() as i64;
/// Rows of a step from which on threads draw units. A unit that is taken in turn is known early, so its
/// first cache rows can be asked for; with fewer rows, of as many sequences, that counts for more.
const ROWS_TO_DRAW: usize = 32;

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    spec: &AttendSpec,
    (width, dots): (Width, Dots),
    scratch: &Scratch,
) -> Result<(), EmitError> {
    let tile = Tile {
        scratch,
        group: scratch.heads,
        key_width: spec.cache.key_width,
        value_width: spec.cache.value_width,
        scale: spec.score.scale,
        softcap: spec.score.softcap,
        dots,
        number: spec.cache.number.unpacked(),
        strides: tile::Strides {
            query_row: spec.query.0 * 4,
            query_head: spec.query.1 * 4,
            output_row: spec.output_row * 4,
        },
    };
    let unpack = Unpack::of(assembly, &spec.cache, true)?;
    let steps = Steps::assemble(assembly, id, width, &tile)?;
    assembly.define(id, |b| {
        let [context, query, sinks, output, partials, thread, threads, work] = b.params();
        let rows = b.load_count(context, offset_of!(StepContext, rows) as i32);
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let spans = layer_field(b, layer, offset_of!(LayerCall, spans));
        let memory = b.stack(scratch.bytes as u32 + 64);
        let memory = b.add_const(memory, 63);
        let memory = b.ins().band_imm_s(memory, -64);
        let weight_codes = tile.weight_codes().0;
        let unit =
            Unit { spec, scratch, steps, unpack, weight_codes, context, layer, spans, memory };
        let ones = b.int(unit.queries() as i64);
        unit.fill(b, scratch.ones, ones, 1.0);
        let operands = Operands { query, sinks, output, partials };
        let draws = b.has_rows(rows, threads, ROWS_TO_DRAW);
        let team = Team { thread, threads, work, draws };
        // No unit has more queries than all rows together.
        let queries = b.mul_const(rows, unit.heads());
        let least = b.int(tile::amx::LEAST as i64);
        let are_many = b.compare(IntCC::SignedGreaterThanOrEqual, queries, least);
        b.if_then(are_many, |b| {
            if let Some([configure, _]) = unit.steps.matrix {
                b.call(configure, &[]);
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
                unit.all_tiles(b, rows, &operands, &team);
                Vec::new()
            },
        );
        if let Some([_, release]) = unit.steps.matrix {
            b.if_then(are_many, |b| {
                b.call(release, &[]);
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
    /// Place of the weights as codes in the scratch.
    weight_codes: usize,
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
    /// Whether threads draw the numbers of units instead of taking them in turn.
    draws: Value,
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

/// Value rows of a tile, and how far from them those lie that are asked for.
struct TileValues {
    values: Value,
    ahead: Value,
}

/// Tiles of a chunk: the first one's first cache row, and the row behind the last key.
struct Chunk {
    begin: Value,
    end: Value,
}

impl Team {
    /// The unit that a thread computes first, or after the one before.
    fn next_unit(&self, b: &mut Body<'_>, context: Value, before: Option<Value>) -> Value {
        let in_turn = |b: &mut Body<'_>| match before {
            None => vec![self.thread],
            Some(before) => vec![b.add(before, self.threads)],
        };
        b.if_else(self.draws, |b| vec![b.draw(context, self.work)], in_turn)[0]
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

    /// All tiles of the step, in turn among the threads or as they come to them.
    fn all_tiles(&self, b: &mut Body<'_>, rows: Value, operands: &Operands, team: &Team) {
        // First row of the tile, number of the unit, number of this thread's next one.
        let state = b.stack(24);
        let zero = b.int(0);
        let own = team.next_unit(b, self.context, None);
        b.store(zero, state, 0);
        b.store(zero, state, 8);
        b.store(own, state, 16);
        let one = b.int(1);
        let behind = b.add_const(rows, 1);
        b.for_range(one, behind, 1, |b, row| {
            let start = b.load(POINTER, state, 0);
            let is_row = b.compare(IntCC::SignedLessThan, row, rows);
            let ends =
                b.if_else(is_row, |b| vec![self.divides(b, start, row)], |b| vec![b.int(1)])[0];
            let ends = b.compare_const(IntCC::NotEqual, ends, 0);
            b.if_then(ends, |b| {
                b.for_count(self.parts(), 1, |b, part| {
                    let number = b.load(POINTER, state, 8);
                    let behind = b.add_const(number, 1);
                    b.store(behind, state, 8);
                    let own = b.load(POINTER, state, 16);
                    let is_mine = b.compare(IntCC::Equal, number, own);
                    b.if_then(is_mine, |b| {
                        let next = self.next(b, [start, row, is_row], part, team);
                        let rows = RowsOfTile { start, count: b.sub(row, start), part, next };
                        self.prepare(b, &rows, operands);
                        self.each_chunk(b, &rows, |b, walk, chunk| {
                            self.chunk(b, &rows, walk, chunk);
                            self.combine(b, &rows);
                        });
                        self.finish(b, &rows, operands);
                        let own = team.next_unit(b, self.context, Some(number));
                        b.store(own, state, 16);
                    });
                });
                b.store(row, state, 0);
            });
        });
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

    /// What rows read of the tile at `place` goes to the scratch; the latest first key, the earliest
    /// end and the last end of them.
    fn tile_bounds(
        &self,
        b: &mut Body<'_>,
        rows: &RowsOfTile,
        walk: &Walk,
        place: Value,
    ) -> Vec<Value> {
        let zero = b.int(0);
        let whole = b.int(TILE);
        let behind = b.add_const(place, TILE);
        let begins = b.compare(IntCC::SignedGreaterThanOrEqual, place, walk.common[0]);
        let goes_on = b.compare(IntCC::SignedLessThanOrEqual, behind, walk.common[1]);
        let is_inside = b.ins().band(begins, goes_on);
        b.if_else(
            is_inside,
            |b| {
                // Most tiles of a long prompt follow another one that all rows read.
                let said = b.load(POINTER, walk.says_whole, 0);
                let is_new = b.compare_const(IntCC::Equal, said, 0);
                b.if_then(is_new, |b| {
                    b.for_range(zero, rows.count, 1, |b, row| {
                        let bounds = b.element(self.memory, row, 8);
                        // Both 32-bit numbers at once.
                        let all = b.int(TILE << 32);
                        b.store(all, bounds, self.scratch.bounds as i32);
                    });
                    let one = b.int(1);
                    b.store(one, walk.says_whole, 0);
                });
                vec![zero, whole, whole]
            },
            |b| {
                b.store(zero, walk.says_whole, 0);
                b.fold_range(zero, rows.count, 1, &[zero, whole, zero], |b, row, all| {
                    let [first, last] = self.bounds(b, rows, row, walk.range).map(|bound| {
                        let bound = b.sub(bound, place);
                        let bound = b.max(bound, zero);
                        b.min(bound, whole)
                    });
                    // A row without keys here reads from 0 to 0.
                    let any = b.compare(IntCC::SignedLessThan, first, last);
                    let first = b.select(any, first, zero);
                    let last = b.select(any, last, zero);
                    let bounds = b.element(self.memory, row, 8);
                    for (at, bound) in [(0, first), (4, last)] {
                        let bound = b.ins().ireduce(crate::emit::INT, bound);
                        b.store(bound, bounds, (self.scratch.bounds + at) as i32);
                    }
                    vec![b.max(all[0], first), b.min(all[1], last), b.max(all[2], last)]
                })
            },
        )
    }

    /// The tile of cache rows that begins at `place`.
    fn tile(&self, b: &mut Body<'_>, rows: &RowsOfTile, walk: &Walk, place: Value) {
        let zero = b.int(0);
        let all = self.tile_bounds(b, rows, walk, place);
        let [latest_first, least_last, last] = [all[0], all[1], all[2]];
        let any = b.compare(IntCC::SignedLessThan, zero, last);
        b.if_then(any, |b| {
            let ahead = walk.ahead.place(b, walk, place);
            let [keys, values] = [walk.part.keys, walk.part.values].map(|rows| rows.row(b, place));
            let [keys, values] = self.unpacked(b, walk, [keys, values], last);
            self.score(b, rows, [keys, ahead.keys, values], last);
            if self.steps.round.is_some() {
                return self.rounded_values(b, rows, [values, ahead.values], last);
            }
            let values = TileValues { values, ahead: b.sub(ahead.values, values) };
            // All rows read the same keys, or each block of rows is looked at by itself.
            let spread = b.sub(last, least_last);
            let spread = b.ins().bor(spread, latest_first);
            let is_whole = b.compare_const(IntCC::Equal, spread, 0);
            b.if_else(
                is_whole,
                |b| {
                    self.values(b, &values, [zero, rows.count], [zero, last], self.scratch.factors);
                    Vec::new()
                },
                |b| {
                    self.values_by_blocks(b, rows, &values);
                    Vec::new()
                },
            );
        });
    }

    /// The first `last` rows of a tile as the steps read them: where they lie, or unpacked.
    fn unpacked(&self, b: &mut Body<'_>, walk: &Walk, tile: [Value; 2], last: Value) -> [Value; 2] {
        let Some(unpack) = self.unpack else { return tile };
        let [unpacked, between] = [self.scratch.unpacked, self.scratch.between]
            .map(|places| places.map(|place| self.at(b, place)));
        let to = Memory { tile: unpacked, between };
        let Some(is_block) = walk.part.is_block else {
            unpack.tile(b, tile, to, last);
            return unpacked;
        };
        b.if_then(is_block, |b| unpack.tile(b, tile, to, last));
        [0, 1].map(|plane| b.select(is_block, unpacked[plane], tile[plane]))
    }

    /// Scores of all queries with the first `last` keys of a tile, made weights.
    fn score(
        &self,
        b: &mut Body<'_>,
        rows: &RowsOfTile,
        [keys, ahead, values]: [Value; 3],
        last: Value,
    ) {
        let queries = match self.steps.round {
            Some(_) => self.scratch.query_codes,
            None => self.scratch.queries,
        };
        let [queries, scores] = [queries, self.scratch.scores].map(|at| self.at(b, at));
        let count = self.count(b, rows);
        b.call(self.steps.scores, &[queries, keys, scores, last, count, ahead]);
        b.call(self.steps.weigh, &[self.memory, rows.count, values]);
    }

    /// Adds the values of the first `last` keys of a tile, whose weights are codes, to the sums of all
    /// rows: those that a row does not read have code 0.
    fn rounded_values(
        &self,
        b: &mut Body<'_>,
        rows: &RowsOfTile,
        [values, ahead]: [Value; 2],
        last: Value,
    ) {
        let count = self.count(b, rows);
        let [codes, sums, factors] =
            [self.weight_codes, self.scratch.sums, self.scratch.factors].map(|at| self.at(b, at));
        let blocks = b.add_const(last, KEY_BLOCK as i64 - 1);
        let bits = i64::from(KEY_BLOCK.trailing_zeros());
        let blocks = b.ins().ushr_imm_u(blocks, bits);
        b.call(self.steps.values, &[codes, values, sums, factors, count, blocks, ahead]);
    }

    /// Adds the values of keys `first .. last` of a tile to the sums of rows `row .. end`, times
    /// their factors (those of the tile, or ones).
    fn values(
        &self,
        b: &mut Body<'_>,
        values: &TileValues,
        [row, end]: [Value; 2],
        [first, last]: [Value; 2],
        factors: usize,
    ) {
        let group = self.heads();
        let [before, behind] = [row, end].map(|row| b.mul_const(row, group));
        let count = b.sub(behind, before);
        let weights = self.at(b, self.scratch.scores);
        let weights = b.element(weights, before, SCORE_ROW as i64);
        let weights = b.element(weights, first, 4);
        let from = b.element(values.values, first, self.spec.cache.value_bytes() as i64);
        let ahead = b.add(from, values.ahead);
        let sums = self.at(b, self.scratch.sums);
        let sums = b.element(sums, before, self.scratch.sum_row as i64);
        let factors = self.at(b, factors);
        let factors = b.element(factors, before, 4);
        let keys = b.sub(last, first);
        b.call(self.steps.values, &[weights, from, sums, factors, count, keys, ahead]);
    }

    /// Values where rows read different keys: what a block of rows has in common first, then the
    /// rest row by row.
    fn values_by_blocks(&self, b: &mut Body<'_>, rows: &RowsOfTile, values: &TileValues) {
        let zero = b.int(0);
        let block = (16 / self.scratch.heads).max(1) as i64;
        let bounds = |b: &mut Body<'_>, row: Value| {
            let place = b.element(self.memory, row, 8);
            [0, 4].map(|at| b.load_count(place, (self.scratch.bounds + at) as i32))
        };
        b.for_range(zero, rows.count, block, |b, start| {
            let end = b.add_const(start, block);
            let end = b.min(end, rows.count);
            let whole = b.int(TILE);
            let both = b.fold_range(start, end, 1, &[zero, whole], |b, row, both| {
                let [first, last] = bounds(b, row);
                vec![b.max(both[0], first), b.min(both[1], last)]
            });
            let (latest_first, common) = (both[0], both[1]);
            let from_zero = b.compare_const(IntCC::Equal, latest_first, 0);
            b.if_else(
                from_zero,
                |b| {
                    self.values(b, values, [start, end], [zero, common], self.scratch.factors);
                    b.for_range(start, end, 1, |b, row| {
                        let [_, last] = bounds(b, row);
                        let more = b.compare(IntCC::SignedLessThan, common, last);
                        b.if_then(more, |b| {
                            let next = b.add_const(row, 1);
                            self.values(b, values, [row, next], [common, last], self.scratch.ones);
                        });
                    });
                    Vec::new()
                },
                |b| {
                    b.for_range(start, end, 1, |b, row| {
                        let next = b.add_const(row, 1);
                        let keys = bounds(b, row);
                        self.values(b, values, [row, next], keys, self.scratch.factors);
                    });
                    Vec::new()
                },
            );
        });
    }
}
