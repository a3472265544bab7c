//! The file itself: static, alone in its folder, the same twice, honest about damage.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use weir_tests::places::root;
use weir_tests::systems::{Binary, Setup, output};

use crate::trial;

/// A check with its name.
type Check = (&'static str, fn() -> Result<()>);

pub fn trials() -> Vec<Trial> {
    let checks: [Check; 6] = [
        ("same_bytes_twice", same_bytes),
        ("no_segment_is_writable_and_executable", segments),
        ("damage_is_named", damage),
        ("runs_in_an_empty_root", empty_root),
        ("nothing_on_error", nothing_on_error),
        ("levels_agree", levels),
    ];
    checks.into_iter().map(|(name, check)| trial(format!("artefact/{name}"), check)).collect()
}

fn setup() -> Setup {
    Setup {
        context: 256,
        kv: "snapstream".to_owned(),
        kv_dtype: None,
        compute: None,
        weights: None,
        calibrate: None,
        slots: 2,
    }
}

fn tales(setup: &Setup) -> Result<Binary> {
    Binary::compile(&root().join("models/tales/onnx-genai-int4"), setup)
}

fn same_bytes() -> Result<()> {
    let (a, b) = (tales(&setup())?, tales(&setup())?);
    ensure!(fs::read(a.path())? == fs::read(b.path())?, "two builds differ");
    Ok(())
}

/// What the kernel maps: nothing to load first, nothing that can be written and then run, pointers
/// read-only once they are relocated. Offsets and values are those of ELF-64.
fn segments() -> Result<()> {
    const LOAD: usize = 1;
    const INTERPRETER: usize = 3;
    const STACK: usize = 0x6474_e551;
    const RELRO: usize = 0x6474_e552;
    let bytes = fs::read(tales(&setup())?.path())?;
    let number = |at: usize, length: usize| -> Result<usize> {
        let field = bytes.get(at..at + length).context("the file ends in its headers")?;
        Ok(field.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    };
    const SHARED: usize = 3;
    ensure!(number(16, 2)? == SHARED, "the file can lie at one address only");
    let (table, entry, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut kinds = Vec::new();
    for segment in (0..count).map(|index| table + index * entry) {
        let (kind, flags) = (number(segment, 4)?, number(segment + 4, 4)?);
        let (executable, writable) = (flags & 1 != 0, flags & 2 != 0);
        if kind == LOAD {
            ensure!(!(executable && writable), "the segment at {segment} is writable code");
        }
        ensure!(kind != STACK || !executable, "the stack is executable");
        kinds.push(kind);
    }
    ensure!(!kinds.contains(&INTERPRETER), "the file asks for a dynamic linker");
    ensure!(kinds.contains(&RELRO), "relocated pointers stay writable");
    // Without this header kernels take the stack for executable.
    ensure!(kinds.contains(&STACK), "the file does not say what the stack may be");
    Ok(())
}

/// A flipped bit anywhere in the model is found, and `verify` says in which part.
fn damage() -> Result<()> {
    let binary = tales(&setup())?;
    ensure!(binary.run(&["verify"])?.contains("match"), "an undamaged file does not verify");
    let bytes = fs::read(binary.path())?;
    let folder = tempfile::tempdir()?;
    let damaged = folder.path().join("damaged");
    let info: serde_json::Value = serde_json::from_str(&binary.run(&["info", "--json"])?)?;
    let part = |name: &str| info["memory"][name].as_u64().context("no size").map(|n| n as usize);
    let (weights, before) = (part("weights")?, part("code_and_tables")?);
    ensure!(before + weights < bytes.len(), "the parts are longer than the file");
    // Weights stand at the end of the file, and only `verify` reads them whole; code and tables stand in
    // front of them.
    let in_weights = [1, 3, 5, 7].map(|eighth| bytes.len() - weights * eighth / 8);
    for place in in_weights.into_iter().chain([bytes.len() - weights - before / 2]) {
        let mut copy = bytes.clone();
        copy[place] ^= 0x10;
        write_program(&damaged, &copy)?;
        let output = output(Command::new(&damaged).arg("verify"))?;
        ensure!(!output.status.success(), "a flipped bit at {place} goes unseen");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(message.starts_with("error: "), "{place}: {message}");
    }
    // Cut off inside the weights: seen at once.
    write_program(&damaged, &bytes[..bytes.len() - 100_000])?;
    let output = output(Command::new(&damaged).args(["generate", "--prompt", "x"]))?;
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

/// Every ISA level that this machine has gives the same answer: products sum in one order on all of
/// them, and what attention's other order on the portable level changes is far below the gaps between
/// this text's likeliest tokens.
fn levels() -> Result<()> {
    let binary = tales(&setup())?;
    let ask = |level: &str| {
        let arguments = ["generate", "--prompt", "Once upon a time", "--max-tokens", "24"];
        binary.run(&[&arguments[..], &["--json", "--isa", level]].concat())
    };
    let portable = ask("portable")?;
    for level in ["avx2", "avx-vnni", "avx512", "avx512-pairs", "amx"] {
        match ask(level) {
            Ok(answer) => ensure!(answer == portable, "{level}: {answer}\nportable: {portable}"),
            Err(error) if error.to_string().contains("this processor does not have") => {
                println!("artefact/levels_agree: {level} is skipped: {error}");
            }
            Err(error) => return Err(error.context(level)),
        }
    }
    Ok(())
}
