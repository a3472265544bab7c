//! Perplexity of a compiled model on a text: what weight formats cost on real words.
//!
//! The text is divided into documents at `<|endoftext|>`, every document is one prompt of at most
//! [`WINDOW`] tokens, and each of its tokens but the first is asked of the row in front of it. The
//! perplexity is the exponential of the mean of `-ln p` over all of them, sums in double precision.

use anyhow::{Context, Result, bail};
use safetensors::SafeTensors;
use weir_runtime::Model;
use weir_runtime::command::{Logits, RuntimeArguments};

use crate::golden::{Rows, rows};

/// Most tokens of a document that count.
pub const WINDOW: usize = 256;

/// Separates documents.
const SEPARATOR: &str = "<|endoftext|>";

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// exp of the mean of -ln p.
    pub value: f64,
    /// Tokens that were asked for.
    pub tokens: usize,
}

/// The perplexity of the first `documents` documents of a text. `one_line` writes a document's
/// lines behind each other, for models without line ends.
pub fn perplexity(
    model: &Model,
    text: &str,
    documents: usize,
    one_line: bool,
) -> Result<Perplexity> {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("logits.safetensors");
    let (mut sum, mut tokens) = (0.0, 0);
    for document in text.split(SEPARATOR).map(str::trim).filter(|d| !d.is_empty()).take(documents) {
        let document = match one_line {
            true => document.split_whitespace().collect::<Vec<_>>().join(" "),
            false => document.to_owned(),
        };
        let mut ids = model.encode(&document)?;
        ids.truncate(WINDOW);
        if ids.len() < 2 {
            continue;
        }
        let logits = Logits {
            ids: Some(
                ids.iter()
                    .map(u32::to_string)
                    .collect::<Vec<_>>()
                    .join(",")
                    .parse()
                    .map_err(|error| anyhow::anyhow!("{error}"))?,
            ),
            text: None,
            decode: 0,
            force: None,
            output: output.clone(),
            runtime: RuntimeArguments::default(),
        };
        logits.run(model)?;
        let bytes = std::fs::read(&output).context("the logits file")?;
        let found = rows(&SafeTensors::deserialize(&bytes)?, "prefill_logits")?;
        sum += surprise(&found, &ids);
        tokens += ids.len() - 1;
    }
    if tokens == 0 {
        bail!("the text has no document of two tokens");
    }
    Ok(Perplexity { value: (sum / tokens as f64).exp(), tokens })
}

/// Sum of -ln p of every token but the first.
fn surprise(logits: &Rows, ids: &[u32]) -> f64 {
    let asked = ids.iter().skip(1).enumerate();
    asked
        .map(|(index, id)| {
            let row = logits.row(index);
            let largest = row.iter().fold(f32::NEG_INFINITY, |m, x| m.max(*x));
            let total: f64 = row.iter().map(|x| f64::from(x - largest).exp()).sum();
            total.ln() - f64::from(row[*id as usize] - largest)
        })
        .sum()
}
