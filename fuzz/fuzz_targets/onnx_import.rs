//! Import of ONNX files, as language models and as operators: an error, or a graph that prints.
//!
//! Beside the input lie the tokenizer and settings of a small model, and data for its weights: zeros.

#![no_main]

use std::collections::BTreeMap;

use libfuzzer_sys::fuzz_target;
use weir_frontend::{ImportOptions, import, import_operators};

const CONFIG: &[u8] = include_bytes!("../../tests/fixtures/onnx/llama-genai-fp32/config.json");
const TOKENIZER: &[u8] =
    include_bytes!("../../tests/fixtures/onnx/llama-genai-fp32/tokenizer.json");
/// Of the model that the corpus begins with.
const DATA_BYTES: u64 = 623_872;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.onnx");
    std::fs::write(&path, bytes).expect("a temporary file");
    std::fs::write(folder.path().join("config.json"), CONFIG).expect("a temporary file");
    std::fs::write(folder.path().join("tokenizer.json"), TOKENIZER).expect("a temporary file");
    let data = std::fs::File::create(folder.path().join("model.onnx.data"));
    data.and_then(|file| file.set_len(DATA_BYTES)).expect("a temporary file");
    if let Ok(imported) = import(&path, &ImportOptions::default()) {
        assert!(!weir_ir::text::print(&imported.graph).is_empty());
    }
    if let Ok(graph) = import_operators(&path, &BTreeMap::new()) {
        assert!(!weir_ir::text::print(&graph).is_empty());
    }
});
