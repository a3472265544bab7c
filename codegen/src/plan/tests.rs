//! Views, and the verifier's eye for damaged plans.

use std::collections::HashMap;

use weir_abi::{IsaLevel, WORKS};
use weir_ir::graph::InputRole;
use weir_ir::{
    Body, DType, Dim, Element, Op, QuantFormat, Symbol, TensorType, Value, ZeroPoints, ops,
};

use super::*;
use crate::kernels::attention::{CacheShape, CacheType, ROWS_BY_HEAD};
use crate::kernels::matmul::{Apart, Compute};
use crate::kernels::rounding::Source;
use crate::pack::{Blocks, GROUP, ScaleType, WeightFormat, ZeroPoint};
use crate::weights::WeightSource;

fn chain() -> SegmentPlan {
    let view = |buffer| View::dense(Root::Buffer(buffer), 16, vec![16]);
    let copy =
        |from, to| Kernel::Map { op: MapOp::Copy, inputs: vec![view(from)], output: view(to) };
    let hidden = View::dense(Root::Hidden, 16, vec![16]);
    let score = crate::kernels::attention::ScoreSpec { heads: 1, scale: 1.0, softcap: 0.0 };
    let cache = CacheShape {
        kv_heads: 1,
        key_width: 16,
        value_width: 16,
        number: CacheType::F16,
        block: None,
        by_head: false,
    };
    let spec = AttendSpec {
        cache,
        score,
        sinks: false,
        query: (16, 16),
        output_row: 16,
        rounded: None,
        shared_chunks: 0,
        max_rows: 4,
    };
    let kernels = vec![
        Kernel::Map { op: MapOp::Copy, inputs: vec![hidden.clone()], output: view(0) },
        Kernel::Attend { spec, query: view(0), sinks: None, output: view(1), shared: Root::Cache },
        copy(1, 2),
        Kernel::Map { op: MapOp::Copy, inputs: vec![view(2)], output: hidden },
    ];
    let steps = place::phases(kernels);
    let (buffers, arena_bytes) = place::buffers(&steps, &[64; 3], &[], 4);
    SegmentPlan {
        name: "chain".into(),
        steps,
        buffers,
        weights: Vec::new(),
        arena_bytes,
        max_rows: 4,
        head: false,
    }
}

#[test]
fn barriers_stand_where_work_is_divided_otherwise() {
    let plan = chain();
    let phases: Vec<usize> = plan.steps.iter().map(|step| step.phase).collect();
    assert_eq!(phases, [0, 1, 2, 2]);
    // The third buffer lies where the first was, which is dead by then.
    assert_eq!(plan.buffers[2].offset, plan.buffers[0].offset);
    assert_eq!(plan.arena_bytes, 2 * 256);
    verify(&plan).unwrap();
}

#[test]
fn damaged_plans_are_refused() {
    let mut plan = chain();
    plan.buffers[1].offset = plan.buffers[0].offset;
    assert!(verify(&plan).is_err());
    let mut plan = chain();
    plan.steps[1].phase = 0;
    assert!(verify(&plan).is_err());
    let mut plan = chain();
    plan.arena_bytes -= 1;
    assert!(verify(&plan).is_err());
    let mut plan = chain();
    plan.buffers[0].live = (0, 0);
    assert!(verify(&plan).is_err());
    let mut plan = chain();
    plan.steps[1].work = WORKS;
    assert!(verify(&plan).is_err());
}

/// Works of a phase have numbers of their own, and a phase has no more than there are numbers.
#[test]
fn works_beside_each_other_are_numbered() {
    let count = WORKS as usize + 2;
    let view = |buffer| View::dense(Root::Buffer(buffer), 16, vec![16]);
    let attend = chain().steps.swap_remove(1).kernel;
    let Kernel::Attend { spec, sinks, shared, .. } = attend else { panic!("another kernel") };
    let query = View::dense(Root::Hidden, 16, vec![16]);
    let kernels = (0..count).map(|buffer| {
        let (query, sinks, output) = (query.clone(), sinks.clone(), view(buffer));
        Kernel::Attend { spec, query, sinks, output, shared }
    });
    let steps = place::phases(kernels.collect());
    let places: Vec<(usize, u32)> = steps.iter().map(|step| (step.phase, step.work)).collect();
    let mut expected: Vec<(usize, u32)> = (0..WORKS).map(|work| (0, work)).collect();
    expected.extend([(1, 0), (1, 1)]);
    assert_eq!(places, expected);
    let (buffers, arena_bytes) = place::buffers(&steps, &vec![64; count], &[], 4);
    let mut plan = SegmentPlan { steps, buffers, arena_bytes, ..chain() };
    verify(&plan).unwrap();
    plan.steps[1].work = 0;
    assert!(verify(&plan).is_err());
}

