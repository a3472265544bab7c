//! The ONNX graph of a synthetic model, node by node as onnxruntime-genai's builder writes a Llama in
//! bf16 (opset 22 and `com.microsoft` 1): GroupQueryAttention with fused rotary and packed
//! projections, skip norms, external data.

use bytes::Bytes;

use super::{EPSILON, Shape, Tensor};
use crate::onnx::proto::{
    AttributeProto, DimensionProto, GraphProto, LOCATION_EXTERNAL, ModelProto, NodeProto,
    OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto, attribute_kind,
};

/// Element types by their numbers in `TensorProto.DataType`.
const F32: i32 = 1;
const I32: i64 = 6;
const I64: i32 = 7;
const BF16: i32 = 16;

/// The file beside `model.onnx` that holds the weights.
pub(super) const DATA_FILE: &str = "model.onnx.data";

/// The model's graph; the weights follow each other in [`DATA_FILE`].
pub(super) fn model(shape: &Shape) -> ModelProto {
    let opset = |domain: &str, version| OperatorSetIdProto { domain: domain.to_owned(), version };
    ModelProto {
        ir_version: 10,
        producer_name: "weir make-model".to_owned(),
        graph: Some(graph(shape)),
        opset_import: vec![opset("", 22), opset("com.microsoft", 1)],
        ..ModelProto::default()
    }
}

fn attribute(name: &str, kind: i32) -> AttributeProto {
    AttributeProto { name: name.to_owned(), kind, ..AttributeProto::default() }
}

fn int(name: &str, value: i64) -> AttributeProto {
    AttributeProto { i: Some(value), ..attribute(name, attribute_kind::INT) }
}

fn float(name: &str, value: f32) -> AttributeProto {
    AttributeProto { f: Some(value), ..attribute(name, attribute_kind::FLOAT) }
}

/// Nodes in the order in which they are computed.
#[derive(Default)]
struct Nodes(Vec<NodeProto>);

impl Nodes {
    fn push(
        &mut self,
        (domain, op): (&str, &str),
        inputs: &[&str],
        outputs: &[&str],
        attribute: Vec<AttributeProto>,
    ) {
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let first = outputs.iter().find(|name| !name.is_empty()).copied().unwrap_or_default();
        self.0.push(NodeProto {
            input: named(inputs),
            output: named(outputs),
            name: first.rsplit_once("/output").map_or(first, |(name, _)| name).to_owned(),
            op_type: op.to_owned(),
            attribute,
            domain: domain.to_owned(),
            ..NodeProto::default()
        });
    }

    /// A node of ONNX itself with one output, whose name it returns.
    fn standard(
        &mut self,
        op: &str,
        name: &str,
        inputs: &[&str],
        a: Vec<AttributeProto>,
    ) -> String {
        let output = format!("{name}/output_0");
        self.push(("", op), inputs, &[&output], a);
        output
    }

    fn constant(&mut self, name: &str, dims: &[i64], number: i64) -> String {
        let tensor = TensorProto {
            dims: dims.to_vec(),
            data_type: I64,
            raw_data: Some(Bytes::copy_from_slice(&number.to_le_bytes())),
            ..TensorProto::default()
        };
        let value =
            AttributeProto { t: Some(tensor), ..attribute("value", attribute_kind::TENSOR) };
        self.push(("", "Constant"), &[], &[name], vec![value]);
        name.to_owned()
    }
}

fn graph(shape: &Shape) -> GraphProto {
    let mut nodes = Nodes::default();
    let lengths = lengths(&mut nodes);
    let mut hidden = embedding(&mut nodes, shape);
    let mut normed = nodes.standard(
        "SimplifiedLayerNormalization",
        "/model/layers.0/input_layernorm",
        &[&hidden, "model.layers.0.input_layernorm.weight"],
        vec![float("epsilon", EPSILON as f32), int("axis", -1), int("stash_type", 1)],
    );
    for layer in 0..shape.layers {
        let attended = attention(&mut nodes, shape, layer, &normed, &lengths);
        let place = format!("/model/layers.{layer}/post_attention_layernorm");
        let weight = format!("model.layers.{layer}.post_attention_layernorm.weight");
        (normed, hidden) = skip_norm(&mut nodes, &place, &weight, &hidden, &attended);
        let inner = gated(&mut nodes, layer, &normed);
        let (place, weight) = if layer + 1 == shape.layers {
            ("final_norm_layernorm", format!("model.layers.{}.final_norm_layernorm", layer + 1))
        } else {
            ("input_layernorm", format!("model.layers.{}.input_layernorm", layer + 1))
        };
        let place = format!("/model/layers.{}/{place}", layer + 1);
        let weight = format!("{weight}.weight");
        (normed, hidden) = skip_norm(&mut nodes, &place, &weight, &hidden, &inner);
    }
    let logits =
        nodes.standard("MatMul", "/lm_head/MatMul", &[&normed, "lm_head.MatMul.weight"], vec![]);
    nodes.push(("", "Cast"), &[&logits], &["logits"], vec![int("to", F32.into())]);
    GraphProto {
        node: nodes.0,
        name: shape.name.to_owned(),
        initializer: initializers(shape),
        input: inputs(shape),
        output: outputs(shape),
        ..GraphProto::default()
    }
}

