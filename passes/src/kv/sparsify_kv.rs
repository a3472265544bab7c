//! Gives every cache a policy, a number of rows and a number format.
//!
//! Before:  cache k0 { type=f32, window=0 }
//! After:   cache k0 { type=f16, window=0, policy=snapstream, sinks=32, selected=736, recent=256, ... }
//!
//! Needs: stage `Cached`.
//! Gives: stage `Sparse`; C = S + K + R for every cache.
//!
//! A layer whose attention has a sliding window shorter than the context gets a plain ring, whatever
//! the policy: it is bounded already, and dropping what it reads would change the model.

use weir_ir::{Graph, Stage};

use super::policy::{KvError, window_rows};
use crate::driver::Options;

/// Rewrites the graph; returns how many caches have a ring for their window.
pub fn run(graph: &mut Graph, options: &Options) -> Result<usize, KvError> {
    let rows = options.kv.rows(options.context)?;
    let mut rings = 0;
    for (_, cache) in graph.caches.iter_mut() {
        let windowed = cache.window > 0 && cache.window < options.context;
        rings += usize::from(windowed);
        cache.dtype = options.kv_dtype;
        cache.layout = Some(if windowed {
            window_rows(cache.window, options.max_rows, options.context)
        } else {
            // A window that the context never reaches is no window.
            cache.window = 0;
            rows.clone()
        });
    }
    graph.stage = Stage::Sparse;
    Ok(rings)
}