#[test]
fn views_slice_and_reshape_without_copies() {
    let row = View::dense(Root::Hidden, 48, vec![48]);
    let part = row.sliced(0, 8, 24);
    let heads = part.reshaped(vec![3, 8]).unwrap();
    assert_eq!((heads.offset, heads.strides.as_slice()), (8, &[8, 1][..]));
    let halves = heads.sliced(1, 4, 4);
    assert_eq!(halves.groups(), Some((3, 8, 4)));
    assert!(!halves.is_dense());
    assert_eq!(halves.reshaped(vec![12]), None);
    assert_eq!(halves.reshaped(vec![3, 2, 2]).unwrap().strides, [8, 2, 1]);
}

const WIDTH: usize = 64;
const INNER: usize = 96;

/// A layer of all nodes of a body, whose rows are [`WIDTH`] wide.
fn of_layer<'a>(
    body: &'a Body,
    input: Value,
    output: Value,
    weights: &[(Value, WeightSource)],
) -> SegmentSource<'a> {
    SegmentSource {
        name: "layer".into(),
        nodes: body.nodes.keys().collect(),
        input: Some(input),
        output,
        target: Root::Hidden,
        weights: weights.iter().copied().collect(),
        cache: None,
        cache_rows: 0,
        by_head: false,
        reservoir: None,
        compute: None,
        tied: HashMap::new(),
        has_tiles: false,
        max_rows: 32,
        hidden_width: WIDTH,
        head: false,
        body,
    }
}

/// The plan of a layer's gate and up, halves of one int4 product, with the product behind them, for a
/// program that has tiles or not; `more` adds nodes from the halves and the result to another result.
fn gated_plan(
    has_tiles: bool,
    more: impl FnOnce(&mut Body, [Value; 2], Value) -> Value,
) -> SegmentPlan {
    let mut body = Body::default();
    let rows =
        |width: usize| TensorType::new(DType::F32, vec![Dim::from(Symbol::Rows), Dim::from(width)]);
    let format = QuantFormat {
        bits: 4,
        block: 32,
        scale: DType::F16,
        short: true,
        zero: ZeroPoints::Fixed(8),
    };
    let weight = |channels: usize, reduction: usize| {
        let shape = vec![channels.into(), reduction.into()];
        TensorType { element: Element::Quant(format), shape }
    };
    let operand = || InputRole::Operand;
    let x = body.param(operand(), rows(WIDTH), None, None);
    let both = body.param(operand(), weight(2 * INNER, WIDTH), None, None);
    let down = body.param(operand(), weight(WIDTH, INNER), None, None);
    let push = |body: &mut Body, op: Op, operands: &[Value]| {
        body.push1(op, operands.to_vec(), None).unwrap()
    };
    let linear = |residual| Op::from(ops::linear::Linear { bias: false, residual });
    let halves = push(&mut body, linear(false), &[x, both]);
    let [gate, up] = [0, INNER].map(|start| {
        let (start, length) = (Dim::from(start), Dim::from(INNER));
        push(&mut body, ops::slice::Slice { axis: 1, start, step: 1, length }.into(), &[halves])
    });
    let activation = ops::unary::UnaryOp::Silu;
    let inner = push(&mut body, ops::gated::Gated { activation }.into(), &[gate, up]);
    let result = push(&mut body, linear(true), &[inner, down, x]);
    let output = more(&mut body, [gate, up], result);
    let weights =
        [(both, 0), (down, 1)].map(|(value, number)| (value, WeightSource::Parameter(number)));
    let source = SegmentSource { has_tiles, ..of_layer(&body, x, output, &weights) };
    lower_segment(&source).unwrap()
}

