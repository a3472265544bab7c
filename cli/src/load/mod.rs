//! `weir load`: requests to an OpenAI-compatible server, and how long their answers take.
//!
//! Rates are measured one after another; a rate begins when the last answer of the one before it is
//! there. One thread does all of it, for server and generator may share a machine.

mod arrivals;
mod chart;
mod client;
mod dataset;
mod draws;
mod events;
mod measure;
mod report;
mod runner;
mod server;
mod trace;

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use weir_runtime::command::{say, whole};

use self::arrivals::{Arrival, Bounds, Random};
use self::client::{Client, Failed};
use self::dataset::Prompts;
use self::draws::Draws;
use self::measure::Figures;
use self::runner::{Form, Runner, Sent};
use self::server::Server;
use crate::failure::Failure;
use crate::progress::Progress;

/// Requests of a rate unless something else bounds them.
const DEFAULT_REQUESTS: usize = 100;

/// Most requests of a rate: their figures are in memory together.
const MOST_REQUESTS: usize = 10_000_000;

/// Most tokens of an answer.
const MOST_TOKENS: u32 = 1 << 24;

/// Most words of a passage.
const MOST_WORDS: usize = 10_000_000;

/// The stream of draws of passages; rates have those behind it.
const PASSAGES: u64 = 0;

/// What the help says at its end.
const NOTES: &str = "\
Times begin when a request is sent, before its connection is made; a token is a chunk with text. \
Percentiles are measured values (nearest rank). docs/load.md says what each figure is. Examples:
  weir load --url http://127.0.0.1:8080 --dataset book.txt --rate 1 --rate 2 --rate 4 --duration 60
  weir load --url http://127.0.0.1:8080 --prompt \"Once upon a time\" --concurrency 8 --requests 200
The exit code is 1 if a request failed or answers that should be alike differ.";

/// Measure a server under load: time to the first token, between tokens, tokens per second.
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct Load {
    /// Server, with or without /v1 at the end; http only
    #[arg(long, value_name = "URL")]
    url: String,

    /// Key that the server wants; others on this machine see it while the program runs
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,

    /// File with the key that the server wants
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Model to ask [default: the first that the server lists]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// What is asked: a conversation, or a text to continue
    #[arg(long, value_enum, value_name = "NAME", default_value = "chat")]
    endpoint: Endpoint,

    /// Write one JSON object per rate, with the names of vLLM's benchmark
    #[arg(long)]
    json: bool,

    /// Draw latencies against rates
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    /// No progress bars
    #[arg(long, short)]
    quiet: bool,

    #[command(flatten)]
    when: When,

    #[command(flatten)]
    what: What,
}

/// Arrivals of requests.
#[derive(Args, Debug)]
#[command(next_help_heading = "When")]
struct When {
    /// Requests of each rate [default: 100, unless --duration or --trace says how many]
    #[arg(long, value_name = "N", value_parser = whole(1, MOST_REQUESTS), allow_hyphen_values = true)]
    requests: Option<usize>,

    /// Seconds in which requests of each rate are sent; their answers are waited for
    #[arg(long, value_name = "SECONDS", value_parser = number, allow_hyphen_values = true)]
    duration: Option<f64>,

    /// Requests per second, at random times that no answer delays (repeatable: one after another), or
    /// inf: as many at once as --concurrency says [default: inf]
    #[arg(long, value_name = "R", value_parser = rate, allow_hyphen_values = true)]
    rate: Vec<f64>,

    /// Requests at once with --rate inf [default: all]
    #[arg(long, value_name = "N", value_parser = whole(1, MOST_REQUESTS), allow_hyphen_values = true)]
    concurrency: Option<usize>,

    /// Shape of the gamma distribution of gaps between requests: 1 is a Poisson process, less comes in
    /// bursts, more evenly
    #[arg(long, value_name = "X", default_value = "1", value_parser = number, allow_hyphen_values = true)]
    burstiness: f64,

    /// Send requests at the times of a file: a JSON object a line, {"at": seconds}, with prompt or
    /// prompt_tokens and max_tokens if they are known
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "concurrency", "burstiness"])]
    trace: Option<PathBuf>,

    /// Requests, one after another, that are sent first and not counted
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole(0, MOST_REQUESTS), allow_hyphen_values = true)]
    warmup: usize,

    /// Seconds after which an answer is given up
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = number, allow_hyphen_values = true)]
    timeout: f64,

    /// Send nothing more when so many requests have failed
    #[arg(long, value_name = "N", value_parser = whole(1, MOST_REQUESTS), allow_hyphen_values = true)]
    stop_after_failures: Option<usize>,

    /// Of random times and passages: the same seed gives the same
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    seed: u64,
}

