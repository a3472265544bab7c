//! Matrix product with a packed weight: `y[M, N] = x[M, K] · W[N, K]ᵀ (+ bias[N]) (+ residual[M, N])`.
//!
//! # Order of sums
//!
//! An output is one chain of operations that depends on its row and channel only, never on M, on
//! the thread or on the ISA level: all versions give the same bits.
//!
//! * [`Compute::F32`], [`Compute::Bf16`]: `acc = 0; acc = fma(x[k], w[k], acc)` for k ascending. A
//!   quantised element is `(code - zero) · scale`, each step rounded to f32. Where both factors are bf16
//!   the levels `avx512-pairs` and `amx` take numbers below 2⁻¹²⁶ for zero, as their instruction does
//!   (`avx512/halves.rs`): the one place where their bits can be others.
//! * [`Compute::Int8`]: per activation block, in order, with exact integer sums:
//!   `t = fma(-zero, Σ a, Σ code·a); acc = fma(t, weight_scale · activation_scale, acc)`. The first
//!   fma is exact when the zero point is whole, and a version may then take the zero point, or any
//!   part of it, into its integer sums. [`Compute::Int8Row`] is the same kernel over the same records;
//!   only the scales in them are others. Where activation scales are powers of two a version computes
//!   `acc = fma(t · activation_scale, weight_scale, acc)`, which has the same bits (`quantise`).
//!
//! Then bias and residual are added, in this order, each if the specification has it.
//!
//! # Error bounds
//!
//! With u = 2⁻²⁴, `S = Σ |x[k]·w[k]| + |bias| + |residual|` and w as the format holds it:
//!
//! * `F32`: |y - exact| ≤ (K + 2)·u·S (first order), Higham, *Accuracy and Stability*, section 3.1;
//!   one more u·S for each of the two roundings of a quantised element.
//! * `Bf16`: in addition 2⁻⁸·S, for each activation is off by at most half a unit of 8 bits.
//! * `Int8`: in addition Σ over blocks of (max |x| in the block) / 240 · `Σ |w[k]|` of the block,
//!   for each activation is off by at most half of its scale, max |x| / 120.1 (twice as much where
//!   scales are powers of two: those are below max |x| / 60.25); a float zero point costs
//!   u·|zero · Σ a| · scales more. For `Int8Row` the block is the row: (max |x|) / 240 · `Σ |w[k]|`.
//!   [`activation_error`] computes it. Against the rounded activations,
//!   of which S̃ is the sum of sizes, an output has a rounding per block, one for the product of the
//!   scales, one for t, bias and residual: (blocks + 4)·u·S̃.
//!
//! Operations whose result is subnormal are off by 2⁻¹⁵⁰ at most instead; where such numbers count as
//! zero, by 2⁻¹²⁶, and a factor that does by 2⁻¹²⁶ times the other one.
//!
//! # Calling
//!
//! All versions have one signature, [`kernel_signature`]: input rows, packed weight, output, bias,
//! residual, rows, first group, group behind the last. Bias is padded to whole groups
//! ([`pack_bias`](crate::pack::pack_bias)). Threads divide the groups of channels. The residual may
//! be the output itself. For `Bf16` and `Int8` the input rows are those that
//! [`emit_quantise`] wrote, before a barrier.

mod amx;
mod assembled;
mod avx2;
mod avx512;
mod chunks;
mod decode;
mod portable;
mod quantise;
mod row;

#[cfg(test)]
mod tests;

use avx2::Products;
use avx512::ManyRows;

pub use quantise::{Activation, Halves, Scaling, emit_quantise};
pub(in crate::kernels) use quantise::{
    BEGIN, CHUNK, EXPONENT, Form, LIMIT_OF_POWERS, MINUS_SUM, NEGLIGIBLE, NEGLIGIBLE_OF_POWERS,
    PAIRS_BEGIN, POWER_CARRY, POWER_INVERSE, POWER_LOWERED, TO_ANCHOR, UNITS, VALUE_ORDER,
    for_rows, largest_of_row, paired_eights, quantise_block, round_chunk, values_at, zeros_behind,
};
pub use row::emit_unpack_row;

