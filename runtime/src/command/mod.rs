//! The command line of a compiled model. `weir run` offers the same commands over a model that was
//! just compiled: both call [`Command::run`].

mod chat;
mod generate;
mod info;
mod logits;
mod options;
mod tensors;
#[cfg(test)]
mod tests;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub use chat::Chat;
pub use generate::Generate;
pub use info::Info;
pub use logits::Logits;
pub use options::{RuntimeArguments, SamplingArguments};
pub use verify::Verify;

use crate::{CompiledModel, Model, RuntimeError, machine};

/// A compiled language model.
#[derive(Debug, Parser)]
#[command(version, about = "A language model, compiled by weir into one program")]
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
    /// Say what the model is and how much memory it needs
    Info(Info),
    /// Read the whole model and compare its checksums
    Verify(Verify),
    /// Write logits to a file, for comparison with other implementations
    Logits(Logits),
}

impl Command {
    /// Runs the command with a model.
    pub fn run(&self, compiled: CompiledModel) -> Result<(), RuntimeError> {
        match self {
            Command::Generate(generate) => generate.run(&Model::new(compiled)?),
            Command::Chat(chat) => chat.run(&Model::new(compiled)?),
            Command::Info(info) => info.run(&Model::new(compiled)?),
            Command::Verify(verify) => verify.run(&compiled),
            Command::Logits(logits) => logits.run(&Model::new(compiled)?),
        }
    }
}

/// The program: arguments in, exit code out.
pub fn main() -> ExitCode {
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

/// Exit code of an error: 2 if the user asked for something impossible, 1 otherwise.
pub fn exit_code(error: &RuntimeError) -> u8 {
    match error {
        RuntimeError::Options(_) | RuntimeError::Request(_) | RuntimeError::Absent(_) => 2,
        _ => 1,
    }
}

fn fail(error: &RuntimeError) -> ExitCode {
    // Whoever read our output has gone, and knows it.
    let reader_has_gone = matches!(error, RuntimeError::Terminal(reason)
        if reason.kind() == std::io::ErrorKind::BrokenPipe);
    if !reader_has_gone {
        eprintln!("error: {error}");
    }
    ExitCode::from(exit_code(error))
}
