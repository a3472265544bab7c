//! Trained models write the texts that an independent system wrote greedily.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use libtest_mimic::Trial;
use weir_tests::places::{name, root, shared};
use weir_tests::systems::{Binary, Setup, list};

use crate::trial;

pub fn trials() -> Vec<Trial> {
    let mut models = ["tales", "recall"].map(|model| root().join("models").join(model)).to_vec();
    if let Some(shared) = shared() {
        models.extend(
            ["BabyLlama-105", "TinyStories-656K", "stories260K"]
                .map(|model| shared.join("models").join(model)),
        );
    }
    models
        .into_iter()
        .filter(|model| model.join("reference.json").is_file())
        .map(|model| trial(format!("trained/{}", name(&model)), move || texts(&model)))
        .collect()
}

fn texts(model: &Path) -> Result<()> {
    let reference = std::fs::read(model.join("reference.json"))?;
    let reference: serde_json::Value = serde_json::from_slice(&reference)?;
    let export: PathBuf = [model.join("onnx"), model.to_path_buf()]
        .into_iter()
        .find(|folder| folder.join("model.onnx").is_file())
        .context("no model.onnx")?;
    let binary = Binary::compile(&export, &Setup::exact(512))?;
    let answers = reference["greedy"].as_array().context("no greedy texts")?;
    for answer in answers {
        let ids = |key: &str| -> Result<Vec<u32>> {
            let ids = answer[key].as_array().with_context(|| key.to_owned())?;
            Ok(ids.iter().filter_map(|id| Some(id.as_u64()? as u32)).collect())
        };
        let expected = ids("generated_ids")?;
        let count = expected.len().to_string();
        let prompt = answer["prompt"].as_str().context("no prompt")?;
        let by_ids = list(&ids("prompt_ids")?);
        // The text goes through our tokenizer, the ids round it.
        for input in [["--ids", by_ids.as_str()], ["--prompt", prompt]] {
            let rest = ["--max-tokens", &count, "--temperature", "0", "--json"];
            let output = binary.run(&[&["generate"][..], &input[..], &rest[..]].concat())?;
            let ours: serde_json::Value = serde_json::from_str(output.trim())?;
            let got: Vec<u32> = ours["ids"]
                .as_array()
                .context("no ids")?
                .iter()
                .filter_map(|id| Some(id.as_u64()? as u32))
                .collect();
            if got != expected {
                bail!("{prompt:?} ({}): {got:?}, expected {expected:?}", input[0]);
            }
        }
    }
    Ok(())
}
