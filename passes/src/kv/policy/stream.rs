//! The first rows and a ring of the most recent ones (StreamingLLM): C = S + R, K = 0.

use weir_ir::graph::{CacheRows, KvPolicy};

use super::{KvError, KvOptions, Policy};

pub(super) const POLICY: Policy =
    Policy { name: "stream", options: &["rows", "sinks", "recent"], rows };

fn rows(options: &KvOptions, context: u32) -> Result<CacheRows, KvError> {
    let total = match (options.rows, options.recent) {
        // Without a total, the given parts make it.
        (None, Some(recent)) => {
            let sinks = options.sinks.unwrap_or(recent.saturating_add(32).div_ceil(9).min(32));
            recent.saturating_add(sinks).min(context)
        }
        _ => options.total(context),
    };
    let sinks = options.sink_rows(total);
    let recent = match options.recent {
        Some(recent) if options.rows.is_none() => recent.min(total.saturating_sub(sinks)),
        Some(recent) => recent,
        None => total.saturating_sub(sinks),
    };
    if recent == 0 || sinks.checked_add(recent) != Some(total) {
        return Err(KvError::Numbers(format!(
            "stream keeps sinks + recent = rows, but {sinks} + {recent} is not {total} (context \
             {context}) with at least one recent row"
        )));
    }
    Ok(CacheRows { sinks, ..CacheRows::ring(KvPolicy::Stream, recent) })
}
