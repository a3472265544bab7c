//! Print and parse: a graph written by hand, random graphs, broken texts. The verifier and the
//! interpreter see the same random graphs and must not panic.

use proptest::prelude::*;

use super::{parse, print};
use crate::constant::Constant;
use crate::dim::{Dim, Symbol};
use crate::entity::{Entity, Value};
use crate::graph::{Graph, InputRole, OutputRole};
use crate::interpret::{Bindings, Session, evaluate};
use crate::ops::binary::{Binary, BinaryOp};
use crate::ops::reduce::{Reduce, ReduceOp};
use crate::ops::unary::{Unary, UnaryOp};
use crate::ops::{Concat, Op, Reshape, ShapeOf, Slice, Softmax, Transpose};
use crate::patch::Rebuild;
use crate::types::{DType, TensorType};
use crate::verify::verify;

/// One layer with a cache, at `Sparse`, as documents show it.
pub(crate) const EXAMPLE: &str = include_str!("example.weir");

#[test]
fn the_example_round_trips_verifies_and_runs() {
    let graph = parse(EXAMPLE).unwrap();
    assert_eq!(print(&graph), EXAMPLE);
    verify(&graph, graph.stage).unwrap();
    let mut together = Session::new(&graph).unwrap();
    let rows = together.prefill(&[0, 1, 2]).unwrap();
    let mut alone = Session::new(&graph).unwrap();
    alone.prefill(&[0]).unwrap();
    alone.step(1).unwrap();
    // The same sums in the same order, for the cache holds all rows.
    assert_eq!(alone.step(2).unwrap(), rows[2]);
    assert!(rows.iter().flatten().all(|logit| logit.is_finite()));
}

#[test]
fn errors_name_line_and_column() {
    let cases = [
        ("graph @Nowhere\n", "1:15: no stage is called \"Nowhere\""),
        ("graph @Fixed\nmain {\n", "2:1: the body does not end"),
        ("graph @Fixed\n", "1:1: there is no main"),
        ("graph @Imported\nmain {\n  frob()\n}\n", "3:3: no op is called \"frob\""),
        ("graph @Imported\nmain {\n  return v7 other\n}\n", "3:12: v7 is not defined"),
        (
            "graph @Imported\nmain {\n  v0: f32[2] = transpose() {}\n}\n",
            "3:30: attribute order is missing or malformed",
        ),
        (
            "graph @Imported\nconst c0 \"w\": f32[2] = [1.0]\n",
            "2:25: these are not the elements of f32[2]",
        ),
    ];
    for (text, message) in cases {
        assert_eq!(parse(text).unwrap_err().to_string(), message, "{text}");
    }
}

#[test]
fn a_large_constant_comes_from_a_store() {
    let mut graph = Graph::new();
    let values: Vec<f32> = (0..64).map(|n| n as f32).collect();
    let constant = Constant::from_f32("table \"x\"\n", &[8, 8], &values);
    graph.constant(constant.clone());
    let text = print(&graph);
    assert!(parse(&text).unwrap_err().message.starts_with("no constant"));
    let again =
        super::parse_with(&text, &|name, _| (name == constant.name).then(|| constant.clone()));
    assert_eq!(print(&again.unwrap()), text);
}

fn dim() -> impl Strategy<Value = Dim> {
    prop_oneof![
        (1i64..5).prop_map(Dim::number),
        Just(Dim::symbol(Symbol::Sequence)),
        Just(Dim::symbol(Symbol::Past)),
        Just(Dim::total()),
    ]
}

/// Tries to add a node chosen by numbers; most choices fit, the rest is left out.
fn grow(graph: &mut Graph, choice: u8, first: usize, second: usize, number: i64) {
    let count = graph.main.values.len();
    let pick = |index: usize| Value::new(index % count);
    let (a, b) = (pick(first), pick(second));
    let shape = graph.main.shape(a).to_vec();
    let axis = second % shape.len().max(1);
    let (op, operands): (Op, Vec<Value>) = match choice % 10 {
        0 => (Unary { op: UnaryOp::Neg }.into(), vec![a]),
        1 => (Unary { op: UnaryOp::Tanh }.into(), vec![a]),
        2 => (Binary { op: BinaryOp::Add }.into(), vec![a, b]),
        3 => (Binary { op: BinaryOp::Less }.into(), vec![a, b]),
        4 => (Transpose { order: (0..shape.len()).rev().collect() }.into(), vec![a]),
        5 => (Concat { axis }.into(), vec![a, a]),
        6 => {
            let (start, length) = (Dim::number(number % 2), Dim::number(1));
            (Slice { axis, start, step: 1, length }.into(), vec![a])
        }
        7 => (Reduce { op: ReduceOp::Sum, axes: vec![axis], keep: number > 0 }.into(), vec![a]),
        8 => (ShapeOf { start: 0, end: shape.len() }.into(), vec![a]),
        _ if number > 0 => (Softmax { axis }.into(), vec![a]),
        _ => (Reshape { shape: shape.into_iter().rev().collect() }.into(), vec![a]),
    };
    let _ = graph.main.push(op, operands, (number == 0).then(|| format!("node \"{choice}\"")));
}

