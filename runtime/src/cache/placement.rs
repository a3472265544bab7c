//! Where rows of a sequence lie in a slot, and which of them a query reads.
//!
//! The ring arithmetic of the bounded cache ("ring arithmetic" of the method's document), as pure
//! functions of (layout, prompt length, position). Rows below S hold the first positions, rows S .. S+V
//! the selected ones, and the ring the rest:
//!
//! ```text
//!           V                      B      a      Re
//! fixed     clamp(L−S−R, 0, K)     S+K    S      R+G+D
//! elastic   clamp(L−S−R, 0, K)     S+V    S+V    C−B+G+D
//! ```
//!
//! G rows of it (`growth`) are filled by no prompt. Nor are the last D, and no query reads more than
//! Re − D rows: so a step may write D rows of a sequence, those of its next token and of D − 1 guesses,
//! and whichever of the guesses turn out wrong, the rows that they overwrote are read no more. Nothing
//! is restored; the next step writes the same rows again.
//!
//! While a prompt with L ≤ C is being written, "selected" are simply its positions S .. S+V.
//! The last N rows of a plane are the reservoir, where a layout has one: a sample of the rows that have
//! left the ring (algorithm R of Vitter, 1985). The first N are all there, in their order; the m-th one
//! takes a place with chance N / m, by a lot that compiled code draws for each head. Rows of a prompt
//! that compaction leaves behind do not enter it.
//!
//! Ranges come in ascending row order and adjacent ones are merged, so that they depend on the
//! position and nothing else, and an elastic cache that has dropped nothing reads exactly the one
//! range that a full cache reads. Where rows below S+K have a number format of their own, no range goes
//! from them to others. Nor does one go from the whole tiles of a block that nothing is written to after
//! the prompt (L > C, or a fixed ring) to the rows behind: those tiles may be another slot's, which
//! samples of one prompt share ([`Seat`]), and a sample has the sums of a sequence by itself.
//!
//! Where heads have different numbers of selected rows, K is the least of them, and so is everything
//! above that follows from it: a prompt longer than S + K + R is compacted, and its ring is that of the
//! shortest head. What other heads select beside V is a last range of its own ([`FURTHER`]), written
//! with the prompt and never again; a head reads as many of its rows as it has.

#[cfg(test)]
pub(super) mod tests;

use std::ops::Range;

use weir_abi::{CacheLayout, CachePolicy, CacheRange, FURTHER, KEY_TILE, MAX_RANGES, RowSpans};

use super::pools::Seat;

/// The numbers of one sequence in one layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// L: rows of the prompt.
    pub prompt: u32,
    /// S.
    pub sinks: u32,
    /// V: valid selected rows.
    pub selected: u32,
    /// Rows selected beside these by a head with room for all candidates, or by the one with the most.
    pub further: u32,
    /// B: first ring row.
    pub ring_base: u32,
    /// a: position at which the ring begins.
    pub ring_anchor: u32,
    /// Re: ring rows.
    pub ring_rows: u32,
    /// D: how many of them no query reads.
    in_flight: u32,
    /// First position that the ring ever holds: max(a, L−R).
    ring_first: u32,
    /// Positions that attention itself looks back, the query's own included; 0 for all.
    window: u32,
    /// N: rows behind the ring.
    reservoir: u32,
    /// Rows that no range goes from to others: S+K if these have a number format of their own, whole
    /// tiles of them if nothing is written there after the prompt, else 0.
    split: u32,
    /// Whether those in front of [`block_end`] are never written after the prompt.
    is_closed: bool,
}

/// End of the rows of a layout that samples of one prompt may share: S+K if these have a number format
/// of their own, and otherwise as many of them as are whole tiles; 0 where nothing is dropped.
pub(super) fn block_end(layout: &CacheLayout) -> u32 {
    let apart = rows_apart(layout);
    if apart != 0 {
        return apart;
    }
    let drops = CachePolicy::from_number(layout.policy).is_some_and(CachePolicy::drops_rows);
    if drops { (layout.sinks + layout.selected) / KEY_TILE as u32 * KEY_TILE as u32 } else { 0 }
}

/// Rows of a slot in front of a ring with another number format: S+K; 0 where all have one, be it the
/// block's.
pub(super) fn rows_apart(layout: &CacheLayout) -> u32 {
    if layout.block_rows < layout.rows { layout.block_rows } else { 0 }
}

/// How many rows of a sequence a layout still holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptRows {
    /// Rows that a decode step reads.
    pub kept: u32,
    /// Rows that were overwritten or not selected.
    pub dropped: u32,
}

/// Rows of a slot that still hold something, in the order of their positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRows {
    /// Sinks and selected rows: rows `0 .. fixed`.
    pub fixed: u32,
    /// The ring's, older ones first.
    pub ring: [Range<u32>; 2],
}

impl LiveRows {
    /// Their number.
    pub fn count(&self) -> u32 {
        self.fixed + self.ring.iter().map(|part| part.end - part.start).sum::<u32>()
    }
}

