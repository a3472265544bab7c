//! `weir compile`.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use weir_codegen::container::{write_executable, write_library, write_object};

use crate::driver::{lower, print_times, with_image};
use crate::failure::Failure;
use crate::options::{DEFAULT_SLOTS, ModelOptions, ReportOptions};
use crate::progress::Progress;

/// Compile a model.
#[derive(Args, Debug)]
pub struct Compile {
    /// The model and what it is made into.
    #[command(flatten)]
    pub model: ModelOptions,

    /// Sequences that can be served at once
    #[arg(long, value_name = "N", default_value_t = DEFAULT_SLOTS, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub slots: u32,

    /// File to write ("-" for standard output with --emit ir, clif or asm)
    #[arg(long, short, value_name = "OUT", required_unless_present = "stop_after")]
    pub output: Option<PathBuf>,

    /// What to write
    #[arg(long, value_enum, default_value_t = Emit::Exe)]
    pub emit: Emit,

    /// What to tell.
    #[command(flatten)]
    pub report: ReportOptions,
}

/// Forms of a compiled model.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emit {
    /// One static executable
    Exe,
    /// A relocatable object with code, tables and weights
    Obj,
    /// A static library with the runtime, and a C header beside it (OUT with .h)
    Lib,
    /// The graph at the end of the passes, as text
    Ir,
    /// The code before it is machine code, as text
    Clif,
    /// The machine code, disassembled
    Asm,
}

impl Compile {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        self.check_output()?;
        let progress = Progress::new(self.report.quiet);
        let model = ModelOptions { slots: self.slots, ..self.model.clone() };
        let mut lowered = lower(&model, &self.report, &progress)?;
        let Some(output) = self.output.as_deref().filter(|_| lowered.is_complete()) else {
            print_times(&lowered, &self.report);
            return Ok(());
        };
        if self.emit == Emit::Ir {
            write_text(output, &lowered.graph.to_string())?;
            print_times(&lowered, &self.report);
            return Ok(());
        }
        let listing = matches!(self.emit, Emit::Clif | Emit::Asm);
        with_image(&mut lowered, &model, &progress, listing, |image, report| {
            let work = progress.start_bytes("writing", image.weights.bytes);
            let mut progress = |done, _| work.at(done);
            match self.emit {
                Emit::Exe => write_executable(image, output, &mut progress)?,
                Emit::Obj => write_object(image, output, &mut progress)?,
                Emit::Lib => {
                    write_library(image, output, &output.with_extension("h"), &mut progress)?;
                }
                Emit::Clif => write_text(output, report.clif.as_deref().unwrap_or_default())?,
                Emit::Asm => write_text(output, report.assembly.as_deref().unwrap_or_default())?,
                Emit::Ir => {}
            }
            Ok(())
        })?;
        print_times(&lowered, &self.report);
        Ok(())
    }

    /// Finds outputs that cannot be meant before the work begins.
    fn check_output(&self) -> Result<(), Failure> {
        let Some(output) = self.output.as_deref() else { return Ok(()) };
        let binary = matches!(self.emit, Emit::Exe | Emit::Obj | Emit::Lib);
        if binary && output == Path::new("-") {
            return Err(Failure::usage("only --emit ir, clif and asm write to standard output"));
        }
        if self.emit == Emit::Lib && output.extension().is_some_and(|extension| extension == "h") {
            let output = output.display();
            return Err(Failure::usage(format!("{output} is where the library's header goes")));
        }
        Ok(())
    }
}

/// Writes a text, which appears by rename when it is whole.
fn write_text(output: &Path, text: &str) -> Result<(), Failure> {
    if output == Path::new("-") {
        std::io::stdout().lock().write_all(text.as_bytes())?;
        return Ok(());
    }
    let folder = match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let place = |error: std::io::Error| Failure::other(format!("{}: {error}", output.display()));
    // The process's mask takes from these what its user wants to keep private.
    let mut file = tempfile::Builder::new()
        .prefix(".weir-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)
        .map_err(place)?;
    file.write_all(text.as_bytes()).map_err(place)?;
    file.persist(output).map_err(|error| place(error.error))?;
    Ok(())
}
