//! Graphs of a few operators: forms that whole models show rarely.

use std::collections::BTreeMap;

use prost::Message;
use weir_frontend::onnx::proto::*;
use weir_frontend::{ImportError, import_operators};
use weir_ir::Graph;
use weir_ir::interpret::{Bindings, Interpreter, Tensor};

use crate::tiny::*;

/// Imports nodes at an opset, with inputs `(name, element, dims)` and the outputs of the last node.
pub fn import_nodes(
    opset: i64,
    nodes: Vec<NodeProto>,
    inputs: Vec<ValueInfoProto>,
    initializers: Vec<TensorProto>,
) -> Result<Graph, ImportError> {
    let outputs = nodes.last().unwrap().output.clone();
    let untyped = |name: String| ValueInfoProto { name, kind: None };
    let graph = GraphProto {
        name: "operators".into(),
        node: nodes,
        input: inputs,
        output: outputs.into_iter().filter(|name| !name.is_empty()).map(untyped).collect(),
        initializer: initializers,
        ..GraphProto::default()
    };
    let version = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
    let model = ModelProto {
        ir_version: 10,
        graph: Some(graph),
        opset_import: vec![version("", opset), version("com.microsoft", 1)],
        ..ModelProto::default()
    };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("model.onnx"), model.encode_to_vec()).unwrap();
    import_operators(directory.path(), &BTreeMap::new())
}

/// The types of the results, as the graph prints them.
fn types(graph: &Graph) -> Vec<String> {
    let results = graph.main.results.iter();
    results.map(|result| graph.main.ty(result.value).to_string()).collect()
}

fn one(
    opset: i64,
    node: NodeProto,
    inputs: Vec<ValueInfoProto>,
    initializers: Vec<TensorProto>,
) -> Vec<String> {
    types(&import_nodes(opset, vec![node], inputs, initializers).unwrap())
}

#[test]
fn slices_follow_the_rules_for_far_and_negative_indices() {
    let slice = |starts: i64, ends: i64, step: i64| {
        let initializers = vec![
            ints("starts", &[1], &[starts]),
            ints("ends", &[1], &[ends]),
            ints("axes", &[1], &[-1]),
            ints("steps", &[1], &[step]),
        ];
        let node = node("Slice", "", &["x", "starts", "ends", "axes", "steps"], &["y"]);
        one(18, node, vec![value("x", FLOAT, &["2", "10"])], initializers).remove(0)
    };
    assert_eq!(slice(0, i64::MAX, 1), "f32[2, 10]");
    assert_eq!(slice(-3, i64::MAX, 1), "f32[2, 3]");
    assert_eq!(slice(-100, 4, 3), "f32[2, 2]");
    assert_eq!(slice(7, 3, 1), "f32[2, 0]");
    assert_eq!(slice(-1, i64::MIN, -1), "f32[2, 10]");
    assert_eq!(slice(100, 0, -4), "f32[2, 3]");
}

#[test]
fn a_slice_backwards_from_before_the_front_has_the_first_element() {
    let slice = |start: i64, size: i64| {
        let numbers: Vec<i64> = (7..7 + size).collect();
        let initializers = vec![
            ints("x", &[size], &numbers),
            ints("starts", &[1], &[start]),
            ints("ends", &[1], &[i64::from(i32::MIN)]),
            ints("axes", &[1], &[0]),
            ints("steps", &[1], &[-1]),
        ];
        let node = node("Slice", "", &["x", "starts", "ends", "axes", "steps"], &["y"]);
        let graph = import_nodes(18, vec![node], vec![], initializers).unwrap();
        evaluated(&graph).i64s().unwrap().to_vec()
    };
    assert_eq!(slice(-10, 5), [7]);
    assert_eq!(slice(-6, 5), [7]);
    assert_eq!(slice(-4, 5), [8, 7]);
    assert!(slice(-10, 0).is_empty());
    assert!(slice(3, 0).is_empty());
}

