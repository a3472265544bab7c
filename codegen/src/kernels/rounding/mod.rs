//! Rows on their way into an integer product: computed, and rounded to signed bytes, in one pass.
//!
//! What lies in front of a product is part of its rounding: the row as it is, its RMS norm, or a
//! gated product of two rows. Nothing but the records that products read
//! ([`Activation::Int8`]) is written; values are those of the separate kernels, bit for bit, on
//! every level: the norm's sum has the sixteen lanes of `norm`, the gate is the function of `map`,
//! blocks are rounded as by `quantise`. Their error bounds hold unchanged.
//!
//! Threads divide blocks, not rows: with one row every thread has a part, and each sums the whole
//! row for its norm, which costs less than a barrier between a norm and its readers. Where a row has
//! one scale ([`Scaling::Row`](super::matmul::Scaling::Row)) each also computes the whole row once to
//! find its largest magnitude, and its own blocks a second time to round them: no memory for rows, and
//! values of both passes are equal, for each depends on its own operands and the norm's factor alone.
//!
//! | file | job |
//! |---|---|
//! | `portable` | 128-bit vectors by Cranelift; any block and gate |
//! | `wide` | 256-bit vectors, assembled, for all other levels; gate and codes in 512 bits where there are such |

mod portable;
mod wide;

use weir_abi::IsaLevel;
use weir_ir::ops::unary::UnaryOp;

use super::map::MapOp;
use super::matmul::{Activation, Form, emit_quantise};
use crate::emit::{Assembly, EmitError, FuncId, POINTER, signature};

/// Where the values of a row come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// The row itself.
    Row,
    /// x / sqrt(mean(x²) + ε) · weight; the weight is the second operand.
    RmsNorm {
        /// ε.
        epsilon: f32,
    },
    /// activation(gate) · up; up is the second operand.
    Gated {
        /// The activation.
        activation: UnaryOp,
        /// Floats from one row of up to the next.
        up_stride: usize,
    },
}

/// What is rounded, and how.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundingSpec {
    /// The records. Only a [`Source::Row`] may be rounded to bf16.
    pub activation: Activation,
    /// The values.
    pub source: Source,
    /// Bytes from one row of records to the next; those of whole rows for [`Source::Row`].
    pub record_stride: usize,
}

/// An [`Activation::Int8`] taken apart.
#[derive(Clone, Copy)]
struct Blocks {
    /// Elements of a row.
    reduction: usize,
    /// A block's record.
    form: Form,
    /// Blocks of a row.
    count: usize,
    /// Floats from row to row of the first operand.
    input_stride: usize,
    /// Bytes from row to row of the records.
    row_bytes: usize,
}

/// The longest vectors of the assembled version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vectors {
    Of256Bits,
    Of512Bits,
}

impl Blocks {
    fn record_bytes(&self) -> usize {
        self.form.record_bytes()
    }
}

impl RoundingSpec {
    /// Whole rows of records.
    pub fn new(activation: Activation, source: Source) -> Self {
        Self { activation, source, record_stride: activation.row_bytes() }
    }

    /// What a level's kernels make.
    pub fn at(self, level: IsaLevel) -> Self {
        let is_whole = self.record_stride == self.activation.row_bytes();
        let activation = self.activation.at(level);
        let record_stride = if is_whole { activation.row_bytes() } else { self.record_stride };
        Self { activation, record_stride, ..self }
    }

    fn blocks(&self) -> Option<Blocks> {
        match self.activation {
            Activation::Bf16 { .. } => None,
            Activation::Int8 { reduction, block, blocks, input_stride, scaling, in_bf16 } => {
                Some(Blocks {
                    reduction,
                    form: Form { block, scaling, in_bf16 },
                    count: blocks,
                    input_stride,
                    row_bytes: self.record_stride,
                })
            }
        }
    }

    /// Whether the kernel has a second operand.
    pub fn has_second(&self) -> bool {
        self.source != Source::Row
    }

    /// Symbol of the kernel: equal exactly for equal kernels.
    pub fn symbol(&self, level: IsaLevel) -> String {
        let mut rounded = self.activation.symbol();
        if self.record_stride != self.activation.row_bytes() {
            rounded.push_str(&format!("-r{}", self.record_stride));
        }
        let version = match self.wide(level) {
            None => "",
            Some((_, Vectors::Of256Bits)) => "-wide",
            Some((_, Vectors::Of512Bits)) => "-avx512",
        };
        match self.source {
            Source::Row => format!("{rounded}{version}"),
            Source::RmsNorm { epsilon } => {
                format!("rms_norm-e{:08x}-{rounded}{version}", epsilon.to_bits())
            }
            Source::Gated { activation, up_stride } => {
                let gate = MapOp::Gated(activation).name();
                format!("{gate}-u{up_stride}-{rounded}{version}")
            }
        }
    }

    /// The blocks, if the assembled version serves: whole ones, and a gate that it knows; and its
    /// longest vectors.
    fn wide(&self, level: IsaLevel) -> Option<(Blocks, Vectors)> {
        let blocks = self.blocks()?;
        let is_whole = blocks.reduction == blocks.form.block * blocks.count;
        let is_known = match self.source {
            Source::Row | Source::RmsNorm { .. } => true,
            Source::Gated { activation, .. } => activation == UnaryOp::Silu,
        };
        let vectors = match level {
            IsaLevel::Portable => return None,
            _ if level >= IsaLevel::Avx512 => Vectors::Of512Bits,
            _ if blocks.form.in_bf16 => return None,
            _ => Vectors::Of256Bits,
        };
        (is_whole && is_known).then_some((blocks, vectors))
    }
}

/// Emits (input, second operand if the source has one, output, first block, block behind the last);
/// blocks of all rows are counted through. bf16 counts the items of [`emit_quantise`].
pub fn emit_rounding(
    assembly: &mut Assembly,
    spec: &RoundingSpec,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    let symbol = spec.symbol(level);
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let params = if spec.has_second() { 5 } else { 4 };
    let signature = signature(&[POINTER].repeat(params), &[]);
    if let Some((blocks, vectors)) = spec.wide(level) {
        let id = assembly.declare(&symbol, signature)?;
        assembly.assemble(id, |code| wide::assemble(code, &blocks, spec.source, vectors))?;
        return Ok(id);
    }
    match spec.blocks() {
        Some(blocks) if spec.has_second() => {
            let id = assembly.declare(&symbol, signature)?;
            portable::define(assembly, id, &blocks, spec.source)?;
            Ok(id)
        }
        _ => {
            debug_assert_eq!(spec.record_stride, spec.activation.row_bytes(), "whole rows");
            emit_quantise(assembly, spec.activation)
        }
    }
}
