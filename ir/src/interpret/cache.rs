//! The state of one cache for one sequence: dense while the prompt runs, then the rows that its
//! layout keeps (sections 3 and 4 of the method's document). Rows in flight are those that one [`CacheState::append`] writes behind a prompt;
//! [`CacheState::take_back`] undoes the last of them.
//!
//! Keys of a cache with codes of four bits are [turned](super::turn), and so are its queries. Keys and
//! values are rounded to the cache's number format when they are written, and rows that come
//! to the immutable block to that of the block, if it has its own: a prompt of which every row stays is
//! written where its rows stay, another one is dense in the ring's format until it ends; over a cache of
//! int4 that is int8. A row that was
//! never written is never read; it holds NaN, so that a wrong range shows.

mod choose;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use super::attend::{Score, weigh};
use super::codes::{self, TILE};
use super::halves;
use super::plane::Plane;
use super::select::reservoir_row;
use super::turn::turn;
use super::{EvalFault, Tensor, checked_count};
use crate::graph::{CacheDecl, CacheFormat, CacheRows, KvPolicy, RowFormats};

/// Attention state of one layer and one sequence.
#[derive(Clone, Debug)]
pub struct CacheState {
    decl: CacheDecl,
    formats: RowFormats,
    keys: Plane,
    values: Plane,
    /// n: rows produced so far.
    rows: usize,
    /// Where rows lie, once the prompt has ended under a layout.
    kept: Option<Kept>,
    /// Whether a prompt that runs has been reopened: its rows are dense even if all of them stay.
    is_reopened: bool,
    /// The last queries of the prompt with the logarithms of their sums, `[row][head]`; all of them, where
    /// earlier ones may be asked again.
    observed: Vec<(Vec<f32>, Vec<f32>)>,
    score: Score,
}

/// Where the rows of a bounded cache lie; letters as in the document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// S.
    pub sinks: usize,
    /// V.
    pub valid: usize,
    /// B: first row of the ring.
    pub base: usize,
    /// a: position that the ring's first row was made for.
    pub anchor: usize,
    /// Re: rows of the ring.
    pub ring: usize,
    /// D: how many of them no query reads.
    pub in_flight: usize,
    /// The first position that the prompt's end wrote to the ring: max(a, L - R).
    pub oldest: usize,
    /// N: rows behind the ring, a sample of what has left it.
    pub reservoir: usize,
    /// Row of the first selected one that not every head has: in a tile of its own, behind all others.
    pub further: usize,
    /// Positions of the selected rows per key/value head, ascending.
    pub positions: Vec<Vec<usize>>,
}

impl Kept {
    /// Where a layout puts the rows of a prompt, but for the positions that are selected.
    pub(super) fn of(layout: &CacheRows, length: usize) -> Kept {
        let [sinks, capacity, recent, growth, in_flight] =
            [layout.sinks, layout.selected, layout.recent, layout.growth, layout.in_flight]
                .map(|rows| rows as usize);
        let valid = length.saturating_sub(sinks + recent).min(capacity);
        let base = if layout.elastic { sinks + valid } else { sinks + capacity };
        let anchor = if layout.elastic { sinks + valid } else { sinks };
        Kept {
            sinks,
            valid,
            base,
            anchor,
            ring: sinks + capacity + recent + growth + in_flight - base,
            in_flight,
            oldest: anchor.max(length.saturating_sub(recent)),
            reservoir: layout.reservoir as usize,
            further: (layout.rows() as usize).next_multiple_of(TILE),
            positions: Vec::new(),
        }
    }

    /// The row of a head's `index`-th selected row.
    pub fn selected_row(&self, index: usize) -> usize {
        match index.checked_sub(self.valid) {
            None => self.sinks + index,
            Some(behind) => self.further + behind,
        }
    }

    /// The row of a position. For one between the sinks and the ring that of a prompt of which all
    /// rows are kept.
    pub fn row(&self, position: usize) -> usize {
        if position < self.sinks || (position < self.sinks + self.valid && position < self.oldest) {
            position
        } else {
            self.base + (position - self.anchor) % self.ring
        }
    }

