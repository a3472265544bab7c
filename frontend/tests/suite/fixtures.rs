//! Every exported model of the larger fixtures imports, or is refused with the list of what is
//! missing.

use std::path::{Path, PathBuf};

use weir_frontend::{Fault, ImportOptions, import};

fn fixtures() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/onnx");
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: {} is absent", path.display());
    None
}

/// Models with parts that come later: routed experts, latent attention.
pub fn is_later(name: &str) -> bool {
    ["mixtral-", "deepseek-v3-", "gpt-oss-"].iter().any(|prefix| name.starts_with(prefix))
}

#[test]
fn dense_models_import_and_others_are_refused() {
    let Some(fixtures) = fixtures() else { return };
    let mut names: Vec<_> = std::fs::read_dir(fixtures)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect();
    names.sort();
    let mut failures = Vec::new();
    for path in names {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        match import(&path, &ImportOptions::default()) {
            Ok(imported) => {
                assert_eq!(imported.facts.vocabulary, 512, "{name}");
                assert_eq!(imported.facts.layers, 2, "{name}");
                assert_eq!(imported.facts.context_limit, Some(1024), "{name}");
                assert!(imported.text.tokenizer.is_some(), "{name}");
                assert!(!imported.facts.eos.is_empty(), "{name}");
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
