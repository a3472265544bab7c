//! How a unit of work begins and how it ends: queries go to the scratch, means to the output, rounded or
//! as they are.

use std::f32::consts::{LN_2, LOG2_E};

use super::{Operands, RowsOfTile, Unit};
use crate::emit::{Body, FLOAT, Value};
use crate::kernels::attention::{Finished, observed};

impl Unit<'_> {
    /// Copies the queries and begins their sums.
    pub(super) fn prepare(&self, b: &mut Body<'_>, rows: &RowsOfTile, operands: &Operands) {
        let spec = self.spec;
        let head = b.mul_const(rows.part, self.heads());
        let count = self.count(b, rows);
        let from = b.element(operands.query, rows.start, spec.query.0 as i64 * 4);
        let from = b.element(from, head, spec.query.1 as i64 * 4);
        if let Some(records) = self.records {
            records.ask(b, operands.output, [rows.start, rows.count], head);
        }
        b.call(self.steps.take, &[self.memory, rows.count, from]);
        if spec.sinks {
            let sinks = b.element(operands.sinks, head, 4);
            self.begin_with_sinks(b, count, sinks);
        }
        if let Some(round) = self.steps.round {
            b.call(round, &[self.memory, count]);
        }
    }

    /// Sums of all queries begin with the sink logits of their heads, which lie at `sinks`.
    fn begin_with_sinks(&self, b: &mut Body<'_>, count: Value, sinks: Value) {
        let group = self.heads();
        let zero = b.int(0);
        b.for_range(zero, count, group, |b, before| {
            let state = b.element(self.memory, before, 4);
            b.for_count(group, 1, |b, index| {
                let sink = b.element(sinks, index, 4);
                let sink = b.load(FLOAT, sink, 0);
                let in_base_2 = b.float(LOG2_E);
                let maximum = b.fmul(sink, in_base_2);
                let total = b.float(1.0);
                let state = b.element(state, index, 4);
                b.store(maximum, state, self.scratch.all_maxima as i32);
                b.store(total, state, self.scratch.all_totals as i32);
            });
        });
    }

    /// Writes the results of all rows.
    pub(super) fn finish(&self, b: &mut Body<'_>, rows: &RowsOfTile, operands: &Operands) {
        let spec = self.spec;
        let group = self.heads();
        let head = b.mul_const(rows.part, group);
        if let Some(records) = self.records {
            let means = self.at(b, self.scratch.all_sums);
            b.call(self.steps.means, &[self.memory, rows.count, means]);
            if let Some(matrix) = &self.steps.matrix {
                // An estimate: some 1500 cycles behind the last product, as many in front of the next.
                let count = self.count(b, rows);
                b.call(matrix.keep_awake, &[self.memory, count]);
            }
            records.write(b, means, operands.output, [rows.start, rows.count], head);
        } else {
            let output = b.element(operands.output, rows.start, spec.output_row as i64 * 4);
            let output = b.element(output, head, spec.cache.value_width as i64 * 4);
            b.call(self.steps.means, &[self.memory, rows.count, output]);
        }
        observed(b, self.layer, |b| {
            let zero = b.int(0);
            b.for_range(zero, rows.count, 1, |b, row| {
                let before = b.mul_const(row, group);
                let state = b.element(self.memory, before, 4);
                let key_bytes = spec.cache.key_width * 4;
                let queries = self.at(b, self.scratch.queries);
                let finished = Finished {
                    heads: self.scratch.heads,
                    queries: (b.element(queries, before, key_bytes as i64), key_bytes),
                    maxima: b.add_const(state, self.scratch.all_maxima as i64),
                    totals: b.add_const(state, self.scratch.all_totals as i64),
                    unit: LN_2,
                };
                let row = b.add(rows.start, row);
                finished.observe(b, spec, self.context, self.layer, row, head);
            });
        });
    }
}
