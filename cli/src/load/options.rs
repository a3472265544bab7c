//! Options of `weir load`, and what they come to.

use std::fmt::{Display, Formatter};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use weir_runtime::command::whole;

use super::arrivals::{Arrival, Bounds};
use super::dataset::Prompts;
use super::draws::Draws;
use super::{PASSAGES, trace};
use crate::failure::Failure;

/// Requests of a rate unless something else bounds them.
const DEFAULT_REQUESTS: usize = 100;

/// Most requests of a rate: their figures are in memory together.
const MOST_REQUESTS: usize = 10_000_000;

/// Most tokens of an answer.
const MOST_TOKENS: u32 = 1 << 24;

/// Most words of a passage.
const MOST_WORDS: usize = 10_000_000;

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
    pub(super) url: String,

    /// Key that the server wants; others on this machine see it on the command line
    #[arg(long, value_name = "KEY", env = "WEIR_API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// File with nothing but the key that the server wants; it goes before --api-key
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// Model to ask [default: the first that the server lists]
    #[arg(long, value_name = "NAME")]
    pub(super) model: Option<String>,

    /// What is asked: a conversation, or a text to continue
    #[arg(long, value_enum, value_name = "NAME", default_value = "chat")]
    pub(super) endpoint: Endpoint,

    /// Write one JSON object per rate, with the names of vLLM's benchmark
    #[arg(long)]
    pub(super) json: bool,

    /// Draw latencies against rates
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,

    /// No progress bars
    #[arg(long, short)]
    pub(super) quiet: bool,

    #[command(flatten)]
    pub(super) when: When,

    #[command(flatten)]
    pub(super) what: What,
}

/// Arrivals of requests.
#[derive(Args, Debug)]
#[command(next_help_heading = "When")]
pub(super) struct When {
    /// Requests of each rate [default: 100, unless --duration or --trace says how many]
    #[arg(long, value_name = "N", value_parser = whole(1, MOST_REQUESTS), allow_hyphen_values = true)]
    requests: Option<usize>,

    /// Seconds in which requests of each rate are sent; their answers are waited for
    #[arg(long, value_name = "SECONDS", value_parser = number, allow_hyphen_values = true)]
    pub(super) duration: Option<f64>,

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
    pub(super) warmup: usize,

    /// Seconds after which an answer is given up
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = number, allow_hyphen_values = true)]
    pub(super) timeout: f64,

    /// Send nothing more when so many requests have failed
    #[arg(long, value_name = "N", value_parser = whole(1, MOST_REQUESTS), allow_hyphen_values = true)]
    pub(super) stop_after_failures: Option<usize>,

    /// Of random times and passages: the same seed gives the same
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    pub(super) seed: u64,
}

/// Prompts and answers.
#[derive(Args, Debug)]
#[command(next_help_heading = "What")]
pub(super) struct What {
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
    pub(super) max_tokens: u32,

    /// Temperature of answers [default: the server's]
    #[arg(long, value_name = "X", value_parser = temperature, allow_hyphen_values = true)]
    pub(super) temperature: Option<f64>,

    /// Go on to --max-tokens where a model would end (Weir and vLLM heed it)
    #[arg(long)]
    pub(super) ignore_eos: bool,

    /// Ask one prompt at temperature 0 and compare the answers
    #[arg(long, requires = "prompt", conflicts_with = "trace")]
    pub(super) same_answer: bool,
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

impl Load {
    /// Refuses what can be seen to be wrong before anything is read or sent.
    pub(super) fn check(&self) -> Result<(), Failure> {
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
    pub(super) fn key(&self) -> Result<Option<String>, Failure> {
        // A variable of the environment that is set to nothing is no key.
        let key = self.api_key.clone().filter(|key| !key.is_empty());
        let Some(path) = &self.api_key_file else { return Ok(key) };
        let place = |reason: &dyn Display| {
            Failure::usage(format!("--api-key-file {}: {reason}", path.display()))
        };
        let text = std::fs::read_to_string(path).map_err(|error| place(&error))?;
        let mut words = text.split_whitespace();
        match (words.next(), words.next()) {
            (Some(key), None) => Ok(Some(key.to_owned())),
            _ => Err(place(&"there must be one key in it and nothing else")),
        }
    }

    /// Where prompts come from.
    pub(super) fn prompts(&self) -> Result<Prompts, Failure> {
        let draws = Draws::new(self.when.seed, PASSAGES);
        match &self.what.dataset {
            Some(path) => Prompts::read(path, self.endpoint, self.what.prompt_words, draws),
            // Without any, the trace has them all.
            None => Ok(Prompts::same(self.what.prompt.clone().unwrap_or_default())),
        }
    }

    /// The arrivals of the trace, within the bounds; none without a trace.
    pub(super) fn recorded(&self, prompts: &Prompts) -> Result<Vec<Arrival>, Failure> {
        let Some(path) = &self.when.trace else { return Ok(Vec::new()) };
        let has_prompts = self.what.prompt.is_some() || self.what.dataset.is_some();
        let mut arrivals = trace::read(path, has_prompts, |tokens| prompts.check_tokens(tokens))?;
        let bounds = Bounds { requests: self.when.requests, seconds: self.when.duration };
        let kept =
            arrivals.iter().enumerate().take_while(|(sent, one)| bounds.allow(*sent, one.at));
        arrivals.truncate(kept.count());
        Ok(arrivals)
    }

    /// What is measured, in order.
    pub(super) fn offers(&self) -> Vec<Offered> {
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

    /// How much is sent at each rate.
    pub(super) fn bounds(&self) -> Bounds {
        let When { requests, duration, .. } = self.when;
        let default = duration.is_none().then_some(DEFAULT_REQUESTS);
        Bounds { requests: requests.or(default), seconds: duration }
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