    /// The position that ring row `index` holds when `rows` rows exist and none is in flight; none if
    /// no query reads it any more.
    pub fn held(&self, index: usize, rows: usize) -> Option<usize> {
        let first = self.anchor + index;
        if rows <= first {
            return None;
        }
        let position = first + (rows - 1 - first) / self.ring * self.ring;
        (position >= self.first_read(rows)).then_some(position)
    }

    /// The first position that the last of `rows` rows reads in the ring.
    fn first_read(&self, rows: usize) -> usize {
        self.oldest.max((rows + self.in_flight).saturating_sub(self.ring))
    }

    /// Whether some of `rows` rows were written over others.
    fn overwrites(&self, rows: usize) -> bool {
        rows > self.ring + self.oldest
    }

    /// How many rows have left the ring when `rows` rows exist; the last was at position
    /// `rows - 1 - ring`.
    pub fn left(&self, rows: usize) -> usize {
        rows.saturating_sub(self.ring + self.oldest)
    }
}

impl CacheState {
    /// An empty cache.
    pub fn new(decl: &CacheDecl) -> Result<CacheState, EvalFault> {
        if let Some(layout) = &decl.layout {
            layout.check().map_err(EvalFault::Operand)?;
        }
        let formats = decl.row_formats();
        let plane = |width: u32| Plane::new(formats, decl.kv_heads as usize, width as usize);
        Ok(CacheState {
            formats,
            decl: decl.clone(),
            keys: plane(decl.key_width),
            values: plane(decl.value_width),
            rows: 0,
            kept: None,
            is_reopened: false,
            observed: Vec::new(),
            score: Score { scale: 1.0, softcap: 0.0 },
        })
    }

    /// Rows produced so far.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Where rows lie, once the prompt has ended under a layout.
    pub fn kept(&self) -> Option<&Kept> {
        self.kept.as_ref()
    }

    /// How many queries are to select the rows anew before the next row is written; none if there is
    /// room for it, or if the layout never does so.
    pub fn reselects(&self) -> Option<usize> {
        let layout = self.decl.layout.as_ref().filter(|layout| layout.reselect)?;
        let is_full = self.kept.as_ref().is_some_and(|kept| kept.left(self.rows + 1) > 0);
        is_full.then_some(layout.observed as usize)
    }

    /// Lays out what is left as the beginning of a prompt, in the order of positions, without the last
    /// `without` rows. Rows that were dropped no longer count.
    pub fn reopen(&mut self, without: usize) -> Result<(), EvalFault> {
        let differs = |kept: &Kept| kept.positions.iter().any(|rows| rows.len() != kept.valid);
        if self.kept.as_ref().is_some_and(differs) {
            let what = "heads hold different numbers of rows, which no prompt goes on behind";
            return Err(EvalFault::Operand(what.into()));
        }
        let Some(kept) = self.kept.take() else { return Ok(()) };
        let end = self.rows.checked_sub(without).ok_or_else(|| {
            EvalFault::Operand(format!("{without} rows less than {} are none", self.rows))
        })?;
        let fixed = if end < kept.sinks { end } else { kept.sinks + kept.valid };
        let oldest = kept.first_read(self.rows);
        let rows: Vec<usize> =
            (0..fixed).chain((oldest..end).map(|position| kept.row(position))).collect();
        let (mut keys, mut values) = (self.keys.emptied(), self.values.emptied());
        for (place, row) in rows.iter().enumerate() {
            for head in 0..self.decl.kv_heads as usize {
                keys.copy(place, head, &self.keys, *row)?;
                values.copy(place, head, &self.values, *row)?;
            }
        }
        (self.keys, self.values, self.rows) = (keys, values, rows.len());
        self.is_reopened = true;
        Ok(())
    }

