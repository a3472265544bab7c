//! Gate and up of a product, gated and rounded for the next product, without rows of either in
//! memory.
//!
//! `r[M, I] = round(activation(x · Gᵀ) · (x · Uᵀ))`, where one packed weight has the I channels of the
//! gate G and behind them those of up U, and `round` makes the records that the next product reads
//! ([`Activation::Int8`]). Rows of gate and up are the widest of a layer: 512 of 16,384 floats are
//! 33 MB, written, read again, and waited for at a barrier between. Here a thread takes a *unit*, one
//! block of the rounded row: the product's kernel computes the block's channels of gate and of up into
//! memory on the stack, and the rounding kernel makes records of them while they are in the caches.
//!
//! Both kernels are those that serve alone (`matmul`, `rounding`), called for a part of their work, so
//! the bits and the bounds are theirs.
//!
//! * Up to [`FEW_ROWS`] rows: several units together, so that each half of the weight is a long stream.
//! * More: unit by unit, for as many rows as the product's kernel takes in a portion.

use weir_abi::IsaLevel;
use weir_ir::ops::unary::UnaryOp;

use super::matmul::{Activation, MatmulSpec, emit_matmul, record_bytes};
use super::rounding::{RoundingSpec, Source, emit_rounding};
use crate::emit::{Assembly, Body, EmitError, FuncId, IntCC, POINTER, Signature, Value, signature};
use crate::pack::GROUP;

/// Rows up to which reading the weights is what a product waits for.
const FEW_ROWS: usize = 16;
/// Units of few rows that are computed together: with blocks of 32 of 2,048 reductions, 150 kB of each
/// half of a weight of int4.
const FEW_UNITS: usize = 4;
/// Bytes of gate and up that a thread has on its stack at most.
const STAGED_BYTES: usize = 48 << 10;

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedSpec {
    /// The product of gate and up, without residual; its output stride does not count.
    pub product: MatmulSpec,
    /// The gate's function.
    pub activation: UnaryOp,
    /// Elements of a block of the rounded rows.
    pub block: usize,
}

impl GatedSpec {
    /// The kernel for a product whose gated halves are rounded so, if it exists: whole blocks of whole
    /// groups of channels.
    pub fn new(product: MatmulSpec, activation: UnaryOp, rounded: Activation) -> Option<GatedSpec> {
        let Activation::Int8 { reduction, block, blocks, .. } = rounded else { return None };
        let fits = product.layout.channels == 2 * reduction
            && reduction == block * blocks
            && block.is_multiple_of(GROUP)
            && !product.residual;
        fits.then_some(GatedSpec { product, activation, block })
    }

    /// Channels of each half.
    fn half(&self) -> usize {
        self.product.layout.channels / 2
    }

    /// Blocks of a rounded row: what threads divide.
    pub fn units(&self) -> usize {
        self.half() / self.block
    }

    /// The rounding of some of a row's blocks, `stride` floats from row to row of gate and of up.
    fn rounding(&self, blocks: usize, stride: usize) -> RoundingSpec {
        let reduction = blocks * self.block;
        let activation =
            Activation::Int8 { reduction, block: self.block, blocks, input_stride: stride };
        let source = Source::Gated { activation: self.activation, up_stride: stride };
        RoundingSpec {
            record_stride: self.records().row_bytes(),
            ..RoundingSpec::new(activation, source)
        }
    }

    /// The rounded rows.
    pub fn records(&self) -> Activation {
        let reduction = self.half();
        Activation::Int8 {
            reduction,
            block: self.block,
            blocks: self.units(),
            input_stride: reduction,
        }
    }

    /// Symbol of the kernel: equal exactly for equal kernels.
    pub fn symbol(&self, level: IsaLevel) -> String {
        let product = MatmulSpec { output_stride: 0, ..self.product };
        let rounding = self.rounding(1, 0);
        format!("gated-{}-{}", rounding.symbol(level), product.symbol(level))
    }
}

/// A way to take rows and units together.
struct Batch {
    rows: usize,
    units: usize,
    /// Floats from one row of gate and up to the next.
    stride: usize,
    product: FuncId,
    rounding: FuncId,
}

impl Batch {
    fn new(
        assembly: &mut Assembly,
        spec: &GatedSpec,
        level: IsaLevel,
        [rows, units]: [usize; 2],
    ) -> Result<Batch, EmitError> {
        // An odd number of cache lines keeps rows apart in the nearest cache.
        let stride = 2 * units * spec.block + GROUP;
        let product = MatmulSpec { output_stride: stride, ..spec.product };
        Ok(Batch {
            rows,
            units,
            stride,
            product: emit_matmul(assembly, &product, level)?,
            rounding: emit_rounding(assembly, &spec.rounding(units, stride), level)?,
        })
    }