/// Prompts and answers.
#[derive(Args, Debug)]
#[command(next_help_heading = "What")]
struct What {
    /// Prompt of every request
    #[arg(long, value_name = "TEXT", conflicts_with = "dataset")]
    prompt: Option<String>,

    /// Prompts, in order: JSON objects a line (.jsonl) or an array of them (.json), with prompt,
    /// messages or ShareGPT's conversations; of any other file passages at random places
    #[arg(long, value_name = "FILE")]
    dataset: Option<PathBuf>,

    /// Words of a passage
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole(1, MOST_WORDS), allow_hyphen_values = true)]
    prompt_words: usize,

    /// Most tokens of an answer, unless the file says so
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = whole(1, MOST_TOKENS), allow_hyphen_values = true)]
    max_tokens: u32,

    /// Temperature of answers [default: the server's]
    #[arg(long, value_name = "X", value_parser = temperature, allow_hyphen_values = true)]
    temperature: Option<f64>,

    /// Go on to --max-tokens where a model would end (Weir and vLLM heed it)
    #[arg(long)]
    ignore_eos: bool,

    /// Ask one prompt at temperature 0 and compare the answers
    #[arg(long, requires = "prompt", conflicts_with = "trace")]
    same_answer: bool,
}

/// What a request is.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A conversation, through the model's template
    Chat,
    /// A text to continue, as it is
    Completions,
}

impl Endpoint {
    /// Its name behind the version.
    pub fn path(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat/completions",
            Endpoint::Completions => "completions",
        }
    }
}

/// How requests of a measurement were offered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Offered {
    /// At random times.
    PerSecond {
        /// Mean rate.
        rate: f64,
        /// Shape of the gaps.
        burstiness: f64,
    },
    /// So many at once.
    Closed {
        /// How many.
        concurrency: usize,
    },
    /// All at once.
    Unlimited,
    /// At recorded times.
    Trace,
}

impl Offered {
    /// Requests per second, if that is how they were offered.
    pub fn rate(self) -> Option<f64> {
        match self {
            Offered::PerSecond { rate, .. } => Some(rate),
            _ => None,
        }
    }

    /// Words for people.
    pub fn title(self) -> String {
        match self {
            Offered::PerSecond { rate, .. } => format!("rate {rate}/s"),
            Offered::Closed { concurrency } => format!("{concurrency} at once"),
            Offered::Unlimited => "all at once".to_owned(),
            Offered::Trace => "trace".to_owned(),
        }
    }
}

/// As vLLM's benchmark names them.
impl Display for Offered {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Offered::PerSecond { rate, .. } => write!(f, "{rate}"),
            Offered::Closed { .. } | Offered::Unlimited => f.write_str("inf"),
            Offered::Trace => f.write_str("trace"),
        }
    }
}

/// What a whole run has measured.
#[derive(Debug)]
struct Measured {
    model: String,
    figures: Vec<Figures>,
    /// How often each answer was given, if they are to be compared.
    texts: BTreeMap<String, usize>,
}

