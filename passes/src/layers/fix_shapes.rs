//! Replaces the last symbol: the new rows of one sequence become the rows of a step.
//!
//! Before:  v1: f32[sequence, 64]
//! After:   v1: f32[rows, 64]
//!
//! Needs: stage `Sparse`.
//! Gives: stage `Fixed`: token ids and positions are the only parameters of `main`, every size but
//! the rows of a step is a number.
//!
//! Correct because no op of a `Sparse` graph joins rows: each row is computed from its own token,
//! its own position and the cache of its own sequence, so rows of several sequences may share a
//! step.

use weir_ir::graph::LayerKind;
use weir_ir::infer::cache_of_kind;
use weir_ir::{
    Body, Dim, Graph, InputRole, Kind, Op, Rebuild, Stage, Symbol, Table, Tables, TensorType,
};

use crate::error::PassError;

/// Rewrites the graph; returns how many values had a symbolic number of rows.
pub fn run(graph: &mut Graph) -> Result<usize, PassError> {
    let mut count = 0;
    let mut kinds: Table<Kind, LayerKind> = Table::default();
    for (kind, layer_kind) in graph.kinds.iter() {
        let tables = Tables {
            constants: &graph.constants,
            caches: &graph.caches,
            kinds: None,
            cache: cache_of_kind(&graph.main, kind),
        };
        let body = fixed(&layer_kind.body, tables, &mut count)?;
        kinds.push(LayerKind { body, ..layer_kind.clone() });
    }
    let tables = Tables {
        constants: &graph.constants,
        caches: &graph.caches,
        kinds: Some(&kinds),
        cache: None,
    };
    let main = fixed(&graph.main, tables, &mut count)?;
    graph.main = main;
    graph.kinds = kinds;
    graph.stage = Stage::Fixed;
    Ok(count)
}

fn fixed(body: &Body, tables: Tables<'_>, count: &mut usize) -> Result<Body, PassError> {
    let symbolic = |value: &weir_ir::ValueData| {
        value.ty.shape.iter().any(|dim| dim.mentions(Symbol::Sequence))
    };
    *count += body.values.values().filter(|value| symbolic(value)).count();
    let mut rebuild = Rebuild::new(body, tables);
    let mut params: Vec<_> = body.params.iter().collect();
    // Code generation reads tokens, then positions; other parameters keep their order.
    params.sort_by_key(|param| match param.role {
        InputRole::Tokens => 0,
        InputRole::Positions => 1,
        _ => 2,
    });
    for param in params {
        let ty = body.ty(param.value);
        let ty = TensorType { element: ty.element, shape: rows_each(&ty.shape)? };
        rebuild.param(param.value, param.role.clone(), ty);
    }
    for (node, data) in body.live() {
        let mut op = data.op.clone();
        match &mut op {
            Op::Reshape(reshape) => reshape.shape = rows_each(&reshape.shape)?,
            Op::Slice(slice) => {
                slice.start = rows(&slice.start)?;
                slice.length = rows(&slice.length)?;
            }
            _ => {}
        }
        rebuild.copy_as(node, op)?;
    }
    for result in &body.results {
        let value = rebuild.get(result.value).ok_or_else(|| PassError::lost(result.value))?;
        rebuild.result(value, result.role.clone());
    }
    Ok(rebuild.body)
}

fn rows(dim: &Dim) -> Result<Dim, PassError> {
    dim.substituted(Symbol::Sequence, &Symbol::Rows.into())
        .ok_or_else(|| PassError::internal("a size overflows"))
}

fn rows_each(dims: &[Dim]) -> Result<Vec<Dim>, PassError> {
    dims.iter().map(rows).collect()
}