    /// Writes new rows, `[rows, kv heads, width]`. Behind a prompt they are at most as many as may be
    /// in flight, where they overwrite others.
    pub fn append(&mut self, key: &Tensor, value: &Tensor) -> Result<(), EvalFault> {
        let count = key.sizes().first().copied().unwrap_or(0);
        let (key_row, value_row) = (self.keys.row(), self.values.row());
        let (key, value) = (self.turned(key)?, value.f32s()?);
        if key.len() != count * key_row || value.len() != count * value_row {
            return Err(EvalFault::Operand("rows do not fit the cache".into()));
        }
        if let Some(kept) = &self.kept
            && count > kept.in_flight.max(1)
            && kept.overwrites(self.rows + count)
        {
            let most = kept.in_flight;
            return Err(EvalFault::Operand(format!(
                "{count} rows behind a bounded prompt, of which {most} may be in flight"
            )));
        }
        let placement = self.placement(self.rows + count);
        for index in 0..count {
            self.sample()?;
            let placed = |kept: &Kept| kept.row(self.rows);
            let row = self.kept.as_ref().map_or(self.rows, placed);
            // Where a prompt's row will lie, if it is written there.
            let placed = self.kept.as_ref().or(placement.as_ref()).map(placed);
            let is_block = placed.is_some_and(|row| self.is_block(row));
            self.keys.write(row, &key[index * key_row..][..key_row], is_block)?;
            self.values.write(row, &value[index * value_row..][..value_row], is_block)?;
            self.rows += 1;
        }
        Ok(())
    }

    /// Keys or queries `[rows, heads, width]` as the cache compares them.
    fn turned(&self, heads: &Tensor) -> Result<Arc<Vec<f32>>, EvalFault> {
        let mut numbers = heads.f32s()?;
        if self.decl.turns_keys() && self.decl.key_width > 0 {
            let width = self.decl.key_width as usize;
            Arc::make_mut(&mut numbers).chunks_mut(width).for_each(turn);
        }
        Ok(numbers)
    }

    /// Takes back the last `rows` rows, of those that the last [`CacheState::append`] wrote behind a
    /// prompt: what they overwrote is read no more. Nothing is restored.
    pub fn take_back(&mut self, rows: usize) -> Result<(), EvalFault> {
        let most = self.kept.as_ref().map_or(0, |kept| match kept.overwrites(self.rows) {
            true => kept.in_flight.saturating_sub(1),
            false => self.rows,
        });
        if rows > most {
            return Err(EvalFault::Operand(format!(
                "{rows} of {} rows are taken back, and at most {most} can be",
                self.rows
            )));
        }
        self.rows -= rows;
        Ok(())
    }

    /// Keeps what the next row overwrites where lots say so.
    fn sample(&mut self) -> Result<(), EvalFault> {
        let Some(kept) = self.kept.as_ref().filter(|kept| kept.reservoir > 0) else {
            return Ok(());
        };
        let rank = kept.left(self.rows + 1);
        if rank == 0 {
            return Ok(());
        }
        let seed = self.decl.layout.as_ref().map_or(0, |layout| layout.seed);
        let (from, position) = (kept.row(self.rows), (self.rows - kept.ring) as u32);
        for head in 0..self.decl.kv_heads {
            let lots = (seed, self.decl.layer);
            if let Some(row) = reservoir_row(lots, head, position, rank, kept.reservoir) {
                let to = kept.base + kept.ring + row;
                self.keys.copy_within(to, head as usize, from)?;
                self.values.copy_within(to, head as usize, from)?;
            }
        }
        Ok(())
    }

    /// Attention of the rows written last, `[rows, heads, width]`, over the live rows.
    pub fn attend(
        &mut self,
        query: &Tensor,
        sinks: Option<&Tensor>,
        score: Score,
    ) -> Result<Tensor, EvalFault> {
        let [count, heads, width] = *query.sizes() else {
            return Err(EvalFault::Operand("queries need three dimensions".into()));
        };
        let first = self
            .rows
            .checked_sub(count)
            .ok_or_else(|| EvalFault::Operand(format!("{count} queries, {} rows", self.rows)))?;
        let kv_heads = self.decl.kv_heads as usize;
        let value_width = self.decl.value_width as usize;
        if width != self.decl.key_width as usize || kv_heads == 0 || heads % kv_heads != 0 {
            return Err(EvalFault::Operand(format!("queries {} do not fit", query.ty())));
        }
        self.score = score;
        let group = heads / kv_heads;
        let sinks = sinks.map(Tensor::f32s).transpose()?;
        let queries = self.turned(query)?;
        checked_count(&[count, heads, value_width])?;
        let mut result = vec![0.0f32; count * heads * value_width];
        let mut sums = vec![0.0f32; count * heads];
        for index in 0..count {
            let position = first + index;
            for head in 0..heads {
                let kv = head / group;
                let place = index * heads + head;
                let q = &queries[place * width..][..width];
                let seen = self.seen(position, kv);
                let sink = sinks.as_ref().map(|sinks| sinks[head]);
                let out = &mut result[place * value_width..][..value_width];
                sums[place] = match self.formats.ring {
                    CacheFormat::I8 | CacheFormat::I4 => self.attend_codes(q, kv, &seen, sink, out),
                    CacheFormat::BF16 => {
                        let rows = seen.iter();
                        let rows = rows
                            .map(|row| [&self.keys, &self.values].map(|of| of.numbers(*row, kv)));
                        halves::attend(self.score, q, &rows.collect::<Vec<_>>(), sink, out)
                    }
                    CacheFormat::F32 | CacheFormat::F16 => {
                        self.attend_numbers(q, kv, &seen, sink, out)
                    }
                };
            }
        }
        self.observe(&queries, &sums, heads, width);
        let dtype = query.dtype();
        Ok(Tensor::from_f32(dtype, vec![count, heads, value_width], result))
    }

