//! Memory of one thread for a tile of wide attention.

use std::ops::Range;

use weir_abi::KEY_TILE;

use super::cache::{CacheType, QUAD};
use super::tile::amx::VALUE_MEMORY;
use super::tile::integer::pairs;
use super::vector::{Dots, Instructions, PAIR};
use super::{AttendSpec, unpack};

/// Bytes of a row of scores.
pub(super) const SCORE_ROW: usize = KEY_TILE * 4;
/// Queries (rows times heads of the group) that a tile aims at: enough to read its
/// keys seldom, few enough for the nearest caches.
const QUERIES: usize = 64;
/// The same with products of tiles, whose unit falls asleep while more queries' scores are weighed.
const TILE_QUERIES: usize = 32;
/// Most rows of a tile: causal rows end at different keys, each of which is a case of its own.
const MOST_ROWS: usize = 32;
/// The same where pairs of bf16 are made of keys and values in passing: half of what a step has unless told
/// otherwise, and 1.06 to 1.24 times as fast as 32 in a prompt of 4,096 of 110m on Zen 5, where 48, 60 and
/// 96 are slower.
const MOST_PAIRED_ROWS: usize = 64;
/// Most bytes of scratch, which lies on a thread's stack.
const MOST_BYTES: usize = 512 << 10;

/// Offsets of the parts, multiples of 64 bytes. Parts per query are as long as the most queries of a
/// tile, rounded up to whole registers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch {
    /// Query heads of a unit: the group of a key/value head, or a part of it.
    pub(super) heads: usize,
    /// Most rows of a tile.
    pub(super) rows: usize,
    /// Bytes from the sums of one query to the next.
    pub(super) sum_row: usize,
    /// Bytes from one rounded query to the next, and over a cache of codes to where its sums begin.
    pub(super) rounded_row: usize,
    pub(super) begin: usize,
    /// Queries, dense.
    pub(super) queries: usize,
    /// Over a cache of codes or bf16: queries rounded.
    pub(super) rounded_queries: usize,
    /// Scores, then weights, of all queries for a tile of keys.
    pub(super) scores: usize,
    /// Per row: first key of the tile that it reads, key behind the last, 32 bits each.
    pub(super) bounds: usize,
    /// Per query: largest score of the tile.
    pub(super) tile_maxima: usize,
    /// Per query: sum of the tile's weights.
    pub(super) tile_totals: usize,
    /// Per query: what earlier sums are multiplied by.
    pub(super) factors: usize,
    /// Per query, over a cache of codes: what the sums of codes are multiplied by.
    pub(super) steps: usize,
    /// The same: factor of the scores.
    pub(super) query_factors: usize,
    /// The same: lanes of the largest score, then of the total; of the largest product
    /// of a weight and a scale.
    pub(super) lanes: usize,
    pub(super) lane_products: usize,
    /// Per query: 1.
    pub(super) ones: usize,
    /// Per query: largest score of the chunk.
    pub(super) maxima: usize,
    /// Per query: sum of the chunk's weights.
    pub(super) totals: usize,
    /// Per query: weighted values of the chunk.
    pub(super) sums: usize,
    /// Where tiles multiply: weights as codes, whose scores' place is needed for sums.
    pub(super) weight_codes: usize,
    /// The same: what they read and write of the values of a tile of keys.
    pub(super) tile_values: usize,
    /// Where two products share a multiplication: words of a block of columns.
    pub(super) words: usize,
    /// The same, per query: minus what the codes of its weights have with each other.
    pub(super) weight_sums: usize,
    /// A tile as attention computes with it, where it lies otherwise: keys, then values.
    pub(super) unpacked: [usize; 2],
    /// A tile as int8 on its way there.
    pub(super) between: [usize; 2],
    /// Per query: largest score of all chunks.
    pub(super) all_maxima: usize,
    /// Per query: sum of all weights.
    pub(super) all_totals: usize,
    /// Per query: weighted values of all chunks.
    pub(super) all_sums: usize,
    /// Bytes of all.
    pub(super) bytes: usize,
}