fn graph() -> impl Strategy<Value = Graph> {
    let params = prop::collection::vec((prop::collection::vec(dim(), 0..3), any::<bool>()), 1..4);
    let values = prop::collection::vec(any::<f32>(), 0..6);
    let nodes =
        prop::collection::vec((any::<u8>(), any::<usize>(), any::<usize>(), -1i64..3), 0..12);
    (params, values, nodes).prop_map(|(params, values, nodes)| {
        let mut graph = Graph::new();
        for (index, (shape, float)) in params.into_iter().enumerate() {
            let dtype = if float { DType::F32 } else { DType::I64 };
            let name = (index % 2 == 0).then(|| format!("in\\put {index}"));
            graph.main.param(InputRole::Other, TensorType::new(dtype, shape), None, name);
        }
        graph.constant(Constant::from_f32("c", &[values.len()], &values));
        for (choice, first, second, number) in nodes {
            grow(&mut graph, choice, first, second, number);
        }
        let last = Value::new(graph.main.values.len() - 1);
        let role = OutputRole::Other;
        graph.main.results.push(crate::graph::BodyResult { value: last, role });
        graph
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn graphs_round_trip_and_verify(graph in graph()) {
        let text = print(&graph);
        let again = parse(&text).unwrap();
        prop_assert_eq!(print(&again), text);
        prop_assert!(verify(&graph, graph.stage).is_ok(), "{:?}", verify(&graph, graph.stage).err());
        // Running it gives a tensor of the declared type.
        let bindings = Bindings::one_sequence(2, 3);
        let value = graph.main.results[0].value;
        let inputs = |param: &crate::graph::Param| {
            let ty = bindings.ty(graph.main.ty(param.value)).ok()?;
            crate::interpret::Tensor::filled(ty.dtype()?, ty.sizes()?, 1).ok()
        };
        let tensors = evaluate(&graph, &[value], &bindings, &inputs).unwrap();
        prop_assert_eq!(tensors[0].ty(), bindings.ty(graph.main.ty(value)).unwrap());
    }

    #[test]
    fn a_copied_body_prints_alike(graph in graph()) {
        let mut rebuild = Rebuild::new(&graph.main, graph.tables());
        for param in &graph.main.params {
            rebuild.param(param.value, param.role.clone(), graph.main.ty(param.value).clone());
        }
        for node in graph.main.order.clone() {
            rebuild.copy(node).unwrap();
        }
        let value = rebuild.get(graph.main.results[0].value).unwrap();
        rebuild.result(value, OutputRole::Other);
        prop_assert_eq!(super::body(&rebuild.body), super::body(&graph.main));
    }

    /// Any characters exchanged in a good text: an error or a graph, and if it is a graph the
    /// verifier and the interpreter give an answer too.
    #[test]
    fn broken_texts_never_panic(
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..6),
        lines in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..3),
    ) {
        let mut all: Vec<&str> = EXAMPLE.lines().collect();
        for (a, b) in &lines {
            let (a, b) = (a.index(all.len()), b.index(all.len()));
            all.swap(a, b);
        }
        let mut characters: Vec<char> = all.join("\n").chars().collect();
        for (to, from) in &places {
            let from = characters[from.index(characters.len())];
            let to = to.index(characters.len());
            // Line ends stay, so that most of the text remains readable.
            if characters[to] != '\n' && from != '\n' {
                characters[to] = from;
            }
        }
        let text: String = characters.into_iter().collect();
        if let Ok(graph) = parse(&text) {
            let _ = verify(&graph, graph.stage);
            let _ = print(&graph);
            if let Ok(mut session) = Session::new(&graph) {
                let _ = session.prefill(&[0, 1, 2]).and_then(|_| session.step(1));
            }
        }
    }
}
