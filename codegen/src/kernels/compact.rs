//! Segment `compact`: selection by score and the write into the slot (sections 4.4 and 4.5 of the
//! method's document).
//!
//! Per key/value head, candidates are ordered by (score descending, position ascending), and the first V
//! are taken (`best`). A score that is not finite is a fault; memory stays in bounds all the same, for
//! any bits have a place in the order.
//!
//! Where rows were asked beside the last queries, a share of the V are the best of those that are left
//! by what these attend to: among such scores the others of the V stand first.
//!
//! Where heads have different numbers of rows ([`weir_abi::HeadRows`]), V is each head's own. The first
//! of a head's selected rows, as many as all heads have, lie in front of the ring as ever, and the rest
//! in the rows that the head has by itself.

use std::mem::offset_of;

use weir_abi::{Fault, PromptCall, StepContext};

use super::attention::{CacheShape, Moves, RowsOfHead, is_block, plane_rows, ring_start};
use super::best::Scores;
use crate::emit::{
    Assembly, Body, EmitError, FuncId, INT, InstBuilder, IntCC, POINTER, Value, segment_signature,
};

/// Numbers and addresses of the call.
struct Call {
    prompt: Value,
    begin: Value,
    end: Value,
    rows: Value,
    selected: Value,
    /// Positions of selected rows, and from one head's to the next, in values.
    positions: Value,
    stride: Value,
    /// Most rows selected beside these, where heads have different numbers.
    further: Option<Value>,
}

/// Where one head's selected rows are named, and how many more than all heads have it selects.
struct OwnRows {
    /// The first of its positions.
    positions: Value,
    further: Option<Further>,
}

/// Selected rows of a head that not every head has.
struct Further {
    /// Their first row.
    first: Value,
    rows: Value,
}

impl Call {
    /// Scores of a head's candidates, of those that this field of [`PromptCall`] points to.
    fn scores(&self, b: &mut Body<'_>, field: usize, head: Value) -> Scores {
        let scores = b.load(POINTER, self.prompt, field as i32);
        let base = b.mul(head, self.rows);
        let scores = b.element(scores, base, 4);
        Scores { scores, begin: self.begin, end: self.end }
    }

    /// What differs from head to head.
    fn own_rows(&self, b: &mut Body<'_>, head: Value) -> OwnRows {
        let alike = b.mul(head, self.stride);
        let Some(further) = self.further else {
            return OwnRows { positions: b.element(self.positions, alike, 4), further: None };
        };
        let heads = b.load(POINTER, self.prompt, offset_of!(PromptCall, heads) as i32);
        let differ = b.compare_const(IntCC::NotEqual, heads, 0);
        let own = b.if_else(
            differ,
            |b| {
                let own = RowsOfHead::load(b, heads, head);
                vec![own.positions, own.first, b.min(own.rows, further)]
            },
            |b| vec![alike, b.int(0), b.int(0)],
        );
        let [place, first, rows] = [own[0], own[1], own[2]];
        OwnRows {
            positions: b.element(self.positions, place, 4),
            further: Some(Further { first, rows }),
        }
    }
}

/// Emits the segment; `second` says whether rows may be asked beside the last queries.
pub fn emit_compact(
    assembly: &mut Assembly,
    name: &str,
    cache: &CacheShape,
    second: bool,
) -> Result<FuncId, EmitError> {
    let id = assembly.declare(name, segment_signature())?;
    assembly.define(id, |b| {
        let (context, thread, threads) = b.segment_params();
        let prompt = b.load(POINTER, context, offset_of!(StepContext, prompt) as i32);
        let rows = b.load_count(prompt, offset_of!(PromptCall, rows) as i32);
        let begin = b.load_count(prompt, offset_of!(PromptCall, sinks) as i32);
        let recent = b.load_count(prompt, offset_of!(PromptCall, recent) as i32);
        let selected = b.load_count(prompt, offset_of!(PromptCall, selected) as i32);
        let end = b.sub(rows, recent);
        let further =
            cache.by_head.then(|| b.load_count(prompt, offset_of!(PromptCall, further) as i32));
        let [positions, stride] =
            [offset_of!(PromptCall, selected_positions), offset_of!(PromptCall, positions_stride)]
                .map(|field| b.load(POINTER, prompt, field as i32));
        let call = Call { prompt, begin, end, rows, selected, positions, stride, further };
        let heads = b.int(cache.kv_heads as i64);
        let (first, last) = b.partition(heads, thread, threads);
        let most = further.map_or(selected, |further| b.add(selected, further));
        let any = b.compare_const(IntCC::NotEqual, most, 0);
        b.if_then(any, |b| {
            b.for_range(first, last, 1, |b, head| select_head(b, &call, context, head, second));
        });
        b.barrier(context, thread);
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let copy = Copy { cache, call: &call, layer, moves: Moves::of(b, cache) };
        copy.rows_of_all_heads(b, [thread, threads]);
        if let Some(further) = further {
            copy.rows_of_some_heads(b, further, [thread, threads]);
        }
        b.barrier(context, thread);
        b.ret(&[]);
    })?;
    Ok(id)
}