impl Placement {
    /// The placement of a sequence whose prompt has `prompt` rows.
    pub fn new(layout: &CacheLayout, prompt: u32) -> Placement {
        let ring = |ring_base, ring_anchor, ring_rows| Placement {
            prompt,
            sinks: 0,
            selected: 0,
            further: 0,
            ring_base,
            ring_anchor,
            ring_rows,
            in_flight: layout.in_flight,
            ring_first: 0,
            window: layout.window,
            reservoir: 0,
            split: rows_apart(layout),
            is_closed: true,
        };
        match CachePolicy::from_number(layout.policy) {
            // One ring over all rows: a full cache never wraps, a window's ring does.
            None | Some(CachePolicy::Full | CachePolicy::Window) => ring(0, 0, layout.rows),
            Some(_) => {
                let CacheLayout { sinks, selected, recent, growth, in_flight, .. } = *layout;
                let reservoir = layout.reservoir;
                let rows = layout.rows - reservoir;
                let candidates = prompt.saturating_sub(sinks + recent);
                let valid = candidates.min(selected);
                let (ring_base, ring_anchor, ring_rows) = if layout.elastic != 0 {
                    (sinks + valid, sinks + valid, rows - sinks - valid)
                } else {
                    (sinks + selected, sinks, recent + growth + in_flight)
                };
                let end = block_end(layout);
                let is_settled = layout.elastic == 0 || prompt > layout.prompt_rows();
                let is_apart = rows_apart(layout) != 0 || (layout.reselect == 0 && is_settled);
                let is_closed = end == 0 || (is_apart && prompt >= sinks && ring_base >= end);
                Placement {
                    sinks,
                    selected: valid,
                    further: (candidates - valid).min(layout.further),
                    ring_first: ring_anchor.max(prompt.saturating_sub(recent)),
                    reservoir,
                    split: if is_apart { end } else { 0 },
                    is_closed: is_closed && layout.reselect == 0,
                    ..ring(ring_base, ring_anchor, ring_rows)
                }
            }
        }
    }

    /// Row of position `p`. For a position between the sinks and the end of the prompt that the
    /// ring does not take, the row of a selected position of a prompt that fits (L ≤ C).
    pub fn row(&self, p: u32) -> u32 {
        if p < self.sinks || (p < self.sinks + self.selected && p < self.ring_first) {
            p
        } else {
            self.ring_base + (p - self.ring_anchor) % self.ring_rows
        }
    }

    /// Position held in ring row `ring_base + i` when `n` rows have been produced, if it is still read.
    pub fn held(&self, i: u32, n: u32) -> Option<u32> {
        let first = self.ring_anchor + i;
        if n <= first {
            return None;
        }
        let position = first + (n - 1 - first) / self.ring_rows * self.ring_rows;
        (position >= self.first_read(n)).then_some(position)
    }

    /// First position that the last of `n` rows reads in the ring.
    fn first_read(&self, n: u32) -> u32 {
        self.ring_first.max(n.saturating_sub(self.ring_rows - self.in_flight))
    }

    /// How many rows have left the ring when `n` have been produced; the last of them was at position
    /// `n - 1 - ring_rows`. No rows are in flight where that matters.
    fn left(&self, n: u32) -> u32 {
        n.saturating_sub(self.ring_rows + self.ring_first)
    }

    /// Whether no row is free for the next one when `n` have been produced.
    pub fn is_full(&self, n: u32) -> bool {
        self.left(n + 1) > 0
    }

    /// Whether the reservoir holds rows when `n` rows have been produced.
    pub fn has_sample(&self, n: u32) -> bool {
        self.reservoir > 0 && self.left(n) > 0
    }

    /// Whether some heads hold more selected rows than others.
    pub fn has_further(&self) -> bool {
        self.further > 0
    }

    /// Whether samples of the prompt can read one copy of its block, and need only a ring each.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// The row behind the last one that was ever written when `n` rows have been produced.
    pub fn written(&self, n: u32) -> u32 {
        if n <= self.ring_anchor {
            n
        } else {
            self.ring_base + self.ring_rows.min(n - self.ring_anchor)
        }
    }

    /// What the row at position `p` writes and reads, of a sequence at `seat`.
    ///
    /// Positions before `p` have been written, later ones of the prompt perhaps as well: they are
    /// not read.
    pub fn spans(&self, seat: Seat, p: u32) -> RowSpans {
        let mut ranges = Ranges::new(seat, self.split);
        let end = p + 1;
        ranges.push(0, self.sinks.min(end));
        // Of a prompt that fits, the selected rows are its own positions; later all are there.
        let selected = if p < self.prompt {
            end.saturating_sub(self.sinks).min(self.selected)
        } else {
            self.selected
        };
        ranges.push(self.sinks, selected);
        self.push_ring(&mut ranges, p);
        let reservoir_first = self.ring_base + self.ring_rows;
        let left = if self.has_sample(end) { self.left(end) } else { 0 };
        ranges.push(reservoir_first, left.min(self.reservoir));
        if p >= self.prompt {
            ranges.push_further(self.further);
        }
        let write_row = self.row(p);
        RowSpans {
            write_slot: if write_row < self.split { seat.block } else { seat.ring },
            write_row,
            leaving_rank: left,
            leaving_position: if left == 0 { 0 } else { p - self.ring_rows },
            reservoir_first,
            reservoir_rows: self.reservoir,
            range_count: ranges.count as u32,
            ranges: ranges.ranges,
        }
    }

