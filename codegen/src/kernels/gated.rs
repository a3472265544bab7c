//! Gate and up of a product, gated and rounded for the next product, without rows of either in
//! memory.
//!
//! `r[M, I] = round(activation(x · Gᵀ) · (x · Uᵀ))`, where one packed weight has the I channels of the
//! gate G and behind them those of up U, and `round` makes the records that the next product reads
//! ([`Activation::Int8`]). Rows of gate and up are the widest of a layer: 512 of 16,384 floats are
//! 33 MB, written, read again, and waited for at a barrier between. Here a thread takes a *unit*, one
//! block of the rounded row, or two together: the product's kernel computes their channels of gate and
//! of up into memory on the stack, and the rounding kernel makes records of them while they are in the
//! caches.
//!
//! Both kernels are those that serve alone (`matmul`, `rounding`), called for a part of their work, so
//! the bits and the bounds are theirs.
//!
//! * Up to 16 rows, where reading the weights is what counts: all units of a thread together,
//!   each half of the weight one stream; their gate and up go through memory that threads share.
//! * More: two units at a time on the thread's stack, as many channels as the widest tiles have, for as
//!   many rows as the product's kernel takes in a portion, or as have room there.

use weir_abi::IsaLevel;
use weir_ir::ops::unary::UnaryOp;

use super::matmul::{Activation, Form, MatmulSpec, Scaling, emit_matmul};
use super::rounding::{RoundingSpec, Source, emit_rounding};
use crate::emit::{Assembly, Body, EmitError, FuncId, IntCC, POINTER, Signature, Value, signature};
use crate::pack::GROUP;

/// Rows up to which reading the weights is what a product waits for.
const FEW_ROWS: usize = 16;
/// Units that a thread computes together with many rows.
pub const TOGETHER: usize = 2;
/// Bytes of gate and up that a thread has on its stack at most.
const STAGED_BYTES: usize = 96 << 10;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedSpec {
    /// The product of gate and up, without residual; its output stride does not count.
    pub product: MatmulSpec,
    /// The gate's function.
    pub activation: UnaryOp,
    /// A block's record in the rounded rows.
    form: Form,
}

impl GatedSpec {
    /// The kernel for a product whose gated halves are rounded so, if it exists: whole blocks of whole
    /// groups of channels, each with a scale of its own.
    pub fn new(product: MatmulSpec, activation: UnaryOp, rounded: Activation) -> Option<GatedSpec> {
        let Activation::Int8 { reduction, block, blocks, scaling, in_bf16, .. } = rounded else {
            return None;
        };
        let fits = scaling != Scaling::Row
            && product.layout.channels == 2 * reduction
            && reduction == block * blocks
            && block.is_multiple_of(GROUP)
            && !product.residual;
        fits.then_some(GatedSpec { product, activation, form: Form { block, scaling, in_bf16 } })
    }

    /// The kernel of a level.
    pub fn at(self, level: IsaLevel) -> GatedSpec {
        GatedSpec { product: self.product.at(level), form: self.form.at(level), ..self }
    }

    /// Channels of each half.
    fn half(&self) -> usize {
        self.product.layout.channels / 2
    }

    /// Blocks of a rounded row: what threads divide.
    pub fn units(&self) -> usize {
        self.half() / self.form.block
    }

    /// Bytes of the memory that threads share, for a step of at most so many rows.
    pub fn shared_bytes(&self, max_rows: usize) -> usize {
        max_rows.min(FEW_ROWS) * self.product.layout.channels * 4
    }

    /// Floats from one row of staged units to the next: an odd number of cache lines keeps them apart
    /// in the nearest cache.
    fn staged_stride(&self) -> usize {
        2 * TOGETHER * self.form.block + GROUP
    }

    /// The rounding of rows of some blocks, `stride` floats apart.
    fn rounding(&self, blocks: usize, stride: usize) -> RoundingSpec {
        let source = Source::Gated { activation: self.activation, up_stride: stride };
        RoundingSpec::of_part(self.records(), source, blocks * self.form.block, stride)
    }

    /// The rounded rows.
    pub fn records(&self) -> Activation {
        let reduction = self.half();
        Activation::Int8 {
            reduction,
            block: self.form.block,
            blocks: self.units(),
            input_stride: reduction,
            scaling: self.form.scaling,
            in_bf16: self.form.in_bf16,
        }
    }

    /// Symbol of the kernel: equal exactly for equal kernels.
    pub fn symbol(&self, level: IsaLevel) -> String {
        let product = MatmulSpec { output_stride: 0, ..self.product };
        let rounding = self.rounding(1, 0);
        format!("gated-{}-{}", rounding.symbol(level), product.symbol(level))
    }
}

/// Signature of the kernel: input, packed weight, records, bias, shared memory, rows, first unit, unit
/// behind the last, and the product's last argument.
fn kernel_signature() -> Signature {
    signature(&[POINTER; 9], &[])
}

