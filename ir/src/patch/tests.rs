//! Edits in place keep order, uses and counts.

use super::Patch;
use crate::graph::{BodyResult, Graph, InputRole, OutputRole};
use crate::ops::unary::{Unary, UnaryOp};
use crate::types::{DType, TensorType};
use crate::verify::verify;

#[test]
fn a_node_is_replaced_by_two() {
    let mut graph = Graph::new();
    let ty = TensorType::new(DType::F32, vec![2i64.into()]);
    let x = graph.main.param(InputRole::Other, ty, None, None);
    let unary = |op| Unary { op };
    let exp = graph.main.push1(unary(UnaryOp::Exp).into(), vec![x], None).unwrap();
    let neg = graph.main.push1(unary(UnaryOp::Neg).into(), vec![exp], None).unwrap();
    graph.main.results.push(BodyResult { value: neg, role: OutputRole::Other });
    let place = graph.main.order[0];
    let mut patch = Patch::new(&mut graph.main);
    let first = patch.push1(Some(place), unary(UnaryOp::Abs), vec![x], None).unwrap();
    let second = patch.push1(Some(place), unary(UnaryOp::Sqrt), vec![first], None).unwrap();
    patch.replace(exp, second).unwrap();
    assert!(patch.users(exp).is_empty() && patch.users(second).len() == 1);
    assert!(patch.replace(neg, x).is_ok(), "types are equal");
    assert_eq!(patch.finish(), 4);
    assert_eq!(graph.main.results[0].value, x);
    graph.main.results[0].value = neg;
    assert_eq!(graph.main.remove_dead(), 1);
    verify(&graph, graph.stage).unwrap();
    let names: Vec<String> =
        graph.main.live().flat_map(|(_, node)| node.op.attributes()).map(|(_, op)| op).collect();
    assert_eq!(names, ["abs", "sqrt", "neg"]);
}
