//! Ops of rows that no family's layers have today: functions, truth values, choices, joints.

use weir_ir::ops::binary::{Binary, BinaryOp};
use weir_ir::ops::reduce::{Reduce, ReduceOp};
use weir_ir::ops::unary::{Unary, UnaryOp};

use super::*;

fn push(body: &mut Body, op: impl Into<Op>, operands: &[Value]) -> Value {
    body.push1(op.into(), operands.to_vec(), None).unwrap()
}

fn unary(body: &mut Body, op: UnaryOp, x: Value) -> Value {
    push(body, Unary { op }, &[x])
}

fn binary(body: &mut Body, op: BinaryOp, x: Value, y: Value) -> Value {
    push(body, Binary { op }, &[x, y])
}

/// h + layer norm of two halves: one of chosen powers and sines, one of cosines times the row's
/// largest value.
fn functions(body: &mut Body, weights: &[Value], h: Value) -> Value {
    let sine = unary(body, UnaryOp::Sin, h);
    let turned = binary(body, BinaryOp::Mul, h, weights[0]);
    let cosine = unary(body, UnaryOp::Cos, turned);
    let size = unary(body, UnaryOp::Abs, h);
    let power = binary(body, BinaryOp::Pow, size, sine);
    let less = binary(body, BinaryOp::Less, sine, cosine);
    let not_less = unary(body, UnaryOp::Not, less);
    let above = binary(body, BinaryOp::Greater, h, weights[7]);
    let either = binary(body, BinaryOp::Or, not_less, above);
    let both = binary(body, BinaryOp::And, not_less, above);
    let odd = binary(body, BinaryOp::Xor, either, both);
    let chosen = push(body, ops::select::Select {}, &[odd, power, sine]);
    let counted = push(body, ops::cast::Cast { to: DType::F32 }, &[both]);
    let first = binary(body, BinaryOp::Add, chosen, counted);
    let largest = push(body, Reduce { op: ReduceOp::Max, axes: vec![1], keep: true }, &[cosine]);
    let second = binary(body, BinaryOp::Mul, cosine, largest);
    let half = |body: &mut Body, value: Value, start: usize| {
        let (start, length) = (Dim::from(start), Dim::from(WIDTH / 2));
        push(body, ops::slice::Slice { axis: 1, start, step: 1, length }, &[value])
    };
    let (first, second) = (half(body, first, 0), half(body, second, WIDTH / 2));
    let joined = push(body, ops::concat::Concat { axis: 1 }, &[first, second]);
    let norm = ops::layer_norm::LayerNorm { epsilon: 1e-5, bias: true };
    let normed = push(body, norm, &[joined, weights[0], weights[7]]);
    binary(body, BinaryOp::Add, h, normed)
}

#[test]
fn functions_of_rows_agree_with_the_interpreter() {
    let graph = model_with(0.0, &full(), functions);
    let mut session = Session::new(&graph).unwrap();
    let ids: Vec<i64> = IDS.iter().map(|id| i64::from(*id)).collect();
    let expected = session.prefill(&ids).unwrap();
    let prompt: Vec<Row> = (0..IDS.len()).map(|p| (IDS[p], p as u32, 1)).collect();
    for level in levels() {
        let got = Machine::new(&graph, level, 1).step(&prompt);
        for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
            for (x, y) in got.iter().zip(expected) {
                assert!((x - y).abs() <= 5e-5 + 5e-5 * y.abs(), "row {row}: {x} {y}");
            }
        }
    }
}

#[test]
fn remainders_are_refused_by_name() {
    for op in [BinaryOp::Mod, BinaryOp::Fmod] {
        let tail: Tail = match op {
            BinaryOp::Mod => |body, weights, h| binary(body, BinaryOp::Mod, h, weights[0]),
            _ => |body, weights, h| binary(body, BinaryOp::Fmod, h, weights[0]),
        };
        let graph = model_with(0.0, &full(), tail);
        let verified = weir_ir::verify::verify(&graph, Stage::Fixed).unwrap();
        let Err(error) = generate(verified, &options()) else { panic!("{op:?} compiled") };
        let text = error.to_string();
        assert!(text.contains("Mod") || text.contains("Fmod"), "{text}");
    }
}
