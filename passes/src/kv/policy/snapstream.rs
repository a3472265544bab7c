//! Sinks, rows selected at the end of the prompt, and a ring: C = S + K + R.

use weir_ir::graph::{CacheRows, KvPolicy};

use super::{KvError, KvOptions, Policy};

pub(super) const POLICY: Policy = Policy {
    name: "snapstream",
    options: &["rows", "sinks", "recent", "window", "pool", "agg", "mode"],
    rows,
};

fn rows(options: &KvOptions, context: u32) -> Result<CacheRows, KvError> {
    let total = options.total(context);
    let sinks = options.sink_rows(total);
    let start = (total / 8).max(512).min(total / 4).max(1);
    let recent = options.recent.unwrap_or(start.max(options.observed.unwrap_or(0)));
    let observed = options.observed.unwrap_or(recent.min(32));
    if observed > recent {
        return Err(KvError::Numbers(format!(
            "the observed window of {observed} queries must lie within the {recent} recent rows"
        )));
    }
    let selected = u64::from(total).checked_sub(u64::from(sinks) + u64::from(recent));
    let Some(selected) = selected.and_then(|selected| u32::try_from(selected).ok()) else {
        return Err(KvError::Numbers(format!(
            "{sinks} sinks and {recent} recent rows do not fit into {total} rows (context \
             {context}): rows - sinks - recent must not be negative"
        )));
    };
    Ok(CacheRows {
        policy: KvPolicy::Snapstream,
        elastic: options.elastic,
        sinks,
        selected,
        recent,
        observed,
        pool: options.pool.unwrap_or(5),
    })
}
