//! A prompt that goes on behind rows of its slot ("continuation" in the method's document): before a
//! layer runs, its live rows are copied into the dense scratch in the order of their positions. New
//! rows lie behind them and attend to them and to each other, at their true positions; then the layer
//! is observed and compacted like any other, so that all of them are candidates again. Rows that were
//! dropped do not return.
//!
//! What a layout holds is then what it would hold of a sequence without the dropped rows. So their
//! number is all that is remembered of them: [`Placement`] counts positions without them.

use std::ops::Range;

use super::compaction::prompt_call;
use super::long_prompt::dense_planes;
use super::shape::drops_rows;
use super::{Forward, LongPrompt, Past, StepFault};
use crate::cache::{KeptRows, LayerShape, LiveRows, Placement};
use crate::team::{Entry, LayerArguments, LayerPlanes, PlaneStrides, PromptArguments, Visit};

/// What one layout holds when a prompt goes on.
#[derive(Clone, Debug)]
pub(super) struct Behind {
    /// Its live rows.
    live: LiveRows,
    /// Rows that it has dropped, before its last prompt and since: a position of the ring is this much
    /// more than the number of its row among the live ones.
    dropped: u32,
    /// Whether selected rows are those that the slot's positions name; they are the first ones otherwise.
    is_listed: bool,
}

impl Behind {
    /// Live rows; new ones follow them.
    pub fn rows(&self) -> u32 {
        self.live.count()
    }

    /// Selected rows of all heads were named by their places among live and new rows: from now on by
    /// their positions. `before` are the positions of the rows selected until now.
    fn name_positions(&self, named: &mut [u32], before: &[u32], layer: &LayerShape) {
        let sinks = layer.layout.sinks;
        // The cache was made with as many.
        let heads = layer.positions().map(|(_, heads)| heads).unwrap_or_default();
        for head in heads {
            let before = &before[head.clone()];
            for place in &mut named[head] {
                *place = if *place >= self.live.fixed {
                    *place + self.dropped
                } else if self.is_listed && *place >= sinks {
                    before[(*place - sinks) as usize]
                } else {
                    *place
                };
            }
        }
    }
}

impl Forward {
    /// Rows of a slot that its layouts have dropped before their last prompt.
    pub(super) fn dropped_before(&self, slot: u32) -> &[u32] {
        let layouts = self.shape.layouts.len();
        &self.dropped[slot as usize * layouts..][..layouts]
    }

    fn dropped_before_mut(&mut self, slot: u32) -> &mut [u32] {
        let layouts = self.shape.layouts.len();
        &mut self.dropped[slot as usize * layouts..][..layouts]
    }

    /// A sequence begins in a slot: nothing has been dropped, and its block is its own.
    pub(super) fn begin_sequence(&mut self, slot: u32) {
        self.blocks[slot as usize] = slot;
        self.dropped_before_mut(slot).fill(0);
    }

    /// Takes stock of what the slot of a prompt holds, by layout.
    pub(super) fn take_stock(&mut self, prompt: &LongPrompt<'_>) {
        self.prompt.behind.clear();
        let Some(Past { rows, prompt_rows }) = prompt.past else {
            self.begin_sequence(prompt.slot);
            return;
        };
        let Forward { shape, dropped, prompt: job, .. } = self;
        let first = prompt.slot as usize * shape.layouts.len();
        for (layout, before) in shape.layouts.iter().zip(&mut dropped[first..]) {
            let last_prompt = prompt_rows - *before;
            let placement = Placement::new(layout, last_prompt);
            assert!(!placement.has_further(), "heads of a prompt that goes on hold the same rows");
            let live = placement.live(rows - *before);
            let dropped = rows - live.count();
            let is_listed = *before > 0 || last_prompt > layout.prompt_rows();
            if drops_rows(layout) {
                *before = dropped;
            }
            job.behind.push(Behind { live, dropped, is_listed });
        }
    }

    /// Rows kept and dropped of the sequence in a slot.
    pub(super) fn kept_of(&self, slot: u32, past: Past) -> KeptRows {
        self.shape.kept(past, self.dropped_before(slot))
    }

    /// Copies the live rows of a layer into the dense scratch, whose planes have these distances.
    pub(super) fn gather(
        &mut self,
        index: usize,
        behind: &Behind,
        strides: PlaneStrides,
    ) -> Result<(), StepFault> {
        let Forward { prompt: job, model, segments, team, arena, cache, .. } = self;
        let row = &model.layers()[index];
        let segment = segments.kinds[row.kind as usize].compact;
        let [older, newer] = &behind.live.ring;
        let fixed = behind.live.fixed;
        // Rows before the ring stay where they are, so they come with its first part.
        let parts: [(u32, &Range<u32>, u32); 2] =
            [(fixed, older, fixed), (0, newer, fixed + older.end - older.start)];
        for (sinks, part, to) in parts {
            let rows = part.end.max(sinks);
            if rows == 0 {
                continue;
            }
            let recent = part.end - part.start;
            let numbers = weir_abi::PromptCall {
                sinks,
                recent,
                ring_base: to,
                ring_anchor: rows - recent,
                ring_rows: recent.max(1),
                ..prompt_call(rows, index)
            };
            let number = u64::from(cache.number(index, job.slot));
            let LayerPlanes { keys, values, strides: own, heads } = cache.planes(index);
            let visit = Visit {
                layer: Some(LayerArguments {
                    planes: LayerPlanes {
                        keys: &mut keys[(own.key_slot * number) as usize..],
                        values: &mut values[(own.value_slot * number) as usize..],
                        strides: own,
                        heads,
                    },
                    spans: &[],
                    number: index as u32,
                    observed: None,
                }),
                prompt: Some(PromptArguments {
                    numbers,
                    destination: dense_planes(&mut job.dense, strides),
                    scores: &mut [],
                    scratch: &mut [],
                    floors: &mut [],
                    second: &mut [],
                    selected_positions: &mut [],
                }),
                ..Visit::new(segment, model.layer_weights(row))
            };
            let entry = Entry { weights: model.weights(), arena, ..Entry::default() };
            team.enter(entry, [visit])?;
        }
        Ok(())
    }

    /// Positions of the rows selected in the prompt's slot, before the layer is compacted anew.
    pub(super) fn selected_before(&mut self, index: usize) -> Vec<u32> {
        let slot = self.prompt.slot;
        self.cache.planes_and_positions(index, slot).1.to_vec()
    }

    /// Names the rows that a layer has selected by their positions.
    pub(super) fn name_selected(
        &mut self,
        index: usize,
        layer: &LayerShape,
        behind: &Behind,
        before: &[u32],
    ) {
        let named = self.cache.planes_and_positions(index, self.prompt.slot).1;
        behind.name_positions(named, before, layer);
    }
}
