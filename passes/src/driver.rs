//! Runs the pipeline: every pass is timed and counted, and the verifier looks at what it left.
//!
//! An [`Observer`] sees the graph after each pass: `--dump`, `--stop-after` and progress bars are
//! observers.

use std::time::{Duration, Instant};

use weir_ir::verify::verify;
use weir_ir::{DType, Graph, RowFormats, Stage};

use crate::error::PassError;
use crate::kv::policy::KvOptions;
use crate::pipeline::passes;
use crate::registry::{Change, Pass};
use crate::weights::{Calibration, WeightChoice};

/// What the user chose, with defaults resolved.
#[derive(Clone, Debug)]
pub struct Options {
    /// Positions that a sequence may have.
    pub context: u32,
    /// Cache policy.
    pub kv: KvOptions,
    /// Number format of the cache. `None`: what suits the products.
    pub kv_dtype: Option<RowFormats>,
    /// What all products round their activations to, BF16, or F32 for not at all; where it is `None` each
    /// weight says it.
    pub activations: Option<DType>,
    /// Rows of a step at most; the ring of a sliding window holds them beside the window.
    pub max_rows: u32,
    /// Number formats of the weights.
    pub weights: WeightChoice,
    /// What codes of rounded weights are chosen by; without it they are rounded to nearest.
    pub calibration: Option<Calibration>,
    /// Windows of a text, in tokens, that keys of caches with codes of four bits are measured on;
    /// where there are none, such keys are not centred.
    pub key_text: Vec<Vec<u32>>,
    /// Positions that the model was made for, where its files say so.
    pub model_limit: Option<u32>,
}

/// What happened to a graph on its way.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// One entry per pass that ran, in order.
    pub passes: Vec<PassReport>,
    /// What the user should know although it is no error.
    pub warnings: Vec<String>,
}

/// What a pass did.
#[derive(Clone, Debug)]
pub struct PassReport {
    /// The pass.
    pub name: &'static str,
    /// Why it stands where it does.
    pub reason: &'static str,
    /// What it changed, and why it declined.
    pub change: Change,
    /// Live nodes before and after it, in `main` and all kinds.
    pub nodes: [usize; 2],
    /// How long it took, without the verifier.
    pub time: Duration,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// With the next pass.
    Continue,
    /// Not: the graph is returned as it is.
    Stop,
}

/// Looks at the graph after every pass.
pub trait Observer {
    /// A pass is about to run.
    fn before(&mut self, pass: &'static Pass) {
        let _ = pass;
    }

    /// A pass has run and the verifier has accepted its result.
    fn after(&mut self, graph: &Graph, report: &PassReport) -> Flow {
        let _ = (graph, report);
        Flow::Continue
    }
}

/// Sees nothing.
#[derive(Clone, Copy, Debug)]
pub struct Silent;

impl Observer for Silent {}

/// Rewrites an imported graph to fixed shapes.
pub fn run(graph: Graph, options: &Options) -> Result<(Graph, Report), PassError> {
    run_observed(graph, options, &mut Silent)
}

/// Rewrites an imported graph until the pipeline's end, or until the observer stops it.
pub fn run_observed(
    mut graph: Graph,
    options: &Options,
    observer: &mut dyn Observer,
) -> Result<(Graph, Report), PassError> {
    let mut report = Report::default();
    if options.context == 0 {
        return Err(PassError::Options("a context of 0 positions holds nothing".to_owned()));
    }
    if let Some(limit) = options.model_limit
        && options.context > limit
    {
        report.warnings.push(format!(
            "the model was made for {limit} positions; beyond them (--context {}) its answers get \
             worse",
            options.context
        ));
    }
    check(&graph, Stage::Imported, "import")?;
    for (position, pass) in passes() {
        observer.before(pass);
        let before = live_nodes(&graph);
        let start = Instant::now();
        let change = (pass.run)(&mut graph, options)?;
        let time = start.elapsed();
        check(&graph, graph.stage, pass.name)?;
        let nodes = [before, live_nodes(&graph)];
        let pass_report =
            PassReport { name: pass.name, reason: position.reason, change, nodes, time };
        let flow = observer.after(&graph, &pass_report);
        report.passes.push(pass_report);
        if flow == Flow::Stop {
            break;
        }
    }
    Ok((graph, report))
}

fn live_nodes(graph: &Graph) -> usize {
    graph.main.order.len() + graph.kinds.values().map(|kind| kind.body.order.len()).sum::<usize>()
}

fn check(graph: &Graph, stage: Stage, pass: &'static str) -> Result<(), PassError> {
    verify(graph, stage).map(drop).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        PassError::Verifier { pass, message: lines.join("\n") }
    })
}
