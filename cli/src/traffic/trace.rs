//! Arrivals that were recorded: a JSON object a line, in the order of their times.
//!
//! `{"at": 0.25, "prompt_tokens": 300, "max_tokens": 64}` asks a passage of about 300 tokens a quarter
//! of a second from the start; `prompt` in its place is the prompt itself, and with neither the next
//! prompt of the dataset is asked. `priority` and `key`, the name of whoever asks, are optional. Other
//! fields are not read.

use std::path::Path;

use serde::Deserialize;

use super::arrivals::{Arrival, Wanted};
use super::dataset::{in_line, numbered};
use crate::failure::Failure;

/// A line of the file.
#[derive(Deserialize)]
struct Line {
    at: f64,
    prompt: Option<String>,
    prompt_tokens: Option<u32>,
    max_tokens: Option<u32>,
    key: Option<String>,
    priority: Option<i32>,
}

/// Reads the arrivals of a file. Every prompt length goes through `check`, and an arrival without a
/// prompt needs `has_prompts`.
pub fn read(
    path: &Path,
    has_prompts: bool,
    check: impl Fn(u32) -> Result<(), String>,
) -> Result<Vec<Arrival>, Failure> {
    let place = |reason: &dyn std::fmt::Display| {
        Failure::usage(format!("--trace {}: {reason}", path.display()))
    };
    let content = std::fs::read_to_string(path).map_err(|error| place(&error))?;
    let mut arrivals: Vec<Arrival> = Vec::new();
    for (number, text) in numbered(&content) {
        let place = |reason: String| place(&format!("line {number}: {reason}"));
        let line = serde_json::from_str(text).map_err(|error| place(in_line(&error)))?;
        let before = arrivals.last().map_or(0.0, |arrival| arrival.at);
        let arrival = arrival(line, before, has_prompts, &check).map_err(place)?;
        arrivals.push(arrival);
    }
    if arrivals.is_empty() { Err(place(&"there is no arrival")) } else { Ok(arrivals) }
}

fn arrival(
    line: Line,
    before: f64,
    has_prompts: bool,
    check: impl Fn(u32) -> Result<(), String>,
) -> Result<Arrival, String> {
    // More seconds would not fit into a time of the system.
    if !(0.0..1e9).contains(&line.at) {
        return Err(format!("at {} is no time from the start", line.at));
    }
    if line.at < before {
        return Err(format!("at {} is before the {before} of the line above", line.at));
    }
    if line.max_tokens == Some(0) || line.prompt_tokens == Some(0) {
        return Err("numbers of tokens must be at least 1".to_owned());
    }
    let prompt = match (line.prompt, line.prompt_tokens) {
        (Some(text), _) => Wanted::Text(text),
        (None, Some(tokens)) => {
            check(tokens).map_err(|reason| format!("prompt_tokens {tokens}: {reason}"))?;
            Wanted::Tokens(tokens)
        }
        (None, None) if has_prompts => Wanted::Next,
        (None, None) => return Err("it has no prompt: give --dataset or --prompt".to_owned()),
    };
    let Line { at, max_tokens, key, priority, .. } = line;
    Ok(Arrival { at, prompt, max_tokens, key, priority })
}

#[cfg(test)]
mod tests;
