//! What no text form holds: constants that are one tensor, read from two sides.

use weir_ir::graph::BodyResult;
use weir_ir::interpret::{Bindings, Tensor, evaluate};
use weir_ir::ops::{Dequantise, MatMul, Transpose};
use weir_ir::{ConstData, InputRole, OutputRole, QuantData, QuantFormat, TensorType, ZeroPoints};

use super::*;

/// Codes 0 to 11 as `[4, 3]`, with one scale for all or as many as there are.
fn table(scales: &[f32]) -> Constant {
    let format = QuantFormat {
        bits: 8,
        block: 3,
        scale: DType::F32,
        short: false,
        zero: ZeroPoints::Fixed(2),
    };
    let data = QuantData {
        codes: (0..12).collect::<Vec<u8>>().into(),
        code_strides: [3, 1],
        signed: false,
        scales: scales.iter().flat_map(|scale| scale.to_le_bytes()).collect(),
        scale_strides: if scales.len() == 1 { [0, 0] } else { [1, 1] },
        zeros: None,
        zero_strides: [0, 0],
    };
    let shape = vec![4usize.into(), 3usize.into()];
    let ty = TensorType { element: Element::Quant(format), shape };
    Constant { name: "table".into(), ty, data: ConstData::Quantised(data) }
}

fn ends(mut graph: Graph, value: Value) -> Graph {
    graph.main.results.push(BodyResult { value, role: OutputRole::Logits });
    graph
}

/// Rows of a table times the table, which is transposed in front of its scale, where it is a constant of its
/// own, or behind it.
fn tied(turned_in_front: bool) -> Graph {
    let mut graph = Graph::new();
    let ids = TensorType::new(DType::I64, vec![2usize.into()]);
    let ids = graph.main.param(InputRole::Tokens, ids, None, Some("input_ids".into()));
    let table = table(&[0.5]);
    let turned = table.transposed().unwrap();
    let table = graph.constants.push(table);
    let rows = graph.read_constant(table);
    let rows = graph.main.push1(Embed { to: DType::F32 }.into(), vec![ids, rows], None).unwrap();
    let codes = if turned_in_front { graph.constant(turned) } else { graph.read_constant(table) };
    let mut head =
        graph.main.push1(Dequantise { to: DType::F32 }.into(), vec![codes], None).unwrap();
    if !turned_in_front {
        head = graph.main.push1(Transpose { order: vec![1, 0] }.into(), vec![head], None).unwrap();
    }
    let logits = graph.main.push1(MatMul {}.into(), vec![rows, head], None).unwrap();
    ends(graph, logits)
}

fn logits(graph: &Graph) -> Vec<f32> {
    let ids = Tensor::from_i64(DType::I64, vec![2], vec![3, 1]);
    let result = graph.main.results[0].value;
    let found = evaluate(graph, &[result], &Bindings::default(), &|_| Some(ids.clone())).unwrap();
    found[0].f32s().unwrap().to_vec()
}

/// The constants that ops read as their weights.
fn weights(graph: &Graph, wanted: fn(&Op) -> bool) -> Vec<Const> {
    let ops = graph.main.live().filter(|(_, node)| wanted(&node.op));
    let makers = ops.map(|(_, node)| &graph.main.maker(node.operands[1]).unwrap().op);
    makers
        .map(|op| match op {
            Op::ReadConstant(read) => read.constant,
            op => panic!("{op:?}"),
        })
        .collect()
}

#[test]
fn a_tied_table_of_codes_with_one_scale_is_one_weight() {
    let number = |index: usize| (index as f32 - 2.0) * 0.5;
    let mut wanted = Vec::new();
    for row in [3, 1] {
        for column in 0..4 {
            let product = (0..3).map(|k| number(row * 3 + k) * number(column * 3 + k));
            wanted.push(product.sum::<f32>());
        }
    }
    for turned_in_front in [true, false] {
        let mut graph = tied(turned_in_front);
        assert_eq!(logits(&graph), wanted);
        run(&mut graph).unwrap();
        let head = weights(&graph, |op| matches!(op, Op::Linear(_)));
        assert_eq!(head.len(), 1);
        assert_eq!(head, weights(&graph, |op| matches!(op, Op::Embed(_))));
        assert_eq!(logits(&graph), wanted);
    }
}

#[test]
fn codes_with_a_scale_for_each_row_are_no_weight_by_columns() {
    for (scales, linears) in [(&[0.5][..], 1), (&[0.5, 1.0, 2.0, 4.0], 0)] {
        let mut graph = Graph::new();
        let x = TensorType::new(DType::F32, vec![2usize.into(), 4usize.into()]);
        let x = graph.main.param(InputRole::Other, x, None, Some("x".into()));
        let weight = graph.constant(table(scales));
        let weight =
            graph.main.push1(Dequantise { to: DType::F32 }.into(), vec![weight], None).unwrap();
        let product = graph.main.push1(MatMul {}.into(), vec![x, weight], None).unwrap();
        let mut graph = ends(graph, product);
        run(&mut graph).unwrap();
        assert_eq!(weights(&graph, |op| matches!(op, Op::Linear(_))).len(), linears);
    }
}
