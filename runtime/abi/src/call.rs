//! What a segment receives.
//!
//! Every segment has the type [`Segment`] and is entered by every thread of the team together.
//! Pointers are valid for the call; the runtime fills them, model code never keeps them.

use core::ffi::c_void;

/// A segment of model code: `(context, thread, threads)`, entered by all threads of the team. It
/// ends with a barrier, so that threads may walk from one segment into the next by themselves.
pub type Segment = unsafe extern "C" fn(*const StepContext, u32, u32);

/// Waits until every thread of the team has arrived; memory written before is seen after.
/// Arguments: [`StepContext::team`], this thread's number.
pub type Barrier = unsafe extern "C" fn(*const c_void, u32);

/// Takes a part of a work that the team divides as its threads come to it. Arguments:
/// [`StepContext::team`], this thread's number, the work's number between two barriers (below [`WORKS`]),
/// its items (fewer than [`MOST_ITEMS`]), and of how many a part has whole multiples where it can: of
/// the last three all threads say the same; then of whose share a part is taken ([`TakeOf`]). Returns
/// the first item in the high half and the one behind the last in the low half; 0 if all are taken.
pub type Take = unsafe extern "C" fn(*const c_void, u32, u32, u32, u32, u32) -> u64;

/// Of whose share of a work a thread takes a part.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOf {
    /// Of its own.
    Own = 0,
    /// Of its own, or, where nothing is left of it, of another thread's.
    Any = 1,
}

/// Works between two barriers of which threads take parts.
pub const WORKS: u32 = 4;

/// A work of which threads take parts has fewer items.
pub const MOST_ITEMS: u32 = 1 << 16;

/// Reports an internal error of model code (for example a score that is not finite).
/// Arguments: [`StepContext::team`], one of [`Fault`], a detail. Returns; the step goes on with
/// unspecified values and the request is failed after it.
pub type ReportFault = unsafe extern "C" fn(*const c_void, u32, u32);

/// Internal errors that model code reports.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A selection score is not finite; the detail is the key/value head.
    ScoreNotFinite = 1,
    /// A token id is not in the embedding table; the detail is the row.
    TokenOutOfRange = 2,
}

/// One step: what all segments of it share.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct StepContext {
    /// Start of the weights region.
    pub weights: *const u8,
    /// The arena: `ModelHeader::arena_bytes`, 64-byte aligned. Offsets in it are in the code.
    pub arena: *mut u8,
    /// Hidden rows, f32 `[rows, hidden_width]`, 64-byte aligned: embed writes them, layers change
    /// them in place, the head reads those it is asked for.
    pub hidden: *mut f32,
    /// Token id of each row (embed).
    pub tokens: *const u32,
    /// Absolute position of each row.
    pub positions: *const u32,
    /// Row of the rotary tables for each row: set * context + position.
    pub rotary_rows: *const u32,
    /// Weight offsets of the segment: of embed, of the head, or of the layer.
    pub segment_weights: *const u64,
    /// The layer's cache (layer, observe, compact); null for embed and head.
    pub layer: *const LayerCall,
    /// The prompt to score and select from (observe, compact); null otherwise.
    pub prompt: *const PromptCall,
    /// Hidden rows that the head computes, indices into `hidden`.
    pub head_rows: *const u32,
    /// What the head gives, logits in most models: f32 `[head_row_count, head_width]`, rows dense.
    pub logits: *mut f32,
    /// Barrier of the team.
    pub barrier: Barrier,
    /// Parts of works, for a team of several threads.
    pub take: Take,
    /// Fault report of the team.
    pub fault: ReportFault,
    /// First argument of the four above.
    pub team: *const c_void,
    /// Rows of this call (M), 1 ..= `max_rows`.
    pub rows: u32,
    /// Number of `head_rows`, 1 ..= `max_head_rows` (head).
    pub head_row_count: u32,
    /// 1 where weights are best asked for from far ahead of their use, else 0. It changes
    /// no result.
    pub reads_far: u32,
}

/// Rows of a block of keys, and of values in codes.
pub const KEY_BLOCK: usize = 16;

/// Rows of which a plane has a whole multiple.
pub const KEY_TILE: usize = 64;

/// Rows that are selected beside those that every head has, of a head of a layer whose heads differ in
/// their number. They lie behind the rows of all heads of the slot, and have numbers as if they lay
/// behind those of their own head.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadRows {
    /// Number of the first row, a multiple of [`KEY_TILE`].
    pub first: u32,
    /// How many the head has.
    pub rows: u32,
    /// Where the positions of the rows selected for the head begin, in values.
    pub positions: u32,
}

