//! `eval` and `perplexity`: what a compressed cache costs, beside one that keeps every row.
//!
//! All that is compared runs in one [`Comparison`]: a document is computed once, for every policy and
//! every question about it. `weir eval` brings several policies, a compiled model its own.

mod passages;
mod stop;
mod tasks;

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use weir_eval::{Policy, Sandbox, Setting, Spec, Summary};

pub use passages::{PassageOptions, TextFigures};

use self::stop::Stop;
use super::numbers::whole;
use super::options::RuntimeArguments;
use super::say;
use crate::comparison::{Arm, Candidate, Comparison};
use crate::forward::{Forward, StepModel};
use crate::{Model, RuntimeError};

/// What the help says at its end.
pub const EVAL_NOTES: &str = "\
A task is FORMAT:FILE, with options as in FORMAT:FILE?name=value&name=value (%26 stands for & and %0A \
for a line end); docs/evaluation.md lists formats and options. Examples:
  needle:book.txt?length=8000&families=single,multikey
  gsm8k:test.jsonl?limit=200
  perplexity:book.txt?window=2048&prompt=1024
Every policy is compared with a cache that keeps all rows, question by question; intervals hold 95 % \
and count documents, not questions, as independent.";

/// A task, or a text whose tokens are asked for.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// Documents with questions.
    Questions(Spec),
    /// A text.
    Text(PassageOptions),
}

impl FromStr for Task {
    type Err = String;

    fn from_str(text: &str) -> Result<Task, String> {
        match text.strip_prefix("perplexity:") {
            Some(rest) => PassageOptions::parse(rest).map(Task::Text),
            None => text
                .parse()
                .map(Task::Questions)
                .map_err(|error: weir_eval::Error| format!("{error}; there is perplexity as well")),
        }
    }
}

/// Measures what a compressed cache costs.
#[derive(Clone, Debug, Args)]
#[command(after_help = EVAL_NOTES)]
pub struct Eval {
    /// What is asked, as FORMAT:FILE (repeatable)
    #[arg(value_name = "TASK", required = true)]
    pub tasks: Vec<Task>,
    /// Rows of a document with a question and its answer; longer documents lose their middle
    /// [default: what the model allows]
    #[arg(long = "rows", value_name = "N", value_parser = whole(2, u32::MAX), allow_hyphen_values = true, help_heading = None::<&str>)]
    pub rows: Option<u32>,
    /// Write one JSON object
    #[arg(long, help_heading = None::<&str>)]
    pub json: bool,
    /// Draw scores against the size of the cache
    #[arg(long, value_name = "FILE.svg", help_heading = None::<&str>)]
    pub plot: Option<PathBuf>,
    /// Write every answer to this file, a JSON object a line
    #[arg(long, value_name = "FILE.jsonl", help_heading = None::<&str>)]
    pub answers: Option<PathBuf>,
    /// Run the programs that a model writes for livecodebench, with python3, locked down: without
    /// network, environment or files of yours
    #[arg(long, help_heading = None::<&str>)]
    pub run_programs: bool,
    /// How the model runs.
    #[command(flatten)]
    pub runtime: RuntimeArguments,
}

/// First argument of a run of this program that only confines itself and runs a program of a model's.
const CONFINED: &str = "--confined";

/// Answers such a run; to be called first in every program that offers `eval`.
pub fn confined() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    let is_helper = arguments.next().is_some_and(|first| first == CONFINED);
    is_helper.then(|| weir_eval::confined(arguments))
}

/// Measures the perplexity of a text.
#[derive(Clone, Debug, Args)]
pub struct Perplexity {
    /// A text in UTF-8
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Tokens of a passage [default: what the model allows, 2048 at most]
    #[arg(long, value_name = "N", value_parser = whole(2, u32::MAX), allow_hyphen_values = true)]
    pub window: Option<u32>,
    /// How many of them are a prompt that is not asked for [default: half]
    #[arg(long, value_name = "N", value_parser = whole(1, u32::MAX), allow_hyphen_values = true)]
    pub prompt: Option<u32>,
    /// Most passages [default: the whole text]
    #[arg(long, value_name = "N", value_parser = whole(1, usize::MAX), allow_hyphen_values = true)]
    pub limit: Option<usize>,
    /// Write one JSON object
    #[arg(long)]
    pub json: bool,
    /// How the model runs.
    #[command(flatten)]
    pub runtime: RuntimeArguments,
}

/// What is compared, and under which names.
pub struct Candidates {
    /// The model whose tokenizer and end tokens count.
    pub model: Model,
    /// The others; all have the same tokenizer.
    pub others: Vec<Model>,
}

