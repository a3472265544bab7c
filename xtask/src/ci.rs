//! What CI runs, in the order that fails soonest.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};

/// Runs every check; the first failure ends the run.
pub fn run(root: &Path) -> Result<()> {
    step("format", &mut cargo(root, &["fmt", "--all", "--check"]))?;
    let targets = ["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"];
    step("format of fuzz targets", &mut cargo(root, &targets))?;
    timed("structure", || crate::tidy::run(root))?;
    licences(root)?;
    // Checking needs no produced program, and building one takes a minute.
    let mut clippy = cargo(root, &["clippy", "--workspace", "--all-targets", "--locked"]);
    step("clippy", clippy.args(["--", "-D", "warnings"]).env("WEIR_STUB", "skip"))?;
    let mut documents = cargo(root, &["doc", "--workspace", "--no-deps", "--locked"]);
    documents.env("RUSTDOCFLAGS", "-D warnings").env("WEIR_STUB", "skip");
    step("documents", &mut documents)?;
    timed("fuzz targets", || crate::fuzz::run(root))?;
    step("tests", &mut cargo(root, &["test", "--workspace", "--locked"]))
}

/// Runs the tests that are too long for every change.
pub fn soak(root: &Path) -> Result<()> {
    let arguments = ["test", "--workspace", "--release", "--locked", "--", "--ignored"];
    step("long tests", &mut cargo(root, &arguments))
}

/// Licences, sources and, where the database of advisories can be reached, advisories.
fn licences(root: &Path) -> Result<()> {
    let tools = root.join("target/tools");
    let deny = tools.join("bin/cargo-deny");
    if !deny.exists() {
        let mut install =
            cargo(root, &["install", "--locked", "--quiet", "cargo-deny", "--version"]);
        install.arg("0.20.2").arg("--root").arg(&tools);
        install.args(["--no-default-features", "--profile", "dev"]);
        step("install cargo-deny", &mut install)?;
    }
    let mut check = Command::new(&deny);
    check.current_dir(root).args(["check", "bans", "licenses", "sources"]);
    step("licences and sources", &mut check)?;
    let mut advisories = Command::new(&deny);
    advisories.current_dir(root).args(["fetch", "db"]);
    let reachable = advisories.output().is_ok_and(|output| output.status.success());
    if reachable {
        let mut check = Command::new(&deny);
        check.current_dir(root).args(["check", "advisories"]);
        return step("advisories", &mut check);
    }
    println!("== advisories: skipped, their database cannot be reached from here");
    Ok(())
}

fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).args(arguments);
    command
}

fn step(name: &str, command: &mut Command) -> Result<()> {
    timed(name, || {
        let status = command.status().with_context(|| format!("{command:?} did not start"))?;
        if !status.success() {
            bail!("{command:?} failed: {status}");
        }
        Ok(())
    })
}

fn timed(name: &str, check: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("== {name}");
    let start = Instant::now();
    check().with_context(|| format!("check \"{name}\""))?;
    println!("== {name}: {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}
