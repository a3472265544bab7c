//! The first rows and a ring of the most recent ones (StreamingLLM), and a sample of what has left it if
//! asked for: C = S + R + N, K = 0.

use weir_ir::graph::{CacheRows, KvPolicy};

use super::{KvError, KvOptions, Policy};

pub(super) const POLICY: Policy = Policy {
    name: "stream",
    options: &["rows", "sinks", "recent", "reservoir", "seed", "draft"],
    rows,
};

fn rows(options: &KvOptions, context: u32) -> Result<CacheRows, KvError> {
    let reservoir = options.reservoir.unwrap_or(0);
    let total = match (options.rows, options.recent) {
        // Without a total, the given parts make it.
        (None, Some(recent)) => {
            let sinks = options.sinks.unwrap_or(recent.saturating_add(32).div_ceil(9).min(32));
            recent.saturating_add(sinks).saturating_add(reservoir).min(context)
        }
        _ => options.total(context),
    };
    let sinks = options.sink_rows(total);
    let most = total.saturating_sub(sinks).saturating_sub(reservoir);
    let recent = match options.recent {
        Some(recent) if options.rows.is_none() => recent.min(most),
        Some(recent) => recent,
        None => most,
    };
    let parts = [sinks, recent, reservoir].map(u64::from);
    if recent == 0 || parts.iter().sum::<u64>() != u64::from(total) {
        let (name, rows) = match options.reservoir {
            None => ("", String::new()),
            Some(reservoir) => (" + reservoir", format!(" + {reservoir}")),
        };
        return Err(KvError::Numbers(format!(
            "stream keeps sinks + recent{name} = rows, but {sinks} + {recent}{rows} is not {total} \
             (context {context}) with at least one recent row"
        )));
    }
    options.sampling(CacheRows { sinks, ..CacheRows::ring(KvPolicy::Stream, recent) })
}