impl Load {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let measured = self.measure(&mut |figures, model| {
            if self.json {
                writeln!(out, "{}", figures.json(model))?;
            } else {
                write!(out, "{}", figures.table())?;
            }
            figures.warnings().iter().for_each(|line| say(format_args!("warning: {line}")));
            Ok(out.flush()?)
        })?;
        if let Some(plot) = &self.plot {
            let drawing =
                chart::draw(&measured.figures, &measured.model).map_err(Failure::other)?;
            let place = |error| Failure::other(format!("{}: {error}", plot.display()));
            std::fs::write(plot, drawing).map_err(place)?;
        }
        measured.verdict()
    }

    /// Measures rate after rate and tells the figures of each when they are there.
    fn measure(
        &self,
        tell: &mut dyn FnMut(&Figures, &str) -> Result<(), Failure>,
    ) -> Result<Measured, Failure> {
        self.check()?;
        let client = Arc::new(Client {
            server: Server::find(&self.url, self.key()?.as_deref())?,
            timeout: Duration::from_secs_f64(self.when.timeout),
            keep_text: self.what.same_answer,
        });
        let mut prompts = self.prompts()?;
        let arrivals = self.recorded(&prompts)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(Failure::other)?;
        let url = |failed: Failed| {
            Failure::other(format!("{}: {}: {}", self.url, failed.kind, failed.message))
        };
        let model = match &self.model {
            Some(model) => model.clone(),
            None => runtime.block_on(client.first_model()).map_err(url)?,
        };
        let form = self.form(client, &model);
        let progress = Progress::new(self.quiet);
        if self.when.warmup > 0 {
            let work = progress.start_count("warm-up", Some(self.when.warmup as u64));
            let bounds = Bounds { requests: Some(self.when.warmup), seconds: None };
            let sent = Runner::new(&form, &mut prompts, &work, 1).closed(1, bounds);
            let sent = runtime.block_on(sent);
            // Nothing was measured yet, so a server that does not answer is a reason to end.
            sent.outcomes
                .into_iter()
                .try_for_each(|outcome| outcome.answer.map(drop))
                .map_err(url)?;
        }
        let mut measured = Measured { model, figures: Vec::new(), texts: BTreeMap::new() };
        let mut failures_left = self.when.stop_after_failures.unwrap_or(usize::MAX);
        for (index, offered) in self.offers().into_iter().enumerate() {
            if failures_left == 0 {
                break;
            }
            let work = progress.start_count("requests", self.count(offered, &arrivals));
            let runner = Runner::new(&form, &mut prompts, &work, failures_left);
            let stream = PASSAGES + 1 + index as u64;
            let sent = runtime.block_on(self.send(runner, offered, &arrivals, stream));
            drop(work);
            measured.keep_texts(&sent);
            let figures = Figures::new(offered, sent);
            failures_left = failures_left.saturating_sub(figures.failed());
            tell(&figures, &measured.model)?;
            measured.figures.push(figures);
        }
        if let Some(count) = prompts.count().filter(|count| prompts.taken() > *count) {
            say(format_args!(
                "warning: the {count} prompts were asked {:.1} times over: a server that keeps what it \
                 has computed answers sooner then",
                prompts.taken() as f64 / count as f64
            ));
        }
        Ok(measured)
    }

    /// Refuses what can be seen to be wrong before anything is read or sent.
    fn check(&self) -> Result<(), Failure> {
        let (when, what) = (&self.when, &self.what);
        let has_prompts = what.prompt.is_some() || what.dataset.is_some();
        let offers = self.offers();
        let finite = offers.iter().any(|offered| offered.rate().is_some());
        let closed = offers.iter().any(|offered| matches!(offered, Offered::Closed { .. }));
        let endless = offers.contains(&Offered::Unlimited) && self.bounds().requests.is_none();
        let wrong = if !has_prompts && when.trace.is_none() {
            "give --prompt or --dataset"
        } else if !has_prompts && when.warmup > 0 {
            "--warmup needs --prompt or --dataset"
        } else if when.concurrency.is_some() && !closed {
            "--concurrency belongs to --rate inf: at other rates no answer delays a request"
        } else if endless {
            "--rate inf with --duration needs --concurrency or --requests"
        } else if self.plot.is_some() && !finite {
            "--plot draws latencies against rates: give --rate, several times at best"
        } else if what.same_answer && what.temperature.is_some_and(|temperature| temperature > 0.0)
        {
            "--same-answer needs --temperature 0"
        } else {
            return Ok(());
        };
        Err(Failure::usage(wrong))
    }

    /// The server's key.
    fn key(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.api_key_file else { return Ok(self.api_key.clone()) };
        let place = |error| Failure::usage(format!("--api-key-file {}: {error}", path.display()));
        let key = std::fs::read_to_string(path).map_err(place)?;
        Ok(Some(key.trim().to_owned()))
    }

    fn prompts(&self) -> Result<Prompts, Failure> {
        let draws = Draws::new(self.when.seed, PASSAGES);
        match &self.what.dataset {
            Some(path) => Prompts::read(path, self.endpoint, self.what.prompt_words, draws),
            // Without any, the trace has them all.
            None => Ok(Prompts::same(self.what.prompt.clone().unwrap_or_default())),
        }
    }

    /// The arrivals of the trace, within the bounds; none without a trace.
    fn recorded(&self, prompts: &Prompts) -> Result<Vec<Arrival>, Failure> {
        let Some(path) = &self.when.trace else { return Ok(Vec::new()) };
        let has_prompts = self.what.prompt.is_some() || self.what.dataset.is_some();
        let mut arrivals = trace::read(path, has_prompts, |tokens| prompts.check_tokens(tokens))?;
        let bounds = Bounds { requests: self.when.requests, seconds: self.when.duration };
        let kept =
            arrivals.iter().enumerate().take_while(|(sent, one)| bounds.allow(*sent, one.at));
        arrivals.truncate(kept.count());
        Ok(arrivals)
    }

    fn form(&self, client: Arc<Client>, model: &str) -> Form {
        let mut fields = Map::new();
        fields.insert("model".to_owned(), model.into());
        fields.insert("stream".to_owned(), true.into());
        fields.insert("stream_options".to_owned(), json!({"include_usage": true}));
        let temperature = if self.what.same_answer { Some(0.0) } else { self.what.temperature };
        fields.extend(temperature.map(|value| ("temperature".to_owned(), Value::from(value))));
        if self.what.ignore_eos {
            fields.insert("ignore_eos".to_owned(), true.into());
        }
        Form { client, endpoint: self.endpoint, fields, max_tokens: self.what.max_tokens }
    }

    /// What is measured, in order.
    fn offers(&self) -> Vec<Offered> {
        if self.when.trace.is_some() {
            return vec![Offered::Trace];
        }
        let unlimited = match self.when.concurrency {
            Some(concurrency) => Offered::Closed { concurrency },
            None => Offered::Unlimited,
        };
        if self.when.rate.is_empty() {
            return vec![unlimited];
        }
        let burstiness = self.when.burstiness;
        let offer = |rate: &f64| match rate.is_finite() {
            true => Offered::PerSecond { rate: *rate, burstiness },
            false => unlimited,
        };
        self.when.rate.iter().map(offer).collect()
    }

    fn bounds(&self) -> Bounds {
        let When { requests, duration, .. } = self.when;
        let default = duration.is_none().then_some(DEFAULT_REQUESTS);
        Bounds { requests: requests.or(default), seconds: duration }
    }

    /// How many requests there will be, if that is known.
    fn count(&self, offered: Offered, recorded: &[Arrival]) -> Option<u64> {
        match offered {
            Offered::Trace => Some(recorded.len() as u64),
            _ => self.bounds().requests.filter(|_| self.when.duration.is_none()).map(|n| n as u64),
        }
    }

    /// Sends the requests of one rate, drawing their times from a stream of their own.
    async fn send(
        &self,
        runner: Runner<'_>,
        offered: Offered,
        recorded: &[Arrival],
        stream: u64,
    ) -> Sent {
        let bounds = self.bounds();
        match offered {
            Offered::PerSecond { rate, burstiness } => {
                let draws = Draws::new(self.when.seed, stream);
                runner.open(Random::new(rate, burstiness, bounds, draws)).await
            }
            Offered::Trace => runner.open(recorded.iter().cloned()).await,
            Offered::Closed { concurrency } => runner.closed(concurrency, bounds).await,
            Offered::Unlimited => runner.closed(usize::MAX, bounds).await,
        }
    }
}

