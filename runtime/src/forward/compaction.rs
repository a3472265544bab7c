//! From the dense rows of a layer into its slot: scores, selection and the write (sections 4.2 to 4.5
//! of the method's document).

use weir_abi::PromptCall;

use super::shape::drops_rows;
use crate::CompiledModel;
use crate::cache::{LayerShape, Placement, SlotCache};
use crate::team::{
    Entry, LayerArguments, LayerPlanes, Observed, PromptArguments, ReportedFault, Team, Visit,
};
use crate::weights::LevelSegments;

/// Dense rows of one layer of a prompt, what its last queries left, and room to choose from them.
pub(super) struct DenseLayer<'a> {
    /// Rows of the prompt at their positions, in slot 0.
    pub planes: LayerPlanes<'a>,
    /// Queries of the last rows: as many as [`Compaction::observed`] says, and no others.
    pub queries: &'a mut [f32],
    /// Their log-sum-exp.
    pub lse: &'a mut [f32],
    /// Room for a score per key/value head and row.
    pub scores: &'a mut [f32],
    /// As much again, and [`scratch_values`] at least.
    pub scratch: &'a mut [f32],
    /// Room for a number per head.
    pub floors: &'a mut [f32],
    /// [`second_values`] of room, where rows may be asked beside the last ones.
    pub second: &'a mut [f32],
}

/// Who writes a prompt's rows, and where to.
pub(super) struct Compaction<'a> {
    pub team: &'a mut Team,
    pub model: &'a CompiledModel,
    pub segments: &'a LevelSegments,
    pub arena: &'a mut [u8],
    pub cache: &'a mut SlotCache,
    pub slot: u32,
    /// L.
    pub length: u32,
    /// Rows at the end of the prompt whose queries can be observed.
    pub latest: u32,
    /// Whether rows are selected anew, so that redundancy counts where a layout says so.
    pub is_anew: bool,
}

impl Compaction<'_> {
    /// Scores a layer's rows if some of them are left behind, and writes those that its layout keeps.
    pub fn write(
        &mut self,
        index: usize,
        layer: &LayerShape,
        dense: DenseLayer<'_>,
    ) -> Result<(), ReportedFault> {
        let length = self.length;
        let row = &self.model.layers()[index];
        let kind = self.segments.kinds[row.kind as usize];
        let numbers = self.numbers(index, layer);
        let scored = is_dense(layer, length as usize) && selects(layer);
        if !scored {
            // Every candidate is taken, whatever its score.
            let scores = layer.kind.kv_heads as usize * length as usize;
            dense.scores[..scores].fill(0.0);
        }
        let DenseLayer { planes, queries, lse, scores, scratch, floors, second } = dense;
        let LayerPlanes { keys, values, strides, heads } = planes;
        let from = length.saturating_sub(self.observed(layer));
        for segment in [scored.then_some(kind.observe), Some(kind.compact)].into_iter().flatten() {
            let (destination, selected_positions) =
                self.cache.planes_and_positions(index, self.slot);
            let visit = Visit {
                layer: Some(LayerArguments {
                    planes: LayerPlanes { keys: &mut *keys, values: &mut *values, strides, heads },
                    spans: &[],
                    number: index as u32,
                    observed: Some(Observed { queries: &mut *queries, lse: &mut *lse, from }),
                }),
                prompt: Some(PromptArguments {
                    numbers,
                    destination,
                    scores: &mut *scores,
                    scratch: &mut *scratch,
                    floors: &mut *floors,
                    second: &mut *second,
                    selected_positions,
                }),
                ..Visit::new(segment, self.model.layer_weights(row))
            };
            let entry = Entry {
                weights: self.model.weights(),
                arena: &mut *self.arena,
                ..Entry::default()
            };
            self.team.enter(entry, [visit])?;
        }
        Ok(())
    }

    /// Rows at the end of the prompt whose queries a layer keeps.
    fn observed(&self, layer: &LayerShape) -> u32 {
        layer.layout.kept_queries().min(self.latest)
    }

    /// Rows that a head asks beside the last ones: between the sinks and those, of the ones whose
    /// queries are kept.
    fn asked(&self, layer: &LayerShape, [sinks, observed]: [u32; 2]) -> u32 {
        let begin = sinks.max(self.length.saturating_sub(self.observed(layer)));
        let end = self.length.saturating_sub(observed);
        layer.layout.second.min(end.saturating_sub(begin))
    }

    /// What code must know of the prompt; pointers are the team's to fill.
    fn numbers(&self, index: usize, layer: &LayerShape) -> PromptCall {
        let (length, layout) = (self.length, &layer.layout);
        let placement = Placement::new(layout, length);
        // Without sinks and a choice a layout is one ring, which takes as many rows as it has.
        let recent = if drops_rows(layout) { layout.recent } else { placement.ring_rows };
        let sinks = placement.sinks.min(length);
        let observed = if selects(layer) { layout.observed.min(self.latest) } else { 0 };
        let is_scored = is_dense(layer, length as usize) && selects(layer);
        PromptCall {
            sinks,
            selected: placement.selected,
            further: placement.further,
            recent: recent.min(length - sinks),
            observed,
            ring_base: placement.ring_base,
            ring_anchor: placement.ring_anchor,
            ring_rows: placement.ring_rows,
            slot: self.cache.number(index, self.slot),
            positions_stride: layout.selected.into(),
            anew: u32::from(self.is_anew && layout.redundancy > 0),
            asked: if is_scored { self.asked(layer, [sinks, observed]) } else { 0 },
            second_share: layout.second_share,
            ..prompt_call(length, index)
        }
    }
}