impl Scratch {
    /// The scratch of a specification: of all query heads of a key/value head together, of as large
    /// a part of them as there is room for, or of fewer rows; nothing if one row of one head is too
    /// large.
    pub(super) fn of(spec: &AttendSpec, instructions: Instructions) -> Option<Scratch> {
        let group = spec.group();
        let parts = (1..=group).rev().filter(|heads| group.is_multiple_of(*heads));
        let is_tiled = spec.cache.number.is_coded() && instructions.dots == Dots::Tiles;
        let queries = if is_tiled { TILE_QUERIES } else { QUERIES };
        let most_rows = if instructions.is_paired { MOST_PAIRED_ROWS } else { MOST_ROWS };
        let sizes = parts.map(|heads| (heads, (queries / heads).clamp(1, most_rows)));
        let smaller = [16, 8, 4, 2, 1].map(|rows| (1, rows));
        sizes.chain(smaller).find_map(|(heads, rows)| Self::sized(spec, instructions, heads, rows))
    }

    fn sized(
        spec: &AttendSpec,
        Instructions { width, dots, is_paired }: Instructions,
        heads: usize,
        rows: usize,
    ) -> Option<Scratch> {
        let queries = (rows * heads).next_multiple_of(16);
        let lanes = width.lanes();
        let sum_row = spec.cache.value_width.next_multiple_of(lanes) * 4;
        let is_rounded = spec.cache.number.is_coded();
        // Codes are written by 32 bytes at most; where a query's sums begin lies behind them.
        let quads = spec.cache.key_width.div_ceil(QUAD);
        // Tiles read both in rows of 64.
        let has_tiles = is_rounded && dots == Dots::Tiles;
        let aligned = if has_tiles { 64 } else { 32 };
        let has_pairs = is_rounded && dots == Dots::Pairs;
        let words = pairs::bytes_of_words(quads.max(KEY_TILE / QUAD));
        let codes = (quads * dots.quad_bytes()).next_multiple_of(aligned);
        let rounded_row = match spec.cache.number {
            CacheType::F32 | CacheType::F16 => 0,
            // Pairs are written by sixteen.
            CacheType::Bf16 if is_paired => {
                spec.cache.key_width.div_ceil(2).next_multiple_of(16) * PAIR
            }
            CacheType::Bf16 => spec.cache.key_width * 4,
            CacheType::Int8 | CacheType::Int4 => codes + aligned,
        };
        let of_rounded = |bytes: usize| if is_rounded { bytes } else { 0 };
        let mut end = 0;
        let mut part = |bytes: usize| {
            let start = end;
            end += bytes.next_multiple_of(64);
            start
        };
        let scratch = Scratch {
            heads,
            rows,
            sum_row,
            rounded_row,
            begin: codes,
            queries: part(queries * spec.cache.key_width * 4),
            rounded_queries: part(queries * rounded_row),
            scores: part(queries * SCORE_ROW),
            bounds: part(rows * 8),
            tile_maxima: part(queries * 4),
            tile_totals: part(queries * 4),
            factors: part(queries * 4),
            steps: part(of_rounded(queries * 4)),
            query_factors: part(of_rounded(queries * 4)),
            lanes: part(of_rounded(queries * lanes * 4)),
            lane_products: part(of_rounded(queries * lanes * 4)),
            ones: part(queries * 4),
            maxima: part(queries * 4),
            totals: part(queries * 4),
            sums: part(queries * sum_row),
            weight_codes: part(if has_tiles { queries * KEY_TILE } else { 0 }),
            tile_values: part(if has_tiles { VALUE_MEMORY } else { 0 }),
            words: part(if has_pairs { words } else { 0 }),
            weight_sums: part(if has_pairs { queries * 4 } else { 0 }),
            unpacked: [true, false].map(|is_key| part(unpack::bytes(&spec.cache, is_key))),
            between: [true, false].map(|is_key| part(unpack::bytes_between(&spec.cache, is_key))),
            all_maxima: part(queries * 4),
            all_totals: part(queries * 4),
            all_sums: part(queries * sum_row),
            bytes: 0,
        };
        (end <= MOST_BYTES).then_some(Scratch { bytes: end, ..scratch })
    }

    /// Where lanes of all queries lie, if any do.
    pub(super) fn all_lanes(&self) -> Option<Range<usize>> {
        (self.lanes < self.ones).then_some(self.lanes..self.ones)
    }
}
