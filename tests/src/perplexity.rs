//! How well a model knows a text.
//!
//! The text is divided into documents at `<|endoftext|>`, every document is one prompt of at most
//! [`WINDOW`] tokens; [`weir::perplexity`] measures.

use anyhow::{Result, bail};
use weir::Perplexity;
use weir_runtime::Model;

/// Most tokens of a document that count.
pub const WINDOW: usize = 256;

/// Separates documents.
const SEPARATOR: &str = "<|endoftext|>";

/// The documents of a text. `one_line` writes a document's lines behind each other, for models
/// without line ends.
pub fn documents(text: &str, one_line: bool) -> impl Iterator<Item = String> {
    let documents = text.split(SEPARATOR).map(str::trim).filter(|document| !document.is_empty());
    documents.map(move |document| match one_line {
        true => document.split_whitespace().collect::<Vec<_>>().join(" "),
        false => document.to_owned(),
    })
}

/// The perplexity of a model on documents.
pub fn perplexity(
    model: &Model,
    documents: impl IntoIterator<Item = String>,
) -> Result<Perplexity> {
    let mut windows = Vec::new();
    for document in documents {
        let mut ids = model.encode(&document)?;
        ids.truncate(WINDOW);
        windows.push(ids);
    }
    let windows = windows.iter().map(Vec::as_slice).filter(|window| window.len() > 1);
    let found = weir::perplexity(model, windows)?;
    if found.tokens == 0 {
        bail!("the text has no document of two tokens");
    }
    Ok(found)
}
