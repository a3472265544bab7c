//! Writes keys and values of rows into the cache, keys rotated on their way where a model rotates
//! them.
//!
//! A rotated key exists in the cache only: nothing else reads it. It is computed as by `rotary` and
//! rounded as by [`CacheType`](super::attention::CacheType), so both versions give the bits of the
//! separate kernels.
//!
//! | file | job |
//! |---|---|
//! | `portable` | 128-bit vectors by Cranelift; any width |
//! | `wide` | 256-bit vectors, assembled, for all other levels |
//! | `codes` | rounding rows to codes in them |
//! | `sample` | what is overwritten is copied to the reservoir first, where a layer has one |

mod codes;
mod portable;
mod sample;
mod wide;

use weir_abi::IsaLevel;

use super::attention::CacheShape;
use super::rotary::Rotation;
use crate::emit::{Assembly, EmitError, FuncId, POINTER, signature};

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

/// Emits (context, keys, values, cosines, sines, first row, row behind the last). Without a rotation
/// cosines and sines are not read.
pub fn emit_append(
    assembly: &mut Assembly,
    spec: &AppendSpec,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    let Some(seed) = spec.reservoir else { return emit_write(assembly, spec, level) };
    let symbol = format!("{}-sample{seed:08x}", spec.symbol(level));
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 7], &[]))?;
    let write = emit_write(assembly, spec, level)?;
    sample::define(assembly, id, &spec.cache, seed, write)?;
    Ok(id)
}

/// The kernel that writes, with the same arguments.
fn emit_write(
    assembly: &mut Assembly,
    spec: &AppendSpec,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    let symbol = spec.symbol(level);
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, signature(&[POINTER; 7], &[]))?;
    if spec.is_wide(level) {
        assembly.assemble(id, |code| wide::assemble(code, spec))?;
    } else {
        portable::define(assembly, id, spec)?;
    }
    Ok(id)
}
