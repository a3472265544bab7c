//! How a unit of work begins and how it ends: queries go to the scratch, means to the output.

use std::f32::consts::{LN_2, LOG2_E};

use super::{Operands, RowsOfTile, Unit};
use crate::emit::{Body, FLOAT};
use crate::kernels::attention::Finished;
use crate::kernels::rows::copy_floats;

impl Unit<'_> {
    /// Copies the queries and begins their sums.
    pub(super) fn prepare(&self, b: &mut Body<'_>, rows: &RowsOfTile, operands: &Operands) {
        let spec = self.spec;
        let group = self.heads();
        let head = b.mul_const(rows.part, group);
        let key_bytes = spec.cache.key_width as i64 * 4;
        let queries = self.at(b, self.scratch.queries);
        let zero = b.int(0);
        let count = self.count(b, rows);
        let floats = b.mul_const(count, self.scratch.sum_row as i64 / 4);
        self.fill(b, self.scratch.all_sums, floats, 0.0);
        b.for_range(zero, rows.count, 1, |b, row| {
            let before = b.mul_const(row, group);
            let row = b.add(rows.start, row);
            let from = b.element(operands.query, row, spec.query.0 as i64 * 4);
            let from = b.element(from, head, spec.query.1 as i64 * 4);
            let to = b.element(queries, before, key_bytes);
            let state = b.element(self.memory, before, 4);
            b.for_count(group, 1, |b, index| {
                let from = b.element(from, index, spec.query.1 as i64 * 4);
                let to = b.element(to, index, key_bytes);
                copy_floats(b, from, to, spec.cache.key_width);
                let (maximum, total) = if spec.sinks {
                    let sink = b.add(head, index);
                    let sink = b.element(operands.sinks, sink, 4);
                    let sink = b.load(FLOAT, sink, 0);
                    let in_base_2 = b.float(LOG2_E);
                    (b.fmul(sink, in_base_2), b.float(1.0))
                } else {
                    (b.float(f32::MIN), b.float(0.0))
                };
                let state = b.element(state, index, 4);
                b.store(maximum, state, self.scratch.all_maxima as i32);
                b.store(total, state, self.scratch.all_totals as i32);
            });
        });
        if let Some(round) = self.steps.round {
            b.call(round, &[self.memory, count]);
        }
    }

    /// Writes the results of all rows.
    pub(super) fn finish(&self, b: &mut Body<'_>, rows: &RowsOfTile, operands: &Operands) {
        let spec = self.spec;
        let group = self.heads();
        let head = b.mul_const(rows.part, group);
        let key_bytes = spec.cache.key_width as i64 * 4;
        let queries = self.at(b, self.scratch.queries);
        let zero = b.int(0);
        b.for_range(zero, rows.count, 1, |b, row| {
            let before = b.mul_const(row, group);
            let row = b.add(rows.start, row);
            let state = b.element(self.memory, before, 4);
            let queries = b.element(queries, before, key_bytes);
            let sums = self.at(b, self.scratch.all_sums);
            let finished = Finished {
                heads: self.scratch.heads,
                queries: (queries, key_bytes as usize),
                sums: (b.element(sums, before, self.scratch.sum_row as i64), self.scratch.sum_row),
                maxima: b.add_const(state, self.scratch.all_maxima as i64),
                totals: b.add_const(state, self.scratch.all_totals as i64),
                unit: LN_2,
            };
            let output = b.element(operands.output, row, spec.output_row as i64 * 4);
            let output = b.element(output, head, spec.cache.value_width as i64 * 4);
            finished.write(b, spec, output);
            finished.observe(b, spec, self.context, self.layer, row, head);
        });
    }
}
