//! A whole model of int4 products in the instruction interpreter: every assembled level gives the same
//! bits, those of this machine where it has the level. What fits together only on one level, as the
//! records that one kernel writes and another reads in tiles, is tested on any machine so.

use half::f16;
use weir_processor::{self as processor, Argument as Memory};

use super::*;
use crate::image::CodeImage;
use crate::kernels::attention::{CacheShape, CacheType};
use crate::kernels::tests::in_bytes::{bytes_of_layer, bytes_of_spans, put};

const WIDTH: usize = 64;
const HEADS: usize = 4;
const KV: usize = 2;
const HEAD_WIDTH: usize = 32;
/// Three units of a gated product: two together, and one.
const INNER: usize = 96;
const VOCABULARY: usize = 50;
const CONTEXT: usize = 64;
const ROWS: usize = 24;
const LAYERS: usize = 2;
/// Levels that share one order of sums.
const LEVELS: [IsaLevel; 5] =
    [IsaLevel::Avx2, IsaLevel::AvxVnni, IsaLevel::Avx512, IsaLevel::Avx512Pairs, IsaLevel::Amx];

/// The format that `--weights int4` makes.
const FORMAT: QuantFormat =
    QuantFormat { bits: 4, block: 32, scale: DType::F16, short: true, zero: ZeroPoints::Fixed(8) };

fn quantised(channels: usize, reduction: usize) -> TensorType {
    let shape = vec![channels.into(), reduction.into()];
    TensorType { element: Element::Quant(FORMAT), shape }
}

/// Codes and scales of five significant bits, some of them negative.
fn weight(graph: &mut Graph, seed: usize, [channels, reduction]: [usize; 2]) -> Const {
    let blocks = reduction / FORMAT.block as usize;
    let codes: Vec<u8> =
        (0..channels * reduction / 2).map(|i| (noise(seed, i) * 128.0) as i8 as u8).collect();
    let scale = |index: usize| {
        let noise = noise(seed + 1, index);
        let significant = (16.0 + 15.0 * noise.abs()).round() / 1024.0;
        f16::from_f32(if noise < 0.0 { -significant } else { significant })
    };
    let scales: Vec<u8> = (0..channels * blocks).flat_map(|i| scale(i).to_le_bytes()).collect();
    let data = symmetric(codes, scales, [reduction, blocks]);
    let ty = quantised(channels, reduction);
    graph.constants.push(Constant { name: format!("q{seed}"), ty, data })
}

/// Types of a layer's weights, and sizes of those that are quantised.
fn weights() -> [(Vec<usize>, bool); 8] {
    [
        (vec![WIDTH], false),
        (vec![(HEADS + 2 * KV) * HEAD_WIDTH, WIDTH], true),
        (vec![CONTEXT, HEAD_WIDTH / 2], false),
        (vec![CONTEXT, HEAD_WIDTH / 2], false),
        (vec![WIDTH, HEADS * HEAD_WIDTH], true),
        (vec![WIDTH], false),
        (vec![2 * INNER, WIDTH], true),
        (vec![WIDTH, INNER], true),
    ]
}

