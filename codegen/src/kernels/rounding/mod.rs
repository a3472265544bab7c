//! Rows on their way into a product: computed, and rounded to signed bytes or bf16, in one pass.
//!
//! What lies in front of a product is part of its rounding: the row as it is, its RMS norm, or a
//! gated product of two rows. Nothing but what products read ([`Activation`]) is written; values are those
//! of the separate kernels, bit for bit, on every level: the norm's sum has the sixteen lanes of `norm`, the
//! gate is the function of `map`, blocks are rounded as by `quantise` (but that numbers below 2⁻¹²⁶ become
//! zero where pairs of bf16 are multiplied, which takes them for it). Their error bounds hold unchanged.
//!
//! Threads divide blocks of codes, or parts of 64 numbers of bf16, not rows: with one row every thread has a
//! part, and each sums the whole row for its norm, which costs less than a barrier between a norm and its
//! readers. Where a row has one scale ([`Scaling::Row`](super::matmul::Scaling::Row)) each also computes the
//! whole row once to find its largest magnitude, and its own blocks a second time to round them: no memory
//! for rows, and values of both passes are equal, for each depends on its own operands and the norm's factor alone.
//!
//! | file | job |
//! |---|---|
//! | `portable` | 128-bit vectors by Cranelift; any block and gate |
//! | `wide` | 256-bit vectors, assembled, for all other levels; gate and codes in 512 bits where there are such, and pairs of bf16 |

mod portable;
mod wide;

use weir_abi::IsaLevel;
use weir_ir::ops::unary::UnaryOp;

use super::map::MapOp;
use super::matmul::{Activation, CHUNK, Form, Halves, emit_quantise, has_pair_products};
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
    /// What is written.
    pub activation: Activation,
    /// The values.
    pub source: Source,
    /// Bytes from one row of records to the next.
    pub record_stride: usize,
}

/// Rows in parts, which threads divide.
#[derive(Clone, Copy)]
struct Parts {
    /// Elements of a row.
    reduction: usize,
    /// Elements of a part, and bytes that are written of them.
    elements: usize,
    bytes: usize,
    /// Parts of a row, the last of which may have fewer elements.
    count: usize,
    /// Floats from row to row of the first operand.
    input_stride: usize,
    /// Bytes from row to row of what is written.
    row_bytes: usize,
}

impl Parts {
    fn are_whole(&self) -> bool {
        self.reduction == self.elements * self.count
    }
}

/// Rows rounded to signed bytes, whose parts are blocks.
#[derive(Clone, Copy)]
struct Blocks {
    parts: Parts,
    /// A block's record.
    form: Form,
}

/// What is written.
#[derive(Clone, Copy)]
enum Rounded {
    Codes(Blocks),
    Halves(Parts, Halves),
}

impl Rounded {
    fn parts(&self) -> &Parts {
        match self {
            Rounded::Codes(Blocks { parts, .. }) | Rounded::Halves(parts, _) => parts,
        }
    }
}

/// The longest vectors of the assembled version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vectors {
    Of256Bits,
    Of512Bits,
}

impl RoundingSpec {
    /// Whole rows of records.
    pub fn new(activation: Activation, source: Source) -> Self {
        Self { activation, source, record_stride: activation.row_bytes() }
    }

    /// A part of each row of records, of so many elements, whose operands begin `stride` floats apart.
    pub fn of_part(rows: Activation, source: Source, elements: usize, stride: usize) -> Self {
        let activation = rows.of_part(elements, stride);
        Self { activation, source, record_stride: rows.row_bytes() }
    }

    /// What a level's kernels make.
    pub fn at(self, level: IsaLevel) -> Self {
        let is_whole = self.record_stride == self.activation.row_bytes();
        let activation = self.activation.at(level);
        let record_stride = if is_whole { activation.row_bytes() } else { self.record_stride };
        Self { activation, record_stride, ..self }
    }

    fn rounded(&self) -> Rounded {
        let row_bytes = self.record_stride;
        match self.activation {
            Activation::Bf16 { reduction, input_stride, halves } => {
                let (bytes, count) =
                    (self.activation.item_bytes(), self.activation.items_per_row());
                let elements = CHUNK;
                Rounded::Halves(
                    Parts { reduction, elements, bytes, count, input_stride, row_bytes },
                    halves,
                )
            }
            Activation::Int8 { reduction, block, blocks, input_stride, scaling, in_bf16 } => {
                let form = Form { block, scaling, in_bf16 };
                let (elements, bytes, count) = (block, form.record_bytes(), blocks);
                let parts = Parts { reduction, elements, bytes, count, input_stride, row_bytes };
                Rounded::Codes(Blocks { parts, form })
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

    /// What is written, if the assembled version serves: whole parts, and a gate that it knows; and its
    /// longest vectors.
    fn wide(&self, level: IsaLevel) -> Option<(Rounded, Vectors)> {
        let rounded = self.rounded();
        let is_known = match self.source {
            Source::Row | Source::RmsNorm { .. } => true,
            Source::Gated { activation, .. } => activation == UnaryOp::Silu,
        };
        let vectors = match rounded {
            _ if level == IsaLevel::Portable => return None,
            Rounded::Halves(_, Halves::Pairs) if has_pair_products(level) => Vectors::Of512Bits,
            Rounded::Halves(..) => return None,
            Rounded::Codes(_) if level >= IsaLevel::Avx512 => Vectors::Of512Bits,
            Rounded::Codes(blocks) if blocks.form.in_bf16 => return None,
            Rounded::Codes(_) => Vectors::Of256Bits,
        };
        (rounded.parts().are_whole() && is_known).then_some((rounded, vectors))
    }
}

/// Emits (input, second operand if the source has one, output, first part, part behind the last); parts of
/// all rows are counted through, as the items of [`emit_quantise`].
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
    if let Some((rounded, vectors)) = spec.wide(level) {
        let id = assembly.declare(&symbol, signature)?;
        assembly.assemble(id, |code| wide::assemble(code, &rounded, spec.source, vectors))?;
        return Ok(id);
    }
    if !spec.has_second() && spec.record_stride == spec.activation.row_bytes() {
        return emit_quantise(assembly, spec.activation);
    }
    let id = assembly.declare(&symbol, signature)?;
    portable::define(assembly, id, &spec.rounded(), spec.source)?;
    Ok(id)
}
