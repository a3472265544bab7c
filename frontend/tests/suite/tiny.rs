//! A decoder of one layer, as small as can be, built message by message so that tests can break
//! any part of it.

use std::path::Path;

use bytes::Bytes;
use prost::Message;
use weir_frontend::onnx::proto::{
    AttributeProto, DimensionProto, GraphProto, LOCATION_EXTERNAL, ModelProto, NodeProto,
    OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto, attribute_kind,
};

/// The model and the files beside it.
#[derive(Debug, Clone)]
pub struct Tiny {
    pub model: ModelProto,
    pub files: Vec<(String, Vec<u8>)>,
}

pub const FLOAT: i32 = 1;
pub const INT64: i32 = 7;

impl Tiny {
    /// Writes `model.onnx` and its company.
    pub fn write(&self, directory: &Path) {
        std::fs::write(directory.join("model.onnx"), self.model.encode_to_vec()).unwrap();
        for (name, contents) in &self.files {
            std::fs::write(directory.join(name), contents).unwrap();
        }
    }

    pub fn graph(&mut self) -> &mut GraphProto {
        self.model.graph.as_mut().unwrap()
    }

    pub fn node(&mut self, name: &str) -> &mut NodeProto {
        self.graph().node.iter_mut().find(|node| node.name == name).unwrap()
    }

    pub fn tensor(&mut self, name: &str) -> &mut TensorProto {
        self.graph().initializer.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    pub fn external(&mut self, name: &str, key: &str) -> &mut String {
        let entries = &mut self.tensor(name).external_data;
        &mut entries.iter_mut().find(|entry| entry.key == key).unwrap().value
    }
}

pub fn node(op: &str, domain: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    NodeProto {
        op_type: op.into(),
        domain: domain.into(),
        name: format!("/{}", outputs[0]),
        input: inputs.iter().map(|name| (*name).into()).collect(),
        output: outputs.iter().map(|name| (*name).into()).collect(),
        ..NodeProto::default()
    }
}

pub fn int(name: &str, value: i64) -> AttributeProto {
    let kind = attribute_kind::INT;
    AttributeProto { name: name.into(), i: Some(value), kind, ..AttributeProto::default() }
}

pub fn float(name: &str, value: f32) -> AttributeProto {
    let kind = attribute_kind::FLOAT;
    AttributeProto { name: name.into(), f: Some(value), kind, ..AttributeProto::default() }
}

pub fn text(name: &str, value: &str) -> AttributeProto {
    let (kind, s) = (attribute_kind::STRING, Some(Bytes::from(value.to_owned())));
    AttributeProto { name: name.into(), s, kind, ..AttributeProto::default() }
}

pub fn graph(name: &str, value: GraphProto) -> AttributeProto {
    let kind = attribute_kind::GRAPH;
    AttributeProto { name: name.into(), g: Some(value), kind, ..AttributeProto::default() }
}

pub fn ints(name: &str, dims: &[i64], values: &[i64]) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: INT64,
        dims: dims.to_vec(),
        int64_data: values.to_vec(),
        ..TensorProto::default()
    }
}

pub fn floats(name: &str, dims: &[i64]) -> TensorProto {
    let count = dims.iter().product::<i64>();
    TensorProto {
        name: name.into(),
        data_type: FLOAT,
        dims: dims.to_vec(),
        float_data: (0..count).map(|index| (index % 7) as f32 * 0.125 - 0.375).collect(),
        ..TensorProto::default()
    }
}

pub fn value(name: &str, element: i32, dims: &[&str]) -> ValueInfoProto {
    let dim = |text: &&str| match text.parse() {
        Ok(size) => DimensionProto { dim_value: Some(size), dim_param: None },
        Err(_) => DimensionProto { dim_value: None, dim_param: Some((*text).into()) },
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dim).collect() };
    let tensor = TensorTypeProto { elem_type: element, shape: Some(shape) };
    let kind = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
    ValueInfoProto { name: name.into(), kind: Some(kind) }
}

fn entry(key: &str, value: impl ToString) -> StringStringEntryProto {
    StringStringEntryProto { key: key.into(), value: value.to_string() }
}

