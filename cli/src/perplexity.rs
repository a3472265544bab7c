//! How well a model knows a text.
//!
//! The text comes as windows, each the beginning of a sequence; each token of a window but the first
//! is asked of the row in front of it. The perplexity is the exponential of the mean of `-ln p` over
//! all of them, sums in double precision.

use weir_runtime::command::prompt_logits;
use weir_runtime::comparison::surprise;
use weir_runtime::{Model, RuntimeError, RuntimeOptions};

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// exp of the mean of -ln p.
    pub value: f64,
    /// Tokens that were asked for.
    pub tokens: usize,
}

/// The perplexity of a model on windows of tokens; not a number if they ask for nothing.
pub fn perplexity<'w>(
    model: &Model,
    windows: impl IntoIterator<Item = &'w [u32]>,
) -> Result<Perplexity, RuntimeError> {
    let options = RuntimeOptions { slots: Some(1), ..RuntimeOptions::default() };
    let mut forward = model.forward(&options)?;
    let (mut sum, mut tokens) = (0.0, 0);
    for window in windows {
        let mut asked = window.iter().skip(1);
        prompt_logits(&mut forward, window, |rows, vocabulary| {
            for (row, id) in rows.chunks_exact(vocabulary).zip(&mut asked) {
                sum += surprise(row, *id);
                tokens += 1;
            }
            Ok(())
        })?;
    }
    Ok(Perplexity { value: (sum / tokens as f64).exp(), tokens })
}