/// Emits the kernel for a level, once for all that ask for it.
pub fn emit_gated(
    assembly: &mut Assembly,
    spec: &GatedSpec,
    level: IsaLevel,
) -> Result<FuncId, EmitError> {
    let symbol = spec.symbol(level);
    if let Some(known) = assembly.find(&symbol) {
        return Ok(known);
    }
    let channels = spec.product.layout.channels;
    let few = Halves::new(assembly, spec, level, [spec.units(), channels])?;
    let together = Halves::new(assembly, spec, level, [TOGETHER, spec.staged_stride()])?;
    let single = Halves::new(assembly, spec, level, [1, spec.staged_stride()])?;
    let row_bytes = spec.staged_stride() * 4;
    let portion = spec.product.portion_rows(level, STAGED_BYTES / row_bytes);
    let id = assembly.declare(&symbol, kernel_signature())?;
    assembly.define(id, |b| {
        let [input, weight, records, bias, shared, rows, first, end, reads_far] = b.params();
        let call = Call { spec, input, weight, records, bias, reads_far };
        let zero = b.int(0);
        let is_few = b.compare_const(IntCC::SignedLessThanOrEqual, rows, FEW_ROWS as i64);
        b.if_else(
            is_few,
            |b| {
                // Units at their places in whole rows.
                let begin = b.mul_const(first, spec.form.block as i64 * 4);
                let gate = b.add(shared, begin);
                call.products(b, &few, gate, [zero, rows], [first, end]);
                let blocks = b.sub(end, first);
                b.for_range(zero, rows, 1, |b, row| {
                    let gate = b.element(gate, row, channels as i64 * 4);
                    call.round(b, &few, gate, [row, first], blocks);
                });
                Vec::new()
            },
            |b| {
                let staged = b.stack((portion * row_bytes) as u32);
                b.for_range(zero, rows, portion as i64, |b, row| {
                    let left = b.sub(rows, row);
                    let count = b.int(portion as i64);
                    let count = b.min(left, count);
                    let staged_units = |b: &mut Body<'_>, halves, unit, units: usize| {
                        let behind = b.add_const(unit, units as i64);
                        call.products(b, halves, staged, [row, count], [unit, behind]);
                        let blocks = b.mul_const(count, units as i64);
                        call.round(b, halves, staged, [row, unit], blocks);
                    };
                    b.for_range(first, end, TOGETHER as i64, |b, unit| {
                        let left = b.sub(end, unit);
                        let is_whole =
                            b.compare_const(IntCC::SignedGreaterThanOrEqual, left, TOGETHER as i64);
                        b.if_else(
                            is_whole,
                            |b| {
                                staged_units(b, &together, unit, TOGETHER);
                                Vec::new()
                            },
                            |b| {
                                staged_units(b, &single, unit, 1);
                                Vec::new()
                            },
                        );
                    });
                });
                Vec::new()
            },
        );
        b.ret(&[]);
    })?;
    Ok(id)
}

/// Rows of both halves in memory, and the kernels that write and read them.
struct Halves {
    /// Bytes from a row's gate to its up.
    up: i64,
    product: FuncId,
    rounding: FuncId,
}

impl Halves {
    /// Halves of so many units, `stride` floats from row to row.
    fn new(
        assembly: &mut Assembly,
        spec: &GatedSpec,
        level: IsaLevel,
        [units, stride]: [usize; 2],
    ) -> Result<Halves, EmitError> {
        let product = MatmulSpec { output_stride: stride, ..spec.product };
        Ok(Halves {
            up: (units * spec.form.block * 4) as i64,
            product: emit_matmul(assembly, &product, level)?,
            rounding: emit_rounding(assembly, &spec.rounding(units, stride), level)?,
        })
    }
}

/// The arguments.
struct Call<'a> {
    spec: &'a GatedSpec,
    input: Value,
    weight: Value,
    records: Value,
    bias: Value,
    reads_far: Value,
}

impl Call<'_> {
    /// Gate and up of `count` rows from `row` on and the units from `unit` to `end`, the first gate at
    /// `gate`.
    fn products(
        &self,
        b: &mut Body<'_>,
        halves: &Halves,
        gate: Value,
        [row, count]: [Value; 2],
        [unit, end]: [Value; 2],
    ) {
        let spec = self.spec;
        let input = b.element(self.input, row, spec.product.input_row_bytes() as i64);
        let nothing = b.int(0);
        for (first_group, offset) in [(0, 0), (spec.half() / GROUP, halves.up)] {
            let [first, behind] = [unit, end].map(|unit| {
                let group = b.mul_const(unit, (spec.form.block / GROUP) as i64);
                b.add_const(group, first_group as i64)
            });
            // The kernel finds a group's outputs by its number.
            let before = b.mul_const(first, (GROUP * 4) as i64);
            let output = b.sub(gate, before);
            let output = b.add_const(output, offset);
            let memory = [input, self.weight, output, self.bias, nothing];
            let counts = [count, first, behind, self.reads_far];
            b.call(halves.product, &[memory.as_slice(), &counts].concat());
        }
    }

    /// The first `blocks` blocks from `gate` on become records from a row and unit on.
    fn round(
        &self,
        b: &mut Body<'_>,
        halves: &Halves,
        gate: Value,
        [row, unit]: [Value; 2],
        blocks: Value,
    ) {
        let spec = self.spec;
        let up = b.add_const(gate, halves.up);
        let records = b.element(self.records, row, spec.records().row_bytes() as i64);
        let records = b.element(records, unit, spec.form.record_bytes() as i64);
        let zero = b.int(0);
        b.call(halves.rounding, &[gate, up, records, zero, blocks]);
    }
}
