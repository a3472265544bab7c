//! Writes keys and values of rows into the cache, keys rotated on their way where a model rotates
//! them.
//!
//! A rotated key exists in the cache only: nothing else reads it. It is computed as by `rotary` and
//! rounded as by [`CacheType`](super::attention::CacheType), so both versions give the bits of the
//! separate kernels. Where the immutable block has a number format of its own there is one kernel for it
//! and one for the ring, and each row goes to that of its part.
//!
//! | file | job |
//! |---|---|
//! | `portable` | 128-bit vectors by Cranelift; any width |
//! | `wide` | 256-bit vectors, assembled, for all other levels |
//! | `wide/rows` | a row, and the four of a quad |
//! | `codes` | rounding rows to codes in them |
//! | `sample` | what is overwritten is copied to the reservoir first, where a layer has one |

mod codes;
mod portable;
mod sample;
mod wide;

use std::mem::offset_of;

use weir_abi::{IsaLevel, LayerCall, RowSpans, StepContext};

use super::attention::{CacheShape, is_block};
use super::rotary::Rotation;
use crate::emit::{Assembly, Body, EmitError, FuncId, POINTER, signature};

/// Arguments of the kernels.
const ARGUMENTS: usize = 9;

/// What is written, and from where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendSpec {
    /// The cache.
    pub cache: CacheShape,
    /// Floats from row to row of the keys, from head to head.
    pub key: (usize, usize),
    /// The same of the values.
    pub value: (usize, usize),
    /// Rotation of the keys.
    pub rotation: Option<Rotation>,
    /// Seed of the lots for the reservoir; none if no layer of the kind has one.
    pub reservoir: Option<u32>,
}

impl AppendSpec {
    /// Symbol of the kernel that writes: equal exactly for equal kernels.
    fn symbol(&self, level: IsaLevel) -> String {
        let (key, value) = (self.key, self.value);
        let rotation = self.rotation.map_or(String::new(), |rotation| {
            let kind = if rotation.interleaved { "i" } else { "" };
            format!("-rotary{}{kind}", rotation.width)
        });
        format!(
            "append-{}-k{}.{}-v{}.{}{rotation}{}",
            self.cache.symbol(),
            key.0,
            key.1,
            value.0,
            value.1,
            if self.is_wide(level) { "-wide" } else { "" }
        )
    }

    /// Whether the assembled version serves: rows of whole vectors, halves of a rotation too.
    fn is_wide(&self, level: IsaLevel) -> bool {
        let mut widths = vec![self.cache.key_width, self.cache.value_width];
        widths.extend(self.rotation.map(|rotation| match rotation.interleaved {
            true => rotation.width,
            false => rotation.width / 2,
        }));
        level != IsaLevel::Portable && widths.iter().all(|width| width.is_multiple_of(wide::LANES))
    }
}

/// Emits (context, keys, values, cosines, sines, first row, row behind the last, first key/value head,
/// head behind the last). Without a rotation cosines and sines are not read.
pub fn emit_append(
    assembly: &mut Assembly,
    spec: &AppendSpec,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    let Some(seed) = spec.reservoir else { return emit_parts(assembly, spec, level) };
    let symbol = format!("{}-sample{seed:08x}", spec.symbol(level));
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; ARGUMENTS], &[]))?;
    let write = emit_parts(assembly, spec, level)?;
    sample::define(assembly, id, &spec.cache, seed, write)?;
    Ok(id)
}

/// The kernel that writes each row in the format of the part that it comes to, with the same arguments.
fn emit_parts(
    assembly: &mut Assembly,
    spec: &AppendSpec,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    let Some(block) = spec.cache.of_block() else {
        return emit_write(assembly, spec, level, false);
    };
    let symbol = spec.symbol(level);
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; ARGUMENTS], &[]))?;
    let of_part = |cache| AppendSpec { cache, ..*spec };
    let block = emit_write(assembly, &of_part(block), level, false)?;
    let ring = emit_write(assembly, &of_part(spec.cache.of_ring()), level, true)?;
    assembly.define(id, |b| {
        let [context, keys, values, cos, sin, begin, end, first, last] = b.params();
        let layer = b.load(POINTER, context, offset_of!(StepContext, layer) as i32);
        let spans = b.load(POINTER, layer, offset_of!(LayerCall, spans) as i32);
        b.for_range(begin, end, 1, |b, row| {
            let span = b.element(spans, row, size_of::<RowSpans>() as i64);
            let place = b.load_count(span, offset_of!(RowSpans, write_row) as i32);
            let is_block = is_block(b, layer, place);
            let behind = b.add_const(row, 1);
            let arguments = [context, keys, values, cos, sin, row, behind, first, last];
            let call = |function| {
                move |b: &mut Body<'_>| {
                    b.call(function, &arguments);
                    Vec::new()
                }
            };
            b.if_else(is_block, call(block), call(ring));
        });
        b.ret(&[]);
    })?;
    Ok(id)
}

/// The kernel that writes rows of one format; `is_ring` for the ring's part of a cache with two.
fn emit_write(
    assembly: &mut Assembly,
    spec: &AppendSpec,
    level: IsaLevel,
    is_ring: bool,
) -> Result<FuncId, EmitError> {
    let symbol = format!("{}{}", spec.symbol(level), if is_ring { "-ring" } else { "" });
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; ARGUMENTS], &[]))?;
    if spec.is_wide(level) {
        assembly.assemble(id, |code| wide::assemble(code, spec, is_ring))?;
    } else {
        portable::define(assembly, id, spec, is_ring)?;
    }
    Ok(id)
}