impl Measured {
    /// Counts the texts of answers, where they are there to be compared.
    fn keep_texts(&mut self, sent: &Sent) {
        let answers = sent.outcomes.iter().filter_map(|outcome| outcome.answer.as_ref().ok());
        for text in answers.filter_map(|answer| answer.text.as_ref()) {
            *self.texts.entry(text.clone()).or_default() += 1;
        }
    }

    /// A failure if not everything went as it should.
    fn verdict(&self) -> Result<(), Failure> {
        let sum = |of: fn(&Figures) -> usize| self.figures.iter().map(of).sum::<usize>();
        let (failed, sent) = (sum(Figures::failed), sum(|figures| figures.sent));
        let mut wrong = Vec::new();
        if failed > 0 {
            wrong.push(format!("{failed} of {sent} requests failed"));
        }
        if self.texts.len() > 1 {
            let all: usize = self.texts.values().sum();
            let alike = self.texts.values().max().copied().unwrap_or_default();
            wrong.push(format!(
                "{} of {all} answers differ from the most frequent one; there are {} texts",
                all - alike,
                self.texts.len()
            ));
        }
        if wrong.is_empty() { Ok(()) } else { Err(Failure::other(wrong.join(", and "))) }
    }
}

/// Reads a number above 0. The range keeps times within what clocks hold.
fn number(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (1e-3..=1e9).contains(number));
    number.ok_or_else(|| "it must be a number from 0.001 to 1000000000".to_owned())
}

/// Reads a rate, of which `inf` is one.
fn rate(text: &str) -> Result<f64, String> {
    if text == "inf" {
        return Ok(f64::INFINITY);
    }
    number(text).map_err(|reason| format!("{reason}, or inf"))
}

fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "it must be a number from 0 to 100".to_owned())
}

#[cfg(test)]
mod tests;