/// Rows before this call and rows in all, as the attention operator wants them.
fn lengths(nodes: &mut Nodes) -> [String; 2] {
    let place = "/model/attn_mask_reformat/attn_mask_subgraph";
    let last = nodes.constant("/model/constants/INT64/[1]", &[1], 1);
    let sum = nodes.standard(
        "ReduceSum",
        &format!("{place}/ReduceSum"),
        &["attention_mask", &last],
        vec![int("keepdims", 0)],
    );
    let less = nodes.standard("Sub", &format!("{place}/Sub"), &[&sum, &last], vec![]);
    let to = || vec![int("to", I32)];
    let before = nodes.standard("Cast", &format!("{place}/Sub/Cast"), &[&less], to());
    let size = nodes.standard("Shape", &format!("{place}/Shape"), &["attention_mask"], vec![]);
    let one = nodes.constant("/model/constants/INT64/1", &[], 1);
    let axis = vec![int("axis", 0)];
    let total = nodes.standard("Gather", &format!("{place}/Gather"), &[&size, &one], axis);
    let total = nodes.standard("Cast", &format!("{place}/Gather/Cast"), &[&total], to());
    [before, total]
}

fn embedding(nodes: &mut Nodes, shape: &Shape) -> String {
    let table = if shape.tied {
        let order = AttributeProto { ints: vec![1, 0], ..attribute("perm", attribute_kind::INTS) };
        let head = "lm_head.MatMul.weight";
        nodes.standard("Transpose", "/model/embed_tokens/Transpose", &[head], vec![order])
    } else {
        "model.embed_tokens.weight".to_owned()
    };
    nodes.standard("Gather", "/model/embed_tokens/Gather", &[&table, "input_ids"], vec![])
}

fn attention(
    nodes: &mut Nodes,
    shape: &Shape,
    layer: usize,
    normed: &str,
    [before, total]: &[String; 2],
) -> String {
    let place = format!("/model/layers.{layer}/attn");
    let weight = |name: &str| format!("model.layers.{layer}.attn.{name}.MatMul.weight");
    let packed = nodes.standard(
        "MatMul",
        &format!("{place}/qkv_proj/MatMul"),
        &[normed, &weight("qkv_proj")],
        vec![],
    );
    let [past_key, past_value] =
        ["key", "value"].map(|part| format!("past_key_values.{layer}.{part}"));
    let output = format!("{place}/GroupQueryAttention/output_0");
    let inputs = [
        packed.as_str(),
        "",
        "",
        &past_key,
        &past_value,
        before,
        total,
        "cos_cache",
        "sin_cache",
        "",
        "",
        "",
    ];
    let present = ["key", "value"].map(|part| format!("present.{layer}.{part}"));
    nodes.push(
        ("com.microsoft", "GroupQueryAttention"),
        &inputs,
        &[&output, &present[0], &present[1]],
        vec![
            int("num_heads", shape.heads as i64),
            int("kv_num_heads", shape.kv_heads as i64),
            float("scale", 1.0 / (shape.head_width as f32).sqrt()),
            int("local_window_size", -1),
            float("softcap", 0.0),
            int("do_rotary", 1),
            int("rotary_interleaved", 0),
        ],
    );
    let name = format!("{place}/o_proj/MatMul");
    nodes.standard("MatMul", &name, &[&output, &weight("o_proj")], vec![])
}

