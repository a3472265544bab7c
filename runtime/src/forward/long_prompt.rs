//! Prompts that are longer than some cache layout: layer by layer, tile by tile.
//!
//! Hidden rows of the whole prompt lie in a scratch block. A layer whose layout would drop rows
//! writes dense rows, in the ring's number format, into one scratch plane pair, observes the last
//! queries and is then compacted into the slot; other layers write their slot directly. Only then comes the next layer, so one
//! layer's dense rows exist at a time. Model code sums in an order that does not depend on how many
//! rows a call has, so tiles may be of any size and run between other requests' steps.

use weir_abi::RowSpans;

use super::buffer::Buffer;
use super::compaction::{Compaction, DenseLayer, is_dense, scratch_values, second_values, selects};
use super::continuation::Behind;
use super::shape::drops_rows;
use super::steps::Forward;
use super::{LongPrompt, ModelShape, StepFault};
use crate::RuntimeError;
use crate::cache::{LayerShape, Placement, Seat, strides};
use crate::team::{LayerArguments, LayerPlanes, Observed, PlaneStrides, Visit};

/// The long prompt that runs, and the scratch memory of all that ever will.
pub(super) struct PromptJob {
    /// Its tokens, without those whose rows lie in the slot.
    tokens: Vec<u32>,
    /// Position of the first of them.
    first: u32,
    /// What the slot holds by layout; nothing if the prompt begins a sequence.
    pub(super) behind: Vec<Behind>,
    pub(super) slot: u32,
    rotary_set: u32,
    is_anew: bool,
    /// The next call: tile that starts at row `start` of layer `layer`.
    layer: usize,
    start: usize,
    /// Rows of a tile, so that every tile begins at a multiple of 64 bytes of hidden rows.
    tile_rows: usize,
    hidden_width: usize,
    hidden: Buffer<f32>,
    /// Room for a tile's, where those of one would begin unaligned.
    aligned_tile: Buffer<f32>,
    /// Dense key rows, then dense value rows, of the layer that runs.
    pub(super) dense: Buffer<u8>,
    observed_queries: Buffer<f32>,
    observed_lse: Buffer<f32>,
    scores: Buffer<f32>,
    scratch: Buffer<f32>,
    floors: Buffer<f32>,
    second: Buffer<f32>,
    spans: Vec<RowSpans>,
}

impl PromptJob {
    /// Scratch for prompts of the model's whole context; nothing if no layout drops rows.
    pub fn new(shape: &ModelShape, layers: &[LayerShape]) -> Result<PromptJob, RuntimeError> {
        let needed = shape.direct_rows < shape.context;
        let length = if needed { shape.context as usize } else { 0 };
        let hidden_width = shape.hidden_width as usize;
        let tile_rows = tile_rows(shape.max_rows as usize, hidden_width);
        let copied = if needed { copied_rows(shape.max_rows as usize, hidden_width) } else { 0 };
        let too_large = || {
            RuntimeError::Tables(format!(
                "a prompt of {length} rows needs more than the address space"
            ))
        };
        let [mut dense, mut queries, mut lse, mut scores, mut scratch, mut floors] = [0_usize; 6];
        let mut second = 0;
        for layer in layers.iter().filter(|layer| drops_rows(&layer.layout)) {
            let LayerShape { kind, layout, .. } = layer;
            let strides = strides(kind, length as u64, 0).ok_or_else(too_large)?;
            let bytes = strides.key_slot.checked_add(strides.value_slot).ok_or_else(too_large)?;
            dense = dense.max(usize::try_from(bytes).map_err(|_| too_large())?);
            let kept = length.min(layout.kept_queries() as usize);
            let rows = kept.checked_mul(kind.heads as usize).ok_or_else(too_large)?;
            queries = queries.max(rows * kind.key_width as usize);
            lse = lse.max(rows);
            scores = scores.max(length * kind.kv_heads as usize);
            let anew = usize::try_from(scratch_values(layer)).map_err(|_| too_large())?;
            scratch = scratch.max(scores).max(if needed { anew } else { 0 });
            let asking = usize::try_from(second_values(layer, length as u32));
            second = second.max(asking.map_err(|_| too_large())?);
            floors = floors.max(if needed { kind.heads as usize } else { 0 });
        }
        let hidden = length.checked_mul(hidden_width).ok_or_else(too_large)?;
        Ok(PromptJob {
            tokens: Vec::with_capacity(length),
            first: 0,
            behind: Vec::with_capacity(shape.layouts.len()),
            slot: 0,
            rotary_set: 0,
            is_anew: false,
            layer: 0,
            start: 0,
            tile_rows,
            hidden_width,
            hidden: Buffer::zeroed(hidden),
            aligned_tile: Buffer::zeroed(copied * hidden_width),
            dense: Buffer::zeroed(dense),
            observed_queries: Buffer::zeroed(queries),
            observed_lse: Buffer::zeroed(lse),
            scores: Buffer::zeroed(scores),
            scratch: Buffer::zeroed(scratch),
            floors: Buffer::zeroed(floors),
            second: Buffer::zeroed(second),
            spans: Vec::with_capacity(tile_rows),
        })
    }

