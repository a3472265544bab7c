//! `weir compile`.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use tempfile::NamedTempFile;
use weir_abi::IsaLevel;
use weir_codegen::container::{write_executable, write_library, write_object};
use weir_runtime::command::{MAX_SLOTS, parse_isa, whole};

use crate::calibrated::tell_gain;
use crate::driver::{Emission, lower, print_times, with_image};
use crate::failure::Failure;
use crate::options::{DEFAULT_SLOTS, ModelOptions, ReportOptions};
use crate::places::refuse_overwriting;
use crate::progress::Progress;

/// Compile a model.
#[derive(Args, Debug)]
pub struct Compile {
    /// The model and what it is made into.
    #[command(flatten)]
    pub model: ModelOptions,

    /// Sequences that can be served at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = DEFAULT_SLOTS,
        value_parser = whole(1, MAX_SLOTS),
        allow_hyphen_values = true
    )]
    pub slots: u32,

    /// Instruction sets to emit code for, with commas between; portable is always there [default:
    /// all that weir knows]
    #[arg(long, value_name = "LEVELS", value_delimiter = ',', value_parser = parse_isa)]
    pub isa: Option<Vec<IsaLevel>>,

    /// File to write ("-" for standard output with --emit ir, clif or asm)
    #[arg(
        long,
        short,
        value_name = "OUT",
        required_unless_present = "stop_after",
        help_heading = None::<&str>
    )]
    pub output: Option<PathBuf>,

    /// What to write
    #[arg(
        long,
        value_enum,
        value_name = "FORM",
        default_value_t = Emit::Exe,
        help_heading = None::<&str>
    )]
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
        let Some(output) = self.output.as_deref().filter(|_| self.report.stop_after.is_none())
        else {
            print_times(&lowered, &self.report);
            return Ok(());
        };
        if self.emit == Emit::Ir {
            write_text(output, &lowered.graph.to_string())?;
            print_times(&lowered, &self.report);
            return Ok(());
        }
        let listing = matches!(self.emit, Emit::Clif | Emit::Asm);
        let how = Emission { levels: self.isa.as_deref(), listing, profile: false };
        with_image(&mut lowered, &model, &progress, how, |image, report| {
            let work = progress.start_bytes("writing", image.weights.bytes);
            let mut advance = |done, _| work.at(done);
            match self.emit {
                Emit::Exe => write_executable(image, output, &mut advance)?,
                Emit::Obj => write_object(image, output, &mut advance)?,
                Emit::Lib => {
                    write_library(image, output, &output.with_extension("h"), &mut advance)?;
                }
                Emit::Clif => write_text(output, report.clif.as_deref().unwrap_or_default())?,
                Emit::Asm => write_text(output, report.assembly.as_deref().unwrap_or_default())?,
                Emit::Ir => {}
            }
            Ok(())
        })?;
        print_times(&lowered, &self.report);
        if !lowered.held_out.is_empty() && !self.report.quiet {
            tell_gain(&mut lowered, &model, &progress)?;
        }
        if self.emit == Emit::Exe {
            let call = if output.parent() == Some(Path::new("")) { "./" } else { "" };
            let output = output.display();
            let example = match lowered.text.tokenizer {
                _ if lowered.gives_embeddings() => "embed --text \"Once upon a time\"",
                Some(_) => "generate --prompt \"Once upon a time\"",
                None => "generate --ids 1,2,3",
            };
            progress.tell(format_args!("{output} is ready; try {call}{output} {example}"));
        }
        Ok(())
    }

    /// Finds outputs that cannot be meant or written before the work begins.
    fn check_output(&self) -> Result<(), Failure> {
        let Some(output) = self.output.as_deref() else { return Ok(()) };
        let binary = matches!(self.emit, Emit::Exe | Emit::Obj | Emit::Lib);
        if output == Path::new("-") {
            let message = "only --emit ir, clif and asm write to standard output";
            return if binary { Err(Failure::usage(message)) } else { Ok(()) };
        }
        let name = output.display();
        if self.emit == Emit::Lib && output.extension().is_some_and(|extension| extension == "h") {
            return Err(Failure::usage(format!("{name} is where the library's header goes")));
        }
        if output.is_dir() {
            return Err(Failure::usage(format!(
                "-o {name} is a directory; name a file in it, such as {}",
                output.join("model").display()
            )));
        }
        // The new file would take the place of a device or a pipe, not go through it.
        if output.exists() && !output.is_file() {
            return Err(Failure::usage(format!("-o {name} is no regular file; name another")));
        }
        let folder = folder(output);
        if !folder.is_dir() {
            let folder = folder.display();
            return Err(Failure::usage(format!(
                "-o {name}: there is no directory {folder}; make it first"
            )));
        }
        if is_part_of(output, &self.model.model) {
            return Err(Failure::usage(format!(
                "-o {name} would replace a part of the model that is compiled; choose another name"
            )));
        }
        let inputs = self.model.inputs();
        refuse_overwriting("-o", output, &inputs)?;
        if self.emit == Emit::Lib {
            refuse_overwriting("-o: its header", &output.with_extension("h"), &inputs)?;
        }
        // A folder that takes no file is better found now than after minutes of work.
        scratch_file(folder).map_err(|error| unwritable(output, &error))?;
        Ok(())
    }
}

/// Whether a path names the model's file, or one of those beside it that a model is made of.
fn is_part_of(output: &Path, model: &Path) -> bool {
    let (Ok(output), Ok(model)) = (output.canonicalize(), model.canonicalize()) else {
        return false;
    };
    if output == model {
        return true;
    }
    let folder = if model.is_dir() { Some(model.as_path()) } else { model.parent() };
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    let kinds = [".onnx", ".data", ".onnx_data", ".bin", ".pb", ".json", ".jinja", ".safetensors"];
    folder == output.parent() && kinds.iter().any(|kind| name.ends_with(kind))
}

fn folder(output: &Path) -> &Path {
    output.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file that goes when it is dropped. Its creation is ours, so that an error is the system's and
/// does not name it.
fn scratch_file(folder: &Path) -> std::io::Result<NamedTempFile> {
    // The process's mask takes from these what its user wants to keep private.
    let create =
        |path: &Path| OpenOptions::new().write(true).create_new(true).mode(0o666).open(path);
    tempfile::Builder::new().prefix(".weir-").suffix(".tmp").make_in(folder, create)
}

fn unwritable(output: &Path, error: &std::io::Error) -> Failure {
    Failure::other(format!("{}: {error}", output.display()))
}

/// Writes a text, which appears by rename when it is whole.
fn write_text(output: &Path, text: &str) -> Result<(), Failure> {
    if output == Path::new("-") {
        let mut out = std::io::stdout().lock();
        out.write_all(text.as_bytes())?;
        return Ok(out.flush()?);
    }
    let mut file = scratch_file(folder(output)).map_err(|error| unwritable(output, &error))?;
    file.as_file_mut().write_all(text.as_bytes()).map_err(|error| unwritable(output, &error))?;
    file.persist(output).map_err(|error| unwritable(output, &error.error))?;
    Ok(())
}