/// Vocabulary 8, width 32, two query heads and one key head of 16; the projections' weights are in
/// `model.onnx.data`.
pub fn tiny() -> Tiny {
    let mut attention = node(
        "GroupQueryAttention",
        "com.microsoft",
        &[
            "qkv",
            "",
            "",
            "past_key_values.0.key",
            "past_key_values.0.value",
            "last",
            "total",
            "cos",
            "sin",
            "",
            "",
        ],
        &["attended", "present.0.key", "present.0.value"],
    );
    attention.attribute = vec![
        int("num_heads", 2),
        int("kv_num_heads", 1),
        int("do_rotary", 1),
        int("local_window_size", -1),
        float("scale", 0.25),
    ];
    let mut norm =
        node("SimplifiedLayerNormalization", "", &["embedded", "norm.weight"], &["normed"]);
    norm.attribute = vec![float("epsilon", 1e-5), int("axis", -1), int("stash_type", 1)];
    let mut sum = node("ReduceSum", "", &["attention_mask", "one"], &["lengths"]);
    sum.attribute = vec![int("keepdims", 0)];
    let cast = |from: &str, to: &str| {
        let mut cast = node("Cast", "", &[from], &[to]);
        cast.attribute = vec![int("to", 6)];
        cast
    };
    let nodes = vec![
        sum,
        node("Sub", "", &["lengths", "one"], &["last_long"]),
        cast("last_long", "last"),
        node("Shape", "", &["attention_mask"], &["mask_shape"]),
        node("Gather", "", &["mask_shape", "one_scalar"], &["total_long"]),
        cast("total_long", "total"),
        node("Gather", "", &["embed.weight", "input_ids"], &["embedded"]),
        norm,
        node("MatMul", "", &["normed", "qkv.weight"], &["qkv"]),
        attention,
        node("MatMul", "", &["attended", "o.weight"], &["projected"]),
        node("Add", "", &["embedded", "projected"], &["hidden"]),
        node("MatMul", "", &["hidden", "head.weight"], &["logits"]),
    ];
    let mut data = Vec::new();
    let mut outside = |name: &str, dims: &[i64]| {
        let mut tensor = floats(name, dims);
        let offset = data.len();
        data.extend(tensor.float_data.drain(..).flat_map(f32::to_le_bytes));
        let length = data.len() - offset;
        tensor.data_location = LOCATION_EXTERNAL;
        tensor.external_data = vec![
            entry("location", "model.onnx.data"),
            entry("offset", offset),
            entry("length", length),
        ];
        tensor
    };
    let initializers = vec![
        ints("one", &[1], &[1]),
        ints("one_scalar", &[], &[1]),
        floats("embed.weight", &[8, 32]),
        floats("norm.weight", &[32]),
        outside("qkv.weight", &[32, 64]),
        floats("cos", &[16, 8]),
        floats("sin", &[16, 8]),
        outside("o.weight", &[32, 32]),
        outside("head.weight", &[32, 8]),
    ];
    let graph = GraphProto {
        name: "tiny".into(),
        node: nodes,
        initializer: initializers,
        input: vec![
            value("input_ids", INT64, &["batch", "sequence"]),
            value("attention_mask", INT64, &["batch", "total"]),
            value("past_key_values.0.key", FLOAT, &["batch", "1", "past", "width"]),
            value("past_key_values.0.value", FLOAT, &["batch", "1", "past", "width"]),
        ],
        output: vec![
            value("logits", FLOAT, &["batch", "sequence", "8"]),
            value("present.0.key", FLOAT, &["batch", "1", "total", "width"]),
            value("present.0.value", FLOAT, &["batch", "1", "total", "width"]),
        ],
        ..GraphProto::default()
    };
    let opset = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    let model = ModelProto {
        ir_version: 10,
        producer_name: "tiny".into(),
        graph: Some(graph),
        opset_import: vec![opset("", 22), opset("com.microsoft", 1)],
        ..ModelProto::default()
    };
    Tiny { model, files: vec![("model.onnx.data".into(), data)] }
}