/// Adds, then normalises: the normalised rows and the sum.
fn skip_norm(
    nodes: &mut Nodes,
    place: &str,
    weight: &str,
    hidden: &str,
    branch: &str,
) -> (String, String) {
    let (normed, sum) = (format!("{place}/output_0"), format!("{place}/output_3"));
    nodes.push(
        ("com.microsoft", "SkipSimplifiedLayerNormalization"),
        &[hidden, branch, weight],
        &[&normed, "", "", &sum],
        vec![float("epsilon", EPSILON as f32)],
    );
    (normed, sum)
}

fn gated(nodes: &mut Nodes, layer: usize, normed: &str) -> String {
    let place = format!("/model/layers.{layer}/mlp");
    let product = |nodes: &mut Nodes, name: &str, input: &str| {
        let weight = format!("model.layers.{layer}.mlp.{name}.MatMul.weight");
        nodes.standard("MatMul", &format!("{place}/{name}/MatMul"), &[input, &weight], vec![])
    };
    let gate = product(nodes, "gate_proj", normed);
    let up = product(nodes, "up_proj", normed);
    let sigmoid = nodes.standard("Sigmoid", &format!("{place}/act_fn/Sigmoid"), &[&gate], vec![]);
    let silu = nodes.standard("Mul", &format!("{place}/act_fn/Mul"), &[&gate, &sigmoid], vec![]);
    let inner = nodes.standard("Mul", &format!("{place}/Mul"), &[&silu, &up], vec![]);
    product(nodes, "down_proj", &inner)
}

/// All tensors, in the order in which they lie in the data file.
fn initializers(shape: &Shape) -> Vec<TensorProto> {
    let mut offset = 0;
    let entry = |key: &str, value: String| StringStringEntryProto { key: key.to_owned(), value };
    let place = |tensor: Tensor| {
        let bytes = tensor.bytes();
        let external = vec![
            entry("location", DATA_FILE.to_owned()),
            entry("offset", offset.to_string()),
            entry("length", bytes.to_string()),
        ];
        offset += bytes;
        TensorProto {
            dims: tensor.dims.iter().map(|size| *size as i64).collect(),
            data_type: BF16,
            name: tensor.name,
            external_data: external,
            data_location: LOCATION_EXTERNAL,
            ..TensorProto::default()
        }
    };
    shape.tensors().into_iter().map(place).collect()
}

/// A dimension of an input or output.
enum Size {
    Name(&'static str),
    Number(usize),
}

fn value(name: String, element: i32, sizes: &[Size]) -> ValueInfoProto {
    let dim = |size: &Size| match size {
        Size::Name(name) => {
            DimensionProto { dim_param: Some((*name).to_owned()), ..DimensionProto::default() }
        }
        Size::Number(size) => {
            DimensionProto { dim_value: Some(*size as i64), ..DimensionProto::default() }
        }
    };
    let shape = TensorShapeProto { dim: sizes.iter().map(dim).collect() };
    let tensor = TensorTypeProto { elem_type: element, shape: Some(shape) };
    ValueInfoProto {
        name,
        kind: Some(TypeProto { tensor_type: Some(tensor), ..TypeProto::default() }),
    }
}

/// The key and value rows of every layer before or after the call.
fn cache<'a>(
    shape: &'a Shape,
    name: &'a str,
    rows: &'static str,
) -> impl Iterator<Item = ValueInfoProto> + 'a {
    let parts = (0..shape.layers).flat_map(|layer| [(layer, "key"), (layer, "value")]);
    parts.map(move |(layer, part)| {
        let sizes = [
            Size::Name("batch_size"),
            Size::Number(shape.kv_heads),
            Size::Name(rows),
            Size::Number(shape.head_width),
        ];
        value(format!("{name}.{layer}.{part}"), BF16, &sizes)
    })
}

fn inputs(shape: &Shape) -> Vec<ValueInfoProto> {
    let ids = [Size::Name("batch_size"), Size::Name("sequence_length")];
    let mask = [Size::Name("batch_size"), Size::Name("total_sequence_length")];
    let first =
        [value("input_ids".to_owned(), I64, &ids), value("attention_mask".to_owned(), I64, &mask)];
    first.into_iter().chain(cache(shape, "past_key_values", "past_sequence_length")).collect()
}

fn outputs(shape: &Shape) -> Vec<ValueInfoProto> {
    let sizes =
        [Size::Name("batch_size"), Size::Name("sequence_length"), Size::Number(shape.vocabulary)];
    let logits = [value("logits".to_owned(), F32, &sizes)];
    logits.into_iter().chain(cache(shape, "present", "total_sequence_length")).collect()
}