/// Rows of a call from which on AMX computes integer products in tiles.
pub const TILE_ROWS: u64 = 8;

/// First row, in the ranges of a row, of rows that heads have different numbers of: a range that begins
/// there stands for as many rows of [`HeadRows`] as a head has of them, at most its own number.
pub const FURTHER: u32 = 1 << 31;

/// One layer's cache planes and what each row of the step writes and reads there.
///
/// A slot is known by a number: its row 0 lies as many strides from the plane's beginning, or would lie
/// there if the slot has rows of the ring alone.
///
/// A value row lies at
/// `values + slot * value_slot_stride + head * value_head_stride + row * value_row_bytes`. Keys lie in
/// blocks of [`KEY_BLOCK`] rows, number `d` of all its rows behind number `d - 1`, so that a register
/// takes one number of several keys: with b bytes a number, number d of a row lies at
/// `keys + slot * key_slot_stride + head * key_head_stride + row / KEY_BLOCK * KEY_BLOCK *
/// key_row_bytes + (d * KEY_BLOCK + row % KEY_BLOCK) * b`. A cache of codes has keys and values in
/// such blocks, its scales behind each block's codes; only kernels know the places. A head's rows have
/// room for whole [`KEY_TILE`]s: numbers behind the last row may be read, and mean nothing.
///
/// Rows below `block_rows` may have a number format of their own, and rows of other bytes then. They
/// lie as above, whole tiles of them; behind these lie the others from the tile of row `block_rows` on,
/// as if all rows in front of them had their bytes and the first lay at `key_ring`, or `value_ring`.
/// A range of rows lies on one side of `block_rows`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct LayerCall {
    /// Key plane of the layer.
    pub keys: *mut u8,
    /// Value plane of the layer.
    pub values: *mut u8,
    /// Bytes of keys that a slot's number counts: those of a slot, or of a part of one.
    pub key_slot_stride: u64,
    /// Bytes from one head's keys to the next.
    pub key_head_stride: u64,
    /// The same of values.
    pub value_slot_stride: u64,
    /// Bytes from one head's values to the next.
    pub value_head_stride: u64,
    /// One [`RowSpans`] per row of the step.
    pub spans: *const RowSpans,
    /// Rotated queries of observed rows, f32 `[observed, heads, key_width]`; null when nothing is
    /// observed. The row at position p goes to index p - `observed_from`. Where rows are asked beside
    /// the last w, all rows of a prompt are observed that it does not go on behind.
    pub observed_queries: *mut f32,
    /// Log-sum-exp of observed rows over all their keys, f32 `[observed, heads]`. Observe may replace
    /// them by those over the candidates.
    pub observed_lse: *mut f32,
    /// First observed position.
    pub observed_from: u32,
    /// Number of the layer: lots are drawn by it.
    pub layer: u32,
    /// From a head's first key to where row 0 of those of the ring's format would lie, in bytes modulo
    /// 2⁶⁴; 0 where all rows have one format.
    pub key_ring: u64,
    /// The same of the values.
    pub value_ring: u64,
    /// Rows below this have the block's number format; 0 where all rows have one.
    pub block_rows: u32,
    /// Rows by head, one entry each; null where heads have the same number.
    pub heads: *const HeadRows,
}

/// A run of cache rows.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheRange {
    /// Number of the slot that holds the rows. Not all ranges of a row name the same one: samples of a
    /// prompt read its block and each its own ring.
    pub slot: u32,
    /// First row.
    pub first: u32,
    /// Number of rows.
    pub rows: u32,
}

/// Most ranges that a row reads.
pub const MAX_RANGES: usize = 4;

/// Where one row's key and value are written, and which rows it attends to (its own included).
///
/// What the row written held before is copied to the reservoir first, if it is the `leaving_rank`-th
/// that leaves the ring and the lot of its place says so: to `reservoir_first + j`, where j is the rank
/// less one while there are free rows, and then a number below the rank that is drawn by layer, head
/// and position; one that is not below `reservoir_rows` means that the row is dropped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSpans {
    /// Number of the slot written.
    pub write_slot: u32,
    /// Row written.
    pub write_row: u32,
    /// How many rows have left the ring when this one has been written; 0 if none leaves now, or if
    /// there is no reservoir.
    pub leaving_rank: u32,
    /// Position of the one that leaves.
    pub leaving_position: u32,
    /// First row of the reservoir.
    pub reservoir_first: u32,
    /// Rows of the reservoir.
    pub reservoir_rows: u32,
    /// Number of ranges used.
    pub range_count: u32,
    /// Ranges, read in this order.
    pub ranges: [CacheRange; MAX_RANGES],
}

