//! Perplexity: passages of a text, each the end of a prompt token by token.
//!
//! A passage is a prompt, which a policy compresses as it would any other, and a rest that is asked for
//! through the decode path. The perplexity is exp of the mean of -ln p over all that is asked. What two
//! policies differ by is the mean of the differences of -ln p, with an interval over passages.

use std::io::Write;
use std::path::PathBuf;

use serde_json::{Value, json};
use weir_eval::{Mean, Policy};

use super::Ticker;
use super::stop::Stop;
use crate::comparison::{Comparison, Passage};
use crate::{Model, RuntimeError};

/// Tokens of a passage unless the user says otherwise.
const WINDOW: u32 = 2048;

/// A text, and how it is cut into passages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassageOptions {
    /// UTF-8.
    pub file: PathBuf,
    /// Tokens of a passage.
    pub window: Option<u32>,
    /// How many of them are the prompt.
    pub prompt: Option<u32>,
    /// Most passages.
    pub limit: Option<usize>,
}

/// A text that has been cut.
pub(super) struct Passages<'o> {
    options: &'o PassageOptions,
    window: usize,
    prompt: usize,
    /// At least one.
    tokens: Vec<Vec<u32>>,
}

/// What every policy made of a text.
pub struct TextFigures {
    file: PathBuf,
    passages: usize,
    tokens: usize,
    window: usize,
    prompt: usize,
    /// Per policy.
    figures: Vec<Figure>,
}

struct Figure {
    perplexity: f64,
    /// Mean of -ln p minus that of the first policy.
    more: Mean,
}

impl PassageOptions {
    /// Reads `FILE?window=2048&prompt=1024&limit=100`.
    pub fn parse(text: &str) -> Result<PassageOptions, String> {
        let (file, rest) = text.split_once('?').unwrap_or((text, ""));
        if file.is_empty() {
            return Err("no file; write perplexity:FILE".to_owned());
        }
        let mut options =
            PassageOptions { file: file.into(), window: None, prompt: None, limit: None };
        for part in rest.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let number = value.parse::<u32>().ok().filter(|number| *number > 0);
            let number = number.ok_or_else(|| format!("{name} takes a number, not \"{value}\""))?;
            match name {
                "window" => options.window = Some(number),
                "prompt" => options.prompt = Some(number),
                "limit" => options.limit = Some(number as usize),
                _ => return Err(format!("no option \"{name}\"; there are window, prompt, limit")),
            }
        }
        Ok(options)
    }

    /// Reads the text and cuts it into passages of at most the context.
    pub(super) fn read(&self, model: &Model, context: u32) -> Result<Passages<'_>, RuntimeError> {
        let window = self.window.unwrap_or(WINDOW.min(context));
        let prompt = self.prompt.unwrap_or(window / 2).max(1);
        if window > context || prompt >= window {
            return Err(RuntimeError::Options(format!(
                "a window of {window} tokens with a prompt of {prompt}: the prompt must be shorter, \
                 and the window at most {context} rows"
            )));
        }
        let (window, prompt) = (window as usize, prompt as usize);
        let place = |source| RuntimeError::File { path: self.file.clone(), source };
        let text = std::fs::read_to_string(&self.file).map_err(place)?;
        let ids = model.encode(&text)?;
        // What stands in front of every text stands in front of every passage.
        let bare = model.encode("")?;
        let begins = !bare.is_empty() && ids.starts_with(&bare);
        let first: &[u32] = if begins { &bare } else { &[] };
        let body = window - first.len().min(window - 1);
        let tokens: Vec<Vec<u32>> = ids[first.len()..]
            .chunks_exact(body)
            .take(self.limit.unwrap_or(usize::MAX))
            .map(|tokens| [first, tokens].concat())
            .collect();
        if tokens.is_empty() {
            return Err(RuntimeError::Options(format!(
                "{}: {} tokens are less than one window of {window}",
                self.file.display(),
                ids.len()
            )));
        }
        Ok(Passages { options: self, window, prompt, tokens })
    }
}

