//! Every exported model of the larger fixtures imports, or is refused with the list of what is
//! missing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use weir_frontend::{Fault, ImportOptions, Imported, import};

/// Directories of exported models: those of the repository, and all others where they are.
pub fn models() -> Vec<PathBuf> {
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
    models.into_values().collect()
}

/// The name of a model's directory.
pub fn name(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Models with parts that come later: routed experts, latent attention.
pub fn is_later(name: &str) -> bool {
    ["mixtral-", "deepseek-v3-", "gpt-oss-"].iter().any(|prefix| name.starts_with(prefix))
}

/// What was read of a model against its configuration, where it has one.
fn check_facts(path: &Path, imported: &Imported) {
    let name = name(path);
    let Ok(config) = std::fs::read(path.join("config.json")) else {
        assert!(imported.facts.columns > 0 && imported.facts.layers > 0, "{name}");
        return;
    };
    let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    let number = |key: &str| config[key].as_u64().map(|number| number as u32);
    assert_eq!(Some(imported.facts.columns), number("vocab_size"), "{name}");
    let layers = number("num_hidden_layers").unwrap_or(imported.facts.layers);
    assert_eq!(imported.facts.layers, layers, "{name}");
    assert_eq!(imported.facts.context_limit, number("max_position_embeddings"), "{name}");
    assert_eq!(imported.text.tokenizer.is_some(), path.join("tokenizer.json").exists(), "{name}");
    assert!(!imported.facts.eos.is_empty(), "{name}");
}

#[test]
fn dense_models_import_and_others_are_refused() {
    let mut failures = Vec::new();
    for path in models() {
        let name = name(&path);
        match import(&path, &ImportOptions::default()) {
            Ok(imported) => {
                check_facts(&path, &imported);
                if is_later(&name) {
                    failures.push(format!("{name} was imported"));
                }
            }
            Err(error) => {
                let unsupported =
                    error.problems.iter().all(|problem| problem.fault == Fault::Unsupported);
                if !is_later(&name) || !unsupported {
                    failures.push(format!("{name}: {error}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn the_story_model_imports_with_its_texts() {
    let tales = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tales/onnx");
    if !tales.is_dir() {
        println!("skipped: {} is absent", tales.display());
        return;
    }
    let imported = import(&tales, &ImportOptions::default()).unwrap();
    assert_eq!(imported.facts.eos, [1, 4]);
    assert_eq!(imported.facts.context_limit, Some(1024));
    assert_eq!(imported.facts.table_rows, None);
    assert!(imported.text.chat_template.is_some());
}