    fn bytes(&self) -> usize {
        self.rows * self.stride * 4
    }
}

/// Signature of the kernel: input, packed weight, records, bias, rows, first unit, unit behind the
/// last.
fn kernel_signature() -> Signature {
    signature(&[POINTER; 7], &[])
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
    let few = Batch::new(assembly, spec, level, [FEW_ROWS, FEW_UNITS])?;
    let room = STAGED_BYTES / ((2 * spec.block + GROUP) * 4);
    let portion = spec.product.portion_rows(level).min(room);
    let many = Batch::new(assembly, spec, level, [portion, 1])?;
    let id = assembly.declare(&symbol, kernel_signature())?;
    assembly.define(id, |b| {
        let [input, weight, records, bias, rows, first, end] = b.params();
        let staged = b.stack(few.bytes().max(many.bytes()) as u32);
        let call = Call { spec, input, weight, records, bias, staged };
        let is_few = b.compare_const(IntCC::SignedLessThanOrEqual, rows, FEW_ROWS as i64);
        b.if_else(
            is_few,
            |b| {
                b.for_range(first, end, few.units as i64, |b, unit| {
                    let behind = b.add_const(unit, few.units as i64);
                    let behind = b.min(behind, end);
                    let zero = b.int(0);
                    call.products(b, &few, [zero, rows], [unit, behind]);
                    let units = b.sub(behind, unit);
                    b.for_range(zero, rows, 1, |b, row| {
                        let staged = b.element(staged, row, few.stride as i64 * 4);
                        call.round(b, &few, staged, [row, unit], units);
                    });
                });
                Vec::new()
            },
            |b| {
                let zero = b.int(0);
                b.for_range(zero, rows, many.rows as i64, |b, row| {
                    let left = b.sub(rows, row);
                    let portion = b.int(many.rows as i64);
                    let count = b.min(left, portion);
                    b.for_range(first, end, 1, |b, unit| {
                        let behind = b.add_const(unit, 1);
                        call.products(b, &many, [row, count], [unit, behind]);
                        call.round(b, &many, staged, [row, unit], count);
                    });
                });
                Vec::new()
            },
        );
        b.ret(&[]);
    })?;
    Ok(id)
}

/// The arguments, and the memory for gate and up.
struct Call<'a> {
    spec: &'a GatedSpec,
    input: Value,
    weight: Value,
    records: Value,
    bias: Value,
    staged: Value,
}

impl Call<'_> {
    /// Gate and up of `count` rows from `row` on and the units from `unit` to `end`: those of a row
    /// behind each other.
    fn products(
        &self,
        b: &mut Body<'_>,
        batch: &Batch,
        [row, count]: [Value; 2],
        [unit, end]: [Value; 2],
    ) {
        let spec = self.spec;
        let unit_groups = spec.block / GROUP;
        let input = b.element(self.input, row, spec.product.input_row_bytes() as i64);
        let nothing = b.int(0);
        for half in 0..2 {
            let [first, behind] = [unit, end].map(|unit| {
                let group = b.mul_const(unit, unit_groups as i64);
                b.add_const(group, (half * spec.half() / GROUP) as i64)
            });
            // The kernel finds a group's outputs by its number.
            let before = b.mul_const(first, -((GROUP * 4) as i64));
            let output = b.add(self.staged, before);
            let output = b.add_const(output, (half * batch.units * spec.block * 4) as i64);
            let arguments = [input, self.weight, output, self.bias, nothing, count, first, behind];
            b.call(batch.product, &arguments);
        }
    }

    /// The first `blocks` staged blocks (of one row, or one of each row) become records from row and
    /// unit on.
    fn round(
        &self,
        b: &mut Body<'_>,
        batch: &Batch,
        gate: Value,
        [row, unit]: [Value; 2],
        blocks: Value,
    ) {
        let spec = self.spec;
        let up = b.add_const(gate, (batch.units * spec.block * 4) as i64);
        let records = b.element(self.records, row, spec.records().row_bytes() as i64);
        let records = b.element(records, unit, record_bytes(spec.block) as i64);
        let zero = b.int(0);
        b.call(batch.rounding, &[gate, up, records, zero, blocks]);
    }
}
