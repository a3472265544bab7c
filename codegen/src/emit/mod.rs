//! Emission: how kernels and segments become one run of machine code.
//!
//! [`Assembly`] collects functions and lays them out as one
//! [`CodeImage`](crate::image::CodeImage). A function is either written with [`Body`], a small
//! vocabulary over Cranelift's builder (128-bit vectors), or assembled directly and added as bytes
//! (256 and 512 bits, which Cranelift does not lower). Both kinds call each other by [`FuncId`].
//!
//! ```
//! use weir_codegen::emit::{Assembly, FLOAT, Lanes, POINTER, signature};
//!
//! # fn main() -> Result<(), weir_codegen::emit::EmitError> {
//! let mut assembly = Assembly::new()?;
//! // silu(x, y, n): y[i] = x[i] * sigmoid(x[i])
//! let silu = assembly.declare("silu", signature(&[POINTER, POINTER, POINTER], &[]))?;
//! assembly.define(silu, |b| {
//!     let [x, y, n] = b.params();
//!     let zero = b.int(0);
//!     b.for_lanes(zero, n, |b, index, lanes| {
//!         let from = b.element(x, index, 4);
//!         let to = b.element(y, index, 4);
//!         let value = b.load(lanes.float(), from, 0);
//!         let gate = b.sigmoid(value);
//!         let product = b.fmul(value, gate);
//!         b.store(product, to, 0);
//!     });
//!     b.ret(&[]);
//! })?;
//! let image = assembly.finish()?;
//! assert_eq!(image.symbols[0].name, "silu");
//! # let _ = (Lanes::Four, FLOAT);
//! # Ok(())
//! # }
//! ```
//!
//! | file | job |
//! |---|---|
//! | `assembly` | declarations, definitions, relocation, layout of the code region |
//! | `body` | the vocabulary: values, memory, loops, calls, team |
//! | `convert` | halves, bf16 and bytes in memory, floats in registers |
//! | `math` | exp, ln, tanh, sigmoid, erf on lanes, with error bounds |
//! | `double` | sin, cos, pow through doubles |
//! | `listing` | disassembly of a finished image |
//!
//! Integers that count or address are `i64`; floats are `f32` or four lanes of it. Every operation
//! of [`Body`] on floats takes scalars and vectors alike, so one closure serves a vector loop and
//! its remainder.

mod assembly;
mod body;
mod convert;
mod double;
mod listing;
mod math;

#[cfg(test)]
mod tests;

pub use assembly::{Assembly, EmitError, FuncId, segment_signature, signature};
pub use body::{BYTES, Body, FLOAT, INT, INTS, LANES, Lanes, POINTER, Work};
pub use cranelift_codegen::ir::condcodes::{FloatCC, IntCC};
pub use cranelift_codegen::ir::{InstBuilder, Signature, Type, Value, types};
pub use listing::disassemble;
pub(crate) use math::{EXP_RANGE, EXP_SERIES, MINUS_LN2};