/// Numbers of a prompt of `rows` rows in a layer, of which nothing is kept; pointers are the team's to
/// fill.
pub(super) fn prompt_call(rows: u32, layer: usize) -> PromptCall {
    PromptCall {
        rows,
        sinks: 0,
        selected: 0,
        further: 0,
        recent: 0,
        observed: 0,
        ring_base: 0,
        ring_anchor: 0,
        ring_rows: 1,
        slot: 0,
        layer: layer as u32,
        keys: std::ptr::null_mut(),
        values: std::ptr::null_mut(),
        key_slot_stride: 0,
        key_head_stride: 0,
        value_slot_stride: 0,
        value_head_stride: 0,
        scores: std::ptr::null_mut(),
        scratch: std::ptr::null_mut(),
        floors: std::ptr::null_mut(),
        selected_positions: std::ptr::null_mut(),
        positions_stride: 0,
        key_ring: 0,
        value_ring: 0,
        block_rows: 0,
        heads: std::ptr::null(),
        anew: 0,
        asked: 0,
        second_share: 0,
        second: std::ptr::null_mut(),
    }
}

/// Values of scratch that a layer needs where its rows are selected anew: all of a full plane and the
/// next one.
pub(super) fn scratch_values(layer: &LayerShape) -> u64 {
    let LayerShape { kind, layout, .. } = layer;
    match layout.redundancy {
        0 => 0,
        _ => weir_abi::redundancy_scratch(kind.kv_heads.into(), u64::from(layout.rows) + 1),
    }
}

/// Values of scratch that a layer needs to ask rows of a prompt of so many.
pub(super) fn second_values(layer: &LayerShape, rows: u32) -> u64 {
    let LayerShape { kind, layout, .. } = layer;
    let sizes = [kind.heads, kind.kv_heads, kind.key_width].map(u64::from);
    match layout.second {
        0 => 0,
        asked => weir_abi::second_scratch(sizes, rows.into(), asked.into()),
    }
}

/// Whether a layer keeps dense rows of a prompt of this length and is compacted after it.
pub(super) fn is_dense(layer: &LayerShape, length: usize) -> bool {
    drops_rows(&layer.layout) && length > layer.layout.prompt_rows() as usize
}

/// Whether rows of the prompt are chosen. Streams and layouts without room for selected rows keep
/// the first and the last ones only.
pub(super) fn selects(layer: &LayerShape) -> bool {
    layer.layout.selected > 0 || layer.layout.further > 0
}

/// As many rows of queries and sums as a layer's layout wants kept, from the end of those that lie there.
pub(super) fn last_observed<'a>(
    layer: &LayerShape,
    queries: &'a mut [f32],
    lse: &'a mut [f32],
    rows: u32,
) -> (&'a mut [f32], &'a mut [f32]) {
    let behind = rows.saturating_sub(layer.layout.kept_queries()) as usize;
    let heads = layer.kind.heads as usize;
    let width = layer.kind.key_width as usize;
    (&mut queries[behind * heads * width..], &mut lse[behind * heads..])
}
