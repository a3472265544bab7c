//! Weights that weir rounds: the interpreter, the JIT and the static binary have the same ones, the
//! error is what `docs/numerics.md` derives, and a trained model still knows its language.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use libtest_mimic::Trial;
use weir::CalibrationSource;
use weir_tests::activations::{Bound, round_activations, rounding_error};
use weir_tests::compare::{FLOAT, close};
use weir_tests::perplexity::{documents, perplexity};
use weir_tests::places::{root, shared};
use weir_tests::systems::{Binary, Jit, Oracle, Setup, System};

use crate::trial;

/// "Once upon a time, there was", and what may follow: any tokens do.
const PROMPT: [u32; 15] = [0, 402, 309, 263, 290, 13, 424, 286, 261, 401, 394, 512, 77, 900, 31];
const FORCED: [u32; 4] = [17, 300, 45, 261];

/// Stories that perplexity is measured on.
const STORIES: usize = 12;

/// Formats, the largest rounding error of a weight that normal values let expect, and how much
/// higher than with float32 weights the perplexity may be.
const FORMATS: [(&str, f64, f64); 6] = [
    ("bf16", 1.0 / 256.0, 1.01),
    ("int8", 0.0085, 1.01),
    ("int8,block=channel", 0.012, 1.01),
    ("int4", 0.125, 1.05),
    ("int4,block=64,zeros,head=int8", 0.145, 1.08),
    ("int4,head=f16", 0.125, 1.05),
];

/// Formats, and the part of the squared error of logits that calibrating with a dozen stories may
/// leave.
const CALIBRATED: [(&str, f64); 2] = [("int4", 0.8), ("int4,zeros,head=int8", 0.9)];

/// The same where the model writes the text, and so many tokens of it.
const CALIBRATED_BY_ITSELF: (&str, f64, u32) = ("int4", 0.8, 4096);

fn tales() -> PathBuf {
    root().join("models/tales/onnx")
}

pub fn trials() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (format, allowed) in CALIBRATED {
        let name = format!("weights/{format}/calibrated");
        let how = (CalibrationSource::Text(stories()), weir::DEFAULT_CALIBRATE_TOKENS);
        trials.push(trial(name, move || calibrated(format, how, allowed)));
    }
    let (format, allowed, tokens) = CALIBRATED_BY_ITSELF;
    let name = format!("weights/{format}/calibrated-by-itself");
    let how = (CalibrationSource::Own, tokens);
    trials.push(trial(name, move || calibrated(format, how, allowed)));
    trials.push(trial("weights/int4/unasked".to_owned(), small_models_calibrate_themselves));
    for (format, error, more) in FORMATS {
        trials.push(trial(format!("weights/{format}/systems"), move || systems(format)));
        trials
            .push(trial(format!("weights/{format}/error"), move || error_is_bound(format, error)));
        trials.push(trial(format!("weights/{format}/perplexity"), move || knows(format, more)));
    }
    trials
}

fn setup(format: &str, compute: Option<weir::ComputeOption>) -> Setup {
    Setup { weights: Some(format.to_owned()), compute, ..Setup::exact(256) }
}

/// In float32 arithmetic all three agree, and JIT and binary bit for bit; in the format's own, JIT
/// and binary do, and activations are rounded as defined.
fn systems(format: &str) -> Result<()> {
    for compute in [Some(weir::ComputeOption::F32), None] {
        let setup = setup(format, compute);
        let mut jit = Jit::compile(&tales(), &setup)?;
        let ours = jit.logits(&PROMPT, &FORCED)?;
        if Binary::compile(&tales(), &setup)?.logits(&PROMPT, &FORCED)? != ours {
            bail!("JIT and binary differ");
        }
        if compute.is_some() {
            let defined = Oracle::lower(&tales(), &setup)?.logits(&PROMPT, &FORCED)?;
            close("prompt", &ours.prefill, &defined.prefill, FLOAT)?;
            close("steps", &ours.steps, &defined.steps, FLOAT)?;
        } else {
            // The cache's rounding is checked on smaller models, where it leaves more prompts alike.
            let setup = Setup { kv_dtype: Some(weir::KvTypeOption::F32), ..setup };
            let mut jit = Jit::compile(&tales(), &setup)?;
            let oracle = Oracle::lower(&tales(), &setup)?;
            let bound = Bound::of(oracle.graph())?.context("activations are rounded")?;
            let mut defined = oracle.with_rounding(round_activations);
            let ids: Vec<u32> = (0..200).map(|index| 3 + 10 * index).collect();
            let agreement = bound.same_storing(&mut jit, &mut defined, &ids)?;
            println!("{format}: {agreement}");
        }
    }
    Ok(())
}

/// The stories that weights are calibrated with; the last ones are held out.
fn stories() -> PathBuf {
    root().join("tests/files/texts/stories.txt")
}

