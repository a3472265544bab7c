//! Broken models through the whole driver: each way of breaking one is refused with an error that
//! names a place, by a panic never, and nothing is written.
//!
//! The frontend's own suite breaks a model built by hand; this one breaks exported files, and also
//! models that are well formed and mean nothing, which only passes and code generation can refuse.

mod damage;
mod variants;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use prost::Message;
use weir_frontend::onnx::proto::{
    GraphProto, ModelProto, NodeProto, StringStringEntryProto, TensorProto,
};
use weir_tests::places::root;
use weir_tests::systems::Setup;

use crate::trial;

/// The fixture that is broken: int4 weights in a file beside the model, query and key norms.
const FIXTURE: &str = "tests/fixtures/onnx/qwen3-genai-int4-fp16io";

pub fn trials() -> Vec<Trial> {
    let mut trials: Vec<Trial> = variants::VARIANTS
        .iter()
        .map(|(name, change)| {
            trial(format!("broken/{}", name.replace(' ', "_")), move || refused(*change))
        })
        .collect();
    trials.push(trial("broken/intact".to_owned(), intact));
    trials.extend(damage::trials());
    trials
}

/// An export in memory: the graph, and every other file of its folder.
pub struct Export {
    model: ModelProto,
    files: Vec<(String, Vec<u8>)>,
}

impl Export {
    fn read() -> Result<Export> {
        let folder = root().join(FIXTURE);
        let model = ModelProto::decode(fs::read(folder.join("model.onnx"))?.as_slice())?;
        let mut files = Vec::new();
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name != "model.onnx" && !name.starts_with("golden") {
                files.push((name, fs::read(entry.path())?));
            }
        }
        Ok(Export { model, files })
    }

    fn write(&self, folder: &Path) -> Result<()> {
        for (name, contents) in &self.files {
            fs::write(folder.join(name), contents)?;
        }
        Ok(fs::write(folder.join("model.onnx"), self.model.encode_to_vec())?)
    }

    fn graph(&mut self) -> &mut GraphProto {
        self.model.graph.get_or_insert_default()
    }

    /// The first node with an operator.
    fn node(&mut self, op: &str) -> &mut NodeProto {
        let nodes = &mut self.graph().node;
        nodes.iter_mut().find(|node| node.op_type == op).expect("the fixture has the operator")
    }

    /// The first initialiser whose name ends so.
    fn tensor(&mut self, end: &str) -> &mut TensorProto {
        let tensors = &mut self.graph().initializer;
        tensors.iter_mut().find(|tensor| tensor.name.ends_with(end)).expect("the fixture has it")
    }

    /// Where a tensor's bytes lie.
    fn external(&mut self, end: &str, key: &str) -> &mut String {
        let entries: &mut Vec<StringStringEntryProto> = &mut self.tensor(end).external_data;
        let entry = entries.iter_mut().find(|entry| entry.key == key);
        &mut entry.expect("the fixture's tensors lie outside").value
    }

    fn int(&mut self, op: &str, attribute: &str, value: i64) {
        let attributes = &mut self.node(op).attribute;
        let found = attributes.iter_mut().find(|a| a.name == attribute);
        found.expect("the fixture has the attribute").i = Some(value);
    }

    fn float(&mut self, op: &str, attribute: &str, value: f32) {
        let attributes = &mut self.node(op).attribute;
        let found = attributes.iter_mut().find(|a| a.name == attribute);
        found.expect("the fixture has the attribute").f = Some(value);
    }

    /// Bytes of a file beside the model.
    fn file(&mut self, name: &str) -> &mut Vec<u8> {
        if !self.files.iter().any(|(other, _)| other == name) {
            self.files.push((name.to_owned(), Vec::new()));
        }
        let found = self.files.iter_mut().find(|(other, _)| other == name);
        &mut found.expect("was just added").1
    }

    /// Overwrites a tensor's bytes with one pattern.
    fn fill(&mut self, end: &str, pattern: [u8; 2]) {
        let number = |text: &str| text.parse::<usize>().expect("the fixture's ranges are numbers");
        let offset = number(self.external(end, "offset"));
        let length = number(self.external(end, "length"));
        let bytes = &mut self.file("model.onnx.data")[offset..offset + length];
        for pair in bytes.chunks_exact_mut(2) {
            pair.copy_from_slice(&pattern);
        }
    }
}

/// A way to break an export; the folder is for what is more than a file.
type Change = fn(&mut Export, &Path);

/// What compiling came to.
enum Outcome {
    /// A file was written.
    Compiled,
    /// Exit code and message.
    Refused(u8, String),
}

/// Compiles what lies in a folder; a panic, a file left after an error and an error without words
/// are faults.
fn compile(folder: &Path) -> Result<Outcome> {
    let setup = Setup {
        context: 320,
        kv: "snapstream".to_owned(),
        kv_dtype: None,
        compute: None,
        weights: None,
        calibrate: None,
        slots: 2,
    };
    let written = tempfile::tempdir()?;
    let output = written.path().join("model");
    let options = setup.options(folder);
    let outcome = catch_unwind(AssertUnwindSafe(|| weir::compile_executable(&options, &output)));
    let Ok(outcome) = outcome else { bail!("a panic") };
    let Err(failure) = outcome else { return Ok(Outcome::Compiled) };
    let left = fs::read_dir(written.path())?.next().is_some();
    ensure!(!left, "a file was left after: {failure}");
    ensure!(failure.code == 1 || failure.code == 2, "exit code {}", failure.code);
    Ok(Outcome::Refused(failure.code, failure.message))
}

fn refused(change: Change) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut export = Export::read()?;
    change(&mut export, folder.path());
    export.write(folder.path()).context("the broken model cannot be written")?;
    let Outcome::Refused(_, message) = compile(folder.path())? else { bail!("it compiled") };
    ensure!(!message.contains("internal error"), "{message}");
    // A place: a quoted name of a node, tensor or value, or a file of the folder.
    let file = message.contains(&*folder.path().to_string_lossy());
    let named =
        ['"', '`'].iter().any(|quote| message.contains(*quote)) || message.contains(".json");
    ensure!(file || named, "no place in: {message}");
    Ok(())
}

/// The fixture unbroken compiles: the variants are refused for what was done to them.
fn intact() -> Result<()> {
    let folder = tempfile::tempdir()?;
    Export::read()?.write(folder.path())?;
    match compile(folder.path())? {
        Outcome::Compiled => Ok(()),
        Outcome::Refused(code, message) => bail!("{code}: {message}"),
    }
}