fn select_head(b: &mut Body<'_>, call: &Call, context: Value, head: Value, second: bool) {
    let scores = call.scores(b, offset_of!(PromptCall, scores), head);
    report_not_finite(b, &scores, context, head);
    let OwnRows { positions, further } = call.own_rows(b, head);
    let selected = further.map_or(call.selected, |further| b.add(call.selected, further.rows));
    let scores = match second {
        true => by_both(b, call, context, head, (scores, selected)),
        false => scores,
    };
    scores.for_best(b, selected, |b, place, taken| {
        let to = b.element(positions, taken, 4);
        let position = b.ins().ireduce(INT, place);
        b.store(position, to, 0);
    });
}

/// Scores by which the selected rows are those of both scores, if rows were asked: those of what these
/// attend to, in which what the others select stands first.
fn by_both(
    b: &mut Body<'_>,
    call: &Call,
    context: Value,
    head: Value,
    (scores, selected): (Scores, Value),
) -> Scores {
    let asked = b.load_count(call.prompt, offset_of!(PromptCall, asked) as i32);
    let any = b.compare_const(IntCC::NotEqual, asked, 0);
    let chosen = b.if_else(
        any,
        |b| {
            let second = call.scores(b, offset_of!(PromptCall, second), head);
            report_not_finite(b, &second, context, head);
            let percent = offset_of!(PromptCall, second_share) as i32;
            let percent = b.load_count(call.prompt, percent);
            let share = b.mul(selected, percent);
            let hundred = b.int(100);
            let share = b.ins().udiv(share, hundred);
            let others = b.sub(selected, share);
            scores.for_best(b, others, |b, place, _| {
                let to = b.element(second.scores, place, 4);
                let first = b.float(f32::INFINITY);
                b.store(first, to, 0);
            });
            vec![second.scores]
        },
        |_| vec![scores.scores],
    )[0];
    Scores { scores: chosen, ..scores }
}

fn report_not_finite(b: &mut Body<'_>, scores: &Scores, context: Value, head: Value) {
    let bad = scores.any_not_finite(b);
    b.if_then(bad, |b| b.fault(context, Fault::ScoreNotFinite, head));
}

/// Start of the rows of a head in the destination's slot.
fn destination(b: &mut Body<'_>, call: &Call, values: bool, head: Value) -> Value {
    let (plane, slot_stride, head_stride) = if values {
        (
            offset_of!(PromptCall, values),
            offset_of!(PromptCall, value_slot_stride),
            offset_of!(PromptCall, value_head_stride),
        )
    } else {
        (
            offset_of!(PromptCall, keys),
            offset_of!(PromptCall, key_slot_stride),
            offset_of!(PromptCall, key_head_stride),
        )
    };
    let plane = b.load(POINTER, call.prompt, plane as i32);
    let slot_stride = b.load(POINTER, call.prompt, slot_stride as i32);
    let head_stride = b.load(POINTER, call.prompt, head_stride as i32);
    let slot = b.load_count(call.prompt, offset_of!(PromptCall, slot) as i32);
    let slot = b.mul(slot, slot_stride);
    let head = b.mul(head, head_stride);
    let at = b.add(plane, slot);
    b.add(at, head)
}

/// From the dense rows of the prompt to the slot.
struct Copy<'a> {
    cache: &'a CacheShape,
    call: &'a Call,
    layer: Value,
    moves: Option<Moves>,
}

