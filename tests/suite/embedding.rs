//! Models that give embeddings: the interpreter, the JIT and the static binary against transformers, one text
//! alone and among others, and what such models refuse.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use weir_runtime::{Model, Request, RuntimeOptions};
use weir_tests::places::root;
use weir_tests::systems::{Binary, Oracle, Setup, System, output};

use crate::trial;

/// Long enough for the longest text.
const CONTEXT: u32 = 512;

/// What a value of a vector may be off: [`weir_tests::compare::FLOAT`] of values with a standard deviation
/// near 1, 48 of which make a row, whose length is near the root of 48. Transformers and ONNX Runtime are
/// 6e-7 apart.
const TOLERANCE: f32 = 1e-4 / 6.9;

/// Caches: every row, and so few that long texts are computed layer by layer and dropped from.
const CACHES: [(&str, &str); 2] =
    [("full", "full"), ("layer_by_layer", "snapstream,rows=64,sinks=4,recent=16,window=8")];

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for route in ["qwen3", "qwen3-past", "qwen3-sentence"] {
        let folder = model(route);
        for (cache, policy) in CACHES {
            let folder = folder.clone();
            let name = format!("embedding/{route}/{cache}");
            trials.push(trial(name, move || agrees(&folder, policy)));
        }
        trials.push(trial(format!("embedding/{route}/interpreter"), move || interpreted(&folder)));
    }
    trials.push(trial("embedding/program".to_owned(), program));
    trials.push(trial("embedding/no_first_token".to_owned(), no_first_token));
    trials.push(trial("embedding/refused".to_owned(), refused));
    trials.push(trial("embedding/poolings_refused".to_owned(), poolings_refused));
    trials
}

/// The model of a route.
pub fn model(route: &str) -> PathBuf {
    root().join("tests/fixtures/embedding").join(route)
}

/// A text, its tokens and its vector by transformers.
pub struct Case {
    pub text: String,
    pub ids: Vec<u32>,
    pub vector: Vec<f32>,
}

/// Cases of a model.
pub fn cases(folder: &Path) -> Result<Vec<Case>> {
    let golden: Value = serde_json::from_slice(&std::fs::read(folder.join("golden.json"))?)?;
    let cases = golden["cases"].as_array().context("cases")?;
    ensure!(cases.len() > 3, "{} cases", cases.len());
    let read = |case: &Value| {
        Ok(Case {
            text: case["text"].as_str().context("text")?.to_owned(),
            ids: serde_json::from_value(case["ids"].clone())?,
            vector: serde_json::from_value(case["vector"].clone())?,
        })
    };
    cases.iter().map(read).collect()
}

/// Fails where a vector is not the expected one.
pub fn close(what: &str, found: &[f32], expected: &[f32]) -> Result<()> {
    ensure!(found.len() == expected.len(), "{what}: {} values", found.len());
    let distance = found.iter().zip(expected).map(|(x, y)| (x - y).abs());
    // A NaN is not within anything.
    let furthest = distance.fold(0.0, |most: f32, next| if next <= most { most } else { next });
    ensure!(furthest <= TOLERANCE, "{what}: {furthest:e} away, {TOLERANCE:e} allowed");
    Ok(())
}

fn embed(model: &Model, options: &RuntimeOptions, prompts: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
    let request = |prompt: &Vec<u32>| Request { prompt: prompt.clone(), ..Request::default() };
    Ok(model.engine(options)?.embeddings(prompts.iter().map(request).collect())?)
}

/// All texts together are what transformers says, and what each is alone, bit for bit, on other threads.
fn agrees(folder: &Path, policy: &str) -> Result<()> {
    let setup = Setup { kv: policy.to_owned(), ..Setup::exact(CONTEXT) };
    let model = setup.load(folder)?;
    let cases = cases(folder)?;
    let mut prompts = Vec::new();
    for case in &cases {
        let ids = model.encode(&case.text)?;
        ensure!(ids == case.ids, "{:?}: tokens {ids:?}", case.text);
        prompts.push(ids);
    }
    let options = |slots, threads| RuntimeOptions {
        slots: Some(slots),
        threads: Some(threads),
        ..RuntimeOptions::default()
    };
    let together = embed(&model, &options(4, 2), &prompts)?;
    ensure!(together.len() == prompts.len(), "{} vectors", together.len());
    for ((case, prompt), found) in cases.iter().zip(&prompts).zip(&together) {
        close(&case.text, found, &case.vector)?;
        let alone = embed(&model, &options(1, 1), std::slice::from_ref(prompt))?;
        ensure!(alone[0] == *found, "{:?}: alone it is another vector", case.text);
    }
    Ok(())
}

fn interpreted(folder: &Path) -> Result<()> {
    let mut oracle = Oracle::lower(folder, &Setup::exact(CONTEXT))?;
    // The scalar references take seconds for the longest.
    for case in cases(folder)?.iter().filter(|case| case.ids.len() < 40) {
        let rows = oracle.logits(&case.ids, &[])?.prefill;
        let last = rows.row(rows.count() - 1);
        let length = last.iter().map(|value| value * value).sum::<f32>().sqrt();
        let found: Vec<f32> = last.iter().map(|value| value / length).collect();
        close(&case.text, &found, &case.vector)?;
    }
    Ok(())
}

