//! One row by a whole team: threads take (key/value head, chunk) in turn and leave each chunk's
//! maximum, total and sums in shared memory; behind a barrier the chunks of a head are combined in
//! their order, which is what one thread does that walks them all. The bits are the same.

use std::mem::offset_of;

use weir_abi::RowSpans;

use super::{CHUNK, Next, Operands, RowsOfTile, Team, Unit, range_of_row};
use crate::emit::{Body, InstBuilder, IntCC, POINTER, Value};
use crate::kernels::attention::AttendSpec;
use crate::kernels::rows::copy_floats;

/// Bytes of shared memory for `chunks` chunks of every head: sums, maximum and total of each query.
pub(in crate::kernels::attention) fn bytes(spec: &AttendSpec, chunks: usize) -> usize {
    spec.score.heads * chunks * (spec.cache.value_width + 2) * 4
}

/// Whether the step is one row of several chunks, for which there is room, and its heads would leave
/// threads idle.
pub(super) fn pays(b: &mut Body<'_>, unit: &Unit<'_>, rows: Value, threads: Value) -> Value {
    let ranges = b.load_count(unit.spans, offset_of!(RowSpans, range_count) as i32);
    let zero = b.int(0);
    let chunks = b.fold_range(zero, ranges, 1, &[zero], |b, range, chunks| {
        let range = range_of_row(b, unit.spans, range);
        let end = b.add(range.first, range.rows);
        let end = b.add_const(end, CHUNK - 1);
        let bits = i64::from(CHUNK.trailing_zeros());
        let [first, end] = [range.first, end].map(|row| b.ins().ushr_imm_u(row, bits));
        let count = b.sub(end, first);
        // Rows by head begin at any tile, and so may end in one chunk more.
        let count = b.add_const(count, i64::from(unit.spec.cache.by_head));
        vec![b.add(chunks[0], count)]
    })[0];
    let parts = b.int(unit.parts());
    let left = b.ins().urem(parts, threads);
    let conditions = [
        b.compare_const(IntCC::Equal, rows, 1),
        b.compare_const(IntCC::NotEqual, left, 0),
        b.compare_const(IntCC::SignedGreaterThan, chunks, 1),
        b.compare_const(IntCC::SignedLessThanOrEqual, chunks, unit.spec.shared_chunks as i64),
    ];
    let [first, rest @ ..] = conditions;
    rest.into_iter().fold(first, |all, condition| b.ins().band(all, condition))
}

/// Attention of row 0 by all threads of the team.
pub(super) fn attend(b: &mut Body<'_>, unit: &Unit<'_>, operands: &Operands, team: &Team) {
    let state = b.stack(16);
    let zero = b.int(0);
    let parts = unit.parts();
    b.store(zero, state, 0);
    b.for_count(parts, 1, |b, part| {
        let rows = unit.only_row(b, part);
        unit.prepare(b, &rows, operands);
        unit.each_chunk(b, &rows, |b, walk, chunk| {
            let number = b.load(POINTER, state, 0);
            let is_mine = team.takes_next(b, state, 0);
            b.if_then(is_mine, |b| {
                unit.chunk(b, &rows, walk, chunk);
                copy(b, unit, operands.partials, number, true);
            });
        });
    });
    b.barrier(unit.context, team.thread);
    // Chunks are numbered again, heads are dealt out.
    b.store(zero, state, 0);
    b.store(zero, state, 8);
    b.for_count(parts, 1, |b, part| {
        let rows = unit.only_row(b, part);
        let is_mine = team.takes_next(b, state, 8);
        b.if_then(is_mine, |b| unit.prepare(b, &rows, operands));
        unit.each_chunk(b, &rows, |b, _, _| {
            let number = b.load(POINTER, state, 0);
            let next = b.add_const(number, 1);
            b.store(next, state, 0);
            b.if_then(is_mine, |b| {
                copy(b, unit, operands.partials, number, false);
                unit.combine(b, &rows);
            });
        });
        b.if_then(is_mine, |b| unit.finish(b, &rows, operands));
    });
}

impl Unit<'_> {
    /// The unit of row 0 and a part of its heads.
    fn only_row(&self, b: &mut Body<'_>, part: Value) -> RowsOfTile {
        let [zero, one] = [0, 1].map(|number| b.int(number));
        RowsOfTile { start: zero, count: one, part, next: Next { row: zero, part } }
    }

    /// Floats that a chunk of one part leaves: sums, maxima and totals of its queries.
    fn partial_floats(&self) -> usize {
        self.scratch.heads * (self.spec.cache.value_width + 2)
    }
}

/// Copies the sums of a chunk from the scratch to place `number`, or back.
fn copy(b: &mut Body<'_>, unit: &Unit<'_>, partials: Value, number: Value, out: bool) {
    let spec = unit.spec;
    let group = unit.scratch.heads;
    let width = spec.cache.value_width;
    let shared = b.element(partials, number, unit.partial_floats() as i64 * 4);
    let copy = |b: &mut Body<'_>, own: Value, shared: Value, floats: usize| {
        let (from, to) = if out { (own, shared) } else { (shared, own) };
        copy_floats(b, from, to, floats);
    };
    let sums = unit.at(b, unit.scratch.sums);
    b.for_count(group as i64, 1, |b, query| {
        let own = b.element(sums, query, unit.scratch.sum_row as i64);
        let shared = b.element(shared, query, width as i64 * 4);
        copy(b, own, shared, width);
    });
    let behind = b.add_const(shared, (group * width * 4) as i64);
    let maxima = unit.at(b, unit.scratch.maxima);
    copy(b, maxima, behind, group);
    let behind = b.add_const(behind, group as i64 * 4);
    let totals = unit.at(b, unit.scratch.totals);
    copy(b, totals, behind, group);
}
