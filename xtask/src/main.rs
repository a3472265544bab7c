//! Tasks of the repository: what CI runs, and what a developer runs by hand.

mod ci;
mod fuzz;
mod onnx_suite;
mod tidy;

use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Tasks of the repository")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything that CI runs: format, clippy, structure, licences, documents, tests
    Ci,
    /// Structure of the sources: edges between crates, unsafe, file headers, sizes
    Tidy,
    /// The ONNX project's node tests against importer and interpreter; writes docs/onnx-ops.md
    OnnxSuite,
    /// Fuzz targets: a fixed number of runs each, beginning with the corpus
    Fuzz,
    /// The long tests (minutes to hours; some need disk space)
    Soak,
}

fn main() -> anyhow::Result<()> {
    let root = root();
    match Arguments::parse().task {
        Task::Ci => ci::run(&root),
        Task::Tidy => tidy::run(&root),
        Task::OnnxSuite => onnx_suite::run(&root),
        Task::Fuzz => fuzz::run(&root),
        Task::Soak => ci::soak(&root),
    }
}

/// The root of the checkout.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(Path::to_path_buf).unwrap_or_else(|| here.to_path_buf())
}
