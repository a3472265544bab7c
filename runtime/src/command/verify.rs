//! `verify`: reads the whole model and compares its checksums.

use std::io::Write;

use clap::Args;

use crate::{CompiledModel, RuntimeError};

/// Reads the whole model and compares its checksums.
#[derive(Clone, Debug, Args)]
pub struct Verify {}

impl Verify {
    /// Runs the command.
    pub fn run(&self, compiled: &CompiledModel) -> Result<(), RuntimeError> {
        compiled.verify()?;
        let header = compiled.header();
        let bytes = [header.code_bytes, header.tables_bytes, header.weights_bytes];
        let total: u64 = bytes.into_iter().fold(0, u64::saturating_add);
        writeln!(std::io::stdout(), "ok: {total} bytes, all checksums match")?;
        Ok(())
    }
}
