//! `generate`: continues prompts.

use std::collections::{HashMap, HashSet};
use std::io::{Read, StdoutLock, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::options::{RuntimeArguments, SamplingArguments, TokenIds, announce};
use crate::forward::StepModel;
use crate::{
    Completion, Engine, Event, FinishReason, Model, Request, RequestId, RuntimeError, Usage,
};

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
        let style = match (self.json, ids.len()) {
            (true, _) => Style::Json,
            (false, 1) => Style::Stream,
            (false, _) => Style::Labelled,
        };
        let mut output = Output::new(style, engine.tokenizer().is_some(), ids);
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
    /// Without a tokenizer, ids stand for text.
    has_text: bool,
    order: Vec<RequestId>,
    answers: HashMap<RequestId, Completion>,
    finished: HashSet<RequestId>,
    /// First answer that has not been written.
    next: usize,
    out: StdoutLock<'static>,
}

impl Output {
    fn new(style: Style, has_text: bool, order: Vec<RequestId>) -> Output {
        Output {
            style,
            has_text,
            order,
            answers: HashMap::new(),
            finished: HashSet::new(),
            next: 0,
            out: std::io::stdout().lock(),
        }
    }

    fn serve<M: StepModel>(&mut self, engine: &mut Engine<M>) -> Result<(), RuntimeError> {
        loop {
            let mut outcome = Ok(());
            let open = engine.step(|id, event| {
                if outcome.is_ok() {
                    outcome = self.take(id, event);
                }
            });
            outcome?;
            self.write_finished()?;
            if !open {
                return Ok(());
            }
        }
    }

    fn take(&mut self, id: RequestId, event: Event<'_>) -> Result<(), RuntimeError> {
        let answer = self.answers.entry(id).or_insert_with(|| Completion {
            ids: Vec::new(),
            text: String::new(),
            reason: FinishReason::Cancelled,
            usage: Usage::default(),
        });
        let (text, token) = match event {
            Event::Token { token, text } => {
                answer.ids.push(token);
                (text, Some(token))
            }
            Event::Finished { text, reason, usage } => {
                answer.reason = reason;
                answer.usage = usage;
                self.finished.insert(id);
                (text, None)
            }
            Event::Failed(fault) => return Err(fault.into()),
        };
        answer.text.push_str(text);
        if self.style == Style::Stream {
            match token {
                Some(token) if !self.has_text => write!(self.out, "{token} ")?,
                _ => self.out.write_all(text.as_bytes())?,
            }
            self.out.flush()?;
        }
        Ok(())
    }

    fn write_finished(&mut self) -> std::io::Result<()> {
        while let Some(id) = self.order.get(self.next).filter(|id| self.finished.contains(id)) {
            self.next += 1;
            if let Some(answer) = self.answers.remove(id) {
                self.write(&answer)?;
            }
        }
        self.out.flush()
    }

    /// Writes a whole answer, or the end of one that has been streamed.
    fn write(&mut self, answer: &Completion) -> std::io::Result<()> {
        match self.style {
            Style::Stream => writeln!(self.out),
            Style::Labelled if self.has_text => {
                writeln!(self.out, "[{}] {}", self.next, answer.text)
            }
            Style::Labelled => {
                let ids: Vec<String> = answer.ids.iter().map(u32::to_string).collect();
                writeln!(self.out, "[{}] {}", self.next, ids.join(" "))
            }
            Style::Json => {
                let object = json!({
                    "text": answer.text,
                    "ids": answer.ids,
                    "finish_reason": answer.reason.name(),
                    "usage": answer.usage,
                });
                writeln!(self.out, "{object}")
            }
        }
    }
}
