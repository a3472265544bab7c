//! The command line of a compiled model. `weir run` offers the same commands over a model that was
//! just compiled: both call [`Command::run`].

pub mod bench;
mod chat;
mod embed;
pub mod eval;
mod generate;
mod info;
mod interrupt;
mod logits;
mod numbers;
mod options;
mod serve;
mod tensors;
#[cfg(test)]
mod tests;
mod verify;
mod whole_file;

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use bench::Bench;
pub use chat::Chat;
pub use embed::Embed;
pub use eval::{Candidates, EVAL_NOTES, Eval, Perplexity, confined};
pub use generate::Generate;
pub use info::Info;
pub use interrupt::Interrupt;
pub use logits::{Logits, prompt_logits};
pub use numbers::whole;
pub use options::{DraftArguments, RuntimeArguments, SamplingArguments, parse_isa};

pub use crate::forward::MAX_SLOTS;
pub use serve::Serve;
pub use verify::Verify;

use crate::{CompiledModel, Model, RuntimeError, machine};

/// Exit code of a program that a Ctrl-C has ended.
pub const INTERRUPTED: u8 = 130;

/// What a reader of the help may want to type first, behind the name of the program.
const EXAMPLES: &str = "\
Examples of commands:
  generate --prompt \"Once upon a time\"
  chat --temperature 0.8
  serve --port 8080
  info --json";

/// A compiled language model.
#[derive(Debug, Parser)]
#[command(
    version,
    about = "A language model, compiled by weir into one program",
    max_term_width = 100,
    after_help = EXAMPLES
)]
pub struct Program {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What a compiled model does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Continue one or several prompts
    Generate(Generate),
    /// Talk to the model
    Chat(Chat),
    /// Give the embeddings of texts
    Embed(Embed),
    /// Serve the model over HTTP: OpenAI's API, a page to talk to it, metrics
    Serve(Serve),
    /// Say what the model is and how much memory it needs
    Info(Info),
    /// Read the whole model and compare its checksums
    Verify(Verify),
    /// Write logits to a file, for comparison with other implementations
    Logits(Logits),
    /// Measure how fast the model runs, beside what the machine could do
    Bench(Bench),
    /// Measure what the compressed cache costs: tasks, beside a cache that keeps every row
    Eval(Eval),
    /// Measure how well the model knows a text, with its cache and with one that keeps every row
    Perplexity(Perplexity),
}

impl Command {
    /// Runs the command with a model.
    pub fn run(&self, compiled: CompiledModel) -> Result<(), RuntimeError> {
        match self {
            Command::Generate(generate) => generate.run(&Model::new(compiled)?),
            Command::Chat(chat) => chat.run(&Model::new(compiled)?),
            Command::Embed(embed) => embed.run(&Model::new(compiled)?),
            Command::Serve(serve) => serve.run(Model::new(compiled)?),
            Command::Info(info) => info.run(&Model::new(compiled)?),
            Command::Verify(verify) => verify.run(&compiled),
            Command::Logits(logits) => logits.run(&Model::new(compiled)?),
            Command::Bench(bench) => bench.run(&Model::new(compiled)?),
            Command::Eval(eval) => eval.run(&Candidates::alone(Model::new(compiled)?)),
            Command::Perplexity(text) => text.run(&Candidates::alone(Model::new(compiled)?)),
        }
    }
}

/// The program: arguments in, exit code out.
pub fn main() -> ExitCode {
    if let Some(code) = confined() {
        return code;
    }
    // Before anything else: on an older processor the rest is of no use.
    if let Err(error) = machine::check_processor() {
        return fail(&error);
    }
    let program = Program::parse();
    let outcome = CompiledModel::from_self()
        .map_err(RuntimeError::from)
        .and_then(|compiled| program.command.run(compiled));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Exit code of an error: 2 if the user asked for something impossible, 130 if the user stopped it, 1
/// otherwise.
pub fn exit_code(error: &RuntimeError) -> u8 {
    match error {
        RuntimeError::Options(_)
        | RuntimeError::Request(_)
        | RuntimeError::Constraint(_)
        | RuntimeError::Prompt { .. }
        | RuntimeError::Absent(_)
        | RuntimeError::NoText
        | RuntimeError::NoEmbeddings => 2,
        RuntimeError::Stopped(_) => INTERRUPTED,
        _ => 1,
    }
}

/// Whether the reader of standard output has gone. It has what it wanted, so this is no failure and
/// nobody needs to hear of it.
pub fn reader_has_gone(error: &RuntimeError) -> bool {
    matches!(error, RuntimeError::Output(reason) if reason.kind() == ErrorKind::BrokenPipe)
}

/// Prints a line for the user on standard error. Where that is closed, there is no user to tell.
pub fn say(line: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

fn fail(error: &RuntimeError) -> ExitCode {
    if reader_has_gone(error) {
        return ExitCode::SUCCESS;
    }
    say(format_args!("error: {error}"));
    ExitCode::from(exit_code(error))
}
