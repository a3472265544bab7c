//! The text of `--calibrate`: which of its tokens weights are calibrated with, and which are kept
//! back to measure what it brought.
//!
//! The text is divided into documents at [`SEPARATOR`] (a text without it is one), a document into
//! windows of at most [`WINDOW`] tokens, each of which begins as a sequence begins. The last tenth
//! of the tokens is held out, at most [`HELD_OUT`]; of the windows in front of them every n-th is
//! taken, so that all of the text is represented. The same text gives the same windows. Where there is
//! no text, [`written`] takes what the model writes.

pub mod written;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use weir_frontend::{ModelFacts, TextAssets};
use weir_tokenizer::Tokenizer;

use crate::failure::Failure;

/// Stands between documents.
const SEPARATOR: &str = "<|endoftext|>";

/// Most tokens of a window.
const WINDOW: usize = 512;

/// Most tokens that are held out.
const HELD_OUT: usize = 8192;

/// Windows that keys are measured on, and tokens of each: the error of a mean of so many keys is a
/// hundredth of their deviation's square, and the walk through 8 billion weights takes minutes.
const KEY_WINDOWS: [usize; 2] = [4, 32];

/// Most bytes of a text that are read: many times what any calibration takes.
const MOST_BYTES: u64 = 32 << 20;

/// A text in windows of tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CalibrationText {
    /// What weights are calibrated with.
    pub windows: Vec<Vec<u32>>,
    /// What the result is measured on.
    pub held_out: Vec<Vec<u32>>,
}

impl CalibrationText {
    /// Reads a text for a model of a context.
    pub fn read(
        path: &Path,
        tokens: u32,
        text: &TextAssets,
        facts: &ModelFacts,
        context: u32,
    ) -> Result<CalibrationText, Failure> {
        let name = path.display();
        let fail = |message: String| Failure::usage(format!("--calibrate {name}: {message}"));
        if text.tokenizer.is_none() {
            let message = "the model has no tokenizer.json, so text means nothing to it";
            return Err(fail(message.to_owned()));
        }
        let content = read_text(path).map_err(fail)?;
        let window = WINDOW.min(context as usize);
        let windows = windows(&content, text, facts, context)?;
        let all: usize = windows.iter().map(Vec::len).sum();
        if all == 0 {
            return Err(fail("there is no text in it".to_owned()));
        }
        if all < window || windows.len() < 2 {
            return Err(fail(format!(
                "its {all} tokens are not enough; give more than a window of {window}"
            )));
        }
        Ok(CalibrationText::divided(windows, all, tokens as usize))
    }

    /// Holds windows out, and takes as many of the others as `tokens` allows.
    fn divided(windows: Vec<Vec<u32>>, all: usize, tokens: usize) -> CalibrationText {
        let CalibrationText { windows, held_out } =
            CalibrationText::with_end_held_out(windows, all);
        let left: usize = windows.iter().map(Vec::len).sum();
        let stride = left.div_ceil(tokens.max(1)).max(1);
        CalibrationText { windows: windows.into_iter().step_by(stride).collect(), held_out }
    }

    /// Holds out the last of all tokens.
    fn with_end_held_out(mut windows: Vec<Vec<u32>>, all: usize) -> CalibrationText {
        let mut kept = 0;
        let mut first = windows.len();
        while first > 1 && kept < (all / 10).clamp(1, HELD_OUT) {
            first -= 1;
            kept += windows[first].len();
        }
        let held_out = windows.split_off(first);
        CalibrationText { windows, held_out }
    }
}

/// The windows that keys of caches with codes of four bits are measured on: of a calibration text, or
/// else of a short text that is the same for all models; none without a tokenizer.
pub fn key_text(
    calibration: Option<&CalibrationText>,
    text: &TextAssets,
    facts: &ModelFacts,
    context: u32,
) -> Result<Vec<Vec<u32>>, Failure> {
    let own: Vec<Vec<u32>>;
    let all = match calibration {
        Some(calibration) => &calibration.windows,
        None => {
            own = windows(include_str!("key_text.txt"), text, facts, context)?;
            &own
        }
    };
    let [count, tokens] = KEY_WINDOWS;
    let spread = all.iter().step_by(all.len().div_ceil(count).max(1));
    Ok(spread.map(|window| window[..window.len().min(tokens)].to_vec()).collect())
}

