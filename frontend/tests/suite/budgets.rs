//! What short files ask for in bulk is refused before it is made: calls of functions, lists that
//! follow from shapes, inner graphs.

use std::collections::BTreeMap;

use prost::Message;
use weir_frontend::onnx::proto::*;
use weir_frontend::{ImportError, ImportOptions, Imported, import, import_operators};
use weir_ir::Graph;

use crate::operators::import_nodes;
use crate::tiny::*;

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: domain.into(), version }
}

/// A function `x` to `y` of the domain `local`.
fn function(name: &str, node: Vec<NodeProto>) -> FunctionProto {
    let (input, output) = (vec!["x".into()], vec!["y".into()]);
    let opset_import = vec![opset("", 18), opset("local", 1)];
    let (name, domain) = (name.into(), "local".into());
    FunctionProto { name, domain, input, output, node, opset_import, ..FunctionProto::default() }
}

/// Imports a graph from `x` to `y` beside functions.
fn import_calls(functions: Vec<FunctionProto>, node: Vec<NodeProto>) -> Result<Graph, ImportError> {
    let graph = GraphProto {
        name: "calls".into(),
        node,
        input: vec![value("x", FLOAT, &["2"])],
        output: vec![ValueInfoProto { name: "y".into(), kind: None }],
        ..GraphProto::default()
    };
    let model = ModelProto {
        ir_version: 10,
        graph: Some(graph),
        opset_import: vec![opset("", 18), opset("local", 1)],
        functions,
        ..ModelProto::default()
    };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("model.onnx"), model.encode_to_vec()).unwrap();
    import_operators(directory.path(), &BTreeMap::new())
}

/// `x` to `y` through a chain of single nodes.
fn chain(op: &str, domain: &str, length: usize) -> Vec<NodeProto> {
    let name = |index: usize| match index {
        0 => "x".to_owned(),
        _ if index == length => "y".to_owned(),
        _ => format!("t{index}"),
    };
    let link = |index: usize| node(op, domain, &[&name(index)], &[&name(index + 1)]);
    (0..length).map(link).collect()
}

/// The one problem of an import.
fn problem<T>(imported: Result<T, ImportError>) -> String {
    let Err(ImportError { problems, .. }) = imported else { panic!("accepted") };
    let [only] = problems.as_slice() else { panic!("{} problems", problems.len()) };
    only.to_string()
}

const TOO_MUCH: &str =
    "calls of functions make more than 262144 nodes or 512 MiB, besides the file's";

#[test]
fn some_thousands_of_calls_are_written_out() {
    let twelve = function("Twelve", chain("Neg", "", 12));
    let graph = import_calls(vec![twelve], chain("Twelve", "local", 4000)).unwrap();
    assert_eq!(graph.main.order.len(), 48_000);
}

#[test]
fn calls_that_double_are_refused() {
    // Level n is two calls of level n - 1: 2^30 nodes in all.
    let mut functions = vec![function("Level0", chain("Neg", "", 2))];
    for level in 1..30 {
        let below = format!("Level{}", level - 1);
        functions.push(function(&format!("Level{level}"), chain(&below, "local", 2)));
    }
    let refused = problem(import_calls(functions, chain("Level29", "local", 1)));
    let is_named = refused.starts_with("unsupported: function \"local::Level");
    assert!(is_named && refused.ends_with(TOO_MUCH), "{refused}");
}

#[test]
fn the_nodes_of_graphs_inside_a_function_count() {
    let inner = GraphProto { node: chain("Neg", "", 1000), ..GraphProto::default() };
    let mut choice = node("If", "", &["x"], &["y"]);
    choice.attribute = vec![graph("then_branch", inner)];
    let calls = chain("Choice", "local", 300);
    let refused = problem(import_calls(vec![function("Choice", vec![choice])], calls));
    assert_eq!(refused, format!("unsupported: function \"local::Choice\": {TOO_MUCH}"));
}

/// A function of one constant of 16 MiB, which copies share.
fn large_constant() -> FunctionProto {
    let raw_data = Some(vec![0; 16 << 20].into());
    let (data_type, dims) = (FLOAT, vec![2, 2 << 20]);
    let tensor = TensorProto { data_type, dims, raw_data, ..TensorProto::default() };
    let mut constant = node("Constant", "", &["unused"], &["large"]);
    constant.input.clear();
    let (name, kind) = ("value".into(), attribute_kind::TENSOR);
    constant.attribute =
        vec![AttributeProto { name, t: Some(tensor), kind, ..AttributeProto::default() }];
    function("Large", vec![constant, node("Neg", "", &["x"], &["y"])])
}

#[test]
fn the_bytes_of_attributes_count_at_each_call() {
    assert!(import_calls(vec![large_constant()], chain("Large", "local", 30)).is_ok());
    let refused = problem(import_calls(vec![large_constant()], chain("Large", "local", 40)));
    assert_eq!(refused, format!("unsupported: function \"local::Large\": {TOO_MUCH}"));
}

#[test]
fn names_and_attributes_that_calls_hand_in_count() {
    // One long name, or one long attribute, that the body repeats.
    let long = "n".repeat(1 << 20);
    let body = (0..1000).map(|index| node("Neg", "", &["x"], &[&format!("t{index}")]));
    let mut body: Vec<_> = body.chain([node("Neg", "", &["x"], &["y"])]).collect();
    let call = node("Body", "local", &[&long], &["y"]);
    let named = vec![node("Neg", "", &["x"], &[&long]), call];
    let refused = problem(import_calls(vec![function("Body", body.clone())], named));
    assert_eq!(refused, format!("unsupported: function \"local::Body\": {TOO_MUCH}"));

    for node in &mut body {
        let (name, ref_attr_name) = ("note".into(), "note".into());
        let kind = attribute_kind::STRING;
        let refers = AttributeProto { name, ref_attr_name, kind, ..AttributeProto::default() };
        node.attribute.push(refers);
    }
    let mut call = node("Body", "local", &["x"], &["y"]);
    call.attribute = vec![text("note", &long)];
    let refused = problem(import_calls(vec![function("Body", body)], vec![call]));
    assert_eq!(refused, format!("unsupported: function \"local::Body\": {TOO_MUCH}"));
}