/// `add_bos_token: false`, as beside Qwen3-Embedding, leaves the token behind the text, whose row is pooled.
fn no_first_token() -> Result<()> {
    let source = model("qwen3");
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("1_Pooling"))?;
    let files = ["model.onnx", "config.json", "tokenizer.json", "modules.json"];
    for copied in files.into_iter().chain(["1_Pooling/config.json"]) {
        std::fs::copy(source.join(copied), folder.path().join(copied))?;
    }
    let config = r#"{"add_bos_token": false, "bos_token": null}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), config)?;
    let model = Setup::exact(CONTEXT).load(folder.path())?;
    for case in cases(&source)? {
        let ids = model.encode(&case.text)?;
        ensure!(ids == case.ids, "{:?}: tokens {ids:?}", case.text);
        let plain = model.encode_plain(&case.text)?;
        ensure!(ids.len() == plain.len() + 1, "{:?}: plain {plain:?}", case.text);
    }
    Ok(())
}

/// The program's own command gives what the same code in this process does.
fn program() -> Result<()> {
    let folder = model("qwen3");
    let setup = Setup::exact(CONTEXT);
    let binary = Binary::compile(&folder, &setup)?;
    let cases = cases(&folder)?;
    let mut arguments = vec!["embed"];
    for case in &cases {
        arguments.extend(["--text", &case.text]);
    }
    let written = binary.run(&arguments)?;
    let prompts: Vec<Vec<u32>> = cases.iter().map(|case| case.ids.clone()).collect();
    let expected = embed(&setup.load(&folder)?, &RuntimeOptions::default(), &prompts)?;
    let lines: Vec<Vec<f32>> =
        written.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    ensure!(lines == expected, "the program writes other vectors:\n{written}");
    // More texts than are read at once, from a file.
    let file = tempfile::NamedTempFile::new()?;
    let texts: String = (0..150).map(|number| format!("text {}\n", number % 7)).collect();
    std::fs::write(file.path(), texts)?;
    let written = binary.run(&["embed", "--lines", &file.path().to_string_lossy()])?;
    let lines: Vec<&str> = written.lines().collect();
    ensure!(lines.len() == 150, "{} lines", lines.len());
    ensure!((7..150).all(|number| lines[number] == lines[number % 7]), "equal texts differ");
    ensure!(lines[0] != lines[1], "other texts have one vector");
    let info: Value = serde_json::from_str(&binary.run(&["info", "--json"])?)?;
    ensure!(info["gives"] == "embeddings" && info["vocabulary"] == 320, "{info}");
    Ok(())
}

fn says(binary: &Binary, arguments: &[&str], status: i32, part: &str) -> Result<()> {
    let said = output(Command::new(binary.path()).args(arguments))?;
    let text = String::from_utf8_lossy(&said.stderr);
    ensure!(said.status.code() == Some(status), "{arguments:?}: {} {text}", said.status);
    ensure!(text.contains(part), "{arguments:?}: {text}");
    Ok(())
}

/// Each kind of model refuses the other's commands by what it is.
fn refused() -> Result<()> {
    let binary = Binary::compile(&model("qwen3"), &Setup::exact(CONTEXT))?;
    for arguments in [
        &["generate", "--prompt", "a"][..],
        &["chat"],
        &["logits", "--text", "a", "-o", "/dev/null"],
        &["bench"],
        &["perplexity", "/dev/null"],
    ] {
        says(&binary, arguments, 2, "gives embeddings and writes no text")?;
    }
    says(&binary, &["embed", "--text", &"a b ".repeat(600)], 2, "prompt 1")?;
    says(&binary, &["embed"], 2, "--text")?;
    let tales = root().join("models/tales/onnx-genai-int4");
    let tales = Binary::compile(&tales, &Setup::exact(CONTEXT))?;
    says(&tales, &["embed", "--text", "a"], 2, "gives no embeddings")
}

/// What the files beside a model ask for, and what is said of it.
fn poolings_refused() -> Result<()> {
    let pooling = r#"{"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}"#;
    let dense = r#"{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}"#;
    for (file, content, part) in [
        ("1_Pooling/config.json", r#"{"pooling_mode_mean_tokens": true}"#, "pooled by mean_tokens"),
        ("1_Pooling/config.json", r#"{"pooling_mode": "cls"}"#, "pooled by cls"),
        ("1_Pooling/config.json", r#"{"pooling_mode_lasttoken": 1}"#, "not true or false"),
        ("modules.json", &format!("[{pooling}, {dense}]"), "Dense"),
        ("modules.json", r#"[{"type": "Pooling"}]"#, "module 0 has no type or no path"),
        (
            "modules.json",
            r#"[{"type": "Pooling", "path": "../x"}]"#,
            "file ../x/config.json is not there",
        ),
        ("modules.json", r#"[{"type": "Pooling", "path": ".."}]"#, "leaves its directory"),
        ("modules.json", "{}", "is not a list of modules"),
    ] {
        let folder = tempfile::tempdir()?;
        std::fs::create_dir_all(folder.path().join("model/1_Pooling"))?;
        // What lies outside the model's folder is not for it to read.
        std::fs::write(folder.path().join("config.json"), "{}")?;
        let source = model("qwen3");
        for copied in ["model.onnx", "config.json", "tokenizer.json"] {
            std::fs::copy(source.join(copied), folder.path().join("model").join(copied))?;
        }
        let folder = folder.path().join("model");
        std::fs::write(folder.join(file), content)?;
        match Oracle::lower(&folder, &Setup::exact(CONTEXT)) {
            Ok(_) => bail!("{file} {content}: compiled"),
            Err(error) => {
                let text = format!("{error:#}");
                ensure!(text.contains(part), "{file} {content}: {text}");
            }
        }
    }
    Ok(())
}
