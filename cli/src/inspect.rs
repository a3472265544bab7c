//! `weir inspect`: what a model is before it is compiled, or what a compiled file holds.

use std::io::Write;

use clap::Args;
use weir_runtime::{CompiledModel, Model, command};

use crate::driver::{Emission, is_compiled, load_lowered, lower, print_times};
use crate::failure::Failure;
use crate::options::{DEFAULT_SLOTS, Given, ModelOptions, ReportOptions};
use crate::progress::Progress;

/// Say what a model or a compiled file is.
#[derive(Args, Debug)]
#[command(mut_arg("model", |model| {
    model.help("A .onnx file, the directory that a model was exported to, or a compiled file")
}))]
pub struct Inspect {
    #[command(flatten)]
    model: Given<ModelOptions>,

    #[command(flatten)]
    report: Given<ReportOptions>,

    #[command(flatten)]
    info: command::Info,
}

impl Inspect {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        let (model, report) = (&self.model.options, &self.report.options);
        if is_compiled(&model.model) {
            let given: Vec<&str> = self.model.names().chain(self.report.names()).collect();
            if !given.is_empty() {
                return Err(Failure::usage(format!(
                    "{} is compiled already; {} can only be chosen when it is compiled",
                    model.model.display(),
                    given.join(", "),
                )));
            }
            return self.tell(CompiledModel::open(&model.model)?);
        }
        let progress = Progress::new(report.quiet);
        let slots = self.info.runtime.slots.unwrap_or(DEFAULT_SLOTS);
        let draft = self.info.drafting.resolve();
        let options = ModelOptions { slots, draft, ..model.clone() };
        let lowered = lower(&options, report, &progress)?;
        if report.stop_after.is_some() {
            print_times(&lowered, report);
            return Ok(());
        }
        let how = Emission::default();
        self.tell(load_lowered(lowered, &options, report, &progress, how)?)
    }

    fn tell(&self, compiled: CompiledModel) -> Result<(), Failure> {
        let model = Model::new(compiled)?;
        self.info.run(&model)?;
        if !self.info.json && !model.facts().passes.is_empty() {
            let mut out = std::io::stdout().lock();
            writeln!(out, "  passes")?;
            for pass in &model.facts().passes {
                for line in pass.to_string().lines() {
                    writeln!(out, "    {line}")?;
                }
            }
        }
        Ok(())
    }
}
