//! Options of `weir load`, and what they come to.

use std::fmt::Display;
use std::path::PathBuf;

use clap::Args;
use weir_runtime::command::whole;

use super::PASSAGES;
use crate::failure::Failure;
use crate::places::{Input, refuse_overwriting};
use crate::traffic::Draws;
use crate::traffic::arrivals::Arrival;
use crate::traffic::dataset::{Endpoint, Prompts};
use crate::traffic::offer::{MOST_REQUESTS, MOST_TOKENS, Offer, number};

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
    pub(super) offer: Offer,

    #[command(flatten)]
    pub(super) when: When,

    #[command(flatten)]
    pub(super) what: What,
}

/// What is sent beside that which is measured, and when it is given up.
#[derive(Args, Debug)]
#[command(next_help_heading = "When")]
pub(super) struct When {
    /// Requests, one after another, that are sent first and not counted
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = whole(0, MOST_REQUESTS), allow_hyphen_values = true)]
    pub(super) warmup: usize,

    /// Seconds after which an answer is given up
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = number, allow_hyphen_values = true)]
    pub(super) timeout: f64,

    /// Send nothing more when so many requests have failed
    #[arg(long, value_name = "N", value_parser = whole(1, MOST_REQUESTS), allow_hyphen_values = true)]
    pub(super) stop_after_failures: Option<usize>,
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

impl Load {
    /// Refuses what can be seen to be wrong before anything is read or sent.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let (when, what) = (&self.when, &self.what);
        let has_prompts = what.prompt.is_some() || what.dataset.is_some();
        let wrong = if !has_prompts && self.offer.trace.is_none() {
            "give --prompt or --dataset"
        } else if !has_prompts && when.warmup > 0 {
            "--warmup needs --prompt or --dataset"
        } else if what.same_answer && what.temperature.is_some_and(|temperature| temperature > 0.0)
        {
            "--same-answer needs --temperature 0"
        } else {
            self.offer.check(self.plot.is_some())?;
            return self.check_plot();
        };
        Err(Failure::usage(wrong))
    }

    fn check_plot(&self) -> Result<(), Failure> {
        let Some(plot) = &self.plot else { return Ok(()) };
        let files = [
            ("the file of --dataset", &self.what.dataset),
            ("the file of --api-key-file", &self.api_key_file),
        ];
        let inputs = files
            .into_iter()
            .filter_map(|(what, path)| path.as_deref().map(|path| Input { what, path }));
        refuse_overwriting("--plot", plot, &inputs.collect::<Vec<_>>())
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
        let draws = Draws::new(self.offer.seed, PASSAGES);
        match &self.what.dataset {
            Some(path) => Prompts::read(path, self.endpoint, self.what.prompt_words, draws),
            // Without any, the trace has them all.
            None => Ok(Prompts::same(self.what.prompt.clone().unwrap_or_default())),
        }
    }

    /// The arrivals of the trace, within the bounds; none without a trace.
    pub(super) fn recorded(&self, prompts: &Prompts) -> Result<Vec<Arrival>, Failure> {
        let has_prompts = self.what.prompt.is_some() || self.what.dataset.is_some();
        self.offer.recorded(has_prompts, |tokens| prompts.check_tokens(tokens))
    }
}

fn temperature(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "it must be a number from 0 to 100".to_owned())
}