#[test]
fn ranks_are_bounded() {
    let reshaped = |rank: usize| {
        let node = node("Reshape", "", &["x", "shape"], &["y"]);
        let tensors = vec![floats("x", &[]), ints("shape", &[rank as i64], &vec![1; rank])];
        import_nodes(18, vec![node], vec![], tensors)
    };
    assert_eq!(types(&reshaped(32).unwrap()), [format!("f32[1{}]", ", 1".repeat(31))]);
    let problem = |op: &str, rank: usize| {
        format!(
            "unsupported: node \"/y\" (ai.onnx::{op}, opset 18): \
             a tensor of rank {rank}, more than 32"
        )
    };
    refused(reshaped(33), &problem("Reshape", 33));
    refused(reshaped(65_536), &problem("Reshape", 65_536));
    let axes: Vec<i64> = (1..65_536).collect();
    let unsqueeze = node("Unsqueeze", "", &["x", "axes"], &["y"]);
    let tensors = vec![floats("x", &[2]), ints("axes", &[65_535], &axes)];
    refused(import_nodes(18, vec![unsqueeze], vec![], tensors), &problem("Unsqueeze", 65_536));
}

#[test]
fn splits_are_even_but_for_the_last_part() {
    let mut split = node("Split", "", &["x"], &["a", "b", "c"]);
    split.attribute = vec![int("axis", 1), int("num_outputs", 3)];
    let parts = one(18, split, vec![value("x", FLOAT, &["2", "7"])], vec![]);
    assert_eq!(parts, ["f32[2, 3]", "f32[2, 3]", "f32[2, 1]"]);
}

const UINT8: i32 = 2;
const INT8: i32 = 3;
const UINT4: i32 = 21;
const INT4: i32 = 22;

/// A tensor of codes, or of zero points.
fn codes(name: &str, data_type: i32, dims: &[i64]) -> TensorProto {
    let count = dims.iter().product::<i64>() as usize;
    let bytes = if matches!(data_type, UINT4 | INT4) { count.div_ceil(2) } else { count };
    let (name, raw_data) = (name.into(), Some(vec![0x71_u8; bytes].into()));
    TensorProto { name, data_type, dims: dims.to_vec(), raw_data, ..TensorProto::default() }
}

/// Fails unless the one problem of an import is this.
fn refused(imported: Result<Graph, ImportError>, problem: &str) {
    let Err(ImportError { problems, .. }) = imported else { panic!("accepted, not {problem}") };
    assert_eq!(problems.iter().map(ToString::to_string).collect::<Vec<_>>(), [problem]);
}

#[test]
fn quantised_matrices_of_all_layouts_have_rows_of_outputs() {
    let scales = |dims: &[i64]| floats("scales", dims);
    let codes = |data_type, dims: &[i64]| codes("codes", data_type, dims);
    // K = 40 in blocks of 16: the last block is partial.
    let mut nbits = node("MatMulNBits", "com.microsoft", &["x", "codes", "scales"], &["y"]);
    nbits.attribute = vec![int("K", 40), int("N", 6), int("bits", 4), int("block_size", 16)];
    let x = vec![value("x", FLOAT, &["3", "40"])];
    let tensors = vec![codes(UINT8, &[6, 3, 8]), scales(&[6, 3])];
    assert_eq!(one(22, nbits, x, tensors), ["f32[3, 6]"]);

    let mut blocked = node("DequantizeLinear", "", &["codes", "scales"], &["y"]);
    blocked.attribute = vec![int("axis", 0), int("block_size", 16)];
    let tensors = vec![codes(INT4, &[32, 6]), scales(&[2, 6])];
    assert_eq!(one(22, blocked, vec![], tensors), ["f32[32, 6]"]);

    let mut by_column = node("DequantizeLinear", "", &["codes", "scales"], &["y"]);
    by_column.attribute = vec![int("axis", 1)];
    let tensors = vec![codes(INT8, &[32, 6]), scales(&[6])];
    assert_eq!(one(22, by_column, vec![], tensors), ["f32[32, 6]"]);

    let mut rows =
        node("GatherBlockQuantized", "com.microsoft", &["codes", "ids", "scales"], &["y"]);
    rows.attribute = vec![int("block_size", 16)];
    let ids = vec![value("ids", INT64, &["2", "5"])];
    let tensors = vec![codes(UINT8, &[8, 16]), scales(&[8, 2])];
    assert_eq!(one(22, rows, ids, tensors), ["f32[2, 5, 32]"]);
}

