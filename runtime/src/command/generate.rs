//! `generate`: continues prompts.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::options::{RuntimeArguments, SamplingArguments, TokenIds, announce};
use crate::forward::StepModel;
use crate::{Completion, Engine, Event, Model, Request, RequestId, RuntimeError};

/// Continues one or several prompts, all at once.
///
/// Tokens are chosen greedily unless the model's generation_config.json says do_sample or
/// --temperature is given. One prompt's text is written as it grows; several are written in the
/// order --prompt, --prompt-file, -, --ids, each under its number.
#[derive(Clone, Debug, Args)]
pub struct Generate {
    /// A prompt (repeatable)
    #[arg(long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// A file that is a prompt, - for standard input (repeatable)
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Vec<PathBuf>,
    /// Read a prompt from standard input
    #[arg(value_name = "-", value_parser = ["-"])]
    pub stdin: Option<String>,
    /// A prompt as token ids with commas between them (repeatable)
    #[arg(long, value_name = "IDS")]
    pub ids: Vec<TokenIds>,
    /// Write one JSON object per prompt: text, ids, finish_reason, usage
    #[arg(long)]
    pub json: bool,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArguments,
    /// How the model runs.
    #[command(flatten)]
    pub runtime: RuntimeArguments,
}

impl Generate {
    /// Runs the command.
    pub fn run(&self, model: &Model) -> Result<(), RuntimeError> {
        let prompts = self.read_prompts(model)?;
        if prompts.is_empty() {
            return Err(RuntimeError::Options(
                "nothing to continue: give --prompt, --prompt-file, --ids or -".into(),
            ));
        }
        let options = self.runtime.resolve();
        announce(model, &options)?;
        let mut engine = model.engine(&options)?;
        let sampling = self.sampling.resolve(model);
        let requests = prompts.into_iter().map(|prompt| Request {
            prompt,
            max_tokens: self.sampling.max_tokens,
            sampling: sampling.clone(),
            stop: self.sampling.stop.clone(),
            ignore_eos: self.sampling.ignore_eos,
            ..Request::default()
        });
        let ids = requests
            .map(|request| engine.submit(request))
            .collect::<Result<Vec<RequestId>, _>>()?;
        let mut output = Output {
            style: match (self.json, ids.len()) {
                (true, _) => Style::Json,
                (false, 1) => Style::Stream,
                (false, _) => Style::Labelled,
            },
            has_text: engine.tokenizer().is_some(),
            answers: HashMap::new(),
            next: 0,
            ids,
        };
        output.serve(&mut engine)
    }

    fn read_prompts(&self, model: &Model) -> Result<Vec<Vec<u32>>, RuntimeError> {
        let mut prompts = Vec::new();
        for prompt in &self.prompt {
            prompts.push(model.encode(prompt)?);
        }
        let stdin = self.stdin.as_deref().map(Path::new);
        for file in self.prompt_file.iter().map(PathBuf::as_path).chain(stdin) {
            prompts.push(model.encode(&read_prompt(file)?)?);
        }
        prompts.extend(self.ids.iter().map(|ids| ids.0.clone()));
        Ok(prompts)
    }
}

fn read_prompt(file: &Path) -> Result<String, RuntimeError> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text)?;
        return Ok(text);
    }
    std::fs::read_to_string(file)
        .map_err(|source| RuntimeError::File { path: file.to_owned(), source })
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    Json,
    Stream,
    Labelled,
}

/// Writes answers in the order of their prompts.
struct Output {
    style: Style,
    has_text: bool,
    ids: Vec<RequestId>,
    answers: HashMap<RequestId, (Vec<u32>, String)>,
    /// First answer that has not been written.
    next: usize,
}

impl Output {
    fn serve<M: StepModel>(&mut self, engine: &mut Engine<M>) -> Result<(), RuntimeError> {
        let mut finished: HashMap<RequestId, Completion> = HashMap::new();
        let mut failure: Option<RuntimeError> = None;
        let mut out = std::io::stdout().lock();
        let mut open = true;
        while open && failure.is_none() {
            open = engine.step(|id, event| {
                let answer = self.answers.entry(id).or_default();
                let piece = match event {
                    Event::Token { token, text } => {
                        answer.0.push(token);
                        if self.has_text { text.to_owned() } else { format!("{token} ") }
                    }
                    Event::Finished { text, reason, usage } => {
                        let (ids, mut whole) = std::mem::take(answer);
                        whole.push_str(text);
                        finished.insert(id, Completion { ids, text: whole, reason, usage });
                        text.to_owned()
                    }
                    Event::Failed(fault) => {
                        failure = Some(fault.into());
                        return;
                    }
                };
                if let Some(answer) = self.answers.get_mut(&id)
                    && !finished.contains_key(&id)
                    && self.has_text
                {
                    answer.1.push_str(&piece);
                }
                if self.style == Style::Stream && !piece.is_empty() {
                    let written = out.write_all(piece.as_bytes()).and_then(|()| out.flush());
                    failure = failure.take().or(written.err().map(RuntimeError::from));
                }
            });
            while let Some(completion) = self.ids.get(self.next).and_then(|id| finished.remove(id))
            {
                self.next += 1;
                self.write(&mut out, &completion)?;
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(out.flush()?),
        }
    }

    /// Writes a whole answer, or the end of one that has been streamed.
    fn write(&self, out: &mut impl Write, completion: &Completion) -> std::io::Result<()> {
        match self.style {
            Style::Stream => writeln!(out),
            Style::Labelled if self.has_text => {
                writeln!(out, "[{}] {}", self.next, completion.text)
            }
            Style::Labelled => {
                let ids: Vec<String> = completion.ids.iter().map(u32::to_string).collect();
                writeln!(out, "[{}] {}", self.next, ids.join(" "))
            }
            Style::Json => {
                let object = json!({
                    "text": completion.text,
                    "ids": completion.ids,
                    "finish_reason": completion.reason.name(),
                    "usage": completion.usage,
                });
                writeln!(out, "{object}")
            }
        }
    }
}
