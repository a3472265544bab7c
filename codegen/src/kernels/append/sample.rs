//! Reservoir rows: what the ring drops is kept for a while by lot (algorithm R of Vitter, 1985).
//!
//! The row that a span is about to overwrite is copied, as it is, to the place that its lot names; each
//! head has its own lots, so heads keep different rows. A step writes one row of a sequence behind its
//! prompt, and the thread that writes it copies first, so no thread waits for another.

use std::mem::offset_of;

use weir_abi::{LayerCall, RowSpans, StepContext};

use super::ARGUMENTS;
use crate::emit::{Assembly, Body, EmitError, FuncId, INT, InstBuilder, IntCC, POINTER};
use crate::kernels::attention::{CacheShape, Moves, is_block, plane_rows, ring_start};
use crate::kernels::lots;

/// Defines a kernel that copies and then calls `write`, with the same arguments.
pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    cache: &CacheShape,
    seed: u32,
    write: FuncId,
) -> Result<(), EmitError> {
    assembly.define(id, |b| {
        let arguments: [_; ARGUMENTS] = b.params();
        let [context, .., begin, end, first_head, behind_head] = arguments;
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let spans = b.load(POINTER, layer, offset_of!(LayerCall, spans) as i32);
        let number = b.load(INT, layer, offset_of!(LayerCall, layer) as i32);
        let moves = Moves::of(b, cache);
        b.for_range(begin, end, 1, |b, row| {
            let span = b.element(spans, row, size_of::<RowSpans>() as i64);
            let rank = b.load_count(span, offset_of!(RowSpans, leaving_rank) as i32);
            let leaves = b.compare_const(IntCC::NotEqual, rank, 0);
            b.if_then(leaves, |b| {
                let [slot, from, position, first, rows] = [
                    offset_of!(RowSpans, write_slot),
                    offset_of!(RowSpans, write_row),
                    offset_of!(RowSpans, leaving_position),
                    offset_of!(RowSpans, reservoir_first),
                    offset_of!(RowSpans, reservoir_rows),
                ]
                .map(|field| b.load_count(span, field as i32));
                b.for_range(first_head, behind_head, 1, |b, head| {
                    let hash = lots::hash(b, seed, number, head, position);
                    // A number below the rank: the upper half of the product.
                    let hash = b.ins().uextend(POINTER, hash);
                    let drawn = b.mul(hash, rank);
                    let half = b.int(32);
                    let drawn = b.ins().ushr(drawn, half);
                    let next = b.add_const(rank, -1);
                    let is_free = b.compare(IntCC::SignedLessThan, next, rows);
                    let place = b.select(is_free, next, drawn);
                    let is_kept = b.compare(IntCC::SignedLessThan, place, rows);
                    b.if_then(is_kept, |b| {
                        let to = b.add(first, place);
                        for is_key in [true, false] {
                            let plane = plane_rows(b, layer, !is_key, slot, head);
                            let Some(moves) = &moves else {
                                let from = cache.place(b, is_key, plane, from);
                                let to = cache.place(b, is_key, plane, to);
                                from.copy(b, &to);
                                continue;
                            };
                            // The reservoir lies behind the ring and has its format, or the block is
                            // the whole plane.
                            let ring = ring_start(b, layer, !is_key, slot, head);
                            let [leaves_block, comes_to_block] =
                                [from, to].map(|row| is_block(b, layer, row));
                            let widen = |b: &mut Body<'_>| {
                                let from = moves.block_row(b, is_key, plane, from);
                                let to = cache.place(b, is_key, ring, to);
                                moves.widen(b, is_key, &from, &to);
                                Vec::new()
                            };
                            let copy_in_block = |b: &mut Body<'_>| {
                                let [from, to] =
                                    [from, to].map(|row| moves.block_row(b, is_key, plane, row));
                                from.copy(b, &to);
                                Vec::new()
                            };
                            let copy_in_ring = |b: &mut Body<'_>| {
                                let [from, to] =
                                    [from, to].map(|row| cache.place(b, is_key, ring, row));
                                from.copy(b, &to);
                                Vec::new()
                            };
                            b.if_else(comes_to_block, copy_in_block, |b| {
                                b.if_else(leaves_block, widen, copy_in_ring)
                            });
                        }
                    });
                });
            });
        });
        b.call(write, &arguments);
        b.ret(&[]);
    })
}