/// A row plus a product of itself, without a norm between: what is written first would be read.
#[test]
fn a_product_does_not_lie_over_its_own_input() {
    let mut body = Body::default();
    let rows = TensorType::new(DType::F32, vec![Dim::from(Symbol::Rows), Dim::from(WIDTH)]);
    let square = TensorType::new(DType::F32, vec![Dim::from(WIDTH), Dim::from(WIDTH)]);
    let x = body.param(InputRole::Operand, rows, None, None);
    let weight = body.param(InputRole::Operand, square, None, None);
    let linear = Op::from(ops::linear::Linear { bias: false, residual: true });
    let output = body.push1(linear, vec![x, weight, x], None).unwrap();
    let weights = [(weight, WeightSource::Parameter(0))];
    let mut plan = lower_segment(&of_layer(&body, x, output, &weights)).unwrap();
    let Kernel::Matmul { output, .. } = &mut plan.steps[0].kernel else { panic!("a product") };
    assert_ne!(output.root, Root::Hidden);
    output.root = Root::Hidden;
    let told = verify(&plan).unwrap_err().to_string();
    assert!(told.contains("kernel 0 writes over what it reads"), "{told}");
}

fn is_gated(plan: &SegmentPlan) -> bool {
    plan.steps.iter().any(|step| matches!(step.kernel, Kernel::Gated { .. }))
}

#[test]
fn gate_and_up_that_nothing_else_reads_are_part_of_their_product() {
    let plan = gated_plan(false, |_, _, result| result);
    assert!(is_gated(&plan));
    assert_eq!(plan.steps.len(), 3, "rounding, the product with its gate, the product behind it");
    // Of 32 rows, 16 of both halves have room.
    assert!(plan.buffers.iter().all(|buffer| buffer.row_bytes <= INNER * 4));

    let read_later = gated_plan(false, |body, [_, up], result| {
        let length = Dim::from(WIDTH);
        let slice = ops::slice::Slice { axis: 1, start: Dim::from(0usize), step: 1, length };
        let part = body.push1(slice.into(), vec![up], None).unwrap();
        let op = ops::binary::BinaryOp::Add;
        body.push1(ops::binary::Binary { op }.into(), vec![result, part], None).unwrap()
    });
    assert!(!is_gated(&read_later));
}

/// On every level a kernel reads rounded rows as the one before it writes them, within their buffers;
/// values in bf16 are made for AMX and nowhere else.
#[test]
fn rounded_rows_have_the_form_that_their_readers_take() {
    for has_tiles in [false, true] {
        let plan = gated_plan(has_tiles, |_, _, result| result);
        let [
            Kernel::Rounding { spec: rounding, output: Root::Buffer(first), .. },
            Kernel::Gated { spec: gated, output: Root::Buffer(second), .. },
            Kernel::Matmul { spec: down, .. },
        ] = [0, 1, 2].map(|step| &plan.steps[step].kernel)
        else {
            panic!("other kernels");
        };
        let levels = IsaLevel::ALL.into_iter().filter(|level| has_tiles || *level < IsaLevel::Amx);
        for level in levels {
            let (rounding, gated, down) = (rounding.at(level), gated.at(level), down.at(level));
            assert_eq!(Some(rounding.activation), gated.product.activation());
            assert_eq!(gated.records().row_bytes(), down.input_row_bytes());
            assert_eq!([gated.product.in_bf16, down.in_bf16], [level == IsaLevel::Amx; 2]);
            assert!(rounding.record_stride <= plan.buffers[*first].row_bytes);
            assert!(down.input_row_bytes() <= plan.buffers[*second].row_bytes);
        }
    }
}

const HEADS: usize = 2;

