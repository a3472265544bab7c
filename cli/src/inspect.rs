//! `weir inspect`: what a model is before it is compiled, or what a compiled file holds.

use std::io::{Read, Write};

use clap::Args;
use weir_runtime::{CompiledModel, command};

use crate::driver::{explanation, load_lowered, lower};
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
        let slots = self.info.runtime.slots.unwrap_or(DEFAULT_SLOTS);
        let options = ModelOptions { slots, ..self.model.clone() };
        let lowered = lower(&options, &self.report, &progress)?;
        if self.report.stop_after.is_some() {
            return Ok(());
        }
        let passes = explanation(&lowered.report);
        let compiled = load_lowered(lowered, &options, &self.report, &progress)?;
        self.info.run(&weir_runtime::Model::new(compiled)?)?;
        if !self.info.json {
            let mut out = std::io::stdout().lock();
            writeln!(out, "  passes")?;
            for line in passes.lines() {
                writeln!(out, "    {line}")?;
            }
        }
        Ok(())
    }
}

fn is_elf(path: &std::path::Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && &magic == b"\x7fELF"
}
