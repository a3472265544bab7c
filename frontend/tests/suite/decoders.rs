//! A second opinion on protobuf: every model decodes to the same with an independent decoder.

use onnx_protobuf::ModelProto as Reference;
use protobuf::Message as _;
use weir_frontend::onnx::model::decode;
use weir_frontend::onnx::proto::{GraphProto, TensorProto};

use crate::fixtures::models;

fn same_tensor(ours: &TensorProto, reference: &onnx_protobuf::TensorProto) {
    assert_eq!(ours.name, reference.name);
    assert_eq!(ours.dims, reference.dims);
    assert_eq!(ours.data_type, reference.data_type);
    assert_eq!(ours.raw_data.as_deref().unwrap_or_default(), reference.raw_data);
    assert_eq!(ours.float_data, reference.float_data);
    assert_eq!(ours.int32_data, reference.int32_data);
    assert_eq!(ours.int64_data, reference.int64_data);
    assert_eq!(ours.double_data, reference.double_data);
    assert_eq!(ours.uint64_data, reference.uint64_data);
    let entries = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let external: Vec<_> = ours.external_data.iter().map(|e| entries(&e.key, &e.value)).collect();
    let expected: Vec<_> =
        reference.external_data.iter().map(|e| entries(&e.key, &e.value)).collect();
    assert_eq!(external, expected);
}

fn same_graph(ours: &GraphProto, reference: &onnx_protobuf::GraphProto) {
    assert_eq!(ours.name, reference.name);
    assert_eq!(ours.initializer.len(), reference.initializer.len());
    for (ours, reference) in ours.initializer.iter().zip(&reference.initializer) {
        same_tensor(ours, reference);
    }
    assert_eq!(ours.node.len(), reference.node.len());
    for (ours, reference) in ours.node.iter().zip(&reference.node) {
        assert_eq!((&*ours.name, &*ours.op_type), (&*reference.name, &*reference.op_type));
        assert_eq!(ours.domain, reference.domain);
        assert_eq!(ours.input, reference.input);
        assert_eq!(ours.output, reference.output);
        assert_eq!(ours.attribute.len(), reference.attribute.len());
        for (ours, reference) in ours.attribute.iter().zip(&reference.attribute) {
            assert_eq!(ours.name, reference.name);
            assert_eq!(ours.i.unwrap_or_default(), reference.i);
            assert_eq!(ours.f.unwrap_or_default(), reference.f);
            assert_eq!(ours.s.as_deref().unwrap_or_default(), reference.s);
            assert_eq!(ours.ints, reference.ints);
            assert_eq!(ours.floats, reference.floats);
            assert_eq!(ours.t.is_some(), reference.t.is_some());
            if let (Some(ours), Some(reference)) = (&ours.t, reference.t.as_ref()) {
                same_tensor(ours, reference);
            }
            if let (Some(ours), Some(reference)) = (&ours.g, reference.g.as_ref()) {
                same_graph(ours, reference);
            }
        }
    }
    let names = |values: &[onnx_protobuf::ValueInfoProto]| -> Vec<String> {
        values.iter().map(|value| value.name.clone()).collect()
    };
    let ours_in: Vec<_> = ours.input.iter().map(|value| value.name.clone()).collect();
    let ours_out: Vec<_> = ours.output.iter().map(|value| value.name.clone()).collect();
    assert_eq!(ours_in, names(&reference.input));
    assert_eq!(ours_out, names(&reference.output));
}

#[test]
fn two_decoders_agree() {
    for path in models() {
        let bytes = std::fs::read(path.join("model.onnx")).unwrap();
        let reference = Reference::parse_from_bytes(&bytes).unwrap();
        let ours = decode(bytes.into()).unwrap();
        assert_eq!(ours.ir_version, reference.ir_version);
        assert_eq!(ours.opset_import.len(), reference.opset_import.len());
        same_graph(ours.graph.as_ref().unwrap(), &reference.graph);
    }
}
