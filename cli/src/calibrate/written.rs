//! The text of `--calibrate self`: what the model writes with the file's weights, sample after sample
//! from the token that begins a text, at temperature 1 and with nothing cut off, so that tokens come
//! as often as the model thinks that they do (Liu et al., *LLM-QAT*, section 2.1; Williams et al.,
//! *Self-calibration for Language Model Quantization and Pruning*).
//!
//! Sample i is drawn with the seed i, and float32's bits do not depend on the level, so the same model
//! gives the same text.

use std::collections::HashMap;

use weir_abi::HeadResult;
use weir_runtime::{
    Event, Model, Request, RequestId, RuntimeError, RuntimeOptions, SamplingOptions,
};

use super::{CalibrationText, WINDOW};
use crate::failure::Failure;
use crate::options::ModelOptions;

/// Samples that are written at once.
const WRITERS: u32 = 16;

/// Tokens that samples have at least in the mean, of so many of them; a model that ends its texts sooner
/// has nothing to say.
const LEAST_MEAN: usize = 16;
const SAMPLES_FOR_MEAN: usize = 64;

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
    let sample = |number: usize| Request {
        prompt: vec![first],
        max_tokens: Some(context.saturating_sub(1).max(1)),
        sampling: SamplingOptions {
            temperature: 1.0,
            seed: number as u64,
            ..SamplingOptions::default()
        },
        ..Request::default()
    };
    let wanted = tokens as usize + (tokens as usize).div_ceil(9);
    // By number. Those are taken that are whole without a gap: the first to end are the shortest.
    let mut samples: Vec<Sample> = Vec::new();
    let mut running: HashMap<RequestId, usize> = HashMap::new();
    let (mut whole, mut written) = (0, 0);
    while written < wanted {
        while running.len() < WRITERS as usize {
            let id = engine.submit(sample(samples.len())).map_err(RuntimeError::from)?;
            running.insert(id, samples.len());
            samples.push(Sample { window: vec![first], has_ended: false });
        }
        let mut fault = None;
        engine.step(|id, event| {
            let Some(sample) = running.get(&id).and_then(|number| samples.get_mut(*number)) else {
                return;
            };
            match event {
                Event::Token { token, .. } if facts.eos_token_ids.contains(&token) => {}
                Event::Token { token, .. } => sample.window.push(token),
                Event::Finished { .. } => {
                    sample.has_ended = true;
                    running.remove(&id);
                }
                Event::Failed(error) => fault = Some(error),
                Event::Embedding { .. } => {}
            }
        });
        if let Some(fault) = fault {
            return Err(RuntimeError::from(fault).into());
        }
        while let Some(sample) = samples.get(whole).filter(|sample| sample.has_ended) {
            written += sample.window.len();
            whole += 1;
        }
        if whole >= SAMPLES_FOR_MEAN && written < whole * LEAST_MEAN {
            return Err(fail(format!("the model ends {whole} texts after {written} tokens")));
        }
        watch(written.min(wanted), wanted);
    }
    samples.truncate(whole);
    let windows = samples.into_iter().map(|sample| sample.window);
    let windows: Vec<_> = windows.filter(|window| window.len() > 1).collect();
    let all = windows.iter().map(Vec::len).sum();
    Ok(CalibrationText::with_end_held_out(windows, all))
}

/// A text on its way.
struct Sample {
    window: Vec<u32>,
    has_ended: bool,
}
