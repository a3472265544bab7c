//! Sinks, rows selected at the end of the prompt, a ring, and a sample of what has left it if asked
//! for: C = S + K + R + N. With re-selection there are T rows beside them for what is generated; when
//! these are taken, C rows are selected from all anew, with what keys repeat of each other counted
//! against them if asked for (R-KV, Cai et al., arXiv:2505.24133).

use weir_ir::graph::{CacheRows, KvPolicy};

use super::{KvError, KvOptions, OBSERVED, Policy};

/// Rows that are asked beside the last ones where nobody says: 32 find a little less of what a question
/// leads to, 128 no more (`docs/evaluation.md`).
const SECOND: u32 = 64;

pub(super) const POLICY: Policy = Policy {
    name: "snapstream",
    options: &[
        "rows",
        "sinks",
        "recent",
        "window",
        "second",
        "second_share",
        "pool",
        "pooling",
        "agg",
        "normalise",
        "mode",
        "reservoir",
        "reselect",
        "redundancy",
        "seed",
        "draft",
        "budget",
    ],
    rows,
};

fn rows(options: &KvOptions, context: u32) -> Result<CacheRows, KvError> {
    let total = options.total(context);
    let sinks = options.sink_rows(total);
    let recent = options.recent_rows(total);
    let rows = options.divided(KvPolicy::Snapstream, total, sinks, recent, context)?;
    let rows = options.sampling(CacheRows { elastic: options.elastic, ..rows })?;
    options.observing(options.reselecting(rows, context)?, OBSERVED, SECOND)
}
