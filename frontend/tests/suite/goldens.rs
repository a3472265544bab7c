//! Imported graphs, interpreted, give the logits of ONNX Runtime: a prompt in one call, then some
//! steps with the golden's tokens through the cache. The long prompt exceeds every window.

use std::path::Path;

use prost::Message as _;
use safetensors::SafeTensors;
use weir_frontend::onnx::proto::ModelProto;
use weir_frontend::{ImportOptions, Imported, import};
use weir_ir::interpret::{EvalError, Session};

use crate::fixtures::{is_later, models, name};
use crate::tiny::{ints, node};

/// Steps after the prompt; each is a whole run of the interpreter.
const STEPS: usize = 4;

struct Goldens {
    bytes: Vec<u8>,
}

impl Goldens {
    fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let data = tensors.tensor(name).ok()?.data().to_vec();
        let floats = data.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        Some(floats.collect())
    }

    fn ids(&self, name: &str) -> Vec<i64> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let data = tensors.tensor(name).unwrap().data().to_vec();
        data.chunks(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    /// The float32 reference where there is one.
    fn logits(&self, name: &str) -> Vec<f32> {
        self.floats(&format!("reference_f32/{name}")).or_else(|| self.floats(name)).unwrap()
    }
}

/// The interpreter rounds every result to the file's types, the reference does not.
fn tolerance(name: &str) -> f32 {
    if name.contains("bf16") {
        0.2
    } else if name.contains("fp16") {
        0.05
    } else {
        1e-4
    }
}

fn distance(ours: &[f32], golden: &[f32]) -> f32 {
    assert_eq!(ours.len(), golden.len());
    let excess = ours.iter().zip(golden).map(|(x, y)| (x - y).abs() / (1.0 + y.abs()));
    excess.fold(0.0, |worst, next| if next.is_nan() { f32::NAN } else { worst.max(next) })
}

fn check(path: &Path) -> Result<f32, String> {
    let imported = import(path, &ImportOptions::default()).map_err(|error| error.to_string())?;
    let goldens = Goldens { bytes: std::fs::read(path.join("golden.safetensors")).unwrap() };
    let mut worst = 0.0f32;
    for prompt in ["short", "long"] {
        worst = worst.max(run(&imported, &goldens, prompt).map_err(|error| error.to_string())?);
    }
    Ok(worst)
}

/// The distance over a prompt and steps after it.
fn run(imported: &Imported, goldens: &Goldens, prompt: &str) -> Result<f32, EvalError> {
    let mut session = Session::new(&imported.graph)?;
    let rows = session.prefill(&goldens.ids(&format!("{prompt}/prompt_ids")))?.concat();
    // Of a long prompt the golden has the last rows only.
    let expected = goldens.logits(&format!("{prompt}/prefill_logits"));
    let mut worst = distance(&rows[rows.len() - expected.len()..], &expected);
    let steps = goldens.logits(&format!("{prompt}/step_logits"));
    let width = imported.facts.columns as usize;
    let forced = goldens.ids(&format!("{prompt}/greedy_ids"));
    for (index, expected) in steps.chunks(width).enumerate().skip(1).take(STEPS) {
        worst = worst.max(distance(&session.step(forced[index - 1])?, expected));
    }
    Ok(worst)
}

#[test]
fn imported_graphs_give_the_golden_logits() {
    let mut failures = Vec::new();
    for path in models() {
        let name = name(&path);
        if is_later(&name) {
            continue;
        }
        match check(&path) {
            Ok(worst) => {
                println!("{name}: {worst:.1e}");
                if worst.is_nan() || worst > tolerance(&name) {
                    failures.push(format!("{name}: logits are off by {worst:.1e}"));
                }
            }
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_cache_of_fixed_length_has_that_length() {
    // The mask's columns are as many as the cache has rows, which the file has as a number; here it asks.
    let fixture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/onnx/mistral-std24-fp32");
    let bytes = std::fs::read(fixture.join("model.onnx")).unwrap();
    let with_length_of = |cache: &str| {
        let mut model = ModelProto::decode(bytes.as_slice()).unwrap();
        let graph = model.graph.as_mut().unwrap();
        graph.initializer.retain(|tensor| tensor.name != "capacity");
        graph.initializer.push(ints("axis_of_rows", &[], &[2]));
        let after = graph.node.iter().position(|node| node.output.iter().any(|name| name == cache));
        let at = after.map_or(0, |index| index + 1);
        let shape = node("Shape", "", &[cache], &["cache_shape"]);
        let length = node("Gather", "", &["cache_shape", "axis_of_rows"], &["capacity"]);
        graph.node.splice(at..at, [shape, length]);
        let directory = tempfile::tempdir().unwrap();
        for file in ["config.json", "golden.safetensors"] {
            std::fs::copy(fixture.join(file), directory.path().join(file)).unwrap();
        }
        std::fs::write(directory.path().join("model.onnx"), model.encode_to_vec()).unwrap();
        check(directory.path())
    };
    let worst = with_length_of("past_key_values.1.value").unwrap();
    assert!(worst <= tolerance(""), "logits are off by {worst:.1e}");
    let refused = with_length_of("present.0.key").unwrap_err();
    let message =
        "asks for the length of what is made of the cache \"present.0.key\", which is fixed at 320";
    assert!(refused.contains(message), "{refused}");
}