#[test]
fn graphs_that_calls_nest_are_bounded() {
    // Each function has a call inside of two graphs.
    let within = |node: NodeProto| GraphProto { node: vec![node], ..GraphProto::default() };
    let choice = |inner: NodeProto| {
        let mut choice = node("If", "", &["x"], &["y"]);
        choice.attribute = vec![graph("then_branch", within(inner))];
        choice
    };
    let level = |index: usize| {
        let below = node(&format!("Level{}", index + 1), "local", &["x"], &["y"]);
        function(&format!("Level{index}"), vec![choice(choice(below))])
    };
    let refused = problem(import_calls((0..30).map(level).collect(), chain("Level0", "local", 1)));
    assert_eq!(
        refused,
        "unsupported: graph \"\": more than 32 calls inside calls or graphs inside graphs"
    );
}

/// Imports the tiny model with nodes and initialisers beside its own.
fn import_beside(
    nodes: Vec<NodeProto>,
    initializers: Vec<TensorProto>,
) -> Result<Imported, ImportError> {
    let mut tiny = tiny();
    tiny.graph().node.extend(nodes);
    tiny.graph().initializer.extend(initializers);
    let directory = tempfile::tempdir().unwrap();
    tiny.write(directory.path());
    import(directory.path(), &ImportOptions::default())
}

#[test]
fn lists_that_follow_from_shapes_are_bounded_together() {
    let ranges = |count: usize| {
        let range = |index: usize| {
            let inputs = ["total_long", "limit", "one_scalar"];
            node("Range", "", &inputs, &[&format!("range{index}")])
        };
        let mut nodes: Vec<_> = (0..count).map(range).collect();
        nodes.insert(0, node("Add", "", &["total_long", "thousand"], &["limit"]));
        import_beside(nodes, vec![ints("thousand", &[], &[1000])])
    };
    assert!(ranges(100).is_ok());
    let refused = problem(ranges(1000));
    let message =
        "(ai.onnx::Range, opset 22): what nodes make of shapes and numbers exceeds 1024 MiB";
    assert!(
        refused.starts_with("unsupported: node \"/range") && refused.ends_with(message),
        "{refused}"
    );
}

#[test]
fn coordinates_are_refused_before_they_are_made() {
    // Most elements that are read, in the most dimensions.
    let mut dims = vec![2; 16];
    dims.extend([1; 16]);
    let mut nodes = vec![
        node("ConstantOfShape", "", &["shape"], &["fill"]),
        node("NonZero", "", &["fill"], &["a"]),
        node("NonZero", "", &["fill"], &["b"]),
        node("Concat", "", &["a", "b"], &["y"]),
    ];
    let (name, kind) = ("value".into(), attribute_kind::TENSOR);
    nodes[0].attribute = vec![AttributeProto {
        name,
        t: Some(ints("", &[1], &[1])),
        kind,
        ..AttributeProto::default()
    }];
    nodes[3].attribute = vec![int("axis", 0)];
    let tensors = vec![ints("shape", &[32], &dims)];
    assert_eq!(
        problem(import_nodes(18, nodes, vec![], tensors)),
        "unsupported: node \"/b\" (ai.onnx::NonZero, opset 18): \
         what nodes make of shapes and numbers exceeds 1024 MiB"
    );
}

#[test]
fn weights_of_a_norm_are_not_made_as_wide_as_a_shape_says() {
    let nodes = vec![
        node("Expand", "", &["scalar", "shape"], &["rows"]),
        node("SimplifiedLayerNormalization", "", &["rows", "rows"], &["y"]),
    ];
    let tensors = vec![floats("scalar", &[1]), ints("shape", &[2], &[2, 1 << 60])];
    assert_eq!(
        problem(import_nodes(18, nodes, vec![], tensors)),
        "unsupported: node \"/y\" (ai.onnx::SimplifiedLayerNormalization, opset 18): \
         what nodes make of shapes and numbers exceeds 1024 MiB"
    );
}

/// With a copy of the names around each of them this takes minutes.
#[test]
fn many_inner_graphs_see_many_names() {
    const INNER: usize = 4000;
    let names: Vec<String> = (0..30_000).map(|index| format!("name{index}")).collect();
    let mut nodes: Vec<_> = names.iter().map(|name| node("Neg", "", &["x"], &[name])).collect();
    let branch = |outer: &str, name: &str| GraphProto {
        node: vec![node("Neg", "", &[outer], &[name])],
        output: vec![ValueInfoProto { name: name.into(), kind: None }],
        ..GraphProto::default()
    };
    for (index, name) in names.iter().take(INNER).enumerate() {
        let mut choice = node("If", "", &["yes"], &[&format!("choice{index}")]);
        // Graphs beside each other may use one name.
        choice.attribute = vec![
            graph("then_branch", branch(name, "inner")),
            graph("else_branch", branch(name, "inner")),
        ];
        nodes.push(choice);
    }
    nodes.push(node("Neg", "", &["choice0"], &["y"]));
    let yes = ints("yes", &[], &[1]);
    let imported = import_nodes(18, nodes, vec![value("x", FLOAT, &["2"])], vec![yes]);
    assert_eq!(imported.unwrap().main.order.len(), names.len() + INNER + 2);
}
