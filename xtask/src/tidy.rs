//! The structure check: what the compiler cannot enforce about the sources.
//!
//! Every finding is listed; none is repaired. The rules are those of `ARCHITECTURE.md`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Crate folder and the crates of the workspace that it may depend on.
const EDGES: &[(&str, &[&str])] = &[
    ("ir", &[]),
    ("frontend", &["weir-ir"]),
    ("passes", &["weir-ir"]),
    ("codegen", &["weir-abi", "weir-ir"]),
    ("runtime/abi", &[]),
    ("runtime/tokenizer", &[]),
    ("runtime/eval", &[]),
    ("runtime", &["weir-abi", "weir-eval", "weir-tokenizer"]),
    ("tests/processor", &[]),
];

/// The crates that may know x86-64 instructions.
const INSTRUCTIONS: [&str; 2] = ["codegen", "tests/processor"];

/// Outside dependencies that only one crate may have.
const OWNERS: &[(&str, &str)] = &[
    ("prost", "frontend"),
    ("cranelift-codegen", "codegen"),
    ("cranelift-frontend", "codegen"),
    ("object", "codegen"),
];

/// The files that may contain `unsafe`.
const UNSAFE: &[&str] = &[
    "runtime/src/ffi.rs",
    "runtime/src/weights.rs",
    "runtime/src/team.rs",
    "codegen/src/jit.rs",
    "frontend/src/source.rs",
];

const LARGEST_FILE: u64 = 8 << 20;

/// Runs all rules and lists what breaks them.
pub fn run(root: &Path) -> Result<()> {
    let listing = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .context("git ls-files did not start")?;
    let listing = String::from_utf8(listing.stdout).context("a file name is not UTF-8")?;
    let files: Vec<&str> = listing.lines().filter(|file| root.join(file).is_file()).collect();
    let mut findings = Vec::new();
    check_edges(root, &mut findings)?;
    for file in &files {
        check_file(root, file, &mut findings)?;
    }
    if findings.is_empty() {
        println!("{} files in order", files.len());
        return Ok(());
    }
    for finding in &findings {
        println!("{finding}");
    }
    bail!("{} findings", findings.len())
}

fn check_edges(root: &Path, findings: &mut Vec<String>) -> Result<()> {
    let reasons = std::fs::read_to_string(root.join("docs/dependencies.md"))
        .context("docs/dependencies.md")?;
    let mut outside = BTreeSet::new();
    for (folder, allowed) in EDGES {
        for dependency in dependencies(root, folder)? {
            if dependency.starts_with("weir") {
                if !allowed.contains(&dependency.as_str()) {
                    findings.push(format!("{folder}/Cargo.toml: must not depend on {dependency}"));
                }
                continue;
            }
            let owner = OWNERS.iter().find(|(name, _)| *name == dependency);
            let stranger = dependency == "iced-x86" && !INSTRUCTIONS.contains(folder);
            if stranger || owner.is_some_and(|(_, owner)| owner != folder) {
                findings.push(format!("{folder}/Cargo.toml: {dependency} has another owner"));
            }
            outside.insert(dependency);
        }
    }
    for folder in ["cli", "tests", "xtask"] {
        outside.extend(dependencies(root, folder)?.into_iter().filter(|d| !d.starts_with("weir")));
    }
    for dependency in outside {
        if !reasons.contains(&format!("`{dependency}`")) {
            findings.push(format!("docs/dependencies.md: no reason for `{dependency}`"));
        }
    }
    Ok(())
}

/// Names under `[dependencies]`, `[build-dependencies]` and their target forms; development
/// dependencies are free to cross rooms, for tests compare them.
fn dependencies(root: &Path, folder: &str) -> Result<Vec<String>> {
    let path = root.join(folder).join("Cargo.toml");
    let manifest = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let mut names = Vec::new();
    let mut wanted = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            wanted = line.ends_with("dependencies]") && !line.contains("dev-dependencies");
        } else if wanted {
            let end = line.find(['.', ' ', '=']).unwrap_or(0);
            if end > 0 && !line.starts_with('#') {
                names.push(line[..end].to_owned());
            }
        }
    }
    Ok(names)
}

fn check_file(root: &Path, file: &str, findings: &mut Vec<String>) -> Result<()> {
    let path = root.join(file);
    let bytes = path.metadata().with_context(|| file.to_owned())?.len();
    if bytes > LARGEST_FILE {
        findings.push(format!("{file}: {bytes} bytes, more than {LARGEST_FILE}"));
    }
    if !file.ends_with(".rs") {
        return Ok(());
    }
    let text = std::fs::read_to_string(&path).with_context(|| file.to_owned())?;
    if !text.starts_with("//!") {
        findings.push(format!("{file}:1: the first line is not `//!`"));
    }
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let word = ["unsafe {", "unsafe fn", "unsafe impl", "allow(unsafe_code"];
        let wanted = word.iter().any(|word| code.contains(word)) && !code.contains('"');
        // The allowance stands where the module is declared, beside the file that it names.
        let declares = code.contains("allow(unsafe_code")
            && UNSAFE.iter().any(|allowed| {
                let module = Path::new(allowed).file_stem().and_then(|stem| stem.to_str());
                let next = text.lines().nth(index + 1).unwrap_or_default();
                module.is_some_and(|module| next.contains(&format!("mod {module};")))
            });
        let test =
            file.contains("/tests") || file.contains("/benches/") || file.contains("examples/");
        if wanted && !declares && !test && !UNSAFE.contains(&file) {
            findings
                .push(format!("{file}:{}: unsafe outside the files that may have it", index + 1));
        }
    }
    Ok(())
}
