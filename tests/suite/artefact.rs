//! The file itself: static, alone in its folder, the same twice, honest about damage.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use weir_tests::places::root;
use weir_tests::systems::{Binary, Setup};

use crate::trial;

/// A check with its name.
type Check = (&'static str, fn() -> Result<()>);

pub fn trials() -> Vec<Trial> {
    let checks: [Check; 5] = [
        ("same_bytes_twice", same_bytes),
        ("damage_is_named", damage),
        ("runs_in_an_empty_root", empty_root),
        ("nothing_on_error", nothing_on_error),
        ("levels_agree", levels),
    ];
    checks.into_iter().map(|(name, check)| trial(format!("artefact/{name}"), check)).collect()
}

fn setup() -> Setup {
    Setup { context: 256, kv: "snapstream".to_owned(), compute: None, slots: 2 }
}

fn tales(setup: &Setup) -> Result<Binary> {
    Binary::compile(&root().join("models/tales/onnx-genai-int4"), setup)
}

fn same_bytes() -> Result<()> {
    let (a, b) = (tales(&setup())?, tales(&setup())?);
    ensure!(fs::read(a.path())? == fs::read(b.path())?, "two builds differ");
    Ok(())
}

/// A flipped bit anywhere in the model is found, and `verify` says in which part.
fn damage() -> Result<()> {
    let binary = tales(&setup())?;
    ensure!(binary.run(&["verify"])?.contains("match"), "an undamaged file does not verify");
    let bytes = fs::read(binary.path())?;
    let folder = tempfile::tempdir()?;
    let damaged = folder.path().join("damaged");
    // The last quarter of the file is weights, which only `verify` reads whole.
    for part in [1, 3, 7, 9] {
        let mut copy = bytes.clone();
        let place = bytes.len() - bytes.len() * part / 40;
        copy[place] ^= 0x10;
        write_program(&damaged, &copy)?;
        let output = Command::new(&damaged).arg("verify").output()?;
        ensure!(!output.status.success(), "a flipped bit at {place} goes unseen");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(message.starts_with("error: "), "{place}: {message}");
    }
    // Cut off inside the weights: seen at once.
    write_program(&damaged, &bytes[..bytes.len() - 100_000])?;
    let output = Command::new(&damaged).args(["generate", "--prompt", "x"]).output()?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1), "{:?}: {message}", output.status);
    ensure!(message.starts_with("error: "), "{message}");
    Ok(())
}

fn write_program(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    // A new file each time: a program that still runs cannot be written to.
    let _ = fs::remove_file(path);
    fs::write(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn empty_root() -> Result<()> {
    let binary = tales(&setup())?;
    let root = binary.path().parent().context("no folder")?.to_path_buf();
    let mut program = Command::new("chroot");
    program.arg(&root).args(["/model", "generate", "--prompt", "The dog", "--max-tokens", "4"]);
    let output = match program.output() {
        Ok(output) => output,
        Err(error) => {
            println!("artefact/runs_in_an_empty_root is skipped: chroot: {error}");
            return Ok(());
        }
    };
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    if message.contains("Operation not permitted") {
        println!("artefact/runs_in_an_empty_root is skipped: not root");
        return Ok(());
    }
    ensure!(output.status.success() && !output.stdout.is_empty(), "{message}");
    Ok(())
}

/// Impossible options leave no file behind.
fn nothing_on_error() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (kv, context) in [("snapstream,rows=8,sinks=8,recent=8", 256), ("stream", 100_000)] {
        let setup = Setup { kv: kv.to_owned(), context, ..setup() };
        let model = root().join("models/tales/onnx-genai-int4");
        let Err(failure) =
            weir::compile_executable(&setup.options(&model), &folder.path().join("model"))
        else {
            bail!("{kv} with {context} positions compiled");
        };
        ensure!(failure.code == 2, "{failure}");
        ensure!(fs::read_dir(folder.path())?.next().is_none(), "a file was left");
    }
    Ok(())
}

/// Every ISA level that this machine has gives the same answer here: products are exact or sum in one
/// order on all of them.
fn levels() -> Result<()> {
    let binary = tales(&setup())?;
    let ask = |level: &str| {
        let arguments = ["generate", "--prompt", "Once upon a time", "--max-tokens", "24"];
        binary.run(&[&arguments[..], &["--json", "--isa", level]].concat())
    };
    let portable = ask("portable")?;
    for level in ["avx2", "avx512"] {
        match ask(level) {
            Ok(answer) => ensure!(answer == portable, "{level}: {answer}\nportable: {portable}"),
            Err(error) => println!("artefact/levels_agree: {level} is skipped: {error}"),
        }
    }
    Ok(())
}
