//! Binds the batch size to 1.
//!
//! Before:  v1: f32[batch, sequence, 64] = embed v0, c0
//! After:   v1: f32[1, sequence, 64] = embed v0, c0
//!
//! Needs: stage `Imported`.
//! Gives: no size mentions `batch`.
//!
//! Correct because sequences of a batch do not meet: a compiled step batches rows of any sequences,
//! so the graph says what happens to one sequence.

use weir_ir::ops::{Known, TypeError};
use weir_ir::patch::Rebuild;
use weir_ir::{Dim, Graph, Op, Symbol, TensorType};

use crate::declined::Declined;
use crate::registry::Change;

/// Rewrites the graph; counts values that mentioned the batch.
pub fn run(graph: &mut Graph) -> Result<Change, TypeError> {
    let main = &graph.main;
    let count = main
        .values
        .values()
        .filter(|value| value.ty.shape.iter().any(|dim| dim.mentions(Symbol::Batch)));
    let count = count.count();
    let mut rebuild = Rebuild::new(main, graph.tables());
    for param in &main.params {
        let data = &main.values[param.value];
        let ty = TensorType { element: data.ty.element, shape: one_each(&data.ty.shape)? };
        let known = match &data.known {
            None => None,
            Some(Known::Fill(dim)) => Some(Known::Fill(one(dim)?)),
            Some(Known::Elements(dims)) => Some(Known::Elements(one_each(dims)?)),
        };
        let value = rebuild.body.param(param.role.clone(), ty, known, data.name.clone());
        rebuild.set(param.value, value);
    }
    for (node, data) in main.live() {
        rebuild.copy_as(node, bound(&data.op)?)?;
    }
    for result in &main.results {
        let value = rebuild.get(result.value).ok_or_else(|| missing("result"))?;
        rebuild.result(value, result.role.clone());
    }
    graph.main = rebuild.body;
    Ok(Declined::default().change(count, "the file has a batch of one sequence"))
}

fn bound(op: &Op) -> Result<Op, TypeError> {
    let mut op = op.clone();
    match &mut op {
        Op::KnownValue(known) => {
            known.shape = one_each(&known.shape)?;
            known.elements = one_each(&known.elements)?;
        }
        Op::Range(range) => {
            range.start = one(&range.start)?;
            range.length = one(&range.length)?;
        }
        Op::Reshape(reshape) => reshape.shape = one_each(&reshape.shape)?,
        Op::Expand(expand) => expand.shape = one_each(&expand.shape)?,
        Op::Slice(slice) => {
            slice.start = one(&slice.start)?;
            slice.length = one(&slice.length)?;
        }
        Op::UpdateSlice(update) => update.start = one(&update.start)?,
        Op::Trilu(trilu) => trilu.diagonal = one(&trilu.diagonal)?,
        _ => {}
    }
    Ok(op)
}

fn one(dim: &Dim) -> Result<Dim, TypeError> {
    dim.substituted(Symbol::Batch, &Dim::number(1)).ok_or_else(|| missing("a size below 2^63"))
}

fn one_each(dims: &[Dim]) -> Result<Vec<Dim>, TypeError> {
    dims.iter().map(one).collect()
}

fn missing(what: &str) -> TypeError {
    TypeError { op: "bind-batch", message: format!("no {what}") }
}
