//! Whole segments in memory against the interpreter, with poisoned cache rows.

mod interpreted;
mod machine;
mod refused;
mod rows;
mod turn;

use std::ffi::c_void;
use std::mem::offset_of;
use std::ptr::null;
use std::sync::{Barrier, LazyLock, Mutex};

use weir_abi::{
    CacheRange, KEY_BLOCK, LayerCall, LayerEntry, ModelHeader, PromptCall, RowSpans, StepContext,
    WORKS,
};
use weir_ir::entity::Entity;
use weir_ir::graph::{BodyResult, CacheRows, InputRole};
use weir_ir::interpret::Session;
use weir_ir::ops;
use weir_ir::{
    Body, CacheFormat, CacheId, ConstData, Constant, DType, Dim, Element, LayerKind, QuantData,
    QuantFormat, Symbol, TensorType, ZeroPoints,
};

use self::machine::*;
use super::*;
use crate::jit::{Argument, ExecutableCode};

const POISON: u32 = 0x7fa0_0001;
const WIDTH: usize = 24;
const HEADS: usize = 6;
const KV: usize = 2;
const HEAD_WIDTH: usize = 6;
const INNER: usize = 40;
const VOCABULARY: usize = 37;
const CONTEXT: usize = 64;
const LAYERS: usize = 2;
/// Rows of a step at most.
const ROWS: usize = 48;

fn noise(seed: usize, index: usize) -> f32 {
    let mut x = (seed as u32).wrapping_mul(0x9e37_79b9) ^ (index as u32).wrapping_mul(0x85eb_ca6b);
    x ^= x >> 15;
    x = x.wrapping_mul(0x2c1b_3c6d);
    x ^= x >> 12;
    (x % 20_001) as f32 / 10_000.0 - 1.0
}

fn matrix(graph: &mut Graph, seed: usize, sizes: &[usize], centre: f32, spread: f32) -> Const {
    let count = sizes.iter().product();
    let values: Vec<f32> = (0..count).map(|i| centre + spread * noise(seed, i)).collect();
    graph.constants.push(Constant::from_f32(format!("w{seed}"), sizes, &values))
}

fn rows(sizes: &[usize]) -> TensorType {
    let mut shape = vec![Dim::from(Symbol::Rows)];
    shape.extend(sizes.iter().map(|size| Dim::from(*size)));
    TensorType::new(DType::F32, shape)
}

/// Nodes behind those of a layer: from its weights and its result to another result.
type Tail = fn(&mut Body, &[Value], Value) -> Value;

