//! Type rules on symbolic sizes and known contents, and the list of ops in `docs/ir.md`.

use super::binary::{Binary, BinaryOp};
use super::reduce::{Reduce, ReduceOp};
use super::{
    Cast, Concat, Expand, Gather, Known, MatMul, Op, Range, Reshape, Select, ShapeOf, Slice, table,
};
use crate::dim::{Dim, Symbol};
use crate::entity::Value;
use crate::graph::{Body, InputRole};
use crate::stage::Stage;
use crate::types::{DType, TensorType};

#[test]
fn the_documented_table_is_the_table() {
    let mut rows = String::from("| op | stages | attributes |\n|---|---|---|\n");
    for row in table() {
        let stages: Vec<&str> = Stage::ALL
            .into_iter()
            .filter(|stage| row.stages.contains(*stage))
            .map(Stage::name)
            .collect();
        let stages = if stages.len() == Stage::ALL.len() {
            "all".to_owned()
        } else if stages.len() > 2 {
            format!("from {}", stages[0])
        } else {
            stages.join(", ")
        };
        let attributes = row.attributes.join(", ");
        rows += &format!("| `{}` | {stages} | {attributes} |\n", row.name);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/ir.md");
    let text = std::fs::read_to_string(path).unwrap();
    let (head, rest) = text.split_once("-->\n").unwrap();
    let (_, tail) = rest.split_once("<!-- end of ops").unwrap();
    let example = crate::text::EXAMPLE;
    if std::env::var_os("BLESS").is_some() {
        let (front, rest) = tail.split_once("```\n").unwrap();
        let (_, back) = rest.split_once("```\n").unwrap();
        let tail = format!("{front}```\n{example}```\n{back}");
        std::fs::write(path, format!("{head}-->\n{rows}<!-- end of ops{tail}")).unwrap();
    } else {
        assert!(rest.starts_with(&rows), "docs/ir.md has another table of ops; bless it");
        assert!(tail.contains(&format!("```\n{example}```\n")), "docs/ir.md has another example");
    }
}

fn input(body: &mut Body, dtype: DType, shape: &[Dim], known: Option<Known>) -> Value {
    body.param(InputRole::Other, TensorType::new(dtype, shape.to_vec()), known, None)
}

fn known(body: &Body, value: Value) -> Option<Vec<Dim>> {
    super::rules::listed(body.operand(value))
}

fn symbols() -> [Dim; 3] {
    [Symbol::Batch, Symbol::Past, Symbol::Sequence].map(Dim::symbol)
}

#[test]
fn shape_arithmetic_is_followed_through_the_usual_chain() {
    let [batch, past, sequence] = symbols();
    let body = &mut Body::default();
    let x = input(body, DType::F32, &[batch.clone(), sequence.clone(), Dim::number(64)], None);
    let sizes = body.push1(ShapeOf { start: 0, end: 3 }.into(), vec![x], None).unwrap();
    let one = input(body, DType::I64, &[], Some(Known::Fill(Dim::number(1))));
    let second = body.push1(Gather { axis: 0 }.into(), vec![sizes, one], None).unwrap();
    assert_eq!(known(body, second), Some(vec![sequence.clone()]));
    let shape = vec![Dim::number(1)];
    let second = body.push1(Reshape { shape }.into(), vec![second], None).unwrap();
    let first = Slice { axis: 0, start: 0i64.into(), step: 1, length: 1i64.into() };
    let first = body.push1(first.into(), vec![sizes], None).unwrap();
    let both = body.push1(Concat { axis: 0 }.into(), vec![first, second], None).unwrap();
    assert_eq!(known(body, both), Some(vec![batch, sequence.clone()]));
    let total = input(body, DType::I64, &[1i64.into()], Some(Known::Fill(Dim::total())));
    let sub = Op::from(Binary { op: BinaryOp::Sub });
    let difference = body.push1(sub, vec![total, second], None).unwrap();
    assert_eq!(known(body, difference), Some(vec![past]));
    // past + sequence > sequence is open for past = 0; >= is decided.
    for (op, expected) in
        [(BinaryOp::Greater, None), (BinaryOp::GreaterOrEqual, Some(vec![Dim::number(1)]))]
    {
        let result = body.push1(Binary { op }.into(), vec![total, second], None).unwrap();
        assert_eq!(known(body, result), expected);
    }
}

#[test]
fn a_mask_of_ones_sums_to_its_length() {
    let [batch, ..] = symbols();
    let body = &mut Body::default();
    let ones = Some(Known::Fill(Dim::number(1)));
    let mask = input(body, DType::I64, &[batch.clone(), Dim::total()], ones);
    let sum = Reduce { op: ReduceOp::Sum, axes: vec![1], keep: false };
    let sum = body.push1(sum.into(), vec![mask], None).unwrap();
    assert_eq!(body.operand(sum).known, Some(&Known::Fill(Dim::total())));
    let narrow = body.push1(Cast { to: DType::I32 }.into(), vec![sum], None).unwrap();
    assert_eq!(body.operand(narrow).known, Some(&Known::Fill(Dim::total())));
    let keep = body.push1(Cast { to: DType::Bool }.into(), vec![mask], None).unwrap();
    assert_eq!(body.operand(keep).known, Some(&Known::Fill(Dim::number(1))));
}

#[test]
fn the_idiom_of_expand_is_decided() {
    // Where(shape == -1, 1, shape)
    let [batch, _, sequence] = symbols();
    let body = &mut Body::default();
    let elements = vec![batch.clone(), Dim::number(-1), sequence.clone()];
    let shape = input(body, DType::I64, &[3i64.into()], Some(Known::Elements(elements)));
    let minus = input(body, DType::I64, &[1i64.into()], Some(Known::Fill(Dim::number(-1))));
    let ones = input(body, DType::I64, &[3i64.into()], Some(Known::Fill(Dim::number(1))));
    let equal = Op::from(Binary { op: BinaryOp::Equal });
    let equal = body.push1(equal, vec![shape, minus], None).unwrap();
    let chosen = body.push1(Select {}.into(), vec![equal, ones, shape], None).unwrap();
    assert_eq!(known(body, chosen), Some(vec![batch, Dim::number(1), sequence]));
}

#[test]
fn rules_refuse_what_does_not_fit() {
    let [batch, past, sequence] = symbols();
    let body = &mut Body::default();
    let x = input(body, DType::F32, &[batch.clone(), sequence.clone()], None);
    let y = input(body, DType::F32, &[past.clone(), Dim::number(3)], None);
    let product = body.push1(MatMul {}.into(), vec![x, y], None).unwrap_err();
    assert_eq!(product.to_string(), "matmul: summed sizes: sequence and past differ");
    let refused: [(Op, Vec<Value>); 6] = [
        (Binary { op: BinaryOp::Add }.into(), vec![x, y]),
        (Binary { op: BinaryOp::And }.into(), vec![x, x]),
        (Reshape { shape: vec![batch] }.into(), vec![x]),
        (Expand { shape: vec![past, sequence] }.into(), vec![x]),
        (Slice { axis: 1, start: 2i64.into(), step: 1, length: 2i64.into() }.into(), vec![y]),
        (
            Range { dtype: DType::I64, start: 0i64.into(), step: 1, length: Dim::number(-1) }
                .into(),
            vec![],
        ),
    ];
    for (op, operands) in refused {
        assert!(body.push(op.clone(), operands, None).is_err(), "{op:?}");
    }
}