use weir_abi::IsaLevel;

use crate::emit::{Assembly, EmitError, FuncId, POINTER, Signature, signature};
use crate::pack::{Blocks, GROUP, PackedLayout, WeightFormat};

/// Groups of channels that the widest tile of any level has: a part of a product is best a multiple.
pub const TOGETHER: usize = 4;

/// Least rows of a product that threads take in parts: with fewer, reading the weights is what it waits
/// for, and memory gives one stream of them faster than several.
pub const LEAST_IN_PARTS: usize = 8;
/// Multiplications a thread of such a product. It takes some tens of microseconds then, and a part, of
/// which there may be ten a thread, longer than asking for it.
pub const MULTIPLICATIONS_IN_PARTS: usize = 1 << 25;

/// Arithmetic of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compute {
    /// Activations and weights in f32.
    F32,
    /// Activations rounded to bf16 (nearest even), products and sums in f32.
    Bf16,
    /// Activations in signed bytes with a scale per block; weights of format `Int4` or `Int8`.
    Int8,
    /// Activations in signed bytes with one scale for the whole row; weights as for `Int8`.
    Int8Row,
}

impl Compute {
    /// Name in options and symbols.
    pub fn name(self) -> &'static str {
        match self {
            Compute::F32 => "f32",
            Compute::Bf16 => "bf16",
            Compute::Int8 => "int8",
            Compute::Int8Row => "int8-row",
        }
    }

    /// Over what activations share a scale, if they are signed bytes.
    pub fn scaling(self) -> Option<Scaling> {
        match self {
            Compute::F32 | Compute::Bf16 => None,
            Compute::Int8 => Some(Scaling::Block),
            Compute::Int8Row => Some(Scaling::Row),
        }
    }

    /// Whether products are sums of integers.
    pub fn is_integer(self) -> bool {
        self.scaling().is_some()
    }
}

/// Whether a level's processors all have `vdpbf16ps`.
pub(super) fn has_pair_products(level: IsaLevel) -> bool {
    matches!(level, IsaLevel::Avx512Pairs | IsaLevel::Amx)
}

/// Outputs whose runs of channels, of heads say, lie in memory of their own each, with all rows of a run
/// together: what one thread writes and reads then shares no page with what another one does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Apart {
    /// Groups of a run, a power of two, [`TOGETHER`] at least.
    pub groups: usize,
    /// Floats from the begin of one run to the next one's.
    pub stride: usize,
}

impl Apart {
    /// Runs of so many channels, if they can lie apart.
    pub fn of(channels: usize, stride: usize) -> Option<Self> {
        let groups = channels / GROUP;
        let is_possible = channels.is_multiple_of(GROUP)
            && groups.is_power_of_two()
            && groups >= TOGETHER
            && stride <= i32::MAX as usize / 4;
        is_possible.then_some(Self { groups, stride })
    }
}

/// What a matrix product computes: shapes, format, arithmetic, epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatmulSpec {
    /// The weight.
    pub layout: PackedLayout,
    /// The arithmetic.
    pub compute: Compute,
    /// Adds a bias.
    pub bias: bool,
    /// Adds a residual, whose rows lie as the output's.
    pub residual: bool,
    /// Floats from one f32 input row to the next: of the kernel for `F32`, else of the quantiser.
    pub input_stride: usize,
    /// Floats from one output row to the next, of a run where these lie apart.
    pub output_stride: usize,
    /// Whether runs of outputs lie apart; then there is no residual, and all runs are whole.
    pub apart: Option<Apart>,
    /// Whether input rows have their values in bf16, beside the codes of int8 or instead of the f32 of
    /// bf16: see [`MatmulSpec::at`].
    pub in_bf16: bool,
}

impl MatmulSpec {
    /// A product with dense rows, without bias and residual.
    pub fn new(layout: PackedLayout, compute: Compute) -> Self {
        Self {
            layout,
            compute,
            bias: false,
            residual: false,
            input_stride: layout.reduction,
            output_stride: layout.channels,
            apart: None,
            in_bf16: false,
        }
    }

