//! Gate and up, gated and rounded in one: the bits of product and rounding one after the other.

use weir_abi::IsaLevel;
use weir_ir::ops::unary::UnaryOp;

use super::*;
use crate::kernels::gated::{GatedSpec, emit_gated};
use crate::kernels::matmul::{
    Activation, Compute, MatmulSpec, Scaling, emit_matmul, emit_quantise,
};
use crate::kernels::rounding::{RoundingSpec, Source, emit_rounding};
use crate::pack::{
    Blocks, DenseRows, PackedLayout, QuantRows, ScaleType, WeightFormat, ZeroPoint, pack_dense,
    pack_quantised,
};

/// A weight of random elements, or codes and scales.
struct Weight(u64);

impl Weight {
    fn random(&self, channel: usize) -> Random {
        Random::new(self.0 + channel as u64)
    }
}

impl DenseRows for Weight {
    fn row(&self, channel: usize, out: &mut [f32]) {
        let mut random = self.random(channel);
        out.fill_with(|| random.unit());
    }
}

impl QuantRows for Weight {
    fn row(&self, channel: usize, codes: &mut [u8], scales: &mut [f32], zeros: &mut [f32]) {
        let mut random = self.random(channel);
        codes.fill_with(|| random.below(16) as u8);
        scales.fill_with(|| random.unit() / 16.0);
        zeros.fill_with(|| random.below(16) as f32);
    }
}

/// A product of gate and up in a form, and the rounding of their halves.
struct Case {
    product: MatmulSpec,
    activation: UnaryOp,
    rounded: Activation,
    rows: usize,
    /// Rows as the product reads them.
    input: Vec<f32>,
    weight: Vec<u8>,
    bias: Vec<f32>,
}

impl Case {
    fn new(random: &mut Random, rows: usize) -> Case {
        let block = 16 << random.below(3);
        let half = block * (1 + random.below(7));
        let channels = 2 * half;
        let blocks = Blocks {
            block: 32 << random.below(2),
            scale: [ScaleType::F16, ScaleType::Short][random.below(2)],
            zero: [ZeroPoint::Implied, ZeroPoint::Code][random.below(2)],
        };
        let (format, compute) = match random.below(4) {
            0 => (WeightFormat::F32, Compute::F32),
            1 => (WeightFormat::Int8(blocks), Compute::Int8),
            _ => (WeightFormat::Int4(blocks), Compute::Int8),
        };
        let layout = PackedLayout { channels, reduction: blocks.block * 3, format };
        let bias = random.below(2) == 1;
        let product = MatmulSpec { bias, ..MatmulSpec::new(layout, compute) };
        // Other levels read and make records in the form for AMX as well.
        let product = if random.below(2) == 0 { product.at(IsaLevel::Amx) } else { product };
        let scaling = [Scaling::Block, Scaling::Power][random.below(2)];
        let in_bf16 = scaling == Scaling::Power && block == 32 && random.below(2) == 0;
        let rounded = Activation::Int8 {
            reduction: half,
            block,
            blocks: half / block,
            input_stride: channels,
            scaling,
            in_bf16,
        };
        let mut weight = vec![0; layout.bytes()];
        let source = Weight(random.next());
        match layout.format.blocks() {
            Some(_) => pack_quantised(&layout, &source, &mut weight),
            None => pack_dense(&layout, &source, &mut weight),
        }
        .unwrap();
        let values = random.units(rows * layout.reduction);
        let input = match product.activation() {
            None => values,
            Some(activation) => {
                let kernel = Kernel::new(|assembly| emit_quantise(assembly, activation));
                let words = rows * activation.row_bytes() / 4;
                kernel.run(&[Input::floats(&values)], words, rows * activation.items_per_row())
            }
        };
        Case {
            product,
            activation: [UnaryOp::Silu, UnaryOp::GeluTanh][random.below(2)],
            rounded,
            rows,
            input,
            weight,
            bias: random.units(channels),
        }
    }

    /// Records by the two kernels alone.
    fn expected(&self) -> Vec<u8> {
        let (spec, level) = (self.product, IsaLevel::Portable);
        let kernel = Kernel::new(|assembly| emit_matmul(assembly, &spec, level));
        let mut both = bytes(&vec![POISON; self.rows * spec.output_stride]);
        kernel.code.call_kernel(
            &kernel.name,
            &mut [
                Argument::Read(&bytes(&self.input)),
                Argument::Read(&self.weight),
                Argument::Write(&mut both),
                Argument::Read(&bytes(&self.bias)),
                Argument::Null,
                Argument::Count(self.rows as u64),
                Argument::Count(0),
                Argument::Count(spec.groups() as u64),
            ],
        );
        let source = Source::Gated { activation: self.activation, up_stride: spec.output_stride };
        let rounding = RoundingSpec::new(self.rounded, source);
        let kernel = Kernel::new(|assembly| emit_rounding(assembly, &rounding, level));
        let mut records = self.records();
        kernel.code.call_kernel(
            &kernel.name,
            &mut [
                Argument::Read(&both),
                Argument::Read(&both[spec.output_stride / 2 * 4..]),
                Argument::Write(&mut records),
                Argument::Count(0),
                Argument::Count((self.rows * self.rounded.items_per_row()) as u64),
            ],
        );
        records
    }

