//! Scores that are drawn by lot.

use std::mem::offset_of;

use weir_abi::PromptCall;

use super::prompt_pointer;
use super::runs::{Runs, candidates};
use crate::emit::{
    Assembly, Body, EmitError, FuncId, INT, InstBuilder, POINTER, Value, segment_signature,
};
use crate::kernels::attention::AttendSpec;
use crate::kernels::lots;

/// The segment where scores are drawn by lot: one for all levels.
pub(super) fn emit_lots(
    assembly: &mut Assembly,
    name: &str,
    spec: &AttendSpec,
    seed: u32,
) -> Result<FuncId, EmitError> {
    if let Some(known) = assembly.find(name) {
        return Ok(known);
    }
    let id = assembly.declare(name, segment_signature())?;
    assembly.define(id, |b| {
        let (context, thread, threads) = b.segment_params();
        draw_lots(b, spec, seed, context, [thread, threads]);
        b.barrier(context, thread);
        b.ret(&[]);
    })?;
    Ok(id)
}

/// Scores by lot.
fn draw_lots(b: &mut Body<'_>, spec: &AttendSpec, seed: u32, context: Value, team: [Value; 2]) {
    let prompt = prompt_pointer(b, context);
    let scores = b.load(POINTER, prompt, offset_of!(PromptCall, scores) as i32);
    let rows = b.load_count(prompt, offset_of!(PromptCall, rows) as i32);
    let layer = b.load(INT, prompt, offset_of!(PromptCall, layer) as i32);
    let bounds = candidates(b, prompt, rows);
    let runs = Runs::new(b, bounds, spec.cache.kv_heads, team);
    runs.for_rows(b, |b, head, place| {
        let hash = lots::hash(b, seed, layer, head, place);
        let low = b.int32(8);
        let number = b.ins().ushr(hash, low);
        let number = b.to_float(number);
        let most = b.float((1 << 24) as f32);
        let lot = b.fdiv(number, most);
        let to = b.mul(head, rows);
        let to = b.add(to, place);
        let to = b.element(scores, to, 4);
        b.store(lot, to, 0);
    });
}
