//! `logits`: the door through which others compare us with their reference.
//!
//! Prompt rows go the way that any prompt of this length goes, steps through the decode path.

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::numbers::whole;
use super::options::{RuntimeArguments, TokenIds};
use super::tensors::TensorFile;
use crate::error::RequestError;
use crate::forward::{LongPrompt, ModelShape, Past, StepFault, StepModel, StepRow};
use crate::sampling::greedy;
use crate::{Model, RuntimeError};

/// Most bytes of logits that are held at once, or one row's.
const BUFFER_BYTES: usize = 64 << 20;

/// What the help says at its end.
const NOTES: &str = "\
The file is in the safetensors format and holds
  prefill_logits  f32 [prompt tokens, vocabulary]: a row for every token of the prompt
  step_logits     f32 [N, vocabulary]: row 0 is the last row of the prompt, row i comes after i more \
tokens
  step_ids        i32 [N]: the token that was chosen (--decode) or given (--force) from each row; the \
last one is not fed";

/// Writes logits to a safetensors file.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("input").required(true)), after_help = NOTES)]
pub struct Logits {
    /// The prompt as token ids with commas between them
    #[arg(long, value_name = "IDS", group = "input", allow_hyphen_values = true)]
    pub ids: Option<TokenIds>,
    /// The prompt as text
    #[arg(long, value_name = "TEXT", group = "input", allow_hyphen_values = true)]
    pub text: Option<String>,
    /// Decode N tokens greedily
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        conflicts_with = "force",
        value_parser = whole(0, u32::MAX),
        allow_hyphen_values = true
    )]
    pub decode: u32,
    /// Feed these tokens through the decode path
    #[arg(long, value_name = "IDS", allow_hyphen_values = true)]
    pub force: Option<TokenIds>,
    /// The file to write
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// How the model runs.
    #[command(flatten)]
    pub runtime: RuntimeArguments,
}

/// A sequence in slot 0 and the logits of the rows computed last.
struct Session<'a, M> {
    model: &'a mut M,
    prompt: &'a [u32],
    /// The prompt, and what was fed behind it.
    tokens: Vec<u32>,
    /// Rows up to the end of what was computed as a prompt.
    prompt_rows: u32,
    rotary_set: u32,
    logits: Vec<f32>,
}

impl Logits {
    /// Runs the command.
    pub fn run(&self, model: &Model) -> Result<(), RuntimeError> {
        model.need_text()?;
        let prompt = match (&self.ids, &self.text) {
            (Some(ids), _) => ids.0.clone(),
            (None, Some(text)) => model.encode(text)?,
            (None, None) => return Err(RuntimeError::Options("give --ids or --text".into())),
        };
        let options = self.runtime.resolve();
        let mut forward = model.forward(&options)?;
        self.write(&mut forward, &prompt)
    }

    fn write(&self, model: &mut impl StepModel, prompt: &[u32]) -> Result<(), RuntimeError> {
        let forced = self.force.as_ref().map(|ids| ids.0.as_slice());
        let steps = forced.map_or(self.decode as usize, <[u32]>::len);
        check_tokens(model.shape(), prompt, forced.unwrap_or_default(), steps)?;
        let vocabulary = model.shape().vocabulary as usize;
        let (columns, count) = (vocabulary as u64, steps as u64);
        let mut file = TensorFile::create(
            &self.output,
            &[
                ("prefill_logits", "F32", 4, vec![prompt.len() as u64, columns]),
                ("step_logits", "F32", 4, vec![count, columns]),
                ("step_ids", "I32", 4, vec![count]),
            ],
        )?;
        let rows = prompt.len() + steps.saturating_sub(1);
        let rotary_set = model.shape().rotary_set(rows as u32);
        let mut session = Session::new(model, prompt, rotary_set);
        session.prefill(&mut |rows| file.write_f32(rows))?;
        let mut ids = Vec::with_capacity(steps);
        for step in 0..steps {
            let row = &session.logits[session.logits.len() - vocabulary..];
            let token = match forced {
                Some(forced) => forced[step],
                None => greedy(row).ok_or(StepFault::NotFinite)?,
            };
            file.write_f32(row)?;
            ids.push(token as i32);
            if step + 1 < steps {
                session.decode(token)?;
            }
        }
        file.write_i32(&ids)?;
        file.finish()
    }
}

