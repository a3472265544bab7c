//! Fuzz targets: each a fixed number of executions that begin with its corpus, so
//! that an input that broke something once is tried for ever.
//!
//! The toolchain is the stable one: what libFuzzer needs of the compiler, counters at the edges of
//! blocks, is an LLVM pass that stable flags reach. Sanitizers are not, and stay with `cargo fuzz`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Flags that `cargo fuzz` passes too, but for sanitizers.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// With a target named, build scripts and macros are built without the flags.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

/// Targets and how often each runs.
const TARGETS: &[(&str, u32)] = &[
    ("artefact", 20_000),
    ("chat_template", 2_000),
    ("constraint", 500),
    ("external_data", 2_000),
    ("ir_text", 10_000),
    ("onnx_import", 1_000),
    ("placement", 2_000),
    ("request_json", 20_000),
    ("tokenizer", 1_000),
];

/// Builds the targets and runs each; inputs that fail are kept in `fuzz/artifacts`.
pub fn run(root: &Path) -> Result<()> {
    let folder = root.join("fuzz");
    let built = std::env::var_os("CARGO_TARGET_DIR").map(std::path::PathBuf::from);
    let built = built.unwrap_or_else(|| root.join("target")).join("fuzz");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.current_dir(&folder).args(["build", "--locked", "--bins", "--target", TRIPLE]);
    build.arg("--target-dir").arg(&built).env("RUSTFLAGS", FLAGS).env("WEIR_STUB", "skip");
    check(&mut build)?;
    let artifacts = folder.join("artifacts");
    std::fs::create_dir_all(&artifacts).with_context(|| artifacts.display().to_string())?;
    for (target, runs) in TARGETS {
        let start = Instant::now();
        let corpus = folder.join("corpus").join(target);
        // libFuzzer adds what it finds to the first folder; the committed ones are left alone.
        let found = built.join("found").join(target);
        if found.exists() {
            std::fs::remove_dir_all(&found).with_context(|| found.display().to_string())?;
        }
        std::fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
        let mut command = Command::new(built.join(TRIPLE).join("debug").join(target));
        command.current_dir(&folder).arg(&found).arg(&corpus);
        command.arg(format!("-runs={runs}")).arg("-seed=1");
        command.args(["-timeout=60", "-rss_limit_mb=1024", "-verbosity=0"]);
        command.arg(format!("-artifact_prefix={}/{target}-", artifacts.display()));
        check(&mut command).with_context(|| format!("fuzz target {target}"))?;
        println!("{target}: {runs} runs, {:.0} s", start.elapsed().as_secs_f64());
    }
    Ok(())
}

fn check(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?} did not start"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}
