//! `weir inspect`: what a model is before it is compiled, or what a compiled file holds.

use std::io::Read;

use clap::Args;
use weir_runtime::{CompiledModel, command};

use crate::driver::{explanation, load, lower};
use crate::failure::Failure;
use crate::options::{DEFAULT_SLOTS, ModelOptions, ReportOptions};
use crate::progress::Progress;

/// Say what a model or a compiled file is.
#[derive(Args, Debug)]
pub struct Inspect {
    #[command(flatten)]
    model: ModelOptions,

    #[command(flatten)]
    report: ReportOptions,

    #[command(flatten)]
    info: command::Info,
}

impl Inspect {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        if is_elf(&self.model.model) {
            let compiled = CompiledModel::open(&self.model.model)?;
            return Ok(self.info.run(&weir_runtime::Model::new(compiled)?)?);
        }
        let progress = Progress::new(self.report.quiet);
        let report = ReportOptions { explain: false, ..self.report.clone() };
        if self.info.json || self.report.stop_after.is_some() {
            if self.report.stop_after.is_some() {
                lower(&self.model, &self.report, &progress)?;
                return Ok(());
            }
        } else {
            let quiet = ReportOptions { dump: Vec::new(), ..report.clone() };
            let lowered = lower(&self.model, &quiet, &progress)?;
            println!("passes");
            for line in explanation(&lowered.report).lines() {
                println!("  {line}");
            }
        }
        let slots = self.info.runtime.slots.unwrap_or(DEFAULT_SLOTS);
        let options = ModelOptions { slots, ..self.model.clone() };
        let compiled = load(&options, &report, &progress)?;
        Ok(self.info.run(&weir_runtime::Model::new(compiled)?)?)
    }
}

fn is_elf(path: &std::path::Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && &magic == b"\x7fELF"
}
