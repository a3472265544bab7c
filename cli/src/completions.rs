//! `weir completions`: a script that lets a shell complete weir's commands and options.

use std::io::Write;

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::CommandLine;
use crate::failure::Failure;

/// What the help says at its end.
const NOTES: &str = "\
For this session of bash:
  source <(weir completions bash)
For all of them:
  weir completions bash > ~/.local/share/bash-completion/completions/weir";

/// Write a shell's completion script to standard output.
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        // Into memory first: the generator panics where it cannot write.
        let mut script = Vec::new();
        generate(self.shell, &mut CommandLine::command(), "weir", &mut script);
        let mut out = std::io::stdout().lock();
        out.write_all(&script)?;
        Ok(out.flush()?)
    }
}
