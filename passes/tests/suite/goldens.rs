//! Every dense fixture reaches stage `Fixed`, and the interpreter's logits there are the golden
//! ones: float32 arithmetic, a prompt in one call, then forced steps through the cache.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use weir_frontend::{ImportOptions, import};
use weir_ir::interpret::{EvalError, Session};
use weir_ir::{CacheFormat, Graph, Stage};
use weir_passes::kv::policy::KvOptions;
use weir_passes::weights::WeightChoice;
use weir_passes::{Options, run};

/// Steps after the prompt; each is a whole run of the interpreter.
const STEPS: usize = 4;

/// Of the rules that come with the fixtures: `|x - y| <= 1e-4 + 1e-4 |y|`.
const TOLERANCE: f32 = 1e-4;

/// Positions of the compiled graphs; the shortest tables of the fixtures have as many.
const CONTEXT: u32 = 320;

fn models() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut models = BTreeMap::new();
    for folder in ["../tests/fixtures/onnx", "../../shared/fixtures/onnx"] {
        let Ok(entries) = std::fs::read_dir(root.join(folder)) else {
            println!("skipped: {folder} is absent");
            continue;
        };
        let paths = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir());
        models.extend(paths.map(|path| (name(&path), path)));
    }
    // Routed experts and latent attention come later.
    let later = ["mixtral-", "deepseek-v3-", "gpt-oss-"];
    models.retain(|name, _| !later.iter().any(|prefix| name.starts_with(prefix)));
    models.into_values().collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

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

fn distance(ours: &[f32], golden: &[f32]) -> f32 {
    assert_eq!(ours.len(), golden.len());
    let excess = ours.iter().zip(golden).map(|(x, y)| (x - y).abs() / (1.0 + y.abs()));
    excess.fold(0.0, |worst, next| if next.is_nan() { f32::NAN } else { worst.max(next) })
}

fn fixed(path: &Path, kv: &str) -> Result<Graph, String> {
    let imported = import(path, &ImportOptions::default()).map_err(|error| error.to_string())?;
    let options = Options {
        context: CONTEXT,
        kv: KvOptions::parse(kv).unwrap(),
        kv_dtype: Some(CacheFormat::F32.into()),
        max_rows: 64,
        weights: WeightChoice::default(),
        calibration: None,
        key_text: Vec::new(),
        activations: None,
        model_limit: imported.facts.context_limit,
    };
    let (graph, _) = run(imported.graph, &options).map_err(|error| error.to_string())?;
    assert_eq!(graph.stage, Stage::Fixed);
    Ok(graph)
}

/// The distance over a prompt and steps after it.
fn worst(graph: &Graph, goldens: &Goldens, prompt: &str) -> Result<f32, EvalError> {
    let mut session = Session::new(graph)?;
    let ids = goldens.ids(&format!("{prompt}/prompt_ids"));
    session.set_longest(ids.len() + STEPS);
    let rows = session.prefill(&ids)?.concat();
    // Of a long prompt the golden has the last rows only.
    let expected = goldens.logits(&format!("{prompt}/prefill_logits"));
    let mut worst = distance(&rows[rows.len() - expected.len()..], &expected);
    let forced = goldens.ids(&format!("{prompt}/greedy_ids"));
    let steps = goldens.logits(&format!("{prompt}/step_logits"));
    let width = steps.len() / forced.len();
    for (index, expected) in steps.chunks(width).enumerate().skip(1).take(STEPS) {
        worst = worst.max(distance(&session.step(forced[index - 1])?, expected));
    }
    Ok(worst)
}

fn check(path: &Path) -> Result<f32, String> {
    let goldens = Goldens { bytes: std::fs::read(path.join("golden.safetensors")).unwrap() };
    let graph = fixed(path, "full")?;
    let mut farthest = 0.0f32;
    for prompt in ["short", "long"] {
        let distance = worst(&graph, &goldens, prompt).map_err(|error| error.to_string())?;
        farthest = if distance.is_nan() { distance } else { farthest.max(distance) };
    }
    Ok(farthest)
}