#[test]
fn each_block_has_a_scale_and_a_zero_point() {
    // [4, 64] in blocks of 32 along dimension 1, whether the codes are constant or computed.
    let blocked = |is_constant: bool, scales: &[i64], zeros: Option<&[i64]>| {
        let data_type = if is_constant { INT4 } else { UINT8 };
        let mut tensors = vec![floats("scales", scales)];
        let mut inputs = vec![];
        if is_constant {
            tensors.push(codes("codes", data_type, &[4, 64]));
        } else {
            inputs.push(value("codes", data_type, &["4", "64"]));
        }
        tensors.extend(zeros.map(|dims| codes("zeros", data_type, dims)));
        let zeros = if zeros.is_some() { "zeros" } else { "" };
        let mut node = node("DequantizeLinear", "", &["codes", "scales", zeros], &["y"]);
        node.attribute = vec![int("axis", 1), int("block_size", 32)];
        import_nodes(22, vec![node], inputs, tensors)
    };
    let place = "malformed: node \"/y\" (ai.onnx::DequantizeLinear, opset 22)";
    for is_constant in [true, false] {
        for zeros in [None, Some(&[4, 2][..])] {
            let graph = blocked(is_constant, &[4, 2], zeros).unwrap();
            assert_eq!(types(&graph), ["f32[4, 64]"]);
        }
        let within = if is_constant { "" } else { " in blocks of 32" };
        let others: [&[i64]; 8] = [&[], &[1], &[8], &[9], &[2, 4], &[4, 3], &[1, 2], &[4, 2, 1]];
        for dims in others {
            let scales = format!("{place}: scales {dims:?} of [4, 64]{within}");
            refused(blocked(is_constant, dims, None), &scales);
            let zeros = if is_constant {
                format!("{place}: zero points {dims:?}, the scales are [4, 2]")
            } else {
                format!("{place}: zero points {dims:?} of [4, 64]{within}")
            };
            refused(blocked(is_constant, &[4, 2], Some(dims)), &zeros);
        }
    }
}

#[test]
fn by_row_zero_points_are_as_many_as_scales() {
    let by_row = |zeros: &[i64]| {
        let tensors = vec![
            codes("codes", INT8, &[4, 64]),
            floats("scales", &[4]),
            codes("zeros", INT8, zeros),
        ];
        let mut node = node("DequantizeLinear", "", &["codes", "scales", "zeros"], &["y"]);
        node.attribute = vec![int("axis", 0)];
        import_nodes(22, vec![node], vec![], tensors)
    };
    assert_eq!(types(&by_row(&[4]).unwrap()), ["f32[4, 64]"]);
    refused(
        by_row(&[2, 2]),
        "malformed: node \"/y\" (ai.onnx::DequantizeLinear, opset 22): \
         zero points [2, 2], the scales are [4]",
    );
}

/// A product with 6 rows of 40 codes of 4 bits.
fn nbits(block: i64, tensors: Vec<TensorProto>) -> Result<Graph, ImportError> {
    let mut inputs = vec!["x"];
    inputs.extend(tensors.iter().map(|tensor| tensor.name.as_str()));
    let mut node = node("MatMulNBits", "com.microsoft", &inputs, &["y"]);
    node.attribute = vec![int("K", 40), int("N", 6), int("bits", 4), int("block_size", block)];
    import_nodes(22, vec![node], vec![value("x", FLOAT, &["3", "40"])], tensors)
}

#[test]
fn packed_rows_have_whole_bytes() {
    let place = "node \"/y\" (com.microsoft::MatMulNBits, opset 1)";
    let with_zeros = |dims: &[i64]| {
        let packed = codes("codes", UINT8, &[6, 3, 8]);
        nbits(16, vec![packed, floats("scales", &[18]), codes("zeros", UINT8, dims)])
    };
    // Three blocks a row, so two bytes of zero points.
    for dims in [&[6, 2][..], &[12]] {
        assert_eq!(types(&with_zeros(dims).unwrap()), ["f32[3, 6]"]);
    }
    let wrong = format!("malformed: {place}: zero points [2, 6], not [6, 2]");
    refused(with_zeros(&[2, 6]), &wrong);
    let single = nbits(1, vec![codes("codes", UINT8, &[6, 40, 0]), floats("scales", &[6, 40])]);
    refused(single, &format!("unsupported: {place}: blocks of 1 codes of 4 bits"));
}

