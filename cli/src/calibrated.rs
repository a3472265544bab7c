//! What `compile --calibrate` brought, on text that it has not seen.

use weir_runtime::command::{prompt_logits, say};
use weir_runtime::{CompiledModel, Model, RuntimeOptions};

use crate::driver::{Emission, Lowered, load, load_whole};
use crate::failure::Failure;
use crate::options::{CalibrationSource, DEFAULT_CALIBRATE_TOKENS, ModelOptions, ReportOptions};
use crate::perplexity::{Perplexity, perplexity};
use crate::progress::Progress;

/// Says how good the model is on the held-out windows with the file's weights, with weights rounded to
/// nearest and with the calibrated ones: its perplexity, or how much its embeddings are like those of the
/// file's weights.
pub fn tell_gain(
    lowered: &mut Lowered,
    options: &ModelOptions,
    progress: &Progress,
) -> Result<(), Failure> {
    let held_out = std::mem::take(&mut lowered.held_out);
    match lowered.gives_embeddings() {
        false => tell_perplexity(lowered, &held_out, options, progress),
        true => tell_likeness(lowered, &held_out, options, progress),
    }
}

/// What is measured of the model with float weights, with weights rounded to nearest, and with the
/// calibrated ones.
fn measure_each<T>(
    lowered: &mut Lowered,
    options: &ModelOptions,
    progress: &Progress,
    measure: impl Fn(&Model) -> Result<T, Failure>,
) -> Result<[T; 3], Failure> {
    let measured = |model: CompiledModel| measure(&Model::new(model)?);
    let quiet = ReportOptions { quiet: true, ..ReportOptions::default() };
    let silent = Progress::new(true);
    let nearest = ModelOptions {
        calibrate: Some(CalibrationSource::Nothing),
        calibrate_tokens: DEFAULT_CALIBRATE_TOKENS,
        ..options.clone()
    };
    let _work = progress.start("measuring");
    Ok([
        measured(load(&options.in_float(), &quiet, &silent)?)?,
        measured(load(&nearest, &quiet, &silent)?)?,
        measured(load_whole(lowered, options, &silent, Emission::default())?)?,
    ])
}

fn tell_perplexity(
    lowered: &mut Lowered,
    held_out: &[Vec<u32>],
    options: &ModelOptions,
    progress: &Progress,
) -> Result<(), Failure> {
    let measure = |model: &Model| -> Result<Perplexity, Failure> {
        Ok(perplexity(model, held_out.iter().map(Vec::as_slice))?)
    };
    let [exact, nearest, ours] = measure_each(lowered, options, progress, measure)?;
    say(format_args!("perplexity on {} tokens that were held out", exact.tokens));
    say(format_args!("{:>12.4}            float weights and activations", exact.value));
    for (found, what) in [(nearest, "rounded to nearest"), (ours, "calibrated")] {
        let more = 100.0 * (found.value / exact.value - 1.0);
        say(format_args!("{:>12.4}  {more:+7.2} %  {what}", found.value));
    }
    Ok(())
}

fn tell_likeness(
    lowered: &mut Lowered,
    held_out: &[Vec<u32>],
    options: &ModelOptions,
    progress: &Progress,
) -> Result<(), Failure> {
    let measure = |model: &Model| rows(model, held_out);
    let [exact, nearest, ours] = measure_each(lowered, options, progress, measure)?;
    let tokens = exact.len();
    say(format_args!("cosine to the rows of float weights, mean of {tokens} held-out tokens"));
    for (found, what) in [(nearest, "rounded to nearest"), (ours, "calibrated")] {
        let sum: f64 = exact.iter().zip(&found).map(|(row, other)| cosine(row, other)).sum();
        say(format_args!("{:>12.6}  {what}", sum / tokens as f64));
    }
    Ok(())
}

/// What the head gives for all tokens of these windows.
fn rows(model: &Model, windows: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, Failure> {
    let options = RuntimeOptions { slots: Some(1), ..RuntimeOptions::default() };
    let mut forward = model.forward(&options)?;
    let mut found = Vec::new();
    for window in windows {
        prompt_logits(&mut forward, window, |rows, width| {
            found.extend(rows.chunks_exact(width).map(<[f32]>::to_vec));
            Ok(())
        })?;
    }
    Ok(found)
}

/// The cosine of two rows' angle.
fn cosine(one: &[f32], other: &[f32]) -> f64 {
    let product = |one: &[f32], other: &[f32]| -> f64 {
        one.iter().zip(other).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    };
    product(one, other) / (product(one, one) * product(other, other)).sqrt()
}
