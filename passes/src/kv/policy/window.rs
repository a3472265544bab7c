//! The plain ring of a sliding-window layer.
//!
//! It holds the window and the rows of one step: a tile of M rows is written before any of them
//! attends, so the first row of the tile must still find the window behind it. Already bounded;
//! nothing is selected and nothing that attention would read is dropped.
//!
//! Tokens that are guessed are rows of a step as well, so the D that may be taken back are among those
//! M rows.

use weir_ir::graph::{CacheRows, KvPolicy};

/// Rows for a window, with at most `max_rows` rows in a step, at most `in_flight` of them of a sequence
/// that is being continued.
pub fn rows(window: u32, max_rows: u32, in_flight: u32, context: u32) -> CacheRows {
    let rows = window.saturating_add(max_rows);
    if rows >= context {
        // It never turns.
        return CacheRows::ring(KvPolicy::Window, context);
    }
    let in_flight = in_flight.min(max_rows);
    CacheRows { in_flight, ..CacheRows::ring(KvPolicy::Window, rows - in_flight) }
}
