//! Rows of a prompt in runs, which threads divide.

use std::mem::offset_of;

use weir_abi::PromptCall;

use crate::emit::{Body, InstBuilder, Value};

/// Rows of a run: whole blocks.
const RUN: i64 = 64;

/// Rows of a prompt, of every key/value head: runs that threads divide.
pub(super) struct Runs {
    begin: Value,
    end: Value,
    /// Runs of a head.
    runs: Value,
    /// Runs of this thread.
    share: (Value, Value),
}

impl Runs {
    pub(super) fn new(
        b: &mut Body<'_>,
        [begin, end]: [Value; 2],
        kv_heads: usize,
        [thread, threads]: [Value; 2],
    ) -> Runs {
        let count = b.sub(end, begin);
        let zero = b.int(0);
        let count = b.max(count, zero);
        let count = b.add_const(count, RUN - 1);
        let run = b.int(RUN);
        let runs = b.ins().udiv(count, run);
        let items = b.mul_const(runs, kv_heads as i64);
        Runs { begin, end, runs, share: b.partition(items, thread, threads) }
    }

    /// For each row of this thread's: its head and its position.
    pub(super) fn for_rows(
        &self,
        b: &mut Body<'_>,
        body: impl FnOnce(&mut Body<'_>, Value, Value),
    ) {
        self.for_starts(b, 1, body);
    }

    /// For every `step`th row of this thread's runs, from each run's first on.
    pub(super) fn for_starts(
        &self,
        b: &mut Body<'_>,
        step: i64,
        body: impl FnOnce(&mut Body<'_>, Value, Value),
    ) {
        b.for_range(self.share.0, self.share.1, 1, |b, item| {
            let head = b.ins().udiv(item, self.runs);
            let before = b.mul(head, self.runs);
            let run = b.sub(item, before);
            let start = b.mul_const(run, RUN);
            let begin = b.add(self.begin, start);
            let end = b.add_const(begin, RUN);
            let end = b.min(end, self.end);
            b.for_range(begin, end, step, |b, place| body(b, head, place));
        });
    }
}

/// The candidates of a prompt: from the end of the sinks to the recent rows.
pub(super) fn candidates(b: &mut Body<'_>, prompt: Value, rows: Value) -> [Value; 2] {
    let begin = b.load_count(prompt, offset_of!(PromptCall, sinks) as i32);
    let recent = b.load_count(prompt, offset_of!(PromptCall, recent) as i32);
    [begin, b.sub(rows, recent)]
}
