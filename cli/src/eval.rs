//! `weir eval`: cache policies beside each other on tasks and texts.

use clap::Args;
use weir_runtime::command::Candidates;
use weir_runtime::command::eval::Task;
use weir_runtime::{Model, RuntimeError, command, machine};

use crate::driver::{Emission, load_each, measures_compiled};
use crate::failure::Failure;
use crate::options::{DEFAULT_SLOTS, Given, ModelOptions, ReportOptions};
use crate::places::{Input, refuse_overwriting};
use crate::progress::Progress;

/// Measure what compressed caches cost, beside one that keeps every row.
#[derive(Args, Debug)]
#[group(skip)]
#[command(after_help = command::EVAL_NOTES)]
pub struct Eval {
    #[command(flatten)]
    model: Given<ModelOptions>,

    #[command(flatten)]
    report: Given<ReportOptions>,

    #[command(flatten)]
    eval: command::Eval,
}

impl Eval {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        machine::check_processor()?;
        check(&self.eval, &self.model.options)?;
        Ok(self.eval.run(&self.candidates()?)?)
    }

    fn candidates(&self) -> Result<Candidates, Failure> {
        let (model, report) = (&self.model.options, &self.report.options);
        let given = self.model.names().chain(self.report.names());
        if measures_compiled(&model.model, given)? {
            return Ok(Candidates::alone(Model::open(&model.model)?));
        }
        let slots = self.eval.runtime.slots.unwrap_or(DEFAULT_SLOTS);
        let ways = ModelOptions { slots, ..model.clone() }.each_cache();
        let progress = Progress::new(report.quiet);
        let mut models =
            load_each(&ways, report, &progress, Emission::default())?.into_iter().map(Model::new);
        let model = models.next().ok_or_else(|| Failure::usage("give --kv"))??;
        Ok(Candidates { model, others: models.collect::<Result<_, _>>()? })
    }
}

/// Refuses what can be seen to be wrong before a model is compiled: the work may take hours, and the last
/// task is as easily misspelt as the first.
pub fn check(eval: &command::Eval, model: &ModelOptions) -> Result<(), Failure> {
    eval.check()?;
    let mut inputs = model.inputs();
    inputs.extend(eval.tasks.iter().map(|task| match task {
        Task::Questions(spec) => Input { what: "a task's file", path: &spec.path },
        Task::Text(options) => Input { what: "a task's text", path: &options.file },
    }));
    for (option, output) in [("--answers", &eval.answers), ("--plot", &eval.plot)] {
        let Some(output) = output else { continue };
        refuse_overwriting(option, output, &inputs)?;
    }
    eval.tasks.iter().try_for_each(|task| check_task(task, eval.run_programs))
}

/// Reads a task's file. What its questions leave room for is up to the model.
fn check_task(task: &Task, runs_programs: bool) -> Result<(), Failure> {
    let (Task::Questions(weir_eval::Spec { path, .. })
    | Task::Text(command::eval::PassageOptions { file: path, .. })) = task;
    // What comes out of a pipe can be read once.
    let is_pipe = |found: std::fs::Metadata| !found.is_file() && !found.is_dir();
    if std::fs::metadata(path).is_ok_and(is_pipe) {
        return Ok(());
    }
    match task {
        Task::Questions(spec) => weir_eval::check(spec, runs_programs).map_err(|error| {
            Failure::usage(match error {
                weir_eval::Error::ProgramsNotAllowed => format!("{error}; --run-programs does"),
                error => error.to_string(),
            })
        }),
        Task::Text(options) => {
            let place = |source| RuntimeError::File { path: options.file.clone(), source };
            std::fs::read_to_string(&options.file).map_err(place)?;
            Ok(())
        }
    }
}