/// A text in windows; none without a tokenizer.
fn windows(
    content: &str,
    text: &TextAssets,
    facts: &ModelFacts,
    context: u32,
) -> Result<Vec<Vec<u32>>, Failure> {
    let Some(tokenizer) = &text.tokenizer else { return Ok(Vec::new()) };
    let broken = |error| Failure::other(format!("tokenizer.json: {error}"));
    let packed = weir_tokenizer::pack(tokenizer).map_err(broken)?;
    let tokenizer = Tokenizer::open(packed).map_err(broken)?;
    let named = text.bos_token.as_deref().and_then(|token| tokenizer.token_id(token));
    let window = WINDOW.min(context as usize);
    let mut windows: Vec<Vec<u32>> = Vec::new();
    for document in content.split(SEPARATOR).map(str::trim).filter(|text| !text.is_empty()) {
        // As the runtime encodes a plain prompt.
        let ids = match text.add_bos {
            Some(false) => tokenizer.encode_without_bos(document, named.or(facts.bos)),
            _ => tokenizer.encode(document, true),
        };
        let ids = ids.map_err(broken)?;
        let bos = facts.bos.filter(|bos| text.add_bos == Some(true) || ids.first() == Some(bos));
        let ids = if bos.is_some() && ids.first() == bos.as_ref() { &ids[1..] } else { &ids[..] };
        let room = (window - usize::from(bos.is_some())).max(1);
        let parts = ids.chunks(room).map(|part| bos.iter().chain(part).copied().collect());
        windows.extend(parts.filter(|window: &Vec<u32>| window.len() > 1));
    }
    Ok(windows)
}

/// The beginning of a file of text.
fn read_text(path: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(MOST_BYTES).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    let is_cut = bytes.len() as u64 == MOST_BYTES;
    String::from_utf8(bytes).or_else(|error| {
        let whole = error.utf8_error().valid_up_to();
        let mut bytes = error.into_bytes();
        // A character may be cut where reading ended, but none before it.
        if !is_cut || bytes.len() - whole > 3 {
            return Err(format!("it is no UTF-8 text (byte {whole})"));
        }
        bytes.truncate(whole);
        String::from_utf8(bytes).map_err(|error| error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(lengths: &[usize]) -> Vec<Vec<u32>> {
        let window = |(index, length): (usize, &usize)| vec![index as u32; *length];
        lengths.iter().enumerate().map(window).collect()
    }

    fn numbers(windows: &[Vec<u32>]) -> Vec<u32> {
        windows.iter().map(|window| window[0]).collect()
    }

    #[test]
    fn the_end_is_held_out_and_the_rest_is_spread() {
        let text = CalibrationText::divided(windows(&[10; 40]), 400, 100);
        assert_eq!(numbers(&text.held_out), [36, 37, 38, 39]);
        assert_eq!(numbers(&text.windows), [0, 4, 8, 12, 16, 20, 24, 28, 32]);
        let text = CalibrationText::divided(windows(&[10; 4]), 40, 1000);
        assert_eq!(numbers(&text.held_out), [3]);
        assert_eq!(numbers(&text.windows), [0, 1, 2]);
        let text = CalibrationText::divided(windows(&[3, 90]), 93, 1000);
        assert_eq!((numbers(&text.windows), numbers(&text.held_out)), (vec![0], vec![1]));
    }

    #[test]
    fn a_text_is_cut_between_characters_only_at_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, b"ab\xffcd").unwrap();
        assert_eq!(read_text(&path).unwrap_err(), "it is no UTF-8 text (byte 2)");
        std::fs::write(&path, "abc").unwrap();
        assert_eq!(read_text(&path).unwrap(), "abc");
    }
}