    /// Keeps the queries that select from a prompt while it runs.
    fn observe(&mut self, queries: &[f32], sums: &[f32], heads: usize, width: usize) {
        let Some(layout) = &self.decl.layout else { return };
        if self.kept.is_some() || heads == 0 || width == 0 {
            return;
        }
        let rows = queries.chunks(heads * width).zip(sums.chunks(heads));
        self.observed.extend(rows.map(|(query, sums)| (query.to_vec(), sums.to_vec())));
        if layout.second == 0 {
            let extra = self.observed.len().saturating_sub(layout.observed as usize);
            self.observed.drain(..extra);
        }
    }

    /// Attention of a query over rows in f32; returns the logarithm of the sum of exponentials.
    fn attend_numbers(
        &self,
        query: &[f32],
        kv: usize,
        seen: &[usize],
        sink: Option<f32>,
        out: &mut [f32],
    ) -> f32 {
        let scores = seen.iter().map(|row| self.score.of(query, self.keys.numbers(*row, kv)));
        let mut weights: Vec<f32> = scores.collect();
        let sum = weigh(&mut weights, sink);
        for (row, weight) in seen.iter().zip(&weights) {
            let value = self.values.numbers(*row, kv);
            out.iter_mut().zip(value).for_each(|(sum, value)| *sum += weight * value);
        }
        sum
    }

    /// The same over codes, in tiles of rows of the cache.
    fn attend_codes(
        &self,
        query: &[f32],
        kv: usize,
        seen: &[usize],
        sink: Option<f32>,
        out: &mut [f32],
    ) -> f32 {
        let placement = self.placement(self.rows);
        let place = |row: usize| placement.as_ref().map_or(row, |kept| kept.row(row));
        let mut placed: Vec<(usize, usize)> = seen.iter().map(|row| (place(*row), *row)).collect();
        placed.sort_unstable();
        // No range goes from a block with its own format to the ring; dense rows have no block.
        let is_placed = placement.is_some() || self.kept.is_some();
        let parts = self.formats.block.filter(|_| is_placed).map(|_| self.block_rows());
        let goes_on =
            |a: usize, b: usize| b == a + 1 && !b.is_multiple_of(TILE) && parts != Some(b);
        let tiles = placed.chunk_by(|(a, _), (b, _)| goes_on(*a, *b));
        let rows = |tile: &[(usize, usize)]| {
            let row = |(_, row): &(usize, usize)| {
                (self.keys.coded(*row, kv), self.values.coded(*row, kv))
            };
            tile.iter().map(row).collect()
        };
        codes::attend(self.score, query, &tiles.map(rows).collect::<Vec<_>>(), sink, out)
    }

    /// Rows below this are the block.
    fn block_rows(&self) -> usize {
        self.decl.block_rows() as usize
    }

    /// Whether a row has the block's format: of a cache that is a block as a whole all have it.
    fn is_block(&self, row: usize) -> bool {
        let rows = self.decl.layout.as_ref().map(|layout| layout.rows() as usize);
        let end = self.block_rows();
        row < end || (end > 0 && rows == Some(end))
    }