#[test]
fn zero_points_are_of_the_type_of_their_codes_or_of_the_scales() {
    let names = [(UINT8, "uint8"), (INT8, "int8"), (UINT4, "uint4"), (INT4, "int4")];
    let part = |data_type: i32, dims: &[i64]| match data_type {
        FLOAT => floats("zeros", dims),
        _ => codes("zeros", data_type, dims),
    };
    // 8 rows in two blocks of 16; bytes hold two codes, or the zero points of both blocks.
    let gathered = |table: i32, zeros: i32| {
        let tensors = vec![
            codes("codes", table, &[8, if table == UINT8 { 16 } else { 32 }]),
            floats("scales", &[8, 2]),
            part(zeros, &[8, if zeros == UINT8 { 1 } else { 2 }]),
        ];
        let inputs = ["codes", "ids", "scales", "zeros"];
        let mut node = node("GatherBlockQuantized", "com.microsoft", &inputs, &["y"]);
        node.attribute = vec![int("block_size", 16)];
        import_nodes(22, vec![node], vec![value("ids", INT64, &["3"])], tensors)
    };
    let multiplied = |zeros: i32| {
        let width = if zeros == FLOAT { 3 } else { 2 };
        let packed = codes("codes", UINT8, &[6, 3, 8]);
        nbits(16, vec![packed, floats("scales", &[6, 3]), part(zeros, &[6, width])])
    };
    let mixed = |op: &str, zeros: &str, codes: &str| {
        format!(
            "unsupported: node \"/y\" (com.microsoft::{op}, opset 1): \
             zero points (input 3) of {zeros} with codes of {codes}"
        )
    };
    for (table, table_name) in names.into_iter().filter(|(table, _)| *table != INT8) {
        assert_eq!(types(&gathered(table, FLOAT).unwrap()), ["f32[3, 32]"]);
        for (zeros, zeros_name) in names {
            let imported = gathered(table, zeros);
            if zeros == table {
                assert_eq!(types(&imported.unwrap()), ["f32[3, 32]"]);
            } else {
                refused(imported, &mixed("GatherBlockQuantized", zeros_name, table_name));
            }
        }
    }
    for zeros in [UINT8, FLOAT] {
        assert_eq!(types(&multiplied(zeros).unwrap()), ["f32[3, 6]"]);
    }
    for (zeros, name) in names.into_iter().filter(|(zeros, _)| *zeros != UINT8) {
        refused(multiplied(zeros), &mixed("MatMulNBits", name, "uint8"));
    }
}

#[test]
fn a_tied_quantised_table_is_found_through_reshape_and_slice() {
    let name = "codes".into();
    let raw_data = Some(vec![0x42_u8; 8 * 2 * 8].into());
    let codes =
        TensorProto { name, data_type: 2, dims: vec![8, 2, 8], raw_data, ..TensorProto::default() };
    let mut gather =
        node("GatherBlockQuantized", "com.microsoft", &["table", "ids", "scales"], &["y"]);
    gather.attribute = vec![int("block_size", 16)];
    let nodes = vec![
        node("Reshape", "", &["codes", "rows"], &["padded"]),
        node("Slice", "", &["padded", "zero", "columns", "one"], &["table"]),
        gather,
    ];
    let tensors = vec![
        codes,
        ints("rows", &[2], &[8, 16]),
        ints("zero", &[1], &[0]),
        ints("columns", &[1], &[12]),
        ints("one", &[1], &[1]),
        floats("scales", &[8, 2]),
    ];
    let graph = import_nodes(22, nodes, vec![value("ids", INT64, &["3"])], tensors).unwrap();
    assert_eq!(types(&graph), ["f32[3, 24]"]);
}

