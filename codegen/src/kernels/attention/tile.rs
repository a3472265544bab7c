//! The assembled steps of wide attention: a tile of queries against a tile of keys.
//!
//! | step | result |
//! |---|---|
//! | `scores` | `s[q, j] = Σ_d query[q, d] · key[j, d]`: one chain of fused steps, d ascending |
//! | `weigh` | scores, in base 2, become `2^(s - m)`; running maxima m, totals and factors of the sums so far |
//! | `values` | `o[q, c] = o[q, c] · factor[q]`, then one fused step per key, keys ascending |
//!
//! Lanes of `scores` are keys and lanes of `values` are columns, so neither product ever adds lanes:
//! an element's chain is the same in every block of rows, on eight lanes and on sixteen. A total adds
//! the weights of a tile in sixteen lanes (keys 0, 16, 32, 48 in lane 0), then folds the lanes by
//! halves. A key that a query does not read has weight 0, which changes no bit of a total, and is
//! left out of the values. Hence results depend neither on the neighbours in a tile nor on the width
//! of registers.
//!
//! | file | job |
//! |---|---|
//! | `amx` | the products of `integer` in AMX tiles, of many queries |
//! | `blocks` | the walk over blocks of accumulators |
//! | `combine` | how the sums of a chunk of tiles begin, and go into those of all chunks |
//! | `ends` | queries go to the scratch, means to the output |
//! | `exponentials` | weights of the keys of a block beside a sum that is known |
//! | `float` | `scores` and `values` in f32, and of pairs of bf16 |
//! | `halves` | rounding of queries over a bf16 cache |
//! | `integer` | the same over an int8 cache, in codes; rounding of queries and weights |
//! | `integer/pairs` | its products of many queries on AVX2, one multiplication for two |
//! | `weigh` | `weigh` |
//! | `weigh/rows` | its numbers that need all lanes, for as many queries together |

pub(super) mod amx;
mod blocks;
mod combine;
mod ends;
pub(super) mod exponentials;
pub(super) mod float;
pub(super) mod halves;
pub(super) mod integer;
mod weigh;

pub(super) use self::combine::{begin, combine};
pub(super) use self::ends::{Strides, means, take};
pub(super) use self::weigh::weigh;
use weir_abi::KEY_TILE;

use super::cache::CacheType;
use super::scratch::{SCORE_ROW, Scratch};
use super::vector::Dots;

/// Added to its bits, a whole number of less than 2²² is added to the number itself.
const ANCHOR: f32 = 12_582_912.0;
/// Most products of codes, 127 each at most, whose sum is one.
const MOST_ANCHORED: usize = (1 << 22) / (128 * 127);

/// What the steps are made for.
pub(super) struct Tile<'a> {
    pub(super) scratch: &'a Scratch,
    /// Query heads of a unit.
    pub(super) group: usize,
    pub(super) key_width: usize,
    pub(super) value_width: usize,
    /// Factor of the scores.
    pub(super) scale: f32,
    /// c of c·tanh(s / c); 0 for none.
    pub(super) softcap: f32,
    /// How products of codes are summed.
    pub(super) dots: Dots,
    /// Number format of the cache.
    pub(super) number: CacheType,
    /// Whether products of bf16 are made two at a time.
    pub(super) is_paired: bool,
    /// Where queries come from and means go.
    pub(super) strides: Strides,
}

impl Tile<'_> {
    /// Where weights lie as codes, and bytes from one query's to the next.
    pub(super) fn weight_codes(&self) -> (usize, usize) {
        match self.dots {
            Dots::Tiles => (self.scratch.weight_codes, KEY_TILE),
            _ => (self.scratch.scores, SCORE_ROW),
        }
    }

    /// Whether sums of codes of queries and keys begin at the bits of [`ANCHOR`], so that they become
    /// floats by a subtraction: beside tiles conversions to float wait for one unit of two, and
    /// subtractions do not.
    fn is_anchored(&self) -> bool {
        self.dots == Dots::Tiles && self.key_width <= MOST_ANCHORED
    }

    /// Whether sums of codes become scores when their maximum is known. Each query has a factor of its
    /// own, and where these are positive the largest score is that of the largest sum; the product is
    /// then one with the shift by the maximum.
    fn scales_late(&self) -> bool {
        self.number == CacheType::Int8 && self.softcap == 0.0 && self.scale > 0.0
    }
}
