//! `generate`: continues prompts.

use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read, StdoutLock, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use super::numbers::whole;
use super::options::{
    BlockArguments, DraftArguments, MAX_SAMPLES, RuntimeArguments, SamplingArguments, TokenIds,
    announce,
};
use crate::forward::StepModel;
use crate::{
    Completion, Engine, Event, FinishReason, Model, Request, RequestId, RuntimeError, Usage,
};

/// What the help says at its end.
const NOTES: &str = "\
Tokens are chosen greedily, unless the model's generation_config.json says do_sample or --temperature \
is given. The text of one prompt is written as it grows; several prompts are decoded together and \
written in the order --prompt, --prompt-file, -, --ids, each under its number: [2] is the second \
prompt's, and [2.3] the third of its --samples. Sample N is what --seed with N - 1 more gives by itself; \
a prompt is computed once for as many of its samples as there are slots.";

/// Continues one or several prompts, all at once.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Prompts", after_help = NOTES)]
pub struct Generate {
    /// A prompt (repeatable)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub prompt: Vec<String>,
    /// A file that is a prompt, without its last line end; - for standard input (repeatable)
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Vec<PathBuf>,
    /// Read a prompt from standard input
    #[arg(
        value_name = "-",
        value_parser = ["-"],
        hide_possible_values = true,
        help_heading = None::<&str>
    )]
    pub stdin: Option<String>,
    /// A prompt as token ids with commas between them (repeatable)
    #[arg(long, value_name = "IDS", allow_hyphen_values = true)]
    pub ids: Vec<TokenIds>,
    /// Answers to each prompt, with one seed after the other from --seed on [default: 1]
    #[arg(long, value_name = "N", value_parser = whole(1, MAX_SAMPLES), allow_hyphen_values = true)]
    pub samples: Option<u32>,
    /// Write one JSON object per answer: text, ids, finish_reason, usage; with --samples also prompt and
    /// sample, which count from 1
    #[arg(long, help_heading = None::<&str>)]
    pub json: bool,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArguments,
    /// How tokens are guessed.
    #[command(flatten)]
    pub drafting: DraftArguments,
    /// How many prompts there is room for.
    #[command(flatten)]
    pub blocks: BlockArguments,
    /// How the model runs.
    #[command(flatten)]
    pub runtime: RuntimeArguments,
}

impl Generate {
    /// Refuses what can be seen to be wrong before there is a model.
    pub fn check(&self) -> Result<(), RuntimeError> {
        if self.prompt.is_empty() && self.ids.is_empty() && self.files().next().is_none() {
            return Err(RuntimeError::Options(
                "nothing to continue: give --prompt, --prompt-file, --ids or -".into(),
            ));
        }
        let (inputs, files): (Vec<&Path>, Vec<&Path>) =
            self.files().partition(|file| is_stdin(file));
        if inputs.len() > 1 {
            return Err(RuntimeError::Options(
                "standard input can be one prompt only, but - is given more than once".into(),
            ));
        }
        for file in files {
            let place = |source| RuntimeError::File { path: file.to_owned(), source };
            if std::fs::metadata(file).map_err(place)?.is_dir() {
                return Err(place(ErrorKind::IsADirectory.into()));
            }
        }
        Ok(())
    }

    /// Runs the command.
    pub fn run(&self, model: &Model) -> Result<(), RuntimeError> {
        model.need_text()?;
        self.check()?;
        let options = self.blocks.over(self.drafting.over(self.runtime.resolve()));
        let prompts = self.read_prompts(model)?;
        let sampling = self.sampling.resolve(model);
        let mut engine = model.engine(&options)?;
        let several = prompts.len() > 1;
        let mut ids = Vec::with_capacity(prompts.len());
        for (index, prompt) in prompts.into_iter().enumerate() {
            let request = Request {
                prompt,
                goes_on: true,
                max_tokens: self.sampling.max_tokens,
                sampling: sampling.clone(),
                stop: self.sampling.stop.clone(),
                ignore_eos: self.sampling.ignore_eos,
                ..Request::default()
            };
            let samples = engine.submit_samples(request, self.samples.unwrap_or(1));
            let samples = samples.map_err(|reason| match several {
                true => RuntimeError::Prompt { number: index + 1, reason },
                false => reason.into(),
            })?;
            let place = |sample| Place { prompt: index + 1, sample };
            ids.extend(samples.into_iter().zip((1..).map(place)));
        }
        // Nothing is wrong with what was asked for, and nothing has been computed yet.
        announce(model, &options)?;
        let style = match (self.json, ids.len()) {
            (true, _) => Style::Json { with_place: self.samples.is_some() },
            (false, 1) => Style::Stream,
            (false, _) => Style::Labelled { with_sample: self.samples.is_some_and(|all| all > 1) },
        };
        let mut output = Output::new(style, engine.tokenizer().is_some(), ids);
        output.serve(&mut engine)?;
        self.drafting.announce(output.usage);
        Ok(())
    }