    fn push_ring(&self, ranges: &mut Ranges, p: u32) {
        let end = p + 1;
        let mut first = self.first_read(end);
        if self.window != 0 {
            first = first.max(end.saturating_sub(self.window));
        }
        let [older, newer] = self.ring_parts(first, end);
        ranges.push(newer.start, newer.end - newer.start);
        ranges.push(older.start, older.end - older.start);
    }

    /// Rows in which the ring holds the positions `first .. end`, in the order of positions: those
    /// before it wraps and those behind.
    fn ring_parts(&self, first: u32, end: u32) -> [Range<u32>; 2] {
        let rows = end.saturating_sub(first);
        if rows == 0 {
            return [0..0, 0..0];
        }
        let offset = (first - self.ring_anchor) % self.ring_rows;
        let before_wrap = rows.min(self.ring_rows - offset);
        let start = self.ring_base + offset;
        [start..start + before_wrap, self.ring_base..self.ring_base + rows - before_wrap]
    }

    /// First position that the ring still holds when `n` rows have been produced, whatever was guessed
    /// behind them; n if it is empty.
    fn oldest(&self, n: u32) -> u32 {
        self.first_read(n).min(n)
    }

    /// The live rows of a layout that drops rows when `n` have been produced, by position: those
    /// before the ring, which begin at row 0, and the parts of the ring. Those of a reservoir have no
    /// such order and are not among them, nor are those that only some heads have.
    pub fn live(&self, n: u32) -> LiveRows {
        let fixed = if n < self.sinks { n } else { self.sinks + self.selected };
        LiveRows { fixed, ring: self.ring_parts(self.oldest(n), n) }
    }

    /// Whether the rows at positions `.. end` lie where `other` looks for them, as far as queries from
    /// `end` on read them. `n` rows have been produced in this placement.
    pub fn serves(&self, n: u32, other: &Placement, end: u32) -> bool {
        let first = if self.window == 0 { 0 } else { (end + 1).saturating_sub(self.window) };
        (first..end).all(|p| {
            let in_place = p < self.sinks || (self.holds_prompt(p) && p < self.ring_first);
            (in_place || p >= self.oldest(n)) && self.row(p) == other.row(p)
        })
    }

    /// Whether position `p` lies in one of the selected rows, because its prompt fits.
    fn holds_prompt(&self, p: u32) -> bool {
        p < self.sinks + self.selected && self.ring_first <= self.sinks + self.selected
    }

    /// Rows kept and dropped when `n` rows have been produced, by the head that keeps fewest. Rows outside
    /// a window are not counted as dropped: attention would not read them anyway.
    pub fn kept(&self, n: u32) -> KeptRows {
        if n == 0 {
            return KeptRows::default();
        }
        let spans = self.spans(Seat::default(), n - 1);
        let ranges = spans.ranges[..spans.range_count as usize].iter();
        let kept = ranges.filter(|range| range.first != FURTHER).map(|range| range.rows).sum();
        let readable = if self.window == 0 { n } else { n.min(self.window) };
        KeptRows { kept, dropped: readable.saturating_sub(kept) }
    }
}

/// Ranges being collected in ascending row order.
struct Ranges {
    seat: Seat,
    /// Ranges end here; rows before are the block's, others the ring's.
    split: u32,
    count: usize,
    ranges: [CacheRange; MAX_RANGES],
}

impl Ranges {
    fn new(seat: Seat, split: u32) -> Ranges {
        Ranges { seat, split, count: 0, ranges: [CacheRange::default(); MAX_RANGES] }
    }

    fn push(&mut self, first: u32, rows: u32) {
        let in_front = self.split.saturating_sub(first).min(rows);
        self.push_part(first, in_front);
        self.push_part(first + in_front, rows - in_front);
    }

    /// Rows that heads have different numbers of; they are the block's.
    fn push_further(&mut self, rows: u32) {
        if rows > 0 {
            self.ranges[self.count] = CacheRange { slot: self.seat.block, first: FURTHER, rows };
            self.count += 1;
        }
    }

    fn push_part(&mut self, first: u32, rows: u32) {
        if rows == 0 {
            return;
        }
        if first != self.split
            && let Some(last) = self.count.checked_sub(1).map(|last| &mut self.ranges[last])
            && last.first + last.rows == first
        {
            last.rows += rows;
            return;
        }
        let slot = if first < self.split { self.seat.block } else { self.seat.ring };
        self.ranges[self.count] = CacheRange { slot, first, rows };
        self.count += 1;
    }
}