#[test]
fn a_table_that_is_also_the_heads_weight_is_one_constant() {
    let raw_data = Some(vec![0x42_u8; 8 * 2 * 8].into());
    let codes = TensorProto {
        name: "codes".into(),
        data_type: 2,
        dims: vec![8, 2, 8],
        raw_data,
        ..TensorProto::default()
    };
    let mut gather =
        node("GatherBlockQuantized", "com.microsoft", &["table", "ids", "scales"], &["x"]);
    gather.attribute = vec![int("block_size", 16)];
    let mut head = node("MatMulNBits", "com.microsoft", &["x", "codes", "scales"], &["y"]);
    head.attribute = vec![int("block_size", 16), int("K", 32), int("N", 8)];
    let nodes = vec![node("Reshape", "", &["codes", "rows"], &["table"]), gather, head];
    let tensors = vec![codes, ints("rows", &[2], &[8, 16]), floats("scales", &[8, 2])];
    let graph = import_nodes(22, nodes, vec![value("ids", INT64, &["3"])], tensors).unwrap();
    assert_eq!(types(&graph), ["f32[3, 8]"]);
    let weights = graph.constants.values().filter(|constant| constant.ty.dtype().is_none());
    assert_eq!(weights.count(), 1);
}

#[test]
fn a_condition_on_the_length_chooses_between_tables() {
    let directory = tempfile::tempdir().unwrap();
    let mut tiny = tiny();
    let branch = |suffix: &str, rows: i64| {
        let table = |name: &str| floats(&format!("{name}_{suffix}"), &[rows, 8]);
        let out = |name: &str| value(&format!("{name}_{suffix}"), FLOAT, &["rows", "8"]);
        GraphProto {
            name: suffix.into(),
            initializer: vec![table("cos"), table("sin")],
            output: vec![out("cos"), out("sin")],
            ..GraphProto::default()
        }
    };
    let mut choice = node("If", "", &["is_long"], &["cos", "sin"]);
    let (then, other) = (branch("long", 16), branch("short", 12));
    choice.attribute = vec![graph("then_branch", then), graph("else_branch", other)];
    let graph = tiny.graph();
    graph.initializer.retain(|tensor| tensor.name != "cos" && tensor.name != "sin");
    graph.initializer.push(ints("limit", &[], &[12]));
    graph.node.insert(6, node("Greater", "", &["total_long", "limit"], &["is_long"]));
    graph.node.insert(7, choice);
    tiny.write(directory.path());
    let imported = weir_frontend::import(directory.path(), &Default::default()).unwrap();
    let limits: Vec<u32> = imported
        .graph
        .main
        .live()
        .filter_map(|(_, node)| match &node.op {
            weir_ir::Op::ByLength(op) => Some(op.limit),
            _ => None,
        })
        .collect();
    assert_eq!(limits, [12, 12]);
    assert_eq!(imported.facts.table_rows, Some(16));
}

#[test]
fn functions_are_written_out_with_their_attributes() {
    let directory = tempfile::tempdir().unwrap();
    let mut tiny = tiny();
    let refers = |name: &str, to: &str| AttributeProto {
        name: name.into(),
        ref_attr_name: to.into(),
        kind: attribute_kind::FLOAT,
        ..AttributeProto::default()
    };
    let mut inner = node("SimplifiedLayerNormalization", "", &["x", "w"], &["scratch"]);
    inner.attribute = vec![refers("epsilon", "small"), int("axis", -1)];
    let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let function = FunctionProto {
        name: "Norm".into(),
        domain: "local".into(),
        input: strings(&["x", "w"]),
        output: strings(&["y", "x"]),
        attribute: strings(&["small"]),
        node: vec![inner, node("Identity", "", &["scratch"], &["y"])],
        ..FunctionProto::default()
    };
    tiny.model.functions.push(function);
    let version = 1;
    tiny.model.opset_import.push(OperatorSetIdProto { domain: "local".into(), version });
    let norm = tiny.node("/normed");
    (norm.op_type, norm.domain) = ("Norm".into(), "local".into());
    norm.attribute = vec![float("small", 0.25)];
    norm.output.push("again".into());
    tiny.node("/hidden").input[0] = "again".into();
    tiny.write(directory.path());
    let imported = weir_frontend::import(directory.path(), &Default::default()).unwrap();
    let epsilons: Vec<f32> = imported
        .graph
        .main
        .live()
        .filter_map(|(_, node)| match &node.op {
            weir_ir::Op::RmsNorm(op) => Some(op.epsilon),
            _ => None,
        })
        .collect();
    assert_eq!(epsilons, [0.25]);
}