    /// Prompts that are files, standard input among them.
    fn files(&self) -> impl Iterator<Item = &Path> {
        self.prompt_file.iter().map(PathBuf::as_path).chain(self.stdin.as_deref().map(Path::new))
    }

    fn read_prompts(&self, model: &Model) -> Result<Vec<Vec<u32>>, RuntimeError> {
        let mut prompts = Vec::new();
        for prompt in &self.prompt {
            prompts.push(model.encode(prompt)?);
        }
        for file in self.files() {
            prompts.push(model.encode(&read_prompt(file)?)?);
        }
        prompts.extend(self.ids.iter().map(|ids| ids.0.clone()));
        Ok(prompts)
    }
}

fn is_stdin(file: &Path) -> bool {
    file == Path::new("-")
}

/// A prompt without its last line end, which editors and `echo` add: a model would begin a new line.
fn read_prompt(file: &Path) -> Result<String, RuntimeError> {
    let place = |source| match is_stdin(file) {
        true => RuntimeError::Input(source),
        false => RuntimeError::File { path: file.to_owned(), source },
    };
    let mut bytes = Vec::new();
    let read = match is_stdin(file) {
        true => std::io::stdin().lock().read_to_end(&mut bytes),
        false => std::fs::File::open(file).and_then(|mut file| file.read_to_end(&mut bytes)),
    };
    read.map_err(place)?;
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let byte = error.utf8_error().valid_up_to();
        let reason = format!("byte {byte} is not UTF-8 text; a prompt must be UTF-8");
        place(std::io::Error::new(ErrorKind::InvalidData, reason))
    })?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    Ok(text)
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    Json { with_place: bool },
    Stream,
    Labelled { with_sample: bool },
}

/// Which answer to which prompt, from 1.
#[derive(Clone, Copy)]
struct Place {
    prompt: usize,
    sample: u32,
}

/// Writes answers in the order of their prompts.
struct Output {
    style: Style,
    /// Without a tokenizer, ids stand for text.
    has_text: bool,
    order: Vec<(RequestId, Place)>,
    answers: HashMap<RequestId, Completion>,
    finished: HashSet<RequestId>,
    /// First answer that has not been written.
    next: usize,
    /// Counts of those that are finished.
    usage: Vec<Usage>,
    out: StdoutLock<'static>,
}

impl Output {
    fn new(style: Style, has_text: bool, order: Vec<(RequestId, Place)>) -> Output {
        Output {
            style,
            has_text,
            order,
            answers: HashMap::new(),
            finished: HashSet::new(),
            next: 0,
            usage: Vec::new(),
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
            stop: None,
            usage: Usage::default(),
        });
        let (text, token) = match event {
            Event::Token { token, text, .. } => {
                answer.ids.push(token);
                (text, Some(token))
            }
            Event::Finished { text, reason, stop, usage } => {
                answer.reason = reason;
                answer.stop = stop;
                answer.usage = usage;
                self.usage.push(usage);
                self.finished.insert(id);
                (text, None)
            }
            Event::Failed(fault) => return Err(fault.into()),
            Event::Embedding { .. } => return Ok(()),
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
        while let Some((id, place)) = self.order.get(self.next).copied()
            && self.finished.contains(&id)
        {
            self.next += 1;
            if let Some(answer) = self.answers.remove(&id) {
                self.write(&answer, place)?;
            }
        }
        self.out.flush()
    }

    /// Writes a whole answer, or the end of one that has been streamed.
    fn write(&mut self, answer: &Completion, place: Place) -> std::io::Result<()> {
        let Place { prompt, sample } = place;
        match self.style {
            Style::Stream => writeln!(self.out),
            Style::Labelled { with_sample } => {
                let label = match with_sample {
                    true => format!("{prompt}.{sample}"),
                    false => prompt.to_string(),
                };
                if self.has_text {
                    return writeln!(self.out, "[{label}] {}", answer.text);
                }
                let ids: Vec<String> = answer.ids.iter().map(u32::to_string).collect();
                writeln!(self.out, "[{label}] {}", ids.join(" "))
            }
            Style::Json { with_place } => {
                let mut object = json!({
                    "text": answer.text,
                    "ids": answer.ids,
                    "finish_reason": answer.reason.name(),
                    "usage": answer.usage,
                });
                if with_place {
                    object["prompt"] = prompt.into();
                    object["sample"] = sample.into();
                }
                writeln!(self.out, "{object}")
            }
        }
    }
}