impl Copy<'_> {
    /// Copies sinks, selected rows and the last rows of every head; items are rows of the destination.
    fn rows_of_all_heads(&self, b: &mut Body<'_>, [thread, threads]: [Value; 2]) {
        let Copy { cache, call, .. } = self;
        let field = |b: &mut Body<'_>, offset: usize| b.load_count(call.prompt, offset as i32);
        let recent = field(b, offset_of!(PromptCall, recent));
        let ring_base = field(b, offset_of!(PromptCall, ring_base));
        let ring_anchor = field(b, offset_of!(PromptCall, ring_anchor));
        let ring_rows = field(b, offset_of!(PromptCall, ring_rows));
        let zero = b.int(0);
        let sinks = b.min(call.begin, call.rows);
        let after_sinks = b.sub(call.rows, sinks);
        let recent = b.min(recent, after_sinks);
        let recent = b.max(recent, zero);
        let immutable = b.add(sinks, call.selected);
        let kept = b.add(immutable, recent);
        let items = b.mul_const(kept, cache.kv_heads as i64);
        let (first, last) = b.partition(items, thread, threads);
        b.for_range(first, last, 1, |b, item| {
            let head = b.ins().udiv(item, kept);
            let before = b.mul(head, kept);
            let index = b.sub(item, before);
            let is_sink = b.compare(IntCC::SignedLessThan, index, sinks);
            let places = b.if_else(
                is_sink,
                |_| vec![index, index],
                |b| {
                    let is_selected = b.compare(IntCC::SignedLessThan, index, immutable);
                    b.if_else(
                        is_selected,
                        |b| {
                            let rank = b.sub(index, sinks);
                            let at = call.own_rows(b, head).positions;
                            let at = b.element(at, rank, 4);
                            vec![b.load_count(at, 0), index]
                        },
                        |b| {
                            let behind = b.sub(index, immutable);
                            let start = b.sub(call.rows, recent);
                            let position = b.add(start, behind);
                            let turn = b.sub(position, ring_anchor);
                            let turn = b.ins().urem(turn, ring_rows);
                            vec![position, b.add(ring_base, turn)]
                        },
                    )
                },
            );
            self.row(b, head, [places[0], places[1]]);
        });
    }

    /// Copies the selected rows that not every head has, `most` of a head; items are rows of the head
    /// with the most.
    fn rows_of_some_heads(&self, b: &mut Body<'_>, most: Value, [thread, threads]: [Value; 2]) {
        let call = self.call;
        let items = b.mul_const(most, self.cache.kv_heads as i64);
        let (first, last) = b.partition(items, thread, threads);
        b.for_range(first, last, 1, |b, item| {
            let head = b.ins().udiv(item, most);
            let before = b.mul(head, most);
            let index = b.sub(item, before);
            let OwnRows { positions, further } = call.own_rows(b, head);
            let Some(Further { first, rows }) = further else { return };
            let is_own = b.compare(IntCC::SignedLessThan, index, rows);
            b.if_then(is_own, |b| {
                let rank = b.add(call.selected, index);
                let at = b.element(positions, rank, 4);
                let position = b.load_count(at, 0);
                let row = b.add(first, index);
                self.row(b, head, [position, row]);
            });
        });
    }

    /// Copies a row of a head, keys and values, from its place among the dense rows to another.
    fn row(&self, b: &mut Body<'_>, head: Value, [place, row]: [Value; 2]) {
        let Copy { cache, call, layer, moves } = self;
        let layer = *layer;
        let slot = b.int(0);
        for is_key in [true, false] {
            let from = plane_rows(b, layer, !is_key, slot, head);
            let to = destination(b, call, !is_key, head);
            let Some(moves) = moves else {
                let from = cache.place(b, is_key, from, place);
                let to = cache.place(b, is_key, to, row);
                from.copy(b, &to);
                continue;
            };
            // One of both planes is dense.
            let from_ring = ring_start(b, layer, !is_key, slot, head);
            let ring = if is_key {
                offset_of!(PromptCall, key_ring)
            } else {
                offset_of!(PromptCall, value_ring)
            };
            let ring = b.load(POINTER, call.prompt, ring as i32);
            let to_ring = b.add(to, ring);
            let block_rows = b.load_count(call.prompt, offset_of!(PromptCall, block_rows) as i32);
            let leaves_block = is_block(b, layer, place);
            let comes_to_block = b.compare(IntCC::SignedLessThan, row, block_rows);
            b.if_else(
                leaves_block,
                |b| {
                    let from = moves.block_row(b, is_key, from, place);
                    let to = cache.place(b, is_key, to_ring, row);
                    moves.widen(b, is_key, &from, &to);
                    Vec::new()
                },
                |b| {
                    let from = cache.place(b, is_key, from_ring, place);
                    b.if_else(
                        comes_to_block,
                        |b| {
                            let to = moves.block_row(b, is_key, to, row);
                            moves.narrow(b, is_key, &from, &to);
                            Vec::new()
                        },
                        |b| {
                            let to = cache.place(b, is_key, to_ring, row);
                            from.copy(b, &to);
                            Vec::new()
                        },
                    )
                },
            );
        }
    }
}