/// The result of a graph of constants.
pub fn evaluated(graph: &Graph) -> Tensor {
    let interpreter = Interpreter::new(graph);
    let result = graph.main.results[0].value;
    interpreter.evaluate(&[result], &Bindings::default(), &|_| None).unwrap().remove(0)
}

#[test]
fn coordinates_that_follow_from_shapes_are_counted() {
    // How exporters repeat each angle of a rotation: places below a count, as coordinates.
    let nodes = vec![
        node("Less", "", &["places", "counts"], &["kept"]),
        node("NonZero", "", &["kept"], &["y"]),
    ];
    let tensors = vec![ints("places", &[3], &[0, 1, 2]), ints("counts", &[2, 1], &[2, 3])];
    let graph = import_nodes(18, nodes, vec![], tensors).unwrap();
    assert_eq!(types(&graph), ["i64[2, 5]"]);
    assert_eq!(*evaluated(&graph).i64s().unwrap(), [0, 0, 1, 1, 1, 0, 1, 0, 1, 2]);
    let nodes = vec![node("NonZero", "", &["x"], &["y"])];
    let refused = import_nodes(18, nodes, vec![value("x", INT64, &["4"])], vec![]).unwrap_err();
    assert!(refused.to_string().contains("depends on data"), "{refused}");
}

#[test]
fn slices_are_taken_from_and_written_to_coordinates() {
    let tensors = || {
        vec![
            ints("data", &[2, 3], &[0, 1, 2, 3, 4, 5]),
            ints("rows", &[2, 1], &[-1, 0]),
            ints("cells", &[2, 2], &[1, 0, -2, 2]),
            ints("update", &[2], &[7, 8]),
        ]
    };
    let taken = vec![node("GatherND", "", &["data", "rows"], &["y"])];
    let graph = import_nodes(18, taken, vec![], tensors()).unwrap();
    assert_eq!(*evaluated(&graph).i64s().unwrap(), [3, 4, 5, 0, 1, 2]);
    assert!(graph.main.live().any(|(_, node)| matches!(node.op, weir_ir::Op::Gather(_))));
    let written = node("ScatterND", "", &["data", "cells", "update"], &["y"]);
    let graph = import_nodes(18, vec![written.clone()], vec![], tensors()).unwrap();
    assert_eq!(*evaluated(&graph).i64s().unwrap(), [0, 1, 8, 7, 4, 5]);
    let mut summed = written;
    summed.attribute = vec![text("reduction", "add")];
    let refused = import_nodes(18, vec![summed], vec![], tensors()).unwrap_err();
    assert!(refused.to_string().contains("reduction add"), "{refused}");
}

#[test]
fn a_norm_may_have_a_weight_for_each_head() {
    let norm = node("RMSNormalization", "", &["x", "weight"], &["y"]);
    let x = value("x", FLOAT, &["1", "5", "4", "8"]);
    let weight = floats("weight", &[4, 8]);
    assert_eq!(one(23, norm.clone(), vec![x.clone()], vec![weight]), ["f32[1, 5, 4, 8]"]);
    let other = floats("weight", &[3, 8]);
    let refused = import_nodes(23, vec![norm], vec![x], vec![other]).unwrap_err();
    assert!(refused.to_string().contains("a weight [3, 8] for rows of 8"), "{refused}");
}

#[test]
fn norms_behind_a_sum_have_a_smaller_epsilon() {
    let epsilon = |op: &str, domain: &str, inputs: &[&str]| {
        let x = |name| value(name, FLOAT, &["1", "5", "8"]);
        let node = node(op, domain, inputs, &["y"]);
        let inputs = vec![x("x"), x("residual")];
        let graph = import_nodes(23, vec![node], inputs, vec![floats("weight", &[8])]).unwrap();
        let mut epsilons = graph.main.live().filter_map(|(_, node)| match &node.op {
            weir_ir::Op::RmsNorm(op) => Some(op.epsilon),
            weir_ir::Op::LayerNorm(op) => Some(op.epsilon),
            _ => None,
        });
        epsilons.next().unwrap()
    };
    for op in ["SkipSimplifiedLayerNormalization", "SkipLayerNormalization"] {
        assert_eq!(epsilon(op, "com.microsoft", &["x", "residual", "weight"]), 1e-12, "{op}");
    }
    for op in ["SimplifiedLayerNormalization", "LayerNormalization", "RMSNormalization"] {
        assert_eq!(epsilon(op, "", &["x", "weight"]), 1e-5, "{op}");
    }
}

