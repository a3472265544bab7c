//! Builds the runtime that compiled models begin with, so that one `cargo build` gives a compiler
//! that needs no other file: the static program (`runtime-program`), the object for other
//! programs (`runtime-object`) and its C header (`runtime-header`), all in `OUT_DIR`.
//!
//! The runtime is built by a cargo of its own, in a target folder of its own, because it needs
//! another profile and another way of linking than the compiler. What reaches that cargo is
//! narrowed to what must: the same runtime comes out whatever flags, wrappers and folders the outer
//! build uses.
//!
//! `WEIR_STUB=skip` leaves the runtime out, for builds that only check; clippy implies it. Such a
//! compiler says so when it is asked for an executable.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const PROFILE: &str = "stub";
/// Variables of the outer cargo that the inner one keeps: where its caches are, how it reaches
/// registries, and the job server, so that both together start no more jobs than asked for.
const KEPT: [&str; 2] = ["CARGO_HOME", "CARGO_MAKEFLAGS"];
const KEPT_PREFIXES: [&str; 5] =
    ["CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_NET_", "CARGO_HTTP_", "CARGO_TERM_"];
/// Further variables that would change what is built.
const DROPPED: [&str; 12] = [
    "RUSTFLAGS",
    "RUSTDOCFLAGS",
    "RUSTC",
    "RUSTDOC",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_LINKER",
    "TARGET",
    "HOST",
    "PROFILE",
    "OPT_LEVEL",
    "DEBUG",
];

fn main() {
    let workspace = variable("CARGO_MANIFEST_DIR").join("..");
    let out = variable("OUT_DIR");
    for input in ["runtime", "Cargo.toml", "Cargo.lock", "rust-toolchain.toml"] {
        println!("cargo::rerun-if-changed={}", workspace.join(input).display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=WEIR_STUB");
    println!("cargo::rerun-if-env-changed=RUSTC_WORKSPACE_WRAPPER");
    let wrapper = env::var_os("RUSTC_WORKSPACE_WRAPPER").unwrap_or_default();
    let clippy = Path::new(&wrapper).file_stem() == Some(OsStr::new("clippy-driver"));
    let skipped = clippy || env::var_os("WEIR_STUB").is_some_and(|value| value == "skip");
    let parts = ["runtime-program", "runtime-object", "runtime-header"];
    if skipped {
        for part in parts {
            write(&out.join(part), &[]);
        }
        return;
    }
    let workspace = workspace.canonicalize().unwrap_or_else(|error| fail(&workspace, &error));
    let target = out.join("runtime-target");
    build_runtime(&workspace, &target);
    let built = target.join(TARGET).join(PROFILE);
    let header = workspace.join("runtime/include/weir.h");
    let object = target.join("weir-runtime.o");
    link_library(&built.join("libweir_runtime.a"), &header, &object);
    let sources = [built.join("weir-model"), object, header];
    for (source, part) in sources.iter().zip(parts) {
        let bytes = std::fs::read(source).unwrap_or_else(|error| fail(source, &error));
        write(&out.join(part), &bytes);
    }
}

fn build_runtime(workspace: &Path, target: &Path) {
    let mut cargo = Command::new(variable("CARGO"));
    cargo.current_dir(workspace);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let ours = text.starts_with("CARGO") || DROPPED.contains(&text.as_ref());
        let kept = KEPT.contains(&text.as_ref())
            || KEPT_PREFIXES.iter().any(|prefix| text.starts_with(prefix));
        if ours && !kept {
            cargo.env_remove(&name);
        }
    }
    // Paths would make the bytes depend on the folder of the build.
    let mut flags = vec!["-Ctarget-feature=+crt-static".to_owned()];
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    for (path, name) in
        [(Some(target), "target"), (home.as_deref(), "cargo"), (Some(workspace), "weir")]
    {
        let Some(path) = path else { continue };
        flags.push(format!("--remap-path-prefix={}=/{name}", path.display()));
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    // The outer build has resolved the lock file already.
    cargo.args(["build", "--locked", "--package", "weir-runtime", "--lib", "--bin", "weir-model"]);
    cargo.args(["--profile", PROFILE, "--target", TARGET, "--target-dir"]).arg(target);
    match cargo.status() {
        Ok(status) if status.success() => {}
        Ok(status) => {
            println!("cargo::error=building the runtime failed: {status}");
            std::process::exit(1);
        }
        Err(error) => fail(Path::new("cargo"), &error),
    }
}

/// Links the archive's members into one object of what the header's functions need. The archive is
/// fifteen times as long: it holds the standard library whole, with debug information and bitcode.
fn link_library(archive: &Path, header: &Path, object: &Path) {
    let script = object.with_extension("ld");
    let drop = "SECTIONS { /DISCARD/ : { *(.llvmbc) *(.llvmcmd) } }\nINSERT AFTER .text;\n";
    write(&script, drop.as_bytes());
    let declared = std::fs::read_to_string(header).unwrap_or_else(|error| fail(header, &error));
    let mut linker = Command::new("cc");
    linker.args(["-r", "-nostdlib", "-Wl,--gc-sections", "-Wl,--strip-debug", "-Wl,-T"]);
    linker.arg(&script);
    // A function's name stands in front of its parameters.
    for (before, _) in declared.match_indices('(').map(|(at, _)| declared.split_at(at)) {
        let start = before.rfind(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let name = &before[start.map_or(0, |start| start + 1)..];
        if name.starts_with("weir_") {
            linker.arg(format!("-Wl,-u,{name}"));
        }
    }
    linker.arg(archive).arg("-o").arg(object);
    match linker.status() {
        Ok(status) if status.success() => {}
        Ok(status) => {
            println!("cargo::error=linking the runtime into one object failed: {status}");
            std::process::exit(1);
        }
        Err(error) => fail(Path::new("cc"), &error),
    }
}

fn variable(name: &str) -> PathBuf {
    env::var_os(name).map(PathBuf::from).unwrap_or_else(|| {
        println!("cargo::error={name} is not set: build with cargo");
        std::process::exit(1)
    })
}

/// Writes a file unless it has these bytes already, so that nothing is compiled again for it.
fn write(path: &Path, bytes: &[u8]) {
    if std::fs::read(path).is_ok_and(|present| present == bytes) {
        return;
    }
    if let Err(error) = std::fs::write(path, bytes) {
        fail(path, &error);
    }
}

fn fail(path: &Path, error: &std::io::Error) -> ! {
    println!("cargo::error={}: {error}", path.display());
    std::process::exit(1)
}