impl Passages<'_> {
    /// Asks every policy for the text, or as much of it as the user waits for, if that is any.
    pub(super) fn measure(
        &self,
        comparison: &mut Comparison,
        stop: &Stop,
    ) -> Result<Option<TextFigures>, RuntimeError> {
        let Passages { options, window, prompt, tokens: passages } = self;
        let (window, prompt, file) = (*window, *prompt, options.file.clone());
        let mut ticker = Ticker::new(format!("{}, passages", file.display()), passages.len());
        let mut surprises: Vec<Vec<Vec<f64>>> = Vec::with_capacity(passages.len());
        for turn in passages.chunks(comparison.slots()) {
            if stop.ends(|| ticker.place(surprises.len())) {
                break;
            }
            let turn: Vec<Passage<'_>> =
                turn.iter().map(|tokens| Passage { tokens, prompt }).collect();
            surprises.extend(comparison.surprise(&turn)?);
            ticker.at(surprises.len());
        }
        drop(ticker);
        if surprises.is_empty() {
            return Ok(None);
        }
        let tokens = surprises.iter().map(|arms| arms[0].len()).sum();
        let figures = (0..comparison.arms().len()).map(|arm| figure(&surprises, arm)).collect();
        Ok(Some(TextFigures { file, passages: surprises.len(), tokens, window, prompt, figures }))
    }
}

fn figure(surprises: &[Vec<Vec<f64>>], arm: usize) -> Figure {
    let sum = |arm: usize| surprises.iter().flat_map(move |arms| &arms[arm]);
    let tokens = sum(0).count();
    let mean = sum(arm).sum::<f64>() / tokens as f64;
    let differences = surprises.iter().map(|arms| {
        let differences = arms[arm].iter().zip(&arms[0]).map(|(own, dense)| own - dense);
        (arms[0].len(), differences.sum::<f64>())
    });
    Figure { perplexity: mean.exp(), more: Mean::of_differences(differences) }
}

impl TextFigures {
    pub(super) fn write_table(
        &self,
        out: &mut dyn Write,
        policies: &[Policy],
    ) -> Result<(), RuntimeError> {
        let TextFigures { passages, tokens, window, prompt, .. } = self;
        writeln!(
            out,
            "perplexity of {}: {tokens} tokens in {passages} passages of {window}, behind prompts of \
             {prompt}",
            self.file.display()
        )?;
        let width = policies.iter().map(|policy| policy.name.len()).max().unwrap_or(0);
        let all = policies.first().map_or(1, |policy| policy.bytes.max(1));
        for (index, (policy, figure)) in policies.iter().zip(&self.figures).enumerate() {
            let share = 100.0 * policy.bytes as f64 / all as f64;
            write!(out, "  {:width$}  {share:6.1} %  {:9.4}", policy.name, figure.perplexity)?;
            if index > 0 {
                write!(out, "  {:+.2} %", percent(figure.more.value))?;
                match figure.more.interval {
                    Some(ends) => {
                        let [low, high] = [ends.low, ends.high].map(percent);
                        write!(out, " ({low:+.2} to {high:+.2})")?;
                    }
                    None => write!(out, " (–)")?,
                }
            }
            writeln!(out)?;
        }
        Ok(())
    }

    pub(super) fn json(&self, policies: &[Policy]) -> Value {
        let rows = policies.iter().zip(&self.figures).map(|(policy, figure)| {
            let (mean, interval) = (percent(figure.more.value), figure.more.interval);
            let low = interval.map(|ends| percent(ends.low));
            let high = interval.map(|ends| percent(ends.high));
            json!({
                "policy": policy.name,
                "cache_rows": policy.rows,
                "cache_bytes": policy.bytes,
                "perplexity": figure.perplexity,
                "more_percent": { "mean": mean, "low": low, "high": high },
            })
        });
        json!({
            "file": self.file,
            "passages": self.passages,
            "window": self.window,
            "prompt": self.prompt,
            "tokens": self.tokens,
            "policies": rows.collect::<Vec<_>>(),
        })
    }
}

/// How much larger the perplexity is, in percent.
fn percent(more: f64) -> f64 {
    100.0 * more.exp_m1()
}
