//! The program that every compiled model begins with: a thin `main` over the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    weir_runtime::command::main()
}
