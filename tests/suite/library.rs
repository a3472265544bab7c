//! The other forms of a compiled model: in programs of others, and as text.
//!
//! The programs are the repository's own examples, which must say what the executable says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use weir::{Compile, Emit, ReportOptions};
use weir_tests::places::root;
use weir_tests::systems::{Binary, Setup, output};

use crate::trial;

const PROMPT: &str = "Once upon a time";
const TOKENS: &str = "24";
/// What a library may add to its model.
const RUNTIME_BYTES: u64 = 4 << 20;

/// A check with its name.
type Check = (&'static str, fn() -> Result<()>);

pub fn trials() -> Vec<Trial> {
    let checks: [Check; 4] = [
        ("c_program", c_program),
        ("rust_program", rust_program),
        ("texts", texts),
        ("impossible_outputs", impossible_outputs),
    ];
    checks.into_iter().map(|(name, check)| trial(format!("library/{name}"), check)).collect()
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

fn model() -> PathBuf {
    root().join("models/tales/onnx-genai-int4")
}

fn emit(form: Emit, output: &Path) -> Result<()> {
    let options = setup().options(&model());
    let report = ReportOptions { quiet: true, ..ReportOptions::default() };
    let slots = options.slots;
    let output = Some(output.to_path_buf());
    Compile { model: options, slots, isa: None, output, emit: form, report }.run()?;
    Ok(())
}

/// The executable and what it says.
fn expected() -> Result<(Binary, String)> {
    let binary = Binary::compile(&model(), &setup())?;
    let text = binary.run(&["generate", "--prompt", PROMPT, "--max-tokens", TOKENS])?;
    ensure!(text.len() > 20, "the executable says only {text:?}");
    Ok((binary, text))
}

fn says(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = output(Command::new(program).args(arguments).args([PROMPT, TOKENS]))?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}: {message}", program.display(), output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The C example with the model linked in, as archive and as object, and with the model in a file.
fn c_program() -> Result<()> {
    if Command::new("cc").arg("--version").output().is_err() {
        println!("library/c_program is skipped: there is no cc");
        return Ok(());
    }
    let (binary, expected) = expected()?;
    let folder = tempfile::tempdir()?;
    let place = |name: &str| folder.path().join(name);
    emit(Emit::Lib, &place("tales.a"))?;
    emit(Emit::Obj, &place("tales.o"))?;
    let (library, object) = (place("tales.a").metadata()?, place("tales.o").metadata()?);
    let runtime = library.len() - object.len();
    ensure!(runtime < RUNTIME_BYTES, "the library's runtime has {runtime} bytes");
    let linked = ["-DMODEL_HEADER=\"tales.h\""];
    // The compiler's own choice is a position-independent program with shared libraries.
    for (options, archive_only) in [
        (&linked[..], true),
        (&["-static", linked[0]][..], true),
        (&["-no-pie", linked[0]][..], false),
    ] {
        // The object comes first, so that the archive's own copy of the model stays unused.
        let objects: &[&str] = if archive_only { &["tales.a"] } else { &["tales.o", "tales.a"] };
        let program = place("linked");
        compile(folder.path(), &program, options, objects)?;
        let text = says(&program, &[])?;
        ensure!(text == expected, "{options:?}: {text:?}, the executable: {expected:?}");
    }
    let program = place("opening");
    let header = format!("-I{}", root().join("runtime/include").display());
    compile(folder.path(), &program, &[&header], &["tales.a"])?;
    let file = binary.path();
    let text = says(&program, &[file.to_str().context("a path that is not UTF-8")?])?;
    ensure!(text == expected, "from a file: {text:?}, the executable: {expected:?}");
    Ok(())
}

fn compile(folder: &Path, program: &Path, options: &[&str], objects: &[&str]) -> Result<()> {
    let output = Command::new("cc")
        .current_dir(folder)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I."])
        .args(options)
        .arg(root().join("examples/generate.c"))
        .args(objects)
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(program)
        .output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cc {options:?} {objects:?}: {message}");
    Ok(())
}

/// A program that cargo has put beside this one, if it has been built.
fn built(name: &str) -> Result<Option<PathBuf>> {
    // This program lies in `deps`.
    let own = std::env::current_exe()?;
    let place = own.ancestors().nth(2).context("no target folder")?.join(name);
    Ok(place.is_file().then_some(place))
}

fn rust_program() -> Result<()> {
    let Some(program) = built("examples/generate")? else {
        println!("library/rust_program is skipped: cargo build -p weir-runtime --examples");
        return Ok(());
    };
    let (binary, expected) = expected()?;
    let file = binary.path();
    let text = says(&program, &[file.to_str().context("a path that is not UTF-8")?])?;
    ensure!(text == expected, "{text:?}, the executable: {expected:?}");
    Ok(())
}

/// Graph, CLIF and assembly: each names what it shows, in a file as on standard output.
fn texts() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let forms = [
        (Emit::Ir, "ir", ["graph @Fixed", "rms_norm("]),
        (Emit::Clif, "clif", ["; observe-0\nfunction ", "block0("]),
        (Emit::Asm, "asm", ["rms_norm-", "  ret\n"]),
    ];
    for (form, name, parts) in forms {
        let file = folder.path().join(name);
        emit(form, &file)?;
        let text = fs::read_to_string(&file)?;
        for part in parts {
            ensure!(text.contains(part), "--emit {name} has no {part:?}");
        }
    }
    Ok(())
}

/// Outputs that cannot be meant are wrong usage, and nothing is written.
fn impossible_outputs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    for (form, output) in [(Emit::Exe, PathBuf::from("-")), (Emit::Lib, folder.path().join("a.h"))]
    {
        let Err(error) = emit(form, &output) else {
            bail!("--emit {form:?} -o {} is taken", output.display());
        };
        let failure = error.downcast_ref::<weir::Failure>().context("another error")?;
        ensure!(failure.code == 2, "{failure}");
    }
    ensure!(fs::read_dir(folder.path())?.next().is_none(), "a file was left");
    Ok(())
}