#[test]
fn fixed_graphs_give_the_golden_logits() {
    let mut failures = Vec::new();
    for path in models() {
        let name = name(&path);
        match check(&path) {
            Ok(worst) => {
                println!("{name}: {worst:.1e}");
                if worst.is_nan() || worst > TOLERANCE {
                    failures.push(format!("{name}: logits are off by {worst:.1e}"));
                }
            }
            Err(error) => failures.push(format!("{name}: {error}")),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// With caches as long as the sequence, elastic policies keep every row: the logits are those of
/// full attention up to the order of sums.
#[test]
fn policies_agree_while_every_row_fits() {
    for path in models() {
        let name = name(&path);
        if !name.ends_with("genai-fp32") {
            continue;
        }
        let ids: Vec<i64> = (0..60).map(|index| (index * 37 + 11) % 500).collect();
        let (prompt, steps) = ids.split_at(40);
        let mut all: Vec<Vec<f32>> = Vec::new();
        for kv in ["full", "stream,rows=64", "snapstream,rows=64,sinks=4,recent=16,window=8"] {
            let graph = fixed(&path, kv).unwrap();
            let mut session = Session::new(&graph).unwrap();
            let mut logits = session.prefill(prompt).unwrap().concat();
            for id in steps {
                logits.extend(session.step(*id).unwrap());
            }
            all.push(logits);
        }
        for other in &all[1..] {
            let worst = distance(other, &all[0]);
            assert!(worst <= 1e-5, "{name}: {worst:e}");
        }
    }
}

/// A file's table of angles ends somewhere; a longer context is an error that says where.
#[test]
fn a_context_beyond_the_tables_is_refused() {
    let Some(path) = models().into_iter().find(|path| name(path) == "llama-genai-fp32") else {
        return;
    };
    let imported = import(&path, &ImportOptions::default()).unwrap();
    let options = Options {
        context: 1025,
        kv: KvOptions::parse("full").unwrap(),
        kv_dtype: Some(CacheFormat::F32.into()),
        max_rows: 64,
        weights: WeightChoice::default(),
        calibration: None,
        key_text: Vec::new(),
        activations: None,
        model_limit: imported.facts.context_limit,
    };
    let message = run(imported.graph, &options).unwrap_err().to_string();
    assert!(message.contains("1024") && message.contains("1025"), "{message}");
}

/// Angles that are computed from frequencies have no end; the user is warned beyond the limit.
#[test]
fn a_context_beyond_the_models_limit_is_a_warning() {
    let Some(path) = models().into_iter().find(|path| name(path) == "llama-optimum-fp32") else {
        return;
    };
    let imported = import(&path, &ImportOptions::default()).unwrap();
    let options = Options {
        context: 1500,
        kv: KvOptions::parse("snapstream").unwrap(),
        kv_dtype: Some(CacheFormat::F32.into()),
        max_rows: 64,
        weights: WeightChoice::default(),
        calibration: None,
        key_text: Vec::new(),
        activations: None,
        model_limit: imported.facts.context_limit,
    };
    let (_, report) = run(imported.graph, &options).unwrap();
    assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
    assert!(report.warnings[0].contains("1024"), "{:?}", report.warnings);
}

/// Trained models, where they are: the fixed graph computes what the imported one does.
#[test]
fn trained_models_keep_their_logits() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/models");
    let folders = ["stories260K", "TinyStories-656K", "tales/onnx", "tales/onnx-genai-int4"];
    for folder in folders {
        let path = root.join(folder);
        if !path.exists() {
            println!("skipped: {} is absent", path.display());
            continue;
        }
        let imported = import(&path, &ImportOptions::default()).unwrap();
        let graph = fixed(&path, "snapstream").unwrap_or_else(|error| panic!("{folder}: {error}"));
        let run = |graph: &Graph| {
            let mut session = Session::new(graph).unwrap();
            let mut logits = session.prefill(&[1, 40, 7]).unwrap().concat();
            logits.extend(session.step(99).unwrap());
            logits
        };
        let worst = distance(&run(&graph), &run(&imported.graph));
        println!("{folder}: {worst:.1e}");
        assert!(worst <= TOLERANCE, "{folder}: {worst:e}");
    }
}
