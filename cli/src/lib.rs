//! The driver behind `weir`: from a model to a graph, to code, to files or a running model.
//!
//! The command line is resolved here once; the crates behind it get the few values that they need.

mod bench;
mod calibrate;
mod calibrated;
mod compile;
mod completions;
mod driver;
mod eval;
mod execute;
mod failure;
mod inspect;
mod load;
mod make_model;
mod options;
mod perplexity;
mod places;
mod progress;
mod roofline;
mod simulate;
mod traffic;
mod weights;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use bench::Bench;
pub use compile::{Compile, Emit};
pub use completions::Completions;
pub use driver::{Lowered, load, load_each, lower};
pub use eval::Eval;
pub use execute::Execute;
pub use failure::Failure;
pub use inspect::Inspect;
pub use load::Load;
pub use make_model::{MakeModel, write_model};
pub use options::{
    CalibrationSource, ComputeOption, DEFAULT_CALIBRATE_TOKENS, DEFAULT_SLOTS, KvTypeOption,
    ModelOptions, ReportOptions, formats_name,
};
pub use perplexity::{Perplexity, perplexity};
pub use progress::{Progress, Work};
pub use simulate::Simulate;

const EXAMPLES: &str = "\
Examples:
  weir run models/tales/onnx --prompt \"Once upon a time\"
  weir compile models/tales/onnx -o tales && ./tales chat
  weir inspect models/tales/onnx";

/// Compiles a language model into one static executable
#[derive(Debug, Parser)]
#[command(name = "weir", version, about, max_term_width = 100, after_help = EXAMPLES)]
pub struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compile a model into an executable, a library or a text form
    Compile(Box<Compile>),
    /// Compile a model in memory and run it; no file is written
    Run(Box<Execute>),
    /// Say what a model or a compiled file is, and what each pass did
    Inspect(Box<Inspect>),
    /// Measure how fast a model runs, beside what the machine could do
    ///
    /// --kv and --kv-dtype may be given several times here: every policy is measured in every number
    /// format, by turns, and each figure says how many times as fast as the first it is.
    Bench(Box<Bench>),
    /// Measure what compressed caches cost: tasks and texts, beside a cache that keeps every row
    ///
    /// --kv and --kv-dtype may be given several times here: every policy is measured in every number
    /// format, on the same prompts, each of which is computed once.
    Eval(Box<Eval>),
    /// Measure a server under load: time to the first token, between tokens, tokens per second
    Load(Box<Load>),
    /// Predict throughput and latencies of a server under load, for slots, queues and machines not at
    /// hand
    Simulate(Box<Simulate>),
    /// Write a model with random weights, to measure speed with
    MakeModel(MakeModel),
    /// Write a shell's completion script to standard output
    Completions(Completions),
}

/// Runs a command line.
pub fn run(line: CommandLine) -> ExitCode {
    let outcome = match &line.command {
        Command::Compile(compile) => compile.run(),
        Command::Run(execute) => execute.run(),
        Command::Inspect(inspect) => inspect.run(),
        Command::Bench(bench) => bench.run(),
        Command::Eval(eval) => eval.run(),
        Command::Load(load) => load.run(),
        Command::Simulate(simulate) => simulate.run(),
        Command::MakeModel(make_model) => make_model.run(),
        Command::Completions(completions) => completions.run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print();
            ExitCode::from(failure.code)
        }
    }
}

/// Compiles a model into an executable without a word.
pub fn compile_executable(options: &ModelOptions, output: &std::path::Path) -> Result<(), Failure> {
    let report = ReportOptions { quiet: true, ..ReportOptions::default() };
    let (model, slots) = (options.clone(), options.slots);
    let output = Some(output.to_path_buf());
    Compile { model, slots, isa: None, output, emit: Emit::Exe, report }.run()
}