impl Candidates {
    /// A model with its own policy.
    pub fn alone(model: Model) -> Candidates {
        Candidates { model, others: Vec::new() }
    }

    fn models(&self) -> impl Iterator<Item = &Model> {
        std::iter::once(&self.model).chain(&self.others)
    }
}

/// What one run found.
struct Findings {
    summary: Option<Summary>,
    texts: Vec<TextFigures>,
    policies: Vec<Policy>,
    /// Where it was stopped before its end.
    stopped: Option<String>,
}

impl Perplexity {
    /// Runs the command.
    pub fn run(&self, candidates: &Candidates) -> Result<(), RuntimeError> {
        let Perplexity { file, window, prompt, limit, .. } = self.clone();
        let eval = Eval {
            tasks: vec![Task::Text(PassageOptions { file, window, prompt, limit })],
            rows: None,
            json: self.json,
            plot: None,
            answers: None,
            run_programs: false,
            runtime: self.runtime.clone(),
        };
        eval.run(candidates)
    }
}

impl Eval {
    /// Refuses options that no task heeds, which can be seen before there is a model.
    pub fn check(&self) -> Result<(), RuntimeError> {
        if self.tasks.iter().any(|task| matches!(task, Task::Questions(_))) {
            return Ok(());
        }
        let message = match (&self.plot, &self.answers) {
            (Some(_), _) => "--plot draws scores, and no task has any",
            (_, Some(_)) => "--answers keeps what is answered to questions, and no task asks any",
            (None, None) => return Ok(()),
        };
        Err(RuntimeError::Options(message.into()))
    }

    /// Runs the command. If it is stopped, it says what it has measured, and then that.
    pub fn run(&self, candidates: &Candidates) -> Result<(), RuntimeError> {
        candidates.model.need_text()?;
        self.check()?;
        let findings = self.measure(candidates, &Stop::watch()?)?;
        // Figures first: the drawing's place may be one that cannot be written.
        let mut out = std::io::stdout().lock();
        if self.json { findings.write_json(&mut out) } else { findings.write_table(&mut out) }?;
        if let (Some(path), Some(summary)) = (&self.plot, &findings.summary) {
            let title = &candidates.model.facts().name;
            let place = |source| RuntimeError::File { path: path.clone(), source };
            let chart = summary
                .chart(title)
                .map_err(|error| place(std::io::Error::other(error.to_string())))?;
            std::fs::write(path, chart).map_err(place)?;
        }
        findings.stopped.map_or(Ok(()), |place| Err(RuntimeError::Stopped(place)))
    }

    /// Measures without a word on standard output. All files are read before anything is measured: work of
    /// hours is not lost to a mistake in the last of them.
    fn measure(&self, candidates: &Candidates, stop: &Stop) -> Result<Findings, RuntimeError> {
        let mut comparison = self.comparison(candidates)?;
        let policies = policies(&comparison);
        let model = &candidates.model;
        let tokenizer = model.need_tokenizer()?;
        let measure =
            |text: &str| tokenizer.encode(text, false).map_or(usize::MAX, |ids| ids.len());
        // A first token that the model wants takes a row of its own.
        let context = Some(comparison.context() as usize - 1);
        let sandbox = self.sandbox()?;
        let setting = Setting { measure: &measure, context, sandbox: sandbox.as_ref() };
        let (mut passages, mut questions) = (Vec::new(), Vec::new());
        for task in &self.tasks {
            match task {
                Task::Text(options) => passages.push(options.read(model, comparison.context())?),
                Task::Questions(spec) => questions.push((spec, tasks::open(spec, setting)?)),
            }
        }
        let answers = self.answers.as_deref().map(tasks::Answers::create).transpose()?;
        let mut texts = Vec::new();
        for passages in &passages {
            texts.extend(passages.measure(&mut comparison, stop)?);
        }
        let summary = match questions.is_empty() {
            true => None,
            false => {
                let how = tasks::How { answers, stop };
                Some(tasks::measure(model, &mut comparison, &policies, questions, how)?)
            }
        };
        let stopped = stop.place().map(str::to_owned);
        Ok(Findings { summary, texts, policies, stopped })
    }

    /// The permission to run programs, if the user gives it.
    fn sandbox(&self) -> Result<Option<Sandbox>, RuntimeError> {
        if !self.run_programs {
            return Ok(None);
        }
        let program = std::env::current_exe()
            .map_err(|error| RuntimeError::Machine(format!("this program's own file: {error}")))?;
        let sandbox = Sandbox::allow(program, vec![CONFINED.into()])
            .map_err(|error| RuntimeError::Machine(error.to_string()))?;
        if !sandbox.separated() {
            say(format_args!(
                "warning: the kernel gives programs no namespaces of their own; files, memory and \
                 time are limited all the same"
            ));
        }
        Ok(Some(sandbox))
    }