    /// The same product with input rows as a level's kernel reads them.
    pub fn at(self, level: IsaLevel) -> Self {
        let in_tiles = level == IsaLevel::Amx && amx::multiplies_values(&self);
        let in_pairs = has_pair_products(level) && self.is_all_bf16();
        Self { in_bf16: in_tiles || in_pairs, ..self }
    }

    /// Whether both factors are bf16.
    pub fn is_all_bf16(&self) -> bool {
        (self.layout.format, self.compute) == (WeightFormat::Bf16, Compute::Bf16)
    }

    /// Whether kernels for this specification exist, and if not why.
    pub fn supported(&self) -> Result<(), &'static str> {
        if self.layout.channels == 0 || self.layout.reduction == 0 {
            return Err("an empty weight");
        }
        let largest = self.layout.channels.max(self.layout.reduction);
        if largest.max(self.input_stride).max(self.output_stride) > i32::MAX as usize {
            return Err("a dimension beyond 31 bits");
        }
        // Addresses inside a tile are 32-bit displacements, of at most sixteen rows or four groups.
        let span = self.layout.group_bytes().max(self.input_stride * 4).max(self.output_stride * 4);
        if span > i32::MAX as usize / 16 {
            return Err("a row of more than 128 MB");
        }
        if let Some(Apart { groups, stride }) = self.apart
            && (self.residual
                || !self.layout.channels.is_multiple_of(groups * GROUP)
                || Apart::of(groups * GROUP, stride).is_none())
        {
            return Err("runs of outputs that can't lie apart");
        }
        match self.layout.format.blocks() {
            Some(blocks)
                if blocks.block % 16 != 0 || !(16..=Blocks::LARGEST).contains(&blocks.block) =>
            {
                Err("a block that is not a multiple of 16 from 16 to 256")
            }
            None if self.compute.is_integer() => Err("int8 arithmetic with float weights"),
            _ => Ok(()),
        }
    }

    /// What the kernel reads instead of the f32 rows; nothing if it reads these themselves.
    pub fn activation(&self) -> Option<Activation> {
        Activation::of(self)
    }

    /// Bytes from one input row of the kernel to the next.
    pub fn input_row_bytes(&self) -> usize {
        self.activation().map_or(self.input_stride * 4, |activation| activation.row_bytes())
    }

    /// Bytes from one activation block's record to the next; 0 where rows have none.
    fn record_bytes(&self) -> usize {
        self.activation().and_then(Activation::form).map_or(0, Form::record_bytes)
    }

    /// Whether integer sums begin as the bits of a float (see `quantise`): `t · activation_scale` is that
    /// float less its anchor, and `acc = fma(t · activation_scale, weight_scale, acc)`.
    fn is_anchored(&self) -> bool {
        let form = self.activation().and_then(Activation::form);
        form.is_some_and(|form| form.scaling == Scaling::Power)
    }

    /// Groups of channels that threads divide.
    pub fn groups(&self) -> usize {
        self.layout.groups()
    }

    /// Multiplications of a row.
    pub fn multiplications(&self) -> usize {
        // Both are below 2³¹, see `supported`.
        self.layout.channels * self.layout.reduction
    }

    /// Rows that a level's kernel computes before it walks the weights again where there is room for so
    /// many: whole steps of its largest tiles.
    pub fn portion_rows(&self, level: IsaLevel, room: usize) -> usize {
        let portion = match self.version(level) {
            IsaLevel::Amx => amx::portion(self),
            IsaLevel::Avx512 => avx512::portion(self, ManyRows::Single),
            IsaLevel::Avx512Pairs => avx512::portion(self, ManyRows::Paired),
            IsaLevel::Portable | IsaLevel::Avx2 | IsaLevel::AvxVnni => assembled::PORTION,
        };
        (portion.rows(self).min(room) / portion.step * portion.step).max(portion.step)
    }

    /// Channels of the last group, if it is not full.
    fn tail(&self) -> usize {
        self.layout.channels % GROUP
    }

    /// The level whose code computes this specification on `level`: AVX-VNNI, AVX-512 in pairs and AMX
    /// have integer products of their own, and the latter two share those of pairs of bf16.
    fn version(&self, level: IsaLevel) -> IsaLevel {
        if self.in_bf16 && self.is_all_bf16() {
            return IsaLevel::Avx512Pairs;
        }
        match (level, self.compute) {
            (IsaLevel::AvxVnni, Compute::F32 | Compute::Bf16) => IsaLevel::Avx2,
            (IsaLevel::Avx512Pairs, Compute::F32 | Compute::Bf16) => IsaLevel::Avx512,
            (IsaLevel::Amx, _) if !amx::serves(self) => IsaLevel::Avx512,
            _ => level,
        }
    }

    /// Symbol of the kernel: equal exactly for equal kernels.
    pub fn symbol(&self, level: IsaLevel) -> String {
        // Whether a record's scale was taken over a block or a row is nothing that a product sees.
        let compute = if self.compute.is_integer() { Compute::Int8 } else { self.compute };
        format!(
            "matmul-{}-{}-{}x{}{}{}{}{}-x{}-y{}{}-{}",
            self.layout.format.name(),
            compute.name(),
            self.layout.channels,
            self.layout.reduction,
            if self.bias { "-bias" } else { "" },
            if self.residual { "-residual" } else { "" },
            if self.is_anchored() { "-anchored" } else { "" },
            if self.in_bf16 { "-bf16" } else { "" },
            self.input_row_bytes(),
            self.output_stride,
            self.apart
                .map_or(String::new(), |Apart { groups, stride }| format!("-{groups}at{stride}")),
            self.version(level).name(),
        )
    }
}

