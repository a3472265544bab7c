//! The plain ring of a sliding-window layer.
//!
//! It holds the window and the rows of one step: a tile of M rows is written before any of them
//! attends, so the first row of the tile must still find the window behind it. Already bounded;
//! nothing is selected and nothing that attention would read is dropped.

use weir_ir::graph::{CacheRows, KvPolicy};

/// Rows for a window, with at most `max_rows` rows in a step.
pub fn rows(window: u32, max_rows: u32, context: u32) -> CacheRows {
    CacheRows::ring(KvPolicy::Window, window.saturating_add(max_rows).min(context))
}