    fn records(&self) -> Vec<u8> {
        bytes(&vec![POISON; self.rows * self.rounded.row_bytes() / 4])
    }

    /// Records by the kernel in two shares, between pages without access.
    fn computed(&self, level: IsaLevel, side: Side) -> Vec<u8> {
        let spec = GatedSpec::new(self.product, self.activation, self.rounded).unwrap();
        let mut assembly = Assembly::new().unwrap();
        emit_gated(&mut assembly, &spec, level).unwrap();
        let code = ExecutableCode::new(&assembly.finish().unwrap()).unwrap();
        let mut input = Guarded::new(&bytes(&self.input), side);
        let mut weight = Guarded::new(&self.weight, side);
        let mut bias = Guarded::new(&bytes(&self.bias), side);
        let mut records = Guarded::new(&self.records(), side);
        let mut shared = Guarded::new(&vec![0xa5; spec.shared_bytes(self.rows)], side);
        let middle = spec.units() / 2;
        for share in [[0, middle], [middle, spec.units()]] {
            let [first, end] = share.map(|unit| Argument::Count(unit as u64));
            code.call_kernel(
                &spec.symbol(level),
                &mut [
                    Argument::Read(input.bytes()),
                    Argument::Read(weight.bytes()),
                    Argument::Write(records.bytes()),
                    Argument::Read(bias.bytes()),
                    Argument::Write(shared.bytes()),
                    Argument::Count(self.rows as u64),
                    first,
                    end,
                    Argument::Count(u64::from(share[0] > 0)),
                ],
            );
        }
        for buffer in [input, weight, bias, shared] {
            buffer.finish();
        }
        records.finish()
    }
}

/// Checks `cases` of one row, of a few, of some and of more than a portion; gives their number.
pub(super) fn check_gates(random: &mut Random, cases: usize, side: Side) -> usize {
    for _ in 0..cases {
        for rows in [1, 2 + random.below(15), 17 + random.below(40), 193 + random.below(30)] {
            let case = Case::new(random, rows);
            let expected = case.expected();
            let levels = IsaLevel::ALL.into_iter();
            for level in levels.filter(|level| weir_runtime::machine::supports(*level)) {
                let got = case.computed(level, side);
                let what = (case.product, case.rounded, rows);
                assert!(got == expected, "{} differs: {what:?}", level.name());
            }
        }
    }
    4 * cases
}

#[test]
fn every_version_gives_the_bits_of_the_separate_kernels() {
    assert_eq!(check_gates(&mut Random::new(75), 4, Side::End), 16);
}

/// Halves of no whole blocks or groups, a residual, and scales of whole rows are left to the separate
/// kernels.
#[test]
fn only_whole_blocks_of_both_halves_are_taken() {
    let mut random = Random::new(76);
    let Case { product, activation, .. } = Case::new(&mut random, 1);
    let rounded = |reduction: usize, block: usize| {
        let blocks = reduction.div_ceil(block);
        Activation::Int8 {
            reduction,
            block,
            blocks,
            input_stride: 2 * reduction,
            scaling: Scaling::Block,
            in_bf16: false,
        }
    };
    let taken = |channels: usize, residual: bool, rounded: Activation| {
        let layout = PackedLayout { channels, ..product.layout };
        let product = MatmulSpec { residual, layout, ..product };
        GatedSpec::new(product, activation, rounded).is_some()
    };
    assert!(taken(128, false, rounded(64, 32)));
    assert!(!taken(128, true, rounded(64, 32)));
    let Activation::Int8 { reduction, block, blocks, input_stride, .. } = rounded(64, 32) else {
        unreachable!("rounded to codes")
    };
    let scaling = Scaling::Row;
    let by_row =
        Activation::Int8 { reduction, block, blocks, input_stride, scaling, in_bf16: false };
    assert!(!taken(128, false, by_row));
    assert!(!taken(120, false, rounded(64, 32)));
    assert!(!taken(120, false, rounded(60, 32)));
}