    /// Where the rows of the running prompt of `length` rows lie in the cache, of which this state keeps
    /// each in the row of its position: a prompt comes as a whole, and those that drop rows are dense to
    /// their end.
    fn placement(&self, length: usize) -> Option<Kept> {
        let layout = self.decl.layout.as_ref().filter(|_| self.kept.is_none())?;
        let is_in_place =
            layout.policy == KvPolicy::Window || length <= layout.prompt_rows() as usize;
        (is_in_place && !self.is_reopened).then(|| Kept::of(layout, length))
    }

    /// Rows that the query of a position sees, in the order of rows.
    fn seen(&self, position: usize, head: usize) -> Vec<usize> {
        let window = self.decl.window as usize;
        let near = |key: usize| key <= position && (window == 0 || position - key < window);
        let Some(kept) = &self.kept else {
            return (0..=position).filter(|row| near(*row)).collect();
        };
        let rows = position + 1;
        let mut seen: Vec<usize> = (0..kept.sinks.min(rows)).filter(|row| near(*row)).collect();
        let chosen = kept.positions.get(head).map_or(&[][..], Vec::as_slice);
        seen.extend(
            (0..kept.valid)
                .filter(|index| near(chosen[*index]))
                .map(|index| kept.selected_row(index)),
        );
        seen.extend((0..kept.ring).filter_map(|index| {
            kept.held(index, rows).filter(|held| near(*held)).map(|_| kept.base + index)
        }));
        // No window reads a cache with a reservoir.
        let sample = kept.left(rows).min(kept.reservoir);
        seen.extend((0..sample).map(|index| kept.base + kept.ring + index));
        seen.extend((kept.valid..chosen.len()).map(|index| kept.selected_row(index)));
        seen
    }

    /// Ends the prompt: of the dense rows those stay that the layout keeps.
    pub fn finish_prompt(&mut self) -> Result<(), EvalFault> {
        let Some(layout) = self.decl.layout.clone() else { return Ok(()) };
        if self.kept.is_some() {
            return Ok(());
        }
        let length = self.rows;
        let kept = Kept::of(&layout, length);
        let sinks = kept.sinks;
        let [capacity, recent] = [layout.selected, layout.recent].map(|rows| rows as usize);
        let middle = length.saturating_sub(sinks + recent);
        let heads = self.decl.kv_heads as usize;
        if layout.policy == KvPolicy::Full && middle > capacity {
            let rows = layout.rows();
            return Err(EvalFault::Operand(format!("{length} rows exceed the cache of {rows}")));
        }
        let positions: Vec<Vec<usize>> = (0..heads)
            .map(|head| {
                if middle <= layout.selected_of(head) as usize {
                    return Ok((sinks..sinks + middle).collect());
                }
                let chosen = self.select(head, &layout, middle)?;
                Ok(chosen.into_iter().map(|candidate| sinks + candidate).collect())
            })
            .collect::<Result<_, EvalFault>>()?;
        let kept = Kept { positions, ..kept };
        let last = length.saturating_sub(recent).max(sinks.min(length))..length;
        let is_in_place = self.placement(length).is_some();
        let (mut keys, mut values) = (self.keys.emptied(), self.values.emptied());
        for head in 0..heads {
            let early = (0..sinks.min(length)).map(|row| (row, row));
            let middle = kept.positions[head].iter().enumerate();
            let middle = middle.map(|(index, position)| (kept.selected_row(index), *position));
            let late = last.clone().map(|position| (kept.row(position), position));
            for (row, position) in early.chain(middle).chain(late) {
                keys.copy(row, head, &self.keys, position)?;
                values.copy(row, head, &self.values, position)?;
                if !is_in_place && self.is_block(row) {
                    keys.round_to_block(row, head);
                    values.round_to_block(row, head);
                }
            }
        }
        (self.keys, self.values) = (keys, values);
        self.kept = Some(kept);
        self.is_reopened = false;
        self.observed.clear();
        Ok(())
    }

    /// The kept keys and values with their rows as tensors `[rows, kv heads, width]`; rows never
    /// written are NaN.
    pub fn planes(&self) -> [Tensor; 2] {
        [self.keys.tensor(), self.values.tensor()]
    }
}
