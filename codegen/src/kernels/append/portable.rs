//! The portable version: each head's key is rotated and rounded aside, then spread over its block;
//! each head's value is rounded into its place. Rows of codes are rounded when they are spread.

use std::mem::offset_of;

use weir_abi::{LayerCall, RowSpans, StepContext};

use super::AppendSpec;
use crate::emit::{Assembly, EmitError, FuncId, POINTER};
use crate::kernels::attention::{codes, plane_rows, ring_start};
use crate::kernels::rotary::{Angles, Head, move_head};

pub(super) fn define(
    assembly: &mut Assembly,
    id: FuncId,
    spec: &AppendSpec,
    is_ring: bool,
) -> Result<(), EmitError> {
    let cache = &spec.cache;
    let rows_of = if is_ring { ring_start } else { plane_rows };
    assembly.define(id, |b| {
        let [context, keys, values, cos, sin, begin, end, first, behind] = b.params();
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let spans = b.load(POINTER, layer, offset_of!(LayerCall, spans) as i32);
        let width = cache.key_width.max(cache.value_width);
        let number = cache.number.aside();
        let aside = b.stack((width * number.bytes()) as u32);
        b.for_range(begin, end, 1, |b, row| {
            let angles =
                spec.rotation.map(|rotation| Angles::of(b, rotation, (cos, sin), context, row));
            let span = b.element(spans, row, size_of::<RowSpans>() as i64);
            let slot = b.load_count(span, offset_of!(RowSpans, write_slot) as i32);
            let place = b.load_count(span, offset_of!(RowSpans, write_row) as i32);
            let keys = b.element(keys, row, spec.key.0 as i64 * 4);
            let values = b.element(values, row, spec.value.0 as i64 * 4);
            b.for_range(first, behind, 1, |b, head| {
                let from = b.element(keys, head, spec.key.1 as i64 * 4);
                let key = Head { from, to: aside, width: cache.key_width, number };
                move_head(b, &key, angles.as_ref());
                let plane = rows_of(b, layer, false, slot, head);
                let to = cache.place(b, true, plane, place);
                if to.scale.is_some() {
                    codes::write(b, cache, true, aside, &to);
                } else {
                    to.runs.copy(b, number, [aside, to.start], [number.bytes(), to.runs.step]);
                }
                let from = b.element(values, head, spec.value.1 as i64 * 4);
                let plane = rows_of(b, layer, true, slot, head);
                let to = cache.place(b, false, plane, place);
                if to.scale.is_some() {
                    codes::write(b, cache, false, from, &to);
                } else {
                    let to = to.start;
                    move_head(b, &Head { from, to, width: cache.value_width, number }, None);
                }
            });
        });
        b.ret(&[]);
    })
}
