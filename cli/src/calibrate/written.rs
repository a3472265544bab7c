//! The text of `--calibrate self`: what the model writes with the file's weights, sample after sample
//! from the token that begins a text, at temperature 1 and with nothing cut off, so that tokens come
//! as often as the model thinks that they do (Liu et al., *LLM-QAT*, section 2.1; Williams et al.,
//! *Self-calibration for Language Model Quantization and Pruning*).
//!
//! Sample i is drawn with the seed i, and float32's bits do not depend on the level, so the same model
//! gives the same text.

use weir_abi::HeadResult;
use weir_runtime::sampling::SamplingOptions;
use weir_runtime::{Model, Request, RuntimeOptions};

use super::{CalibrationText, WINDOW};
use crate::failure::Failure;
use crate::options::ModelOptions;

/// Sequences that are written at once.
const WRITERS: u32 = 16;

/// Samples that are asked for together: some end early, and their slots go to others.
const SAMPLES: u64 = 64;

/// Tokens that a sample has at least in the mean; a model that ends its texts sooner has nothing to say.
const LEAST_MEAN: usize = 16;

/// What is compiled to write: the model in floats, with all rows of a window.
pub fn writer(options: &ModelOptions, context: u32) -> ModelOptions {
    ModelOptions {
        slots: WRITERS,
        context: Some(context.min(WINDOW as u32)),
        kv: vec!["full".to_owned()],
        kv_rows: None,
        kv_budget: None,
        kv_dtype: Vec::new(),
        draft: 0,
        ..options.in_float()
    }
}

/// Lets a model write so many tokens, and a tenth more that are held out. `watch` is told how many of
/// how many are there.
pub fn write(
    model: &Model,
    tokens: u32,
    watch: impl Fn(usize, usize),
) -> Result<CalibrationText, Failure> {
    let fail =
        |message: String| Failure::usage(format!("--calibrate self: {message}; give a text"));
    if model.gives() != HeadResult::Logits {
        return Err(fail("the model gives embeddings and writes nothing".to_owned()));
    }
    let facts = model.facts();
    let first = facts.bos_token_id.or(facts.eos_token_ids.first().copied());
    let Some(first) = first else {
        return Err(fail("its files name no token that begins or ends a text".to_owned()));
    };
    let mut engine = model.engine(&RuntimeOptions::default())?;
    let context = engine.rules().context;
    let wanted = tokens as usize + (tokens as usize).div_ceil(9);
    let mut windows: Vec<Vec<u32>> = Vec::new();
    let mut written = 0;
    for samples in (0..).step_by(SAMPLES as usize) {
        if written >= wanted {
            break;
        }
        if written < samples as usize * LEAST_MEAN {
            return Err(fail(format!("the model ends {samples} texts after {written} tokens")));
        }
        let sample = |seed: u64| Request {
            prompt: vec![first],
            max_tokens: Some(context.saturating_sub(1).max(1)),
            sampling: SamplingOptions { temperature: 1.0, seed, ..SamplingOptions::default() },
            ..Request::default()
        };
        for answer in engine.generate((samples..samples + SAMPLES).map(sample).collect())? {
            let text = answer.ids.into_iter().filter(|id| !facts.eos_token_ids.contains(id));
            let window: Vec<u32> = [first].into_iter().chain(text).collect();
            // What is written beyond is no reason to take a sample less than another.
            if window.len() > 1 && written < wanted {
                written += window.len();
                windows.push(window);
            }
        }
        watch(written.min(wanted), wanted);
    }
    Ok(CalibrationText::with_end_held_out(windows, written))
}
