//! What fuzz targets share: inputs that are whole but for what a target changes in them.

pub mod artefact;
pub mod placement;

use std::sync::LazyLock;

use weir_frontend::onnx::proto::*;
use weir_ir::{ConstData, Constant};
use weir_tokenizer::{Tokenizer, pack};

/// A tokenizer of bytes without a normalizer: every text comes back as it was.
pub fn byte_level() -> &'static Tokenizer {
    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let json = include_bytes!("../../runtime/tokenizer/tests/data/gpt-oss/tokenizer.json");
        Tokenizer::open(pack(json).expect("test data packs")).expect("a packed table opens")
    });
    &TOKENIZER
}

/// A model that adds four floats, which lie in another file, to its input.
pub fn external_model(location: &str, offset: &str, length: &str) -> ModelProto {
    let entry =
        |key: &str, value: &str| StringStringEntryProto { key: key.into(), value: value.into() };
    let given = [("location", location), ("offset", offset), ("length", length)];
    let weight = TensorProto {
        dims: vec![4],
        data_type: FLOAT,
        name: "w".into(),
        data_location: LOCATION_EXTERNAL,
        external_data: given
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| entry(key, value))
            .collect(),
        ..TensorProto::default()
    };
    let value = |name: &str| {
        let dim = vec![DimensionProto { dim_value: Some(4), dim_param: None }];
        let tensor = TensorTypeProto { elem_type: FLOAT, shape: Some(TensorShapeProto { dim }) };
        let kind = TypeProto { tensor_type: Some(tensor), ..TypeProto::default() };
        ValueInfoProto { name: name.into(), kind: Some(kind) }
    };
    let add = NodeProto {
        op_type: "Add".into(),
        name: "/y".into(),
        input: vec!["x".into(), "w".into()],
        output: vec!["y".into()],
        ..NodeProto::default()
    };
    let graph = GraphProto {
        node: vec![add],
        name: "external".into(),
        initializer: vec![weight],
        input: vec![value("x")],
        output: vec![value("y")],
        ..GraphProto::default()
    };
    ModelProto {
        ir_version: 10,
        graph: Some(graph),
        opset_import: vec![OperatorSetIdProto { domain: String::new(), version: 22 }],
        ..ModelProto::default()
    }
}

/// ONNX's number of float32.
const FLOAT: i32 = 1;

/// The bytes that a constant of this model lies in.
pub fn stored(constant: &Constant) -> &[u8] {
    match &constant.data {
        ConstData::Dense { bytes, .. } => bytes,
        _ => &[],
    }
}