/// The plan of queries, keys and values of two heads, rotated, written to the cache and attended to, for
/// calls of so many rows; `more` adds kernels that read the product of all, which is buffer 0.
fn attention_plan(max_rows: usize, more: impl FnOnce(&View) -> Vec<Kernel>) -> SegmentPlan {
    let width = 3 * HEADS * WIDTH;
    let layout = PackedLayout { channels: width, reduction: WIDTH, format: WeightFormat::F32 };
    let all = View::dense(Root::Buffer(0), width, vec![width]);
    let [query, key, value] = [0, 1, 2].map(|number| {
        let part = all.sliced(0, number * HEADS * WIDTH, HEADS * WIDTH);
        part.reshaped(vec![HEADS, WIDTH]).unwrap()
    });
    let rotated = View::dense(Root::Buffer(1), HEADS * WIDTH, vec![HEADS, WIDTH]);
    let table = |slot| View::dense(Root::Weight(slot), 0, vec![8, WIDTH / 2]);
    let rotation = Rotation { width: WIDTH, interleaved: false };
    let angles = Angles { rotation, cos: table(1), sin: table(2) };
    let cache = CacheShape {
        kv_heads: HEADS,
        key_width: WIDTH,
        value_width: WIDTH,
        number: CacheType::Int8,
        block: None,
        by_head: false,
    };
    let spec = AttendSpec {
        cache,
        score: crate::kernels::attention::ScoreSpec { heads: HEADS, scale: 1.0, softcap: 0.0 },
        sinks: false,
        query: (rotated.row_stride, WIDTH),
        output_row: HEADS * WIDTH,
        rounded: None,
        shared_chunks: 1,
        max_rows,
    };
    let mut kernels = vec![
        Kernel::Matmul {
            spec: MatmulSpec::new(layout, Compute::F32),
            input: View::dense(Root::Hidden, WIDTH, vec![WIDTH]),
            weight: 0,
            bias: None,
            residual: None,
            output: all.clone(),
        },
        Kernel::Rotary { x: query, y: rotated.clone(), angles: angles.clone() },
        Kernel::Append { cache, key, value, angles: Some(angles), reservoir: None },
    ];
    kernels.extend(more(&all));
    kernels.push(Kernel::Attend {
        spec,
        query: rotated,
        sinks: None,
        output: View::dense(Root::Buffer(2), HEADS * WIDTH, vec![HEADS * WIDTH]),
        shared: Root::Buffer(3),
    });
    let mut row_bytes = vec![width * 4, HEADS * WIDTH * 4, HEADS * WIDTH * 4, 64, width * 4];
    heads::rotate_in_place(&mut kernels, &mut row_bytes);
    let apart = heads::lay_apart(&mut kernels, max_rows);
    let steps = place::phases(kernels);
    let (buffers, arena_bytes) = place::buffers(&steps, &row_bytes, &apart, max_rows);
    let name = "attention".into();
    let weights = Vec::new();
    SegmentPlan { name, steps, buffers, weights, arena_bytes, max_rows, head: false }
}

/// What stands for each step of such a plan.
fn divisions(plan: &SegmentPlan) -> Vec<(usize, Partition, Vec<usize>)> {
    plan.steps.iter().map(|step| (step.phase, step.partition(), step.runs.clone())).collect()
}

#[test]
fn heads_stay_with_a_thread_and_lie_apart() {
    let mut plan = attention_plan(ROWS_BY_HEAD, |_| Vec::new());
    verify(&plan).unwrap();
    let groups = HEADS * WIDTH / GROUP;
    let found = divisions(&plan);
    assert_eq!(found.iter().map(|(phase, ..)| *phase).collect::<Vec<_>>(), [0, 1, 1, 2]);
    assert_eq!(found[0].2, [0, groups, 2 * groups, 3 * groups]);
    assert_eq!([&found[1].1, &found[2].1], [&Partition::Heads(HEADS); 2]);
    let [product, rotary, append, attend] =
        [0, 1, 2, 3].map(|step| plan.steps[step].kernel.clone());
    let (Kernel::Matmul { spec: product, .. }, Kernel::Rotary { x, y, .. }) = (product, rotary)
    else {
        panic!("other kernels")
    };
    let (Kernel::Append { key, value, .. }, Kernel::Attend { spec, query, .. }) = (append, attend)
    else {
        panic!("other kernels")
    };
    assert_eq!([&y, &query], [&x; 2], "queries are rotated where they lie");
    let Apart { groups, stride } = product.apart.unwrap();
    assert_eq!(groups * GROUP, WIDTH);
    assert!(stride >= ROWS_BY_HEAD * product.output_stride && stride % 32 == 16);
    assert_eq!([x.offset, key.offset, value.offset], [0, 2 * stride, 4 * stride]);
    assert_eq!(spec.query, (product.output_stride, stride));
    assert_eq!(plan.buffers[1].bytes, 0, "nothing is left of what was rotated elsewhere");

    plan.buffers[0].apart.as_mut().unwrap().stride -= 16;
    assert!(verify(&plan).is_err());
}