#[test]
fn a_norm_of_a_scalar_is_refused() {
    for op in ["SkipSimplifiedLayerNormalization", "SkipLayerNormalization"] {
        let skip = node(op, "com.microsoft", &["x", "residual", "weight"], &["y"]);
        let scalars = vec![value("x", FLOAT, &[]), value("residual", FLOAT, &[])];
        refused(
            import_nodes(22, vec![skip], scalars, vec![floats("weight", &[1])]),
            &format!("malformed: node \"/y\" (com.microsoft::{op}, opset 1): a norm of a scalar"),
        );
    }
}

#[test]
fn caches_have_four_dimensions() {
    let attend = |op: &str, domain: &str, past: usize, dims: &[i64]| {
        let rows = |name| value(name, FLOAT, &["1", "3", "8"]);
        let names = ["past_key", "past_value"];
        let mut inputs = vec!["q", "k", "v"];
        inputs.resize(past, "");
        inputs.extend(names);
        let mut node = node(op, domain, &inputs, &["y", "present_key", "present_value"]);
        node.attribute = match domain {
            "" => vec![int("q_num_heads", 2), int("kv_num_heads", 2)],
            _ => vec![int("num_heads", 2)],
        };
        let tensors = names.iter().map(|name| floats(name, dims)).collect();
        import_nodes(23, vec![node], vec![rows("q"), rows("k"), rows("v")], tensors)
    };
    for (op, domain, past, place) in [
        ("Attention", "", 4, "ai.onnx::Attention, opset 23"),
        ("MultiHeadAttention", "com.microsoft", 6, "com.microsoft::MultiHeadAttention, opset 1"),
    ] {
        let attended = attend(op, domain, past, &[1, 2, 5, 4]).unwrap();
        assert_eq!(types(&attended), ["f32[1, 3, 8]", "f32[1, 2, 8, 4]", "f32[1, 2, 8, 4]"]);
        for dims in [&[][..], &[40], &[2, 20], &[2, 5, 4], &[1, 1, 2, 5, 4]] {
            let problem = format!(
                "malformed: node \"/y\" ({place}): \
                 a cache {dims:?} (input {past}), not [batch, heads, rows, width]"
            );
            refused(attend(op, domain, past, dims), &problem);
        }
    }
}

#[test]
fn a_causal_triangle_needs_the_number_of_keys_in_use() {
    let attend = |causal: i64, lengths: Option<&[i64]>| {
        let rows = |name, rows| value(name, FLOAT, &["2", "1", rows, "4"]);
        let inputs = ["q", "k", "v", "", "", "", "lengths"];
        let mut node = node("Attention", "", &inputs, &["y"]);
        node.attribute = vec![int("is_causal", causal)];
        let mut values = vec![rows("q", "3"), rows("k", "8"), rows("v", "8")];
        let tensors = match lengths {
            Some(lengths) => vec![ints("lengths", &[2], lengths)],
            None => {
                values.push(value("lengths", INT64, &["2"]));
                vec![]
            }
        };
        import_nodes(24, vec![node], values, tensors)
    };
    let problem = "unsupported: node \"/y\" (ai.onnx::Attention, opset 24): \
                   is_causal with nonpad_kv_seqlen (input 6) that is not one known number";
    for lengths in [None, Some(&[5, 6][..])] {
        assert_eq!(types(&attend(0, lengths).unwrap()), ["f32[2, 1, 3, 4]"]);
        refused(attend(1, lengths), problem);
    }
    assert_eq!(types(&attend(1, Some(&[5, 5])).unwrap()), ["f32[2, 1, 3, 4]"]);
}