/// Signature of every version: input, weight, output, bias, residual, rows, first group, group
/// behind the last, [`reads_far`](weir_abi::StepContext::reads_far). Pointers without a use may be null.
pub fn kernel_signature() -> Signature {
    signature(&[POINTER; 9], &[])
}

/// Emits the kernel for a level, once for all that ask for it.
///
/// # Panics
///
/// If the specification is not [`supported`](MatmulSpec::supported).
pub fn emit_matmul(
    assembly: &mut Assembly,
    spec: &MatmulSpec,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    spec.supported().expect("the specification was checked");
    let symbol = spec.symbol(level);
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let id = assembly.declare(&symbol, kernel_signature())?;
    match spec.version(level) {
        IsaLevel::Portable => portable::define(assembly, id, spec)?,
        IsaLevel::Avx2 => avx2::define(assembly, id, spec, Products::Pairs)?,
        IsaLevel::AvxVnni => avx2::define(assembly, id, spec, Products::Vnni)?,
        IsaLevel::Avx512 => avx512::define(assembly, id, spec, ManyRows::Single)?,
        IsaLevel::Avx512Pairs => avx512::define(assembly, id, spec, ManyRows::Paired)?,
        IsaLevel::Amx => amx::define(assembly, id, spec)?,
    }
    Ok(id)
}

/// Bound on the error that rounded activations alone cause in one output, given the row of the
/// input and of the weight (as the format holds it).
pub fn activation_error(spec: &MatmulSpec, input: &[f32], weight: &[f32]) -> f64 {
    // Half a unit, and a little for the roundings of scale and quotient themselves.
    let (together, step) = match spec.activation() {
        None => return 0.0,
        Some(Activation::Bf16 { .. }) => (1, 1.0 / 256.0),
        Some(Activation::Int8 { block, scaling: Scaling::Block, .. }) => (block, 1.0 / 240.0),
        Some(Activation::Int8 { block, scaling: Scaling::Power, .. }) => (block, 1.0 / 120.0),
        Some(Activation::Int8 { reduction, scaling: Scaling::Row, .. }) => (reduction, 1.0 / 240.0),
    };
    input
        .chunks(together)
        .zip(weight.chunks(together))
        .map(|(input, weight)| {
            let largest = input.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let weights: f64 = weight.iter().map(|w| f64::from(w.abs())).sum();
            f64::from(largest) * step * weights
        })
        .sum()
}
