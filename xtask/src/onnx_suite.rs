//! The ONNX project's own node tests against importer and interpreter.
//!
//! Gets the `onnx` wheel with pip (nothing of it is kept in the repository), runs every case whose
//! operators the importer's tables have, with the tolerances of ONNX's own runner, and writes
//! `docs/onnx-ops.md`. A case that imports is claimed; a claimed case that fails is an error.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use prost::Message as _;
use weir_frontend::onnx::ops::{FAMILIES, NEWEST};
use weir_frontend::onnx::proto::{ModelProto, TensorProto};
use weir_frontend::onnx::{import::dtype, tensor::TensorReader};
use weir_frontend::source::ModelFiles;
use weir_ir::interpret::{Bindings, Data, Tensor, evaluate};
use weir_ir::{Constant, TensorType};

#[cfg(test)]
mod tests;

/// The newest wheel that holds the node tests.
const WHEEL: &str = "onnx==1.22.0";
/// Tolerances of ONNX's own runner.
const RELATIVE: f64 = 1e-3;
const ABSOLUTE: f64 = 1e-7;

/// What became of a case.
enum Outcome {
    Passed,
    /// Why the importer does not take it.
    NotClaimed(String),
    Failed(String),
}

/// Runs the suite and writes the table.
pub fn run(root: &Path) -> anyhow::Result<()> {
    let cases = unpacked(&root.join("target/onnx-suite"))?;
    let mut by_operator: BTreeMap<String, Vec<(String, Outcome)>> = BTreeMap::new();
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(&cases)?.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<_>>()?;
    folders.sort();
    for folder in &folders {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = std::fs::read(folder.join("model.onnx"))?;
        let model = ModelProto::decode(bytes.as_slice()).context(name.clone())?;
        let nodes = model.graph.map(|graph| graph.node).unwrap_or_default();
        let operator = match nodes.as_slice() {
            [node] => qualified(&node.domain, &node.op_type),
            _ => "(several)".to_owned(),
        };
        let outcome = check(folder);
        by_operator.entry(operator).or_default().push((name, outcome));
    }
    let (text, failures) = table(&by_operator);
    let path = root.join("docs/onnx-ops.md");
    std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    println!("wrote {}", path.display());
    for failure in &failures {
        eprintln!("{failure}");
    }
    if failures.is_empty() { Ok(()) } else { bail!("{} claimed cases fail", failures.len()) }
}

fn qualified(domain: &str, name: &str) -> String {
    let domain = if domain.is_empty() { "ai.onnx" } else { domain };
    format!("{domain}::{name}")
}

/// The folder of cases, downloaded and unpacked at the first call.
fn unpacked(work: &Path) -> anyhow::Result<PathBuf> {
    let cases = work.join("onnx/backend/test/data/node");
    if cases.is_dir() {
        return Ok(cases);
    }
    std::fs::create_dir_all(work)?;
    let python = |arguments: &[&str]| -> anyhow::Result<()> {
        let status = Command::new("python3").args(arguments).current_dir(work).status();
        let status = status.context("the suite needs python3 with pip")?;
        if status.success() { Ok(()) } else { bail!("python3 {arguments:?} failed") }
    };
    python(&["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", WHEEL])?;
    let wheel = std::fs::read_dir(work)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .context("pip has left no wheel")?;
    python(&["-m", "zipfile", "-e", &wheel.to_string_lossy(), "."])?;
    Ok(cases)
}

fn check(folder: &Path) -> Outcome {
    match attempt(folder) {
        Ok(outcome) => outcome,
        Err(error) => Outcome::Failed(format!("{error:#}")),
    }
}

fn attempt(folder: &Path) -> anyhow::Result<Outcome> {
    let path = folder.join("model.onnx");
    let bytes = std::fs::read(&path)?;
    let model = ModelProto::decode(bytes.as_slice())?.graph.unwrap_or_default();
    let mut inputs = BTreeMap::new();
    for (index, input) in model.input.iter().enumerate() {
        match tensor(&path, &folder.join(format!("test_data_set_0/input_{index}.pb"))) {
            Ok(constant) => inputs.insert(input.name.clone(), constant),
            Err(error) => return Ok(Outcome::NotClaimed(format!("{error:#}"))),
        };
    }
    // Operators whose integer inputs are shapes or axes need them at compile time; others take
    // them as data.
    let integers: BTreeMap<String, Constant> = inputs
        .iter()
        .filter(|(_, constant)| {
            constant.ty.dtype().is_some_and(|dtype| !dtype.is_float()) && constant.ty.rank() <= 1
        })
        .map(|(name, constant)| (name.clone(), constant.clone()))
        .collect();
    let nothing = BTreeMap::new();
    let imported = [&nothing, &integers, &inputs]
        .into_iter()
        .map(|contents| weir_frontend::import_operators(&path, contents));
    let mut reason = String::new();
    let mut graph = None;
    for attempt in imported {
        match attempt {
            Ok(found) => {
                graph = Some(found);
                break;
            }
            // The last attempt leaves out the complaint that a content is unknown.
            Err(error) => {
                let problems: Vec<String> =
                    error.problems.iter().map(|problem| problem.message.clone()).collect();
                reason = problems.join("; ");
            }
        }
    }
    let Some(graph) = graph else { return Ok(Outcome::NotClaimed(reason)) };
    let wanted: Vec<_> = graph.main.results.iter().map(|result| result.value).collect();
    if wanted.is_empty() || wanted.len() != model.output.len() {
        bail!("{} results of {} outputs", wanted.len(), model.output.len());
    }
    let given = |param: &weir_ir::graph::Param| {
        let name = graph.main.values[param.value].name.as_ref()?;
        inputs.get(name)?.tensor().ok()
    };
    let ours = evaluate(&graph, &wanted, &Bindings::default(), &given)?;
    for (index, ours) in ours.iter().enumerate() {
        let expected = tensor(&path, &folder.join(format!("test_data_set_0/output_{index}.pb")))?;
        if let Err(message) = compare(ours, &expected.tensor()?) {
            return Ok(Outcome::Failed(format!("output {index}: {message}")));
        }
    }
    Ok(Outcome::Passed)
}

