//! SnapKV (Li et al. 2024): of a longer prompt C = S + K + R rows are kept, and beside them what is
//! generated, until the slot has as many rows as its limit; from then on the oldest rows behind the
//! selected ones are overwritten.
//!
//! The paper keeps no sinks and as many recent rows as it observes, and asks no other rows.

use weir_ir::graph::{CacheRows, KvPolicy};

use super::{KvError, KvOptions, Policy};

/// Recent rows, all observed, unless the user says otherwise: those of the paper's code.
const RECENT: u32 = 32;

pub(super) const POLICY: Policy = Policy {
    name: "snapkv",
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
        "limit",
        "draft",
        "budget",
    ],
    rows,
};

fn rows(options: &KvOptions, context: u32) -> Result<CacheRows, KvError> {
    let total = options.total(context);
    let sinks = options.sinks.unwrap_or(0);
    let start = RECENT.max(options.observed.unwrap_or(0)).min(total);
    let recent = options.recent.unwrap_or(start);
    let rows = options.divided(KvPolicy::Snapkv, total, sinks, recent, context)?;
    let limit = options.limit.unwrap_or(context).min(context);
    let Some(growth) = limit.checked_sub(total) else {
        return Err(KvError::Numbers(format!(
            "a slot's limit of {limit} rows is less than the {total} that are kept of a prompt"
        )));
    };
    options.observing(CacheRows { growth, ..rows }, RECENT, 0)
}