fn layer_kind() -> LayerKind {
    let mut body = Body::default();
    let operand = || InputRole::Operand;
    let hidden = body.param(operand(), rows(&[WIDTH]), None, None);
    let positions = TensorType::new(DType::I64, vec![Dim::from(Symbol::Rows)]);
    let positions = body.param(operand(), positions, None, None);
    let [norm1, qkv, cos, sin, output, norm2, gate_up, down] = weights().map(|(sizes, is_int4)| {
        let shape = sizes.iter().map(|size| Dim::from(*size)).collect();
        let float = TensorType::new(DType::F32, shape);
        let ty = if is_int4 { quantised(sizes[0], sizes[1]) } else { float };
        body.param(operand(), ty, None, None)
    });
    let push = |body: &mut Body, op: Op, operands: &[Value]| {
        body.push1(op, operands.to_vec(), None).unwrap()
    };
    let slice = |start: usize, length: usize| {
        let (start, length) = (Dim::from(start), Dim::from(length));
        Op::from(ops::slice::Slice { axis: 1, start, step: 1, length })
    };
    let reshape = |sizes: &[usize]| {
        let mut shape = vec![Dim::from(Symbol::Rows)];
        shape.extend(sizes.iter().map(|size| Dim::from(*size)));
        Op::from(ops::reshape::Reshape { shape })
    };
    let norm = || Op::from(ops::rms_norm::RmsNorm { epsilon: 1e-5 });
    let linear = |residual| Op::from(ops::linear::Linear { bias: false, residual });
    let rotary =
        Op::from(ops::rotary_rows::RotaryRows { width: HEAD_WIDTH as u32, interleaved: false });
    let x = push(&mut body, norm(), &[hidden, norm1]);
    let all = push(&mut body, linear(false), &[x, qkv]);
    let [q, k, v] = [(0, HEADS), (HEADS, KV), (HEADS + KV, KV)].map(|(start, count)| {
        let part = push(&mut body, slice(start * HEAD_WIDTH, count * HEAD_WIDTH), &[all]);
        push(&mut body, reshape(&[count, HEAD_WIDTH]), &[part])
    });
    let [q, k] = [q, k].map(|x| push(&mut body, rotary.clone(), &[x, positions, cos, sin]));
    let cache = CacheId::new(0);
    body.push_typed(ops::cache_append::CacheAppend { cache }.into(), vec![k, v], vec![], None);
    let attend = ops::cache_attend::CacheAttend { cache, scale: 0.2, softcap: 0.0, sinks: false };
    let result = vec![(rows(&[HEADS, HEAD_WIDTH]), None)];
    let attended = body.push_typed(attend.into(), vec![q], result, None)[0];
    let flat = push(&mut body, reshape(&[HEADS * HEAD_WIDTH]), &[attended]);
    let h = push(&mut body, linear(true), &[flat, output, hidden]);
    let x = push(&mut body, norm(), &[h, norm2]);
    let both = push(&mut body, linear(false), &[x, gate_up]);
    let [gate, up] = [0, INNER].map(|start| push(&mut body, slice(start, INNER), &[both]));
    let activation = ops::unary::UnaryOp::Silu;
    let inner = push(&mut body, ops::gated::Gated { activation }.into(), &[gate, up]);
    let h = push(&mut body, linear(true), &[inner, down, h]);
    body.results.push(BodyResult { value: h, role: OutputRole::Other });
    LayerKind { name: "layer0".into(), body, weights: weights().len(), caches: 1 }
}

/// Two layers as passes leave them: queries, keys and values as one product, gate and up as one.
fn model(format: CacheFormat) -> Graph {
    let mut graph = Graph::new();
    graph.stage = Stage::Fixed;
    let integers = TensorType::new(DType::I64, vec![Dim::from(Symbol::Rows)]);
    let tokens = graph.main.param(InputRole::Tokens, integers.clone(), None, None);
    let positions = graph.main.param(InputRole::Positions, integers, None, None);
    let kind = graph.kinds.push(layer_kind());
    let read = |graph: &mut Graph, constant: Const| {
        let ty = graph.constants[constant].ty.clone();
        graph.main.push_typed(Op::read_constant(constant), vec![], vec![(ty, None)], None)[0]
    };
    let table = matrix(&mut graph, 1, &[VOCABULARY, WIDTH], 0.0, 1.0);
    let table = read(&mut graph, table);
    let embed = ops::embed::Embed { to: DType::F32 };
    let mut hidden = graph.main.push1(embed.into(), vec![tokens, table], None).unwrap();
    let tables: Vec<Const> =
        [2, 3].map(|at| matrix(&mut graph, 50 + at, &weights()[at].0, 0.0, 1.0)).to_vec();
    for index in 0..LAYERS {
        let cache = graph.caches.push(CacheDecl {
            layer: index as u32,
            kv_heads: KV as u32,
            key_width: HEAD_WIDTH as u32,
            value_width: HEAD_WIDTH as u32,
            format,
            block: None,
            window: 0,
            layout: Some(CacheRows::ring(KvPolicy::Full, CONTEXT as u32)),
        });
        let weights = weights().into_iter().enumerate().map(|(at, (sizes, is_int4))| match at {
            2 | 3 => tables[at - 2],
            _ if is_int4 => weight(&mut graph, 100 * (index + 1) + 2 * at, [sizes[0], sizes[1]]),
            _ => matrix(&mut graph, 100 * (index + 1) + 2 * at, &sizes, 1.0, 0.2),
        });
        let weights = weights.collect();
        let op = ops::layer::Layer { kind, index: index as u32, weights, cache: Some(cache) };
        let result = vec![(rows(&[WIDTH]), None)];
        hidden = graph.main.push_typed(op.into(), vec![hidden, positions], result, None)[0];
    }
    let norm_weight = matrix(&mut graph, 2, &[WIDTH], 1.0, 0.2);
    let norm_weight = read(&mut graph, norm_weight);
    let norm = ops::rms_norm::RmsNorm { epsilon: 1e-5 };
    let x = graph.main.push1(norm.into(), vec![hidden, norm_weight], None).unwrap();
    let head = weight(&mut graph, 3, [VOCABULARY, WIDTH]);
    let head = read(&mut graph, head);
    let linear = ops::linear::Linear { bias: false, residual: false };
    let logits = graph.main.push1(linear.into(), vec![x, head], None).unwrap();
    graph.main.results.push(BodyResult { value: logits, role: OutputRole::Logits });
    graph
}