fn layer_kind(softcap: f32, tail: Tail) -> (LayerKind, Vec<(Vec<usize>, f32, f32)>) {
    let mut body = Body::default();
    let hidden = body.param(InputRole::Operand, rows(&[WIDTH]), None, None);
    let positions = TensorType::new(DType::I64, vec![Dim::from(Symbol::Rows)]);
    let positions = body.param(InputRole::Operand, positions, None, None);
    let qkv_width = (HEADS + 2 * KV) * HEAD_WIDTH;
    let shapes: Vec<(Vec<usize>, f32, f32)> = vec![
        (vec![WIDTH], 1.0, 0.2),
        (vec![qkv_width, WIDTH], 0.0, 0.4),
        (vec![qkv_width], 0.0, 0.2),
        (vec![HEAD_WIDTH], 1.0, 0.2),
        (vec![CONTEXT, HEAD_WIDTH / 2 - 1], 0.0, 1.0),
        (vec![CONTEXT, HEAD_WIDTH / 2 - 1], 0.0, 1.0),
        (vec![WIDTH, HEADS * HEAD_WIDTH], 0.0, 0.3),
        (vec![WIDTH], 1.0, 0.2),
        (vec![INNER, WIDTH], 0.0, 0.4),
        (vec![INNER, WIDTH], 0.0, 0.4),
        (vec![WIDTH, INNER], 0.0, 0.3),
    ];
    let weights: Vec<Value> = shapes
        .iter()
        .map(|(sizes, ..)| {
            let shape = sizes.iter().map(|size| Dim::from(*size)).collect();
            body.param(InputRole::Operand, TensorType::new(DType::F32, shape), None, None)
        })
        .collect();
    let push = |body: &mut Body, op: Op, operands: &[Value]| {
        body.push1(op, operands.to_vec(), None).unwrap()
    };
    let slice = |start: usize, length: usize| {
        let (start, length) = (Dim::from(start), Dim::from(length));
        Op::from(ops::slice::Slice { axis: 1, start, step: 1, length })
    };
    let heads = |count: usize| {
        let shape = vec![Dim::from(Symbol::Rows), Dim::from(count), Dim::from(HEAD_WIDTH)];
        Op::from(ops::reshape::Reshape { shape })
    };
    let norm = || Op::from(ops::rms_norm::RmsNorm { epsilon: 1e-5 });
    let linear = |bias, residual| Op::from(ops::linear::Linear { bias, residual });
    let rotary =
        Op::from(ops::rotary_rows::RotaryRows { width: HEAD_WIDTH as u32 - 2, interleaved: false });
    let x = push(&mut body, norm(), &[hidden, weights[0]]);
    let qkv = push(&mut body, linear(true, false), &[x, weights[1], weights[2]]);
    let part = |body: &mut Body, start: usize, count: usize| {
        let part = push(body, slice(start * HEAD_WIDTH, count * HEAD_WIDTH), &[qkv]);
        push(body, heads(count), &[part])
    };
    let q = part(&mut body, 0, HEADS);
    let k = part(&mut body, HEADS, KV);
    let v = part(&mut body, HEADS + KV, KV);
    let q = push(&mut body, norm(), &[q, weights[3]]);
    let q = push(&mut body, rotary.clone(), &[q, positions, weights[4], weights[5]]);
    let k = push(&mut body, rotary, &[k, positions, weights[4], weights[5]]);
    let cache = CacheId::new(0);
    body.push_typed(ops::cache_append::CacheAppend { cache }.into(), vec![k, v], vec![], None);
    let attend = ops::cache_attend::CacheAttend { cache, scale: 0.4, softcap, sinks: false };
    let result = vec![(rows(&[HEADS, HEAD_WIDTH]), None)];
    let attended = body.push_typed(attend.into(), vec![q], result, None)[0];
    let shape = vec![Dim::from(Symbol::Rows), Dim::from(HEADS * HEAD_WIDTH)];
    let flat = push(&mut body, ops::reshape::Reshape { shape }.into(), &[attended]);
    let h = push(&mut body, linear(false, true), &[flat, weights[6], hidden]);
    let x = push(&mut body, norm(), &[h, weights[7]]);
    let gate = push(&mut body, linear(false, false), &[x, weights[8]]);
    let up = push(&mut body, linear(false, false), &[x, weights[9]]);
    let activation = ops::unary::UnaryOp::Silu;
    let inner = push(&mut body, ops::gated::Gated { activation }.into(), &[gate, up]);
    let h = push(&mut body, linear(false, true), &[inner, weights[10], h]);
    let h = tail(&mut body, &weights, h);
    body.results.push(BodyResult { value: h, role: OutputRole::Other });
    let kind = LayerKind { name: "layer0".into(), body, weights: shapes.len(), caches: 1 };
    (kind, shapes)
}

/// A small model: two layers of one kind, a tied head, biases, grouped queries, partial rotary.
fn model(softcap: f32, layout: &CacheRows) -> Graph {
    model_with(softcap, layout, |_, _, h| h)
}

fn model_with(softcap: f32, layout: &CacheRows, tail: Tail) -> Graph {
    let mut graph = Graph::new();
    graph.stage = Stage::Fixed;
    let integers = TensorType::new(DType::I64, vec![Dim::from(Symbol::Rows)]);
    let tokens = graph.main.param(InputRole::Tokens, integers.clone(), None, None);
    let positions = graph.main.param(InputRole::Positions, integers, None, None);
    let (kind, shapes) = layer_kind(softcap, tail);
    let kind = graph.kinds.push(kind);
    let table = matrix(&mut graph, 1, &[VOCABULARY, WIDTH], 0.0, 1.0);
    let table_ty = graph.constants[table].ty.clone();
    let read = Op::read_constant(table);
    let table = graph.main.push_typed(read, vec![], vec![(table_ty, None)], None)[0];
    let embed = ops::embed::Embed { to: DType::F32 };
    let mut hidden = graph.main.push1(embed.into(), vec![tokens, table], None).unwrap();
    let tables: Vec<Const> =
        (4..6).map(|index| matrix(&mut graph, 50 + index, &shapes[index].0, 0.0, 1.0)).collect();
    for index in 0..LAYERS {
        let cache = graph.caches.push(CacheDecl {
            layer: index as u32,
            kv_heads: KV as u32,
            key_width: HEAD_WIDTH as u32,
            value_width: HEAD_WIDTH as u32,
            format: CacheFormat::F32,
            block: None,
            window: 0,
            layout: Some(layout.clone()),
        });
        let weights = shapes
            .iter()
            .enumerate()
            .map(|(weight, (sizes, centre, spread))| match weight {
                4 | 5 => tables[weight - 4],
                _ => matrix(&mut graph, 100 * (index + 1) + weight, sizes, *centre, *spread),
            })
            .collect();
        let op = ops::layer::Layer { kind, index: index as u32, weights, cache: Some(cache) };
        let result = vec![(rows(&[WIDTH]), None)];
        hidden = graph.main.push_typed(op.into(), vec![hidden, positions], result, None)[0];
    }
    let weight = matrix(&mut graph, 2, &[WIDTH], 1.0, 0.2);
    let ty = graph.constants[weight].ty.clone();
    let weight =
        graph.main.push_typed(Op::read_constant(weight), vec![], vec![(ty, None)], None)[0];
    let norm = ops::rms_norm::RmsNorm { epsilon: 1e-5 };
    let x = graph.main.push1(norm.into(), vec![hidden, weight], None).unwrap();
    let head = ops::linear::Linear { bias: false, residual: false };
    let logits = graph.main.push1(head.into(), vec![x, table], None).unwrap();
    graph.main.results.push(BodyResult { value: logits, role: OutputRole::Logits });
    graph
}

