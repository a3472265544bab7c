//! `weir`: reads the command line, calls the driver, sets the exit code.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    if let Some(code) = weir_runtime::command::confined() {
        return code;
    }
    weir::run(weir::CommandLine::parse())
}
