//! Rows selected by lot, for comparison: C = S + K + R as in `snapstream`, but no scores. A row's lot
//! depends on seed, layer, head and position alone.

use weir_ir::graph::{CacheRows, KvPolicy};

use super::{KvError, KvOptions, Policy};

pub(super) const POLICY: Policy = Policy {
    name: "random",
    options: &["rows", "sinks", "recent", "mode", "seed", "draft", "budget"],
    rows,
};

fn rows(options: &KvOptions, context: u32) -> Result<CacheRows, KvError> {
    let total = options.total(context);
    let recent = options.recent_rows(total);
    let sinks = options.sink_rows(total);
    let rows = options.divided(KvPolicy::Random, total, sinks, recent, context)?;
    Ok(CacheRows { elastic: options.elastic, seed: options.seed.unwrap_or(0), ..rows })
}
