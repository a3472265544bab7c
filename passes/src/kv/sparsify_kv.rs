//! Gives every cache a policy and a number of rows.
//!
//! Before:  cache k0 { window=0 }
//! After:   cache k0 { window=0, policy=snapstream, sinks=32, selected=736, recent=256, ... }
//!
//! Needs: stage `Cached`.
//! Gives: stage `Sparse`; C = S + K + R for every cache.
//!
//! A layer whose attention has a sliding window shorter than the context gets a plain ring, whatever
//! the policy: it is bounded already, and dropping what it reads would change the model.

use weir_ir::{Graph, Stage};

use super::policy::{KvError, KvOptions, window_rows};

/// Rewrites the graph; returns how many caches have a ring for their window.
pub fn run(
    graph: &mut Graph,
    options: &KvOptions,
    context: u32,
    max_rows: u32,
) -> Result<usize, KvError> {
    let rows = options.rows(context)?;
    let mut rings = 0;
    for (_, cache) in graph.caches.iter_mut() {
        let windowed = cache.window > 0 && cache.window < context;
        rings += usize::from(windowed);
        cache.layout = Some(if windowed {
            window_rows(cache.window, max_rows, context)
        } else {
            // A window that the context never reaches is no window.
            cache.window = 0;
            rows.clone()
        });
    }
    graph.stage = Stage::Sparse;
    Ok(rings)
}