    /// A cache with every row, then the candidates.
    fn comparison(&self, candidates: &Candidates) -> Result<Comparison, RuntimeError> {
        let options = self.runtime.resolve();
        let own = candidates.models().map(|model| model.compiled().header().context).min();
        let own = own.unwrap_or_default();
        let rows = self.rows.unwrap_or(own);
        if rows > own {
            return Err(RuntimeError::Options(format!(
                "--rows {rows}: the model takes at most {own} rows"
            )));
        }
        let first = candidates.model.compiled().clone();
        let dtype = &candidates.model.facts().build.kv_dtype;
        let several = candidates.others.iter().any(|model| model.facts().build.kv_dtype != *dtype);
        let name = |kv: &str, dtype: &str| match several {
            true => format!("{kv} in {dtype}"),
            false => kv.to_owned(),
        };
        let whole = Forward::keeping_all(first, &options, rows)?;
        let mut arms =
            vec![Candidate { name: name("full", dtype), format: dtype.clone(), forward: whole }];
        for model in candidates.models() {
            let build = &model.facts().build;
            let (name, format) = (name(&build.kv, &build.kv_dtype), build.kv_dtype.clone());
            if !arms.iter().any(|arm| arm.name == name) {
                arms.push(Candidate { name, format, forward: model.forward(&options)? });
            }
        }
        Comparison::new(arms, rows)
    }
}

/// What reports say of the arms.
fn policies(comparison: &Comparison) -> Vec<Policy> {
    let policy = |arm: &Arm| Policy {
        kind: arm.name.split([',', ' ']).next().unwrap_or_default().to_owned(),
        name: arm.name.clone(),
        rows: most_rows(arm),
        bytes: arm.slot_bytes(),
    };
    comparison.arms().iter().map(policy).collect()
}

/// Rows of the layers that keep most.
fn most_rows(arm: &Arm) -> u64 {
    let layouts = arm.forward().shape().layouts.iter();
    layouts.map(|layout| layout.rows.into()).max().unwrap_or(0)
}

impl Findings {
    fn write_table(&self, out: &mut dyn Write) -> Result<(), RuntimeError> {
        if let Some(summary) = &self.summary {
            summary.write_table(out)?;
        }
        for text in &self.texts {
            if self.summary.is_some() {
                writeln!(out)?;
            }
            text.write_table(out, &self.policies)?;
        }
        Ok(())
    }

    fn write_json(&self, out: &mut dyn Write) -> Result<(), RuntimeError> {
        let texts: Vec<_> = self.texts.iter().map(|text| text.json(&self.policies)).collect();
        let tasks = self.summary.as_ref().map(Summary::json);
        let found = json!({ "tasks": tasks, "perplexity": texts, "stopped": self.stopped });
        writeln!(out, "{found:#}")?;
        Ok(())
    }
}

/// How far long work is, in one line at a terminal, and now and then in a log.
struct Ticker {
    what: String,
    all: usize,
    said: Option<Instant>,
    is_terminal: bool,
    start: Instant,
}

impl Ticker {
    const AT_TERMINAL: Duration = Duration::from_millis(200);
    const IN_A_LOG: Duration = Duration::from_secs(60);

    fn new(what: impl Into<String>, all: usize) -> Ticker {
        let is_terminal = std::io::stderr().is_terminal();
        Ticker { what: what.into(), all, said: None, is_terminal, start: Instant::now() }
    }

    /// How far it has come.
    fn place(&self, done: usize) -> String {
        format!("{}: {done} of {}", self.what, self.all)
    }

    fn at(&mut self, done: usize) {
        let pause = if self.is_terminal { Self::AT_TERMINAL } else { Self::IN_A_LOG };
        let since = self.said.unwrap_or(self.start).elapsed();
        if since < pause && !(self.is_terminal && self.said.is_none()) {
            return;
        }
        self.said = Some(Instant::now());
        let spent = self.start.elapsed().as_secs_f64();
        let left = spent / done.max(1) as f64 * (self.all - done.min(self.all)) as f64;
        let line = format!("{}, {} left", self.place(done), clock(left));
        if self.is_terminal {
            let _ = write!(std::io::stderr().lock(), "\r{line}\x1b[K");
        } else {
            say(format_args!("{line}"));
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        if self.is_terminal && self.said.is_some() {
            let _ = write!(std::io::stderr().lock(), "{}", line_start());
        }
    }
}

/// What begins a line of its own where a [`Ticker`] may have left one unfinished.
fn line_start() -> &'static str {
    if std::io::stderr().is_terminal() { "\r\x1b[K" } else { "" }
}

/// Seconds as minutes and seconds.
fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}