/// Attention, which gives buffer 4, and what rounds that for a product of weights in blocks, to buffer 5;
/// `more` reads what attention gives, too.
fn attention_and_rounding(block: usize, more: impl FnOnce(&View) -> Vec<Kernel>) -> Vec<Kernel> {
    let steps = attention_plan(1, |_| Vec::new()).steps;
    let attend = steps
        .into_iter()
        .map(|step| step.kernel)
        .find(|kernel| kernel.partition() == Partition::Team);
    let Some(Kernel::Attend { spec, query, sinks, shared, .. }) = attend else {
        panic!("no attention")
    };
    let means = View::dense(Root::Buffer(4), HEADS * WIDTH, vec![HEADS * WIDTH]);
    let blocks = Blocks { block, scale: ScaleType::F16, zero: ZeroPoint::Implied };
    let format = WeightFormat::Int4(blocks);
    let layout = PackedLayout { channels: WIDTH, reduction: HEADS * WIDTH, format };
    let product = MatmulSpec::new(layout, Compute::Int8);
    let rounding = RoundingSpec::new(product.activation().unwrap(), Source::Row);
    let output = Root::Buffer(5);
    let mut kernels = vec![
        Kernel::Attend { spec, query, sinks, output: means.clone(), shared },
        Kernel::Rounding { spec: rounding, input: means.clone(), second: None, output },
        Kernel::Matmul {
            spec: product,
            input: View::rounded(output, rounding.activation),
            weight: 0,
            bias: None,
            residual: None,
            output: View::dense(Root::Hidden, WIDTH, vec![WIDTH]),
        },
    ];
    kernels.extend(more(&means));
    kernels
}

/// Attention rounds what it gives if a head is whole blocks and nothing else reads it.
#[test]
fn attention_gives_rounded_rows_to_products() {
    let copy = |means: &View| {
        let output = View::dense(Root::Buffer(6), means.row_stride, means.dims.clone());
        vec![Kernel::Map { op: MapOp::Copy, inputs: vec![means.clone()], output }]
    };
    for (mut kernels, expected) in [
        (attention_and_rounding(32, |_| Vec::new()), true),
        (attention_and_rounding(48, |_| Vec::new()), false),
        (attention_and_rounding(32, copy), false),
    ] {
        let count = kernels.len();
        let mut row_bytes = vec![4096; 7];
        heads::round_in_attention(&mut kernels, &mut row_bytes);
        assert_eq!(kernels.len(), count - usize::from(expected));
        assert_eq!(row_bytes[4], if expected { 0 } else { 4096 });
        let Kernel::Attend { spec, output, .. } = &kernels[0] else { panic!("another kernel") };
        assert_eq!(spec.rounded.is_some(), expected);
        if let (Some(rows), [_, Kernel::Matmul { spec: product, input, .. }]) =
            (spec.rounded, &kernels[..])
        {
            assert_eq!(output, input);
            assert_eq!(Some(rows), product.activation());
        }
        let steps = place::phases(kernels);
        assert_eq!(steps.last().unwrap().phase, if expected { 1 } else { 2 });
    }
}

#[test]
fn rows_that_others_read_stay_rows() {
    let copy = |all: &View| {
        let output = View::dense(Root::Buffer(4), all.row_stride, all.dims.clone());
        vec![Kernel::Map { op: MapOp::Copy, inputs: vec![all.clone()], output }]
    };
    let read = attention_plan(ROWS_BY_HEAD, copy);
    let few = attention_plan(ROWS_BY_HEAD - 1, |_| Vec::new());
    for (plan, is_rotated_aside) in [(&read, true), (&few, false)] {
        verify(plan).unwrap();
        let Kernel::Rotary { x, y, .. } = &plan.steps[1].kernel else { panic!("another kernel") };
        assert_eq!(x != y, is_rotated_aside);
        assert!(plan.buffers.iter().all(|buffer| buffer.apart.is_none()));
    }
    assert!(read.steps[0].runs.is_empty());
    // A kernel that goes by rows, and writes what the next one reads, keeps that one by rows.
    let norm = |all: &View| {
        let heads =
            all.sliced(0, HEADS * WIDTH, HEADS * WIDTH).reshaped(vec![HEADS, WIDTH]).unwrap();
        let weight = View::dense(Root::Weight(3), 0, vec![WIDTH]);
        let (kind, bias) = (NormKind::Rms, None);
        vec![Kernel::Norm { kind, epsilon: 1e-6, x: heads.clone(), weight, bias, y: heads }]
    };
    let normed = attention_plan(ROWS_BY_HEAD, norm);
    verify(&normed).unwrap();
    let phases: Vec<usize> = divisions(&normed).iter().map(|(phase, ..)| *phase).collect();
    assert_eq!(phases, [0, 1, 1, 1, 2], "no barrier for the sake of heads");
    assert_eq!(normed.steps[2].partition(), Partition::Rows);
}