/// Takes logits of whole rows.
type Take<'a> = dyn FnMut(&[f32]) -> Result<(), RuntimeError> + 'a;

/// Computes a prompt and hands what the head gives for its rows, logits in most models, to `take`, some rows
/// at a time, with the number of values of a row.
pub fn prompt_logits(
    model: &mut impl StepModel,
    prompt: &[u32],
    mut take: impl FnMut(&[f32], usize) -> Result<(), RuntimeError>,
) -> Result<(), RuntimeError> {
    check_tokens(model.shape(), prompt, &[], 0)?;
    let width = model.shape().head_width as usize;
    let rotary_set = model.shape().rotary_set(prompt.len() as u32);
    let mut session = Session::new(model, prompt, rotary_set);
    session.prefill(&mut |rows| take(rows, width))
}

impl<'a, M: StepModel> Session<'a, M> {
    fn new(model: &'a mut M, prompt: &'a [u32], rotary_set: u32) -> Session<'a, M> {
        let prompt_rows = prompt.len() as u32;
        let tokens = prompt.to_vec();
        Session { model, prompt, tokens, prompt_rows, rotary_set, logits: Vec::new() }
    }

    /// Computes the prompt and hands out all its logits, some rows at a time; those of its last row
    /// stay in `self.logits`.
    fn prefill(&mut self, take: &mut Take<'_>) -> Result<(), RuntimeError> {
        let shape = self.model.shape();
        let width = shape.head_width as usize;
        let length = self.prompt.len();
        let is_long = length > shape.direct_rows as usize;
        let tile = (BUFFER_BYTES / 4 / width).clamp(1, shape.max_rows as usize);
        if is_long {
            let rotary_set = self.rotary_set;
            let tokens = self.prompt;
            self.model.begin_prompt(LongPrompt {
                tokens,
                slot: 0,
                rotary_set,
                past: None,
                is_anew: false,
            });
            while !self.model.advance_prompt()? {}
        }
        for start in (0..length).step_by(tile) {
            let rows = tile.min(length - start);
            self.logits.resize(rows * width, 0.0);
            if is_long {
                self.model.prompt_logits(start as u32, &mut self.logits)?;
            } else {
                let positions = start..start + rows;
                let step: Vec<StepRow> =
                    positions.map(|p| self.row(self.prompt[p], p as u32)).collect();
                let head_rows: Vec<u32> = (0..rows as u32).collect();
                self.model.step(&step, &head_rows, &mut self.logits)?;
            }
            take(&self.logits)?;
        }
        Ok(())
    }

    /// Feeds a token.
    fn decode(&mut self, token: u32) -> Result<(), StepFault> {
        let past = Past { rows: self.tokens.len() as u32, prompt_rows: self.prompt_rows };
        self.tokens.push(token);
        let row = self.row(token, past.rows);
        self.logits.resize(self.model.shape().vocabulary as usize, 0.0);
        let (tokens, logits) = (&self.tokens, &mut self.logits);
        if self.model.reselect(tokens, 0, self.rotary_set, past, logits)? {
            self.prompt_rows = tokens.len() as u32;
            return Ok(());
        }
        self.model.step(&[row], &[0], logits)
    }

    fn row(&self, token: u32, position: u32) -> StepRow {
        let (prompt_rows, rotary_set) = (self.prompt_rows, self.rotary_set);
        StepRow { token, position, slot: 0, prompt_rows, rotary_set }
    }
}

fn check_tokens(
    shape: &ModelShape,
    prompt: &[u32],
    forced: &[u32],
    steps: usize,
) -> Result<(), RequestError> {
    let rows = prompt.len() + steps.saturating_sub(1);
    let mut tokens = prompt.iter().chain(forced).copied().enumerate();
    if prompt.is_empty() {
        return Err(RequestError::Empty);
    }
    if rows > shape.context as usize {
        return Err(RequestError::TooLong { rows, context: shape.context });
    }
    match tokens.find(|(_, token)| *token >= shape.vocabulary) {
        Some((index, token)) => {
            Err(RequestError::UnknownToken { index, token, vocabulary: shape.vocabulary })
        }
        None => Ok(()),
    }
}