    /// Starts with the first layer of a prompt.
    pub fn begin(&mut self, prompt: LongPrompt<'_>) {
        self.tokens.clear();
        self.tokens.extend_from_slice(prompt.tokens);
        self.first = prompt.past.map_or(0, |past| past.rows);
        self.slot = prompt.slot;
        self.rotary_set = prompt.rotary_set;
        self.is_anew = prompt.is_anew;
        self.layer = 0;
        self.start = 0;
    }

    /// Rows at the end of the prompt's last one: its length, those in the slot included.
    fn end(&self) -> u32 {
        self.first + self.tokens.len() as u32
    }

    /// Hidden rows of the whole prompt.
    pub fn hidden(&mut self) -> &mut [f32] {
        &mut self.hidden
    }
}

/// Floats in 64 bytes, which hidden rows are aligned to where the model's code is given them.
const ALIGNED: usize = 16;

/// Rows of a tile of a long prompt: the most, at most `max_rows`, whose hidden rows fill whole multiples
/// of 64 bytes; where no number of them does, all, and tiles are copied to where they are aligned.
pub fn tile_rows(max_rows: usize, hidden_width: usize) -> usize {
    let step = ALIGNED >> hidden_width.trailing_zeros().min(ALIGNED.trailing_zeros());
    match max_rows / step * step {
        0 => max_rows,
        rows => rows,
    }
}

/// Rows that there is room for beside those of a long prompt, for a tile: none where tiles are aligned.
pub(super) fn copied_rows(max_rows: usize, hidden_width: usize) -> usize {
    let rows = tile_rows(max_rows, hidden_width);
    if (rows * hidden_width).is_multiple_of(ALIGNED) { 0 } else { rows }
}

/// Hidden rows of a tile, and room for them where they may lie unaligned.
struct TileRows<'a> {
    rows: &'a mut [f32],
    aligned: &'a mut [f32],
}

impl TileRows<'_> {
    /// The rows, aligned.
    fn aligned(&mut self) -> &mut [f32] {
        if self.aligned.is_empty() {
            return self.rows;
        }
        let aligned = &mut self.aligned[..self.rows.len()];
        aligned.copy_from_slice(self.rows);
        aligned
    }

    /// Puts what has become of them where they lie.
    fn keep(self) {
        if !self.aligned.is_empty() {
            self.rows.copy_from_slice(&self.aligned[..self.rows.len()]);
        }
    }
}

/// Key and value planes of one slot in one block.
pub(super) fn dense_planes(block: &mut [u8], strides: PlaneStrides) -> LayerPlanes<'_> {
    let (keys, rest) = block.split_at_mut(strides.key_slot as usize);
    LayerPlanes { keys, values: &mut rest[..strides.value_slot as usize], strides, heads: &[] }
}

impl Forward {
    /// Runs one tile of one layer; after a layer's last tile also its selection. `true` after the
    /// last layer's.
    pub(super) fn run_tile(&mut self) -> Result<bool, StepFault> {
        let length = self.prompt.tokens.len();
        let start = self.prompt.start;
        let end = length.min(start + self.prompt.tile_rows);
        let index = self.prompt.layer;
        if let Some(layer) = self.layers.get(index).cloned() {
            let dense = self.dense_layer(index, &layer);
            if let (0, Some(Dense { behind: Some(behind), strides, .. })) = (start, &dense) {
                self.gather(index, behind, *strides)?;
            }
            self.fill_tile(start..end);
            if index == 0 {
                self.run_tile_embed(start..end)?;
            }
            self.run_tile_layer(index, &layer, start..end, dense.as_ref())?;
            if end < length {
                self.prompt.start = end;
                return Ok(false);
            }
            if let Some(dense) = dense {
                self.compact(index, &layer, &dense)?;
            }
            self.prompt.layer += 1;
            self.prompt.start = 0;
        }
        Ok(self.prompt.layer >= self.layers.len())
    }

    /// How a layer's dense rows lie, unless its rows go straight into the slot.
    fn dense_layer(&self, index: usize, layer: &LayerShape) -> Option<Dense> {
        let job = &self.prompt;
        let behind = job.behind.get(self.model.layers()[index].layout as usize);
        let before = behind.map_or(0, Behind::rows);
        let length = before + job.tokens.len() as u32;
        let is_dense = match behind {
            Some(_) => drops_rows(&layer.layout),
            None => is_dense(layer, length as usize),
        };
        let strides = strides(&layer.kind, length.into(), 0).unwrap_or_default();
        is_dense.then(|| Dense { behind: behind.cloned(), before, length, strides })
    }

    fn fill_tile(&mut self, tile: std::ops::Range<usize>) {
        self.rows.clear();
        for position in tile {
            let token = self.prompt.tokens[position];
            self.rows.push(
                token,
                self.prompt.first + position as u32,
                self.prompt.rotary_set,
                self.model.header().context,
            );
        }
    }