/// A whole prompt of one sequence whose dense rows of one layer lie in the layer's planes (row =
/// position, slot 0), to be scored and written into a slot of the compressed cache.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PromptCall {
    /// L: rows of the prompt.
    pub rows: u32,
    /// S of the destination.
    pub sinks: u32,
    /// V = min(K, candidates): rows to select, of K that all heads have.
    pub selected: u32,
    /// The most that any head selects beside them: what there are of more candidates, and each head as
    /// many of them as it has rows for.
    pub further: u32,
    /// R: rows at the end that are kept.
    pub recent: u32,
    /// w: queries that score; they are those of the last w positions.
    pub observed: u32,
    /// Ring base row B of the destination.
    pub ring_base: u32,
    /// Ring anchor position a.
    pub ring_anchor: u32,
    /// Ring rows Re.
    pub ring_rows: u32,
    /// Number of the slot written.
    pub slot: u32,
    /// Number of the layer: lots are drawn by it.
    pub layer: u32,
    /// Destination key plane.
    pub keys: *mut u8,
    /// Destination value plane.
    pub values: *mut u8,
    /// Strides of the destination as in [`LayerCall`].
    pub key_slot_stride: u64,
    /// See [`LayerCall::key_head_stride`].
    pub key_head_stride: u64,
    /// See [`LayerCall::value_slot_stride`].
    pub value_slot_stride: u64,
    /// See [`LayerCall::value_head_stride`].
    pub value_head_stride: u64,
    /// Pooled scores, f32 `[kv_heads, rows]`, written by observe, read by compact.
    pub scores: *mut f32,
    /// Scratch of observe and compact, f32 `[kv_heads, rows]`; where redundancy counts
    /// [`redundancy_scratch`] of them at least.
    pub scratch: *mut f32,
    /// Scratch of observe, f32 `[heads]`: the least weights of heads.
    pub floors: *mut f32,
    /// Absolute positions of the selected rows, ascending, u32 `[kv_heads, K]` with row stride
    /// `positions_stride` in values; written by compact.
    pub selected_positions: *mut u32,
    /// K of the destination: values from one head's positions to the next.
    pub positions_stride: u64,
    /// See [`LayerCall::key_ring`], of the destination.
    pub key_ring: u64,
    /// See [`LayerCall::value_ring`].
    pub value_ring: u64,
    /// See [`LayerCall::block_rows`].
    pub block_rows: u32,
    /// See [`LayerCall::heads`], of the destination; the positions of a head's selected rows begin where
    /// they say, all of them.
    pub heads: *const HeadRows,
    /// 1 where rows are selected anew: redundancy counts if the model was compiled so; 0 elsewhere.
    pub anew: u32,
    /// Rows that are asked beside the last w, of each key/value head, if the model was compiled so: as
    /// many as there are between the sinks and the last w that are observed, at most a layout's number.
    pub asked: u32,
    /// Percent of the selected rows that are chosen by what these attend to.
    pub second_share: u32,
    /// Scratch of observe and compact where rows may be asked, f32 [`second_scratch`]; null elsewhere.
    pub second: *mut f32,
}

/// Values of [`PromptCall::second`] for a prompt of so many rows of which `asked` are asked: a score of
/// each key/value head and row, and of each row that is asked its number by key/value head, and query
/// and log-sum-exp by head. Saturating: what overflows cannot be allocated anyway.
pub fn second_scratch([heads, kv_heads, key_width]: [u64; 3], rows: u64, asked: u64) -> u64 {
    let scores = kv_heads.saturating_mul(rows);
    let of_row = heads.saturating_mul(key_width.saturating_add(1)).saturating_add(kv_heads);
    scores.saturating_add(of_row.saturating_mul(asked.min(rows)))
}

/// Values of [`PromptCall::scratch`] for redundancy among a prompt's rows: four of each key/value head
/// and row, heads filled up to whole blocks. Saturating: what overflows cannot be allocated anyway.
pub fn redundancy_scratch(kv_heads: u64, rows: u64) -> u64 {
    let block = KEY_BLOCK as u64;
    let rows = rows.div_ceil(block).saturating_mul(block);
    rows.saturating_mul(kv_heads).saturating_mul(4)
}
