//! Makes f32 the type of all float arithmetic.
//!
//! Before:  v2: f16[...] = add v0, v1 ; v3: f32[...] = cast v2
//! After:   v2: f32[...] = add v0, v1
//!
//! Needs: stage `Imported`.
//! Gives: every float value but constants is f32; a cast stands where a narrower constant is read.
//!
//! A float type in a file is how its exporter's machine computed; f32 contains the values of f16
//! and bf16, so the wider arithmetic is the same function with smaller errors. Weights keep their
//! storage type: the cast behind a constant is absorbed by the product that reads it.

use weir_ir::ops::{Cast, TypeError};
use weir_ir::patch::Rebuild;
use weir_ir::{DType, Element, Graph, Op, TensorType};

use crate::declined::Declined;
use crate::registry::Change;

/// Rewrites the graph; counts casts that were dropped.
pub fn run(graph: &mut Graph) -> Result<Change, TypeError> {
    let main = &graph.main;
    let mut rebuild = Rebuild::new(main, graph.tables());
    let mut dropped = 0;
    for param in &main.params {
        let data = &main.values[param.value];
        let element = widened(data.ty.element);
        let ty = TensorType { element, shape: data.ty.shape.clone() };
        let value =
            rebuild.body.param(param.role.clone(), ty, data.known.clone(), data.name.clone());
        rebuild.set(param.value, value);
    }
    for (node, data) in main.live() {
        match &data.op {
            Op::ReadConstant(_) => {
                let value = rebuild.copy(node)?[0];
                let ty = rebuild.body.ty(value);
                if ty.dtype().is_some_and(|dtype| dtype.is_float() && dtype != DType::F32) {
                    let cast = Cast { to: DType::F32 };
                    let wide = rebuild.push(cast, vec![value], data.origin.clone())?[0];
                    rebuild.set(data.results[0], wide);
                }
            }
            Op::Cast(cast) if cast.to.is_float() => {
                let value = rebuild.get(data.operands[0]).ok_or_else(|| lost("operand"))?;
                if rebuild.body.ty(value).dtype() == Some(DType::F32) {
                    dropped += 1;
                    rebuild.set(data.results[0], value);
                } else {
                    rebuild.copy_as(node, Cast { to: DType::F32 })?;
                }
            }
            op => {
                let mut op = op.clone();
                match &mut op {
                    Op::Embed(embed) => embed.to = DType::F32,
                    Op::Dequantise(dequantise) => dequantise.to = DType::F32,
                    _ => {}
                }
                rebuild.copy_as(node, op)?;
            }
        }
    }
    for result in &main.results {
        let value = rebuild.get(result.value).ok_or_else(|| lost("result"))?;
        rebuild.result(value, result.role.clone());
    }
    graph.main = rebuild.body;
    Ok(Declined::default().change(dropped, "no cast stands between float types"))
}

fn widened(element: Element) -> Element {
    match element {
        Element::Plain(dtype) if dtype.is_float() => Element::Plain(DType::F32),
        other => other,
    }
}

fn lost(what: &str) -> TypeError {
    TypeError { op: "widen-floats", message: format!("a {what} has no place in the new body") }
}