/// Calibrated codes are the same in every run and in every system, and logits on a text that they
/// were not chosen by come nearer to float32's than with codes rounded to nearest.
fn calibrated(format: &str, how: (CalibrationSource, u32), allowed: f64) -> Result<()> {
    let exact = Some(weir::ComputeOption::F32);
    let nearest = setup(format, exact);
    let chosen = Setup { calibrate: Some(how), ..nearest.clone() };
    let ours = Jit::compile(&tales(), &chosen)?.logits(&PROMPT, &FORCED)?;
    let mut oracle = Oracle::lower(&tales(), &chosen)?;
    let defined = oracle.logits(&PROMPT, &FORCED)?;
    close("prompt", &ours.prefill, &defined.prefill, FLOAT)?;
    if Jit::compile(&tales(), &chosen)?.logits(&PROMPT, &FORCED)? != ours {
        bail!("another run has other codes");
    }
    let float = Setup { weights: None, ..nearest.clone() }.load(&tales())?;
    let text = std::fs::read_to_string(stories())?;
    let held_out = documents(&text, false).last().context("no story")?;
    let ids = float.encode(&held_out)?;
    let mut errors = Vec::new();
    let reference = Jit::compile(&tales(), &Setup { weights: None, ..nearest.clone() })?
        .logits(&ids, &FORCED)?;
    for setup in [&nearest, &chosen] {
        let found = Jit::compile(&tales(), setup)?.logits(&ids, &FORCED)?;
        let pairs = found.prefill.values.iter().zip(&reference.prefill.values);
        errors.push(pairs.map(|(x, y)| f64::from(x - y).powi(2)).sum::<f64>());
    }
    let part = errors[1] / errors[0];
    println!("{format}: squared error of the logits {part:.3} of that of rounding to nearest");
    if part > allowed {
        bail!("calibration leaves {part:.3} of the squared error of the logits");
    }
    Ok(())
}

/// Where nobody says what codes are chosen by, those of a small model in int4 are what it chooses by
/// itself.
fn small_models_calibrate_themselves() -> Result<()> {
    let model = root().join("tests/fixtures/onnx/llama-genai-fp32");
    let folder = tempfile::tempdir()?;
    let setup = Setup { weights: Some("int4".to_owned()), ..Setup::exact(64) };
    let program = |calibrate: Option<CalibrationSource>| -> Result<Vec<u8>> {
        let file = folder.path().join("model");
        let options = setup.options(&model);
        weir::compile_executable(&weir::ModelOptions { calibrate, ..options }, &file)?;
        Ok(std::fs::read(&file)?)
    };
    let by_itself = program(Some(CalibrationSource::Own))?;
    if program(None)? != by_itself {
        bail!("int4 is another program without --calibrate than with --calibrate self");
    }
    if program(Some(CalibrationSource::Nothing))? == by_itself {
        bail!("--calibrate none gives the program of --calibrate self");
    }
    Ok(())
}

/// No weight is off by more than derived, nor are the logits.
fn error_is_bound(format: &str, allowed: f64) -> Result<()> {
    let setup = setup(format, None);
    let oracle = Oracle::lower(&tales(), &setup)?;
    let mut largest = 0f64;
    for (_, constant) in oracle.graph().constants.iter() {
        let error = rounding_error(constant);
        if error > allowed {
            bail!("{} is off by {error:.4} of itself, allowed {allowed}", constant.name);
        }
        largest = largest.max(error);
    }
    let Some(bound) = Bound::of(oracle.graph())? else { bail!("nothing is rounded") };
    let ours = Jit::compile(&tales(), &setup)?.logits(&PROMPT, &FORCED)?;
    let exact = Jit::compile(&tales(), &Setup::exact(256))?.logits(&PROMPT, &FORCED)?;
    let found = bound.check(format, &ours.prefill, &exact.prefill)?;
    println!(
        "{format}: weights off by {largest:.4}; logits by {:.4}, bound {:.4}",
        found.root_mean_square / found.reference,
        bound.relative
    );
    Ok(())
}

fn knows(format: &str, allowed: f64) -> Result<()> {
    let text = shared().map(|shared| shared.join("data/tinystories/train_0.txt"));
    let Some(text) = text.filter(|text| text.is_file()) else {
        println!("skipped: no stories beside the checkout");
        return Ok(());
    };
    let text = std::fs::read_to_string(text)?;
    let measure =
        |setup: Setup| perplexity(&setup.load(&tales())?, documents(&text, false).take(STORIES));
    let (ours, exact) = (measure(setup(format, None))?, measure(Setup::exact(256))?);
    println!("{format}: perplexity {:.4}, float32 {:.4}", ours.value, exact.value);
    if ours.value > allowed * exact.value {
        bail!("perplexity {:.4} where float32 weights have {:.4}", ours.value, exact.value);
    }
    Ok(())
}
