//! The text of `--calibrate self`: what the model writes with the file's weights, sample after sample
//! from the token that begins a text, at temperature 1 and with nothing cut off, so that tokens come
//! as often as the model thinks that they do (Liu et al., *LLM-QAT*, section 2.1; Williams et al.,
//! *Self-calibration for Language Model Quantization and Pruning*).
//!
//! Sample i is drawn with the seed i, and float32's bits do not depend on the level, so the same model
//! gives the same text.

use std::collections::HashMap;

use weir_abi::HeadResult;
use weir_passes::weights::RoundedWeights;
use weir_runtime::{
    Event, Model, Request, RequestId, RuntimeError, RuntimeOptions, SamplingOptions,
};

use super::{CalibrationText, WINDOW};
use crate::failure::Failure;
use crate::options::{DEFAULT_CALIBRATE_TOKENS, ModelOptions};

/// Samples that are written at once.
const WRITERS: u32 = 16;

/// Numbers of weights times tokens that calibrating has to do with at most where nobody asked for it: 10
/// to 40 seconds on two cores.
const UNASKED: usize = 1 << 37;

/// Fewer tokens say too little.
const LEAST_TOKENS: usize = 4096;

/// Bits of codes that are worth a text that nobody asked for: eight bits to nearest lose some tenths of a
/// percent.
const UNASKED_BITS: u8 = 4;

/// Tokens that samples have at least in the mean, of so many of them; a model that ends its texts sooner
/// has nothing to say.
const LEAST_MEAN: usize = 16;
const SAMPLES_FOR_MEAN: usize = 64;

/// How many tokens are written for weights where the user has not said what they are chosen by. Small
/// models lose most by rounding to nearest, and have a text in seconds.
pub fn tokens_unasked(weights: RoundedWeights) -> Result<u32, Failure> {
    if weights.least_bits > UNASKED_BITS {
        let message = format!("{} bits lose little", weights.least_bits);
        return Err(Failure::usage(message));
    }
    let tokens = UNASKED / weights.numbers.max(1);
    if tokens < LEAST_TOKENS {
        let millions = weights.numbers / 1_000_000;
        let message =
            format!("{millions} million weights take long; --calibrate self chooses codes");
        return Err(Failure::usage(message));
    }
    Ok(u32::try_from(tokens).map_or(DEFAULT_CALIBRATE_TOKENS, |t| t.min(DEFAULT_CALIBRATE_TOKENS)))
}

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
        while written < wanted
            && let Some(sample) = samples.get(whole).filter(|sample| sample.has_ended)
        {
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
    if windows.is_empty() {
        return Err(fail(format!("the model ends {whole} texts before their first token")));
    }
    let all = windows.iter().map(Vec::len).sum();
    Ok(CalibrationText::with_end_held_out(windows, all))
}

/// A text on its way.
struct Sample {
    window: Vec<u32>,
    has_ended: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_asked_for_is_bounded() {
        let tokens = |numbers, least_bits| tokens_unasked(RoundedWeights { numbers, least_bits });
        let told = |outcome: Result<u32, Failure>| outcome.unwrap_err().message;
        assert_eq!(tokens(1, 4).unwrap(), DEFAULT_CALIBRATE_TOKENS);
        assert_eq!(tokens(4 << 20, 4).unwrap(), DEFAULT_CALIBRATE_TOKENS);
        assert_eq!(tokens(16 << 20, 4).unwrap(), 8192);
        assert_eq!(tokens(32 << 20, 4).unwrap(), 4096);
        let many = "34 million weights take long; --calibrate self chooses codes";
        assert_eq!(told(tokens(34_000_000, 4)), many);
        assert_eq!(told(tokens(1, 8)), "8 bits lose little");
    }
}