fn full() -> CacheRows {
    CacheRows::ring(KvPolicy::Full, CONTEXT as u32)
}

fn options() -> Options<'static> {
    Options {
        compute: None,
        max_rows: ROWS as u32,
        max_head_rows: ROWS as u32,
        slots: 2,
        context: CONTEXT as u32,
        tokenizer: b"tok",
        chat_template: b"",
        facts: b"{}",
        levels: &IsaLevel::ALL,
        listing: false,
        profile: false,
    }
}

fn levels() -> Vec<IsaLevel> {
    let mut levels = IsaLevel::ALL.to_vec();
    levels.retain(|level| weir_runtime::machine::supports(*level));
    levels
}

const IDS: [u32; 12] = [3, 17, 36, 0, 5, 5, 21, 9, 30, 12, 1, 8];

#[test]
fn segments_agree_with_the_interpreter() {
    for softcap in [0.0, 2.0] {
        let graph = model(softcap, &full());
        let mut session = Session::new(&graph).unwrap();
        let ids: Vec<i64> = IDS.iter().map(|id| i64::from(*id)).collect();
        let mut expected = session.prefill(&ids[..9]).unwrap();
        expected.extend(ids[9..].iter().map(|id| session.step(*id).unwrap()));
        for level in levels() {
            let mut machine = Machine::new(&graph, level, 1);
            let prompt: Vec<Row> = (0..9).map(|p| (IDS[p], p as u32, 1)).collect();
            let mut got = machine.step(&prompt);
            for (position, id) in IDS.iter().enumerate().skip(9) {
                got.extend(machine.step(&[(*id, position as u32, 1)]));
            }
            for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
                for (x, y) in got.iter().zip(expected) {
                    assert!((x - y).abs() <= 2e-5 + 2e-5 * y.abs(), "row {row}: {x} {y}");
                }
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_threads_or_company() {
    let _pair = PAIR_IN_USE.lock().unwrap();
    let graph = model(0.0, &full());
    for level in levels() {
        let mut alone = Machine::new(&graph, level, 1);
        let id = |position: usize| IDS[position % IDS.len()];
        let expected: Vec<Vec<f32>> = (0..36)
            .flat_map(|position| alone.step(&[(id(position), position as u32, 0)]))
            .collect();
        for threads in [1, 2] {
            let mut machine = Machine::new(&graph, level, threads);
            // The sequence in tiles, a second one of other tokens among its rows. The last step has
            // rows enough for threads to draw units of its attention.
            for (begin, end) in [(0, 5), (5, 6), (6, 12), (12, 36)] {
                let mut rows = Vec::new();
                for position in begin..end {
                    rows.push((id(position), position as u32, 1));
                    rows.push((id(47 - position), position as u32, 0));
                }
                let got = machine.step(&rows);
                for (index, row) in got.iter().step_by(2).enumerate() {
                    let bits = |row: &[f32]| row.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                    assert_eq!(bits(row), bits(&expected[begin + index]), "row {}", begin + index);
                }
            }
        }
    }
}

#[test]
fn bf16_stays_near_and_does_not_depend_on_threads() {
    let _pair = PAIR_IN_USE.lock().unwrap();
    let graph = model(0.0, &full());
    let rows: Vec<Row> = (0..IDS.len()).map(|p| (IDS[p], p as u32, 1)).collect();
    let exact = Machine::new(&graph, IsaLevel::Portable, 1).step(&rows);
    for level in levels() {
        let run = |threads| Machine::with(&graph, level, threads, Some(Compute::Bf16)).step(&rows);
        let alone = run(1);
        assert!(alone == run(2));
        assert!(alone != exact);
        for (x, y) in alone.iter().flatten().zip(exact.iter().flatten()) {
            // 8 bits a factor, and a few layers of them.
            assert!((x - y).abs() <= 0.2, "{x} {y}");
        }
    }
}

/// Codes about their middle with their scales, so many of each in a row.
fn symmetric(codes: Vec<u8>, scales: Vec<u8>, [reduction, blocks]: [usize; 2]) -> ConstData {
    ConstData::Quantised(QuantData {
        codes: codes.into(),
        code_strides: [reduction, 1],
        signed: false,
        scales: scales.into(),
        scale_strides: [blocks, 1],
        zeros: None,
        zero_strides: [0, 0],
    })
}

/// Replaces the gate's weights by int4 ones.
fn quantise_gates(graph: &mut Graph) {
    let blocks = WIDTH.div_ceil(16);
    let format = QuantFormat {
        bits: 4,
        block: 16,
        scale: DType::F32,
        short: false,
        zero: ZeroPoints::Fixed(8),
    };
    let shape = vec![INNER.into(), WIDTH.into()];
    let ty = TensorType { element: Element::Quant(format), shape };
    for layer in 1..=LAYERS {
        let name = format!("w{}", 100 * layer + 8);
        let codes: Vec<u8> = (0..INNER * WIDTH / 2).map(|i| (i * 41 + layer) as u8).collect();
        let scales: Vec<u8> =
            (0..INNER * blocks).flat_map(|i| (0.05 * noise(7, i)).to_le_bytes()).collect();
        let data = symmetric(codes, scales, [WIDTH, blocks]);
        for (_, constant) in graph.constants.iter_mut() {
            if constant.name == name {
                *constant = Constant { name: name.clone(), ty: ty.clone(), data: data.clone() };
            }
        }
    }
    for (_, kind) in graph.kinds.iter_mut() {
        let gate = kind.body.params[2 + 8].value;
        kind.body.values[gate].ty = ty.clone();
    }
}

#[test]
fn int8_stays_near_and_does_not_depend_on_threads() {
    let _pair = PAIR_IN_USE.lock().unwrap();
    let mut graph = model(0.0, &full());
    quantise_gates(&mut graph);
    let ids: Vec<i64> = IDS.iter().map(|id| i64::from(*id)).collect();
    let exact = Session::new(&graph).unwrap().prefill(&ids).unwrap();
    let rows: Vec<Row> = (0..IDS.len()).map(|p| (IDS[p], p as u32, 1)).collect();
    for level in levels() {
        let run = |threads, compute| Machine::with(&graph, level, threads, compute).step(&rows);
        for (compute, bound) in [(Some(Compute::F32), 2e-5), (None, 0.05)] {
            let alone = run(1, compute);
            assert!(alone == run(2, compute));
            for (x, y) in alone.iter().flatten().zip(exact.iter().flatten()) {
                assert!((x - y).abs() <= bound * (1.0 + y.abs()), "{compute:?} {x} {y}");
            }
        }
    }
}

#[test]
fn long_prompts_are_scored_and_compacted() {
    let _pair = PAIR_IN_USE.lock().unwrap();
    let ring = CacheRows::ring(KvPolicy::Snapstream, 4);
    let layout = CacheRows { sinks: 1, selected: 3, observed: 3, pool: 3, ..ring };
    let graph = model(1.5, &layout);
    let mut session = Session::new(&graph).unwrap();
    let ids: Vec<i64> = IDS.iter().map(|id| i64::from(*id)).collect();
    session.prefill(&ids).unwrap();
    for threads in [1, 2] {
        let mut machine = Machine::new(&graph, IsaLevel::Portable, threads);
        let rows: Vec<Row> = (0..IDS.len()).map(|p| (IDS[p], p as u32, 0)).collect();
        machine.step(&rows);
        // The first layer again, from its own embedding, with its last queries observed.
        let tokens = IDS;
        let positions: Vec<u32> = (0..12).collect();
        let spans: Vec<RowSpans> = (0..12u32)
            .map(|position| {
                let mut span =
                    RowSpans { write_row: position, range_count: 1, ..Default::default() };
                span.ranges[0] = CacheRange { slot: 0, first: 0, rows: position + 1 };
                span
            })
            .collect();
        let base = StepContext {
            tokens: tokens.as_ptr(),
            positions: positions.as_ptr(),
            rotary_rows: positions.as_ptr(),
            rows: 12,
            ..machine.context()
        };
        let embed =
            machine.header.offsets(machine.header.half(offset_of!(ModelHeader, embed_weights)));
        machine.call("embed-portable", &StepContext { segment_weights: embed.as_ptr(), ..base });
        let mut queries = vec![f32::from_bits(POISON); 3 * HEADS * HEAD_WIDTH];
        let mut lse = vec![f32::from_bits(POISON); 3 * HEADS];
        let call = LayerCall {
            observed_queries: queries.as_mut_ptr(),
            observed_lse: lse.as_mut_ptr(),
            observed_from: 9,
            ..machine.layer_call(0, &spans)
        };
        let weights = machine.header.layer_weights(0);
        let context = StepContext { segment_weights: weights.as_ptr(), layer: &call, ..base };
        machine.call("layer-0-portable", &context);
        let poison = f32::from_bits(POISON);
        let mut to_keys = vec![poison; KV * CONTEXT * HEAD_WIDTH];
        let mut to_values = vec![poison; KV * 8 * HEAD_WIDTH];
        let mut scores = vec![poison; KV * 12];
        let mut scratch = scores.clone();
        let mut floors = vec![poison; HEADS];
        let mut selected = vec![99u32; KV * 3];
        let stride = (8 * HEAD_WIDTH * 4) as u64;
        let prompt = PromptCall {
            rows: 12,
            sinks: 1,
            selected: 3,
            further: 0,
            recent: 4,
            observed: 3,
            ring_base: 4,
            ring_anchor: 4,
            ring_rows: 4,
            slot: 0,
            layer: 0,
            keys: to_keys.as_mut_ptr().cast(),
            values: to_values.as_mut_ptr().cast(),
            key_slot_stride: PLANE as u64 * 4,
            key_head_stride: (CONTEXT * HEAD_WIDTH * 4) as u64,
            value_slot_stride: KV as u64 * stride,
            value_head_stride: stride,
            scores: scores.as_mut_ptr(),
            scratch: scratch.as_mut_ptr(),
            floors: floors.as_mut_ptr(),
            selected_positions: selected.as_mut_ptr(),
            positions_stride: 3,
            key_ring: 0,
            value_ring: 0,
            block_rows: 0,
            heads: null(),
            anew: 0,
            asked: 0,
            second_share: 0,
            second: std::ptr::null_mut(),
        };
        let context = StepContext { prompt: &prompt, ..context };
        machine.call("observe-0", &context);
        machine.call("compact-0", &context);
        let kept = session.caches()[0].kept().unwrap().clone();
        for head in 0..KV {
            let expected: Vec<u32> = kept.positions[head].iter().map(|p| *p as u32).collect();
            assert_eq!(&selected[head * 3..head * 3 + 3], expected, "head {head}");
            let mut places = vec![(0, 0)];
            places.extend(expected.iter().enumerate().map(|(i, p)| (1 + i, *p as usize)));
            places.extend((8..12).map(|p| (4 + (p - 4) % 4, p)));
            for (to, from) in places {
                assert_eq!(key(&to_keys, head, to), key(&machine.keys[0], head, from));
                let to = (head * 8 + to) * HEAD_WIDTH;
                let from = (head * CONTEXT + from) * HEAD_WIDTH;
                let dense = &machine.values[0];
                assert_eq!(to_values[to..to + HEAD_WIDTH], dense[from..from + HEAD_WIDTH]);
            }
        }
    }
}

#[test]
fn the_same_graph_gives_the_same_bytes() {
    let graph = model(0.0, &full());
    let make = || {
        let verified = weir_ir::verify::verify(&graph, Stage::Fixed).unwrap();
        let image = generate(verified, &options()).unwrap().image;
        (image.code, image.tables)
    };
    assert!(make() == make());
}

#[test]
fn arithmetic_that_the_weights_do_not_have_is_refused() {
    let graph = model(0.0, &full());
    let verified = weir_ir::verify::verify(&graph, Stage::Fixed).unwrap();
    let options = Options { compute: Some(Compute::Int8), ..options() };
    assert!(matches!(generate(verified, &options), Err(CodegenError::Options(_))));
}
