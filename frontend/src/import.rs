//! A model as it lies on disk to the graph at stage `Imported`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use weir_ir::ops::{self, Op};
use weir_ir::{Constant, Graph, InputRole, OutputRole, Value};

use crate::beside::{self, ModelFacts, TextAssets};
use crate::error::{ImportError, Place, Problem};
use crate::onnx::context::MAX_CHAIN;
use crate::onnx::{import as builder, model, roles};
use crate::pooling;
use crate::source::ModelFiles;

/// What the user may say about an import.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Files of the model may be links to targets beneath this directory.
    pub links_under: Option<PathBuf>,
}

/// An imported model.
#[derive(Debug)]
pub struct Imported {
    /// The graph, at stage `Imported`.
    pub graph: Graph,
    /// Tokenizer and chat template.
    pub text: TextAssets,
    /// Limits, special tokens, defaults.
    pub facts: ModelFacts,
}

/// Imports the language model at `path`: a `.onnx` file or the directory that holds one.
pub fn import(path: &Path, options: &ImportOptions) -> Result<Imported, ImportError> {
    let error = |problems| ImportError { model: path.to_path_buf(), problems };
    let mut files = ModelFiles::open(path, options.links_under.as_deref())
        .map_err(|problem| error(vec![problem]))?;
    let beside = beside::read(&files);
    let model = model::read(&mut files);
    let (beside, model) = match (beside, model) {
        (Ok(beside), Ok(model)) => (beside, model),
        (beside, model) => {
            let problems = [beside.err(), model.err()].into_iter().flatten().flatten();
            return Err(error(problems.collect()));
        }
    };
    let plan = roles::plan(&model.graph, &beside.hints);
    let plan = match plan {
        Ok(plan) => plan,
        Err(mut problems) => {
            problems.extend(builder::unknown_operators(&model));
            return Err(error(problems));
        }
    };
    let mut graph = builder::build(&model, &plan).map_err(error)?;
    drop_unread(&mut graph);
    if plan.outputs.contains(&OutputRole::Hidden) {
        let problems = pooling::check(&files);
        if !problems.is_empty() {
            return Err(error(problems));
        }
    }
    let mut facts = beside.facts;
    graph_facts(&graph, &mut facts).map_err(|problem| error(vec![problem]))?;
    Ok(Imported { graph, text: beside.text, facts })
}

/// Imports a graph that is no language model, such as one operator of a test suite. Inputs keep
/// their declared sizes; those in `contents` become constants, for operators whose integer inputs
/// (axes, shapes) a compiler must know.
pub fn import_operators(
    path: &Path,
    contents: &BTreeMap<String, Constant>,
) -> Result<Graph, ImportError> {
    let error = |problems| ImportError { model: path.to_path_buf(), problems };
    let mut files = ModelFiles::open(path, None).map_err(|problem| error(vec![problem]))?;
    let model = model::read(&mut files).map_err(error)?;
    let plan = roles::plan_operators(&model.graph, contents).map_err(error)?;
    builder::build(&model, &plan).map_err(error)
}

/// Drops results that nothing reads, and what is computed for them alone: rows of single layers, a pooling
/// that is done elsewhere here.
fn drop_unread(graph: &mut Graph) {
    let before = graph.main.results.len();
    graph.main.results.retain(|result| result.role != OutputRole::Other);
    if graph.main.results.len() < before {
        graph.main.remove_dead();
    }
}

/// What only the graph knows.
fn graph_facts(graph: &Graph, facts: &mut ModelFacts) -> Result<(), Problem> {
    let answer = graph.main.results.iter().find(|result| result.role.is_answer());
    let columns = answer.and_then(|answer| graph.main.shape(answer.value).last()?.as_size());
    let columns = columns.and_then(|size| u32::try_from(size).ok());
    facts.columns = columns.ok_or_else(|| {
        let message = "the logits or hidden rows have no fixed number of columns";
        Problem::unsupported(Place::Graph(String::new()), message)
    })?;
    let layers: BTreeSet<u32> = graph
        .main
        .params
        .iter()
        .filter_map(|param| match param.role {
            InputRole::PastKey(layer) | InputRole::PastValue(layer) => Some(layer),
            _ => None,
        })
        .collect();
    facts.layers = layers.len() as u32;
    facts.table_rows = graph
        .main
        .live()
        .filter_map(|(_, node)| match &node.op {
            Op::Rotary(_) => {
                node.operands.get(1).and_then(|&cos| table_rows(graph, cos, MAX_CHAIN))
            }
            _ => None,
        })
        .min();
    if facts.context_limit.is_none() {
        facts.context_limit = facts.table_rows;
    }
    Ok(())
}

/// Rows of the table that angles are gathered from.
fn table_rows(graph: &Graph, value: Value, steps: usize) -> Option<u32> {
    let steps = steps.checked_sub(1)?;
    let maker = graph.main.maker(value)?;
    match &maker.op {
        Op::Reshape(_) | Op::Cast(_) | Op::Expand(_) => table_rows(graph, maker.operands[0], steps),
        Op::Gather(ops::Gather { axis: 0 }) => {
            let rows = graph.main.shape(maker.operands[0]).first()?.as_size()?;
            u32::try_from(rows).ok()
        }
        _ => None,
    }
}