    fn run_tile_embed(&mut self, tile: std::ops::Range<usize>) -> Result<(), StepFault> {
        let width = self.prompt.hidden_width;
        let mut hidden = TileRows {
            rows: &mut self.prompt.hidden[tile.start * width..tile.end * width],
            aligned: &mut self.prompt.aligned_tile,
        };
        let entry = self.rows.entry(self.model.weights(), &mut self.arena, hidden.aligned());
        let embed = Visit::new(self.segments.embed, self.model.embed_weights());
        self.team.enter(entry, [embed])?;
        hidden.keep();
        Ok(())
    }

    fn run_tile_layer(
        &mut self,
        index: usize,
        layer: &LayerShape,
        tile: std::ops::Range<usize>,
        dense: Option<&Dense>,
    ) -> Result<(), StepFault> {
        let job = &mut self.prompt;
        let width = job.hidden_width;
        let end = job.end();
        let rows = tile.start as u32..tile.end as u32;
        job.spans.clear();
        let planes = if let Some(dense) = dense {
            job.spans.extend(rows.map(|row| dense_spans(dense.before + row)));
            dense_planes(&mut job.dense, dense.strides)
        } else {
            let placement = Placement::new(&layer.layout, end);
            let seat = Seat::own(self.cache.number(index, job.slot));
            job.spans.extend(rows.map(|row| placement.spans(seat, job.first + row)));
            self.cache.planes(index)
        };
        let observes = dense.is_some() && layer.layout.observed > 0 && selects(layer);
        let observed = observes.then(|| Observed {
            queries: &mut job.observed_queries[..],
            lse: &mut job.observed_lse[..],
            from: end - layer.layout.kept_queries().min(job.tokens.len() as u32),
        });
        let row = &self.model.layers()[index];
        let mut hidden = TileRows {
            rows: &mut job.hidden[tile.start * width..tile.end * width],
            aligned: &mut job.aligned_tile,
        };
        let entry = self.rows.entry(self.model.weights(), &mut self.arena, hidden.aligned());
        let segment = self.segments.kinds[row.kind as usize].layer;
        let visit = Visit {
            layer: Some(LayerArguments {
                planes,
                spans: &job.spans,
                number: index as u32,
                observed,
            }),
            ..Visit::new(segment, self.model.layer_weights(row))
        };
        self.team.enter(entry, [visit])?;
        hidden.keep();
        Ok(())
    }

    /// Writes the rows of a layer that its layout keeps into the slot.
    fn compact(
        &mut self,
        index: usize,
        layer: &LayerShape,
        dense: &Dense,
    ) -> Result<(), StepFault> {
        let before = self.selected_before(index);
        let Forward { prompt: job, model, segments, team, arena, cache, .. } = self;
        let (slot, length, latest) = (job.slot, dense.length, job.tokens.len() as u32);
        let is_anew = job.is_anew;
        let mut compaction =
            Compaction { team, model, segments, arena, cache, slot, length, latest, is_anew };
        let rows = DenseLayer {
            planes: dense_planes(&mut job.dense, dense.strides),
            queries: &mut job.observed_queries,
            lse: &mut job.observed_lse,
            scores: &mut job.scores,
            scratch: &mut job.scratch,
            floors: &mut job.floors,
            second: &mut job.second,
        };
        compaction.write(index, layer, rows)?;
        if let Some(behind) = &dense.behind {
            self.name_selected(index, layer, behind, &before);
        }
        Ok(())
    }
}

/// A layer whose rows lie in the dense scratch.
struct Dense {
    /// What its slot holds, if the prompt goes on behind it.
    behind: Option<Behind>,
    /// Rows that lie before the prompt's first.
    before: u32,
    /// Rows in all.
    length: u32,
    /// Distances in the planes; `PromptJob::new` has computed them for longer prompts.
    strides: PlaneStrides,
}

/// Row = position, everything up to it is read.
fn dense_spans(position: u32) -> RowSpans {
    let mut spans =
        RowSpans { write_slot: 0, write_row: position, range_count: 1, ..RowSpans::default() };
    spans.ranges[0].rows = position + 1;
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_are_aligned_or_copied() {
        // Step rows, hidden width: rows of a tile, and of its copy.
        let cases = [
            ([128, 64], [128, 0]),
            ([5, 8], [4, 0]),
            ([17, 7], [16, 0]),
            ([15, 7], [15, 15]),
            ([7, 34], [7, 7]),
            ([1, 1], [1, 1]),
        ];
        for ([max_rows, width], expected) in cases {
            assert_eq!([tile_rows(max_rows, width), copied_rows(max_rows, width)], expected);
        }
        let (mut rows, mut room) = ([1.0, 2.0, 3.0], [0.0; 4]);
        let mut tile = TileRows { rows: &mut rows, aligned: &mut room };
        assert_eq!(tile.aligned(), [1.0, 2.0, 3.0]);
        tile.aligned()[1] = 5.0;
        tile.keep();
        assert_eq!(rows, [1.0, 5.0, 3.0]);
        let mut tile = TileRows { rows: &mut rows, aligned: &mut [] };
        tile.aligned()[0] = 4.0;
        tile.keep();
        assert_eq!(rows, [4.0, 5.0, 3.0]);
    }
}
