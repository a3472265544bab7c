//! Tests of the packed tokenizer against the `tokenizers` crate, recorded cases and damage.
//!
//! `tests/data` holds small tokenizers made for this repository (vocabulary 512) in the shapes of
//! well-known families. Larger ones are taken from `../shared` where that lies beside the checkout.

mod broken;
mod fixtures;
mod reference;
mod speed;
mod variants;

use std::path::{Path, PathBuf};

/// Small tokenizers in the repository.
const DATA: [&str; 5] = ["llama", "qwen2", "mistral", "deepseek-v3", "gpt-oss"];

fn data(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(path.join("tokenizer.json")).expect("test data is readable")
}

/// A folder beside the checkout, or `None` with a printed line.
fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(name);
    if path.is_dir() {
        return Some(path);
    }
    println!("skipped: {} is absent", path.display());
    None
}

/// The files called `name` one folder below `root`, sorted.
fn files_below(root: &Path, name: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(root)
        .expect("a readable folder")
        .map(|entry| entry.expect("a readable entry").path().join(name))
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    files
}

fn open(json: &[u8]) -> weir_tokenizer::Tokenizer {
    let table = weir_tokenizer::pack(json).expect("packs");
    weir_tokenizer::Tokenizer::open(table).expect("opens")
}
