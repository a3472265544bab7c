//! `weir`: reads the command line, calls the driver, sets the exit code.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    weir::run(weir::CommandLine::parse())
}
