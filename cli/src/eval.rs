//! `weir eval`: cache policies beside each other on tasks and texts.

use clap::Args;
use weir_runtime::command::Candidates;
use weir_runtime::{Model, command, machine};

use crate::driver::{Emission, load_each, measures_compiled};
use crate::failure::Failure;
use crate::options::{DEFAULT_SLOTS, ModelOptions, ReportOptions};
use crate::progress::Progress;

/// Measure what compressed caches cost, beside one that keeps every row.
#[derive(Args, Debug)]
#[group(skip)]
#[command(after_help = command::EVAL_NOTES)]
pub struct Eval {
    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    report: ReportOptions,

    #[command(flatten)]
    eval: command::Eval,
}

impl Eval {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        machine::check_processor()?;
        Ok(self.eval.run(&self.candidates()?)?)
    }

    fn candidates(&self) -> Result<Candidates, Failure> {
        let path = &self.model.model;
        if measures_compiled(path, &[self.model.given(), self.report.given()].concat())? {
            return Ok(Candidates::alone(Model::open(path)?));
        }
        let slots = self.eval.runtime.slots.unwrap_or(DEFAULT_SLOTS);
        let ways = ModelOptions { slots, ..self.model.clone() }.each_cache();
        let progress = Progress::new(self.report.quiet);
        let mut models = load_each(&ways, &self.report, &progress, Emission::default())?
            .into_iter()
            .map(Model::new);
        let model = models.next().ok_or_else(|| Failure::usage("give --kv"))??;
        Ok(Candidates { model, others: models.collect::<Result<_, _>>()? })
    }
}
