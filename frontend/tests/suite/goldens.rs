//! Imported graphs, interpreted, give the logits of ONNX Runtime: a prompt in one call, then some
//! steps with the golden's tokens through the cache. The long prompt exceeds every window.

use std::path::Path;

use safetensors::SafeTensors;
use weir_frontend::{ImportOptions, Imported, import};
use weir_ir::interpret::{EvalError, Session};

use crate::fixtures::{is_later, models, name};

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
