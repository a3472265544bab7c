//! A product whose channels threads take as they come to them, whoever takes what.

use std::sync::atomic::Ordering;

use super::attention::levels;
use super::*;
use crate::kernels::matmul::{Compute, LEAST_IN_PARTS, MULTIPLICATIONS_IN_PARTS, MatmulSpec};
use crate::pack::{DenseRows, PackedLayout, WeightFormat, pack_dense};
use crate::plan::{Kernel as Planned, Root, SegmentPlan, Step, View};
use crate::segments::emit_segment;

/// The last group of channels is not full.
const CHANNELS: usize = 1031;
const REDUCTION: usize = 512;

struct Weight;

impl DenseRows for Weight {
    fn row(&self, channel: usize, out: &mut [f32]) {
        let mut random = Random::new(channel as u64);
        let row = random.units(out.len());
        out.copy_from_slice(&row);
    }
}

#[test]
fn parts_of_a_product_have_its_bits() {
    let layout =
        PackedLayout { channels: CHANNELS, reduction: REDUCTION, format: WeightFormat::F32 };
    let spec = MatmulSpec::new(layout, Compute::F32);
    let from = |threads: usize| {
        (threads * MULTIPLICATIONS_IN_PARTS).div_ceil(spec.multiplications()).max(LEAST_IN_PARTS)
    };
    let most = from(3);
    let mut weight = vec![0; layout.bytes()];
    pack_dense(&layout, &Weight, &mut weight).unwrap();
    let product = Planned::Matmul {
        spec,
        input: View::dense(Root::Hidden, REDUCTION, vec![REDUCTION]),
        weight: 0,
        bias: None,
        residual: None,
        output: View::dense(Root::Answer, CHANNELS, vec![CHANNELS]),
    };
    let plan = SegmentPlan {
        name: "product".into(),
        steps: vec![Step::new(product, 0)],
        buffers: Vec::new(),
        weights: Vec::new(),
        arena_bytes: 0,
        max_rows: most,
        head: false,
    };
    let mut random = Random::new(71);
    let mut hidden = random.units(most * REDUCTION);
    let offsets = [0u64];
    for level in levels() {
        let kernel = Kernel::new(|assembly| emit_segment(assembly, &plan, level, false));
        let mut run = |rows: usize, threads: usize| {
            let mut output = vec![POISON; rows * CHANNELS];
            let context = StepContext {
                weights: weight.as_ptr(),
                segment_weights: offsets.as_ptr(),
                hidden: hidden.as_mut_ptr(),
                logits: output.as_mut_ptr(),
                rows: rows as u32,
                barrier: wait_for_team,
                ..context()
            };
            let words = [std::ptr::from_ref(&context) as u64];
            let team = kernel.call_team(&words, threads, &[]);
            (output, team.parts.load(Ordering::Relaxed))
        };
        let (alone, none) = run(most, 1);
        assert_eq!(none, 0);
        for threads in [2, 3] {
            let (got, parts) = run(from(threads), threads);
            assert!(parts > threads as u32, "{level:?}: {parts} parts");
            let same = got.iter().zip(&alone).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{level:?} by {threads} threads");
            let (fewer, none) = run(from(threads) - 1, threads);
            assert_eq!(none, 0);
            assert!(fewer[..] == alone[..fewer.len()], "{level:?} by shares of {threads}");
        }
    }
}
