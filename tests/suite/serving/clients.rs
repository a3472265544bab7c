//! OpenAI's own clients against a compiled program.
//!
//! The clients are not in the repository: `tests/clients` pins their versions, and a registry must give
//! them. Where none does, a test says so and passes; `WEIR_TEST_CLIENTS=required`, which CI sets, makes
//! that a failure.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use weir_tests::places::root;
use weir_tests::systems::output;

use super::{start, start_slow};

const KEY: &str = "a-key";

/// `openai` of PyPI.
pub fn python() -> Result<()> {
    with_client("python", &["requirements.txt"], install_python, |folder| {
        let mut command = Command::new(folder.join("environment/bin/python"));
        command.arg("-I").arg(root().join("tests/clients/python/check.py"));
        command
    })
}

/// `openai` of npm's registry.
pub fn javascript() -> Result<()> {
    with_client(
        "javascript",
        &["package.json", "package-lock.json"],
        install_javascript,
        |folder| {
            let mut command = Command::new("node");
            command.arg(folder.join("check.mjs"));
            command
        },
    )
}

/// Installs a client unless that has been done, and lets its program ask.
fn with_client(
    language: &str,
    pinned: &[&str],
    install: impl Fn(&Path) -> Result<()>,
    program: impl Fn(&Path) -> Command,
) -> Result<()> {
    let source = root().join("tests/clients").join(language);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients").join(language);
    let mut versions = String::new();
    for file in pinned {
        versions.push_str(&std::fs::read_to_string(source.join(file))?);
    }
    let stamp = folder.join("installed");
    if std::fs::read_to_string(&stamp).ok().as_deref() != Some(versions.as_str()) {
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        for file in pinned {
            std::fs::copy(source.join(file), folder.join(file))?;
        }
        if let Err(error) = install(&folder) {
            let is_required = std::env::var("WEIR_TEST_CLIENTS").is_ok_and(|how| how == "required");
            ensure!(!is_required, "the client cannot be installed: {error:#}");
            println!("serving/clients/{language}: skipped, the client cannot be had: {error:#}");
            return Ok(());
        }
        std::fs::write(&stamp, versions)?;
    }
    // A module is looked for beside the program that imports it.
    let script = source.join("check.mjs");
    if script.is_file() {
        std::fs::copy(script, folder.join("check.mjs"))?;
    }
    let server = start(&["--model-name", "tales", "--api-key", KEY])?;
    let narrow = ["--model-name", "recall", "--api-key", KEY, "--slots", "1", "--queue", "0"];
    let narrow = start_slow(&narrow)?;
    let mut program = program(&folder);
    program.arg(format!("http://{}", server.address())).arg(KEY);
    program.arg(format!("http://{}", narrow.address()));
    run(&mut program)
}

fn install_python(folder: &Path) -> Result<()> {
    let environment = folder.join("environment");
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let pip: PathBuf = environment.join("bin/pip");
    run(Command::new(pip)
        .args(["install", "--quiet", "--disable-pip-version-check", "--no-deps"])
        .args(["--retries", "1", "--timeout", "20", "--requirement"])
        .arg(folder.join("requirements.txt")))
}

fn install_javascript(folder: &Path) -> Result<()> {
    let mut npm = Command::new("npm");
    npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]);
    run(npm.current_dir(folder))
}

/// Runs to the end; what it said is the error where it fails.
fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = output(command).with_context(|| format!("{name} did not start"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let last: Vec<&str> = said.lines().rev().take(20).collect();
        let last: Vec<&str> = last.into_iter().rev().collect();
        bail!("{name}: {}:\n{}", output.status, last.join("\n"));
    }
    Ok(())
}