/// A serialised tensor.
fn tensor(model: &Path, path: &Path) -> anyhow::Result<Constant> {
    let bytes = std::fs::read(path)?;
    let proto = TensorProto::decode(bytes.as_slice()).context("a value that is no tensor")?;
    let mut files =
        ModelFiles::open(model, None).map_err(|problem| anyhow::anyhow!("{problem}"))?;
    let read = TensorReader::new(&mut files).read(&proto, "data");
    let tensor = read
        .map_err(|problem| anyhow::anyhow!("{}", problem.message))?
        .context("a value that is no tensor")?;
    let dtype = dtype(tensor.element).context("4-bit elements")?;
    let shape = tensor.dims.iter().map(|size| (*size).into()).collect();
    Ok(Constant::dense(proto.name, TensorType::new(dtype, shape), tensor.bytes))
}

fn compare(ours: &Tensor, expected: &Tensor) -> Result<(), String> {
    if ours.ty() != expected.ty() {
        return Err(format!("is {}, expected {}", ours.ty(), expected.ty()));
    }
    if let (Data::I64(a), Data::I64(b)) = (ours.data(), expected.data()) {
        return if a == b { Ok(()) } else { Err("integers differ".into()) };
    }
    let wrong = ours.f64s().into_iter().zip(expected.f64s()).enumerate().find(|(_, (x, y))| {
        let same = x == y || (x.is_nan() && y.is_nan());
        let near = (x - y).abs() <= ABSOLUTE + RELATIVE * y.abs();
        !same && !near
    });
    match wrong {
        Some((index, (x, y))) => Err(format!("element {index} is {x}, expected {y}")),
        None => Ok(()),
    }
}

/// The document, and a line for every claimed case that fails.
fn table(by_operator: &BTreeMap<String, Vec<(String, Outcome)>>) -> (String, Vec<String>) {
    let mut text = String::from(
        "# ONNX operators\n\nWritten by `cargo xtask onnx-suite`; do not edit. Versions are those of \
         the domain's opset at which the importer reads the operator. Cases are those of the ONNX \
         project's node tests (`",
    );
    text.push_str(WHEEL);
    text.push_str(
        "`), run by the interpreter; operators without any have none there. A case that is not \
         claimed is refused on import with the reason given.\n\n| operator | versions | passed | \
         not claimed |\n|---|---|---|---|\n",
    );
    let mut failures = Vec::new();
    let mut reasons: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    let mut rows: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in FAMILIES.iter().copied().flatten() {
        let (first, last) = (row.versions.start(), row.versions.end());
        let versions = if first == last {
            first.to_string()
        } else if *last == NEWEST {
            format!("{first}+")
        } else {
            format!("{first} to {last}")
        };
        rows.entry(format!("{}::{}", row.domain, row.name)).or_default().push(versions);
    }
    rows.insert("(several)".into(), Vec::new());
    let (mut passed_total, mut claimed_total) = (0, 0);
    for (operator, versions) in &rows {
        let cases = by_operator.get(operator).map_or(&[][..], Vec::as_slice);
        let (mut passed, mut refused) = (0, 0);
        for (name, outcome) in cases {
            match outcome {
                Outcome::Passed => passed += 1,
                Outcome::NotClaimed(reason) => {
                    refused += 1;
                    let by_reason = reasons.entry(operator).or_default();
                    by_reason.entry(reason).or_default().push(name);
                }
                Outcome::Failed(message) => failures.push(format!("{name}: {message}")),
            }
        }
        passed_total += passed;
        claimed_total += cases.len() - refused;
        let versions = versions.join(", ");
        writeln!(text, "| {operator} | {versions} | {passed} | {refused} |")
            .expect("a string takes every write");
    }
    write!(
        text,
        "\n`(several)`: cases of more than one node, most of them an operator's function body. \
         {passed_total} of {claimed_total} claimed cases pass.\n\n## Not claimed\n",
    )
    .expect("a string takes every write");
    for (operator, by_reason) in reasons {
        if operator == "(several)" {
            continue;
        }
        write!(text, "\n### {operator}\n\n").expect("a string takes every write");
        for (reason, names) in by_reason {
            writeln!(text, "* {reason}: {}", names.join(", ")).expect("a string takes every write");
        }
    }
    (text, failures)
}