/// The model's code and memory; every access of a call has to be inside of what it is given.
struct Interpreted {
    code: CodeImage,
    /// Where the team's barrier is, which of one thread returns at once.
    barrier: u64,
    header: Header,
    weights: Vec<u8>,
    arena: Vec<u8>,
    hidden: Vec<u8>,
    cache: CacheShape,
    /// Keys and values by layer.
    planes: [[Vec<u8>; 2]; LAYERS],
    level: IsaLevel,
}

/// What a call of a segment has beside the step's rows.
#[derive(Default)]
struct Call {
    /// Weight offsets.
    weights: Vec<u64>,
    layer: Option<usize>,
    /// Rows of the head, and room for their logits.
    head_rows: Vec<u32>,
    logits: Vec<u8>,
}

fn words(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn halves(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn floats(count: usize) -> Vec<u8> {
    halves(&vec![POISON; count])
}

impl Interpreted {
    fn new(image: &ModelImage<'_>, level: IsaLevel, number: CacheType) -> Interpreted {
        let cache = CacheShape {
            kv_heads: KV,
            key_width: HEAD_WIDTH,
            value_width: HEAD_WIDTH,
            number,
            block: None,
            by_head: false,
        };
        let plane = |row_bytes: usize| floats(KV * CONTEXT * row_bytes / 4);
        let mut code = image.code.clone();
        let barrier = processor::CODE + code.bytes.len() as u64;
        code.bytes.push(0xc3);
        let header = Header(image.tables.clone());
        let mut weights = vec![0; image.weights.bytes as usize];
        for piece in &image.weights.pieces {
            let begin = piece.offset as usize;
            (piece.fill)(&mut weights[begin..begin + piece.bytes as usize]).unwrap();
        }
        Interpreted {
            code,
            barrier,
            arena: vec![0xff; header.word(offset_of!(ModelHeader, arena_bytes)) as usize],
            header,
            weights,
            hidden: floats(ROWS * WIDTH),
            cache,
            planes: [(); LAYERS].map(|()| [plane(cache.key_bytes()), plane(cache.value_bytes())]),
            level,
        }
    }

    /// Calls a segment as a team of one thread, for rows of slot 0 from a position on. Returns logits.
    fn call(&mut self, segment: &str, tokens: &[u32], position: u32, mut call: Call) -> Vec<u8> {
        let count = tokens.len() as u32;
        let positions: Vec<u32> = (position..position + count).collect();
        let spans = positions.iter().map(|position| {
            let mut span = RowSpans { write_row: *position, range_count: 1, ..Default::default() };
            span.ranges[0] = CacheRange { slot: 0, first: 0, rows: position + 1 };
            span
        });
        let spans = bytes_of_spans(&spans.collect::<Vec<_>>());
        let (tokens, positions) = (halves(tokens), halves(&positions));
        let (offsets, head_rows) = (words(&call.weights), halves(&call.head_rows));
        let mut none = [Vec::new(), Vec::new()];
        let planes = call.layer.map_or(&mut none, |layer| &mut self.planes[layer]);
        let lengths = [
            size_of::<StepContext>(),
            size_of::<LayerCall>(),
            spans.len(),
            self.weights.len(),
            self.arena.len(),
            self.hidden.len(),
            tokens.len(),
            positions.len(),
            offsets.len(),
            head_rows.len(),
            call.logits.len(),
            planes[0].len(),
            planes[1].len(),
        ];
        let at = processor::addresses(lengths);
        let [key_head, value_head] = [self.cache.key_bytes(), self.cache.value_bytes()]
            .map(|row_bytes| (CONTEXT * row_bytes) as u64);
        let layer = bytes_of_layer(
            &LayerCall {
                keys: std::ptr::without_provenance_mut(at[11] as usize),
                values: std::ptr::without_provenance_mut(at[12] as usize),
                key_slot_stride: KV as u64 * key_head,
                key_head_stride: key_head,
                value_slot_stride: KV as u64 * value_head,
                value_head_stride: value_head,
                ..nothing_observed()
            },
            at[2],
        );
        let mut context = vec![0; size_of::<StepContext>()];
        for (field, address) in [
            (offset_of!(StepContext, weights), at[3]),
            (offset_of!(StepContext, arena), at[4]),
            (offset_of!(StepContext, hidden), at[5]),
            (offset_of!(StepContext, tokens), at[6]),
            (offset_of!(StepContext, positions), at[7]),
            (offset_of!(StepContext, rotary_rows), at[7]),
            (offset_of!(StepContext, segment_weights), at[8]),
            (offset_of!(StepContext, layer), if call.layer.is_some() { at[1] } else { 0 }),
            (offset_of!(StepContext, head_rows), at[9]),
            (offset_of!(StepContext, logits), at[10]),
            (offset_of!(StepContext, barrier), self.barrier),
        ] {
            put(&mut context, field, address.to_le_bytes());
        }
        put(&mut context, offset_of!(StepContext, rows), count.to_le_bytes());
        let wanted = call.head_rows.len() as u32;
        put(&mut context, offset_of!(StepContext, head_row_count), wanted.to_le_bytes());

        let symbol = format!("{segment}-{}", self.level.name());
        let entry = self.code.symbols.iter().find(|known| known.name == symbol).unwrap().offset;
        let [keys, values] = planes;
        let arguments = vec![
            Memory::Read(&context),
            Memory::Count(0),
            Memory::Count(1),
            // No arguments of a segment: what the context leads to.
            Memory::Read(&layer),
            Memory::Read(&spans),
            Memory::Read(&self.weights),
            Memory::Write(&mut self.arena),
            Memory::Write(&mut self.hidden),
            Memory::Read(&tokens),
            Memory::Read(&positions),
            Memory::Read(&offsets),
            Memory::Read(&head_rows),
            Memory::Write(&mut call.logits),
            Memory::Write(keys),
            Memory::Write(values),
        ];
        if let Err(fault) = processor::call(&self.code.bytes, entry as usize, arguments) {
            panic!("{symbol} with {count} rows: {fault}");
        }
        call.logits
    }

    /// One step; logits of all rows.
    fn step(&mut self, tokens: &[u32], position: u32) -> Vec<u8> {
        let weights = self.header.offsets(self.header.half(offset_of!(ModelHeader, embed_weights)));
        self.call("embed", tokens, position, Call { weights, ..Call::default() });
        for layer in 0..LAYERS {
            let weights = self.header.layer_weights(layer);
            let call = Call { weights, layer: Some(layer), ..Call::default() };
            self.call("layer-0", tokens, position, call);
        }
        let head_rows = (0..tokens.len() as u32).collect();
        let weights = self.header.offsets(self.header.half(offset_of!(ModelHeader, head_weights)));
        let logits = floats(tokens.len() * VOCABULARY);
        let call = Call { weights, layer: None, head_rows, logits };
        self.call("head", tokens, position, call)
    }
}

/// Fails unless all levels give the same logits, and these are near the interpreter's.
fn check(format: CacheFormat, number: CacheType) {
    let graph = model(format);
    let ids: Vec<u32> = (0..39).map(|at| at * 17 % VOCABULARY as u32).collect();
    let mut session = Session::new(&graph).unwrap();
    let tokens: Vec<i64> = ids.iter().map(|id| i64::from(*id)).collect();
    let expected = session.prefill(&tokens).unwrap().concat();

    let verified = weir_ir::verify::verify(&graph, Stage::Fixed).unwrap();
    let options =
        Options { max_rows: ROWS as u32, max_head_rows: ROWS as u32, slots: 1, ..options() };
    let image = generate(verified, &options).unwrap().image;
    let in_tiles = |name: &str| name.contains("-bf16-") && name.ends_with("amx");
    assert!(image.code.symbols.iter().any(|symbol| in_tiles(&symbol.name)));
    let all = LEVELS.map(|level| {
        let mut machine = Interpreted::new(&image, level, number);
        // Many rows, a few, one, and as many as tiles begin with.
        let parts = [(0, 20), (20, 25), (25, 26), (26, 34), (34, 39)];
        parts.map(|(begin, end)| machine.step(&ids[begin..end], begin as u32)).concat()
    });
    let floats = all[0].chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    assert_eq!(floats.len(), expected.len());
    for (at, (got, expected)) in floats.zip(&expected).enumerate() {
        // Activations have 7 bits, and go through a few layers.
        assert!((got - expected).abs() <= 0.1 * (1.0 + expected.abs()), "{at}: {got} {expected}");
    }
    for (level, logits) in LEVELS.into_iter().zip(&all) {
        assert!(*logits == all[0], "{} has other bits over {number:?}", level.name());
    }
}

#[test]
fn a_whole_model_has_the_same_bits_on_all_levels() {
    check(CacheFormat::F32, CacheType::F32);
    check(CacheFormat::I8, CacheType::Int8);
}
