//! `weir simulate`: what a server would do under load, from the times of its steps.
//!
//! The same arrivals as those of `weir load` with the same seed meet the scheduler that serves, whose
//! steps take what a model of step times says; the same figures come out, and how busy the server was.

mod fit;
mod lengths;
mod report;
mod server;
mod source;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use weir_runtime::command::bench::steps::StepTimes;
use weir_runtime::command::{MAX_SLOTS, say, whole};
use weir_runtime::scheduler::QueueLimit;

use self::fit::{FitError, StepCosts, held_out_errors};
use self::lengths::Lengths;
use self::report::Prediction;
use self::server::Server;
use self::source::{Sizes, Source};
use crate::failure::Failure;
use crate::places::{Input, refuse_overwriting};
use crate::traffic::arrivals::Random;
use crate::traffic::dataset::{Endpoint, Prompts};
use crate::traffic::measure::Figures;
use crate::traffic::offer::{Offer, Offered, number};
use crate::traffic::{Draws, chart};

/// The stream of draws of lengths; rates have those behind it, as in `weir load`.
const LENGTHS: u64 = 0;

/// Most rows of a step, and most requests in the queue.
const MOST_ROWS: u32 = 1 << 16;
const MOST_QUEUE: u32 = 1 << 20;

/// What the help says at its end.
const NOTES: &str = "\
Step times are measured where the model is to run, by OUT bench --step-times FILE or weir bench MODEL \
--step-times FILE. What is predicted is the engine: network, text and clients take no time, and no prompt \
begins with rows of another. docs/load.md says what a prediction is worth. Examples:
  ./tales bench --step-times tales.steps
  weir simulate tales.steps --rate 20 --rate 40 --duration 600 --prompt-tokens 64 --answer-tokens mean:100
  weir simulate tales.steps --slots 16 --queue 64 --trace arrivals.jsonl --json";

/// Predict throughput and latencies of a server under load, for slots, queues and machines not at hand.
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct Simulate {
    /// What steps take: the file that bench --step-times has written
    #[arg(value_name = "STEP-TIMES")]
    steps: PathBuf,

    /// Write one JSON object per rate, with the names of weir load and of vLLM's benchmark
    #[arg(long)]
    json: bool,

    /// Draw latencies against rates
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,

    #[command(flatten)]
    offer: Offer,

    #[command(flatten)]
    what: What,

    #[command(flatten)]
    server: ServerOptions,
}

/// Lengths of prompts and answers.
#[derive(Args, Debug)]
#[command(next_help_heading = "What")]
struct What {
    /// Tokens of prompts: N, any number of N-M, or mean:N for a geometric distribution
    #[arg(long, value_name = "LENGTH", default_value = "128")]
    prompt_tokens: Lengths,

    /// Tokens of answers that no file says, in the same forms
    #[arg(long, value_name = "LENGTH", default_value = "128")]
    answer_tokens: Lengths,

    /// Prompts, in order, as weir load takes them (.jsonl or .json): their words, at 1.3 tokens each, and
    /// their max_tokens
    #[arg(long, value_name = "FILE", conflicts_with = "prompt_tokens")]
    dataset: Option<PathBuf>,
}

/// What the server is started with.
#[derive(Args, Debug)]
#[command(next_help_heading = "Server")]
struct ServerOptions {
    /// Sequences at once [default: what the model was compiled for]
    #[arg(long, value_name = "N", value_parser = whole(1, MAX_SLOTS), allow_hyphen_values = true)]
    slots: Option<u32>,

    /// Rows of a step, which weir compile decides [default: those of the model]
    #[arg(long, value_name = "N", value_parser = whole(1, MOST_ROWS), allow_hyphen_values = true)]
    step_rows: Option<u32>,

    /// Requests that wait for a slot at most; further ones are refused with status 429 [default: two per
    /// slot, or as many as were answered in the last ten seconds, 512 at most]
    #[arg(long, value_name = "N", value_parser = whole(0, MOST_QUEUE), allow_hyphen_values = true)]
    queue: Option<u32>,

    /// Seconds that a request waits for a slot at most [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = number, allow_hyphen_values = true)]
    queue_timeout: Option<f64>,

    /// Seconds that a request takes at most, waiting included [default: no limit]
    #[arg(long, value_name = "SECONDS", value_parser = number, allow_hyphen_values = true)]
    request_timeout: Option<f64>,
}

impl Simulate {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        self.offer.check(self.plot.is_some())?;
        if let Some(plot) = &self.plot {
            let mut inputs = vec![Input { what: "the step times", path: &self.steps }];
            let dataset = self.what.dataset.as_deref();
            inputs.extend(dataset.map(|path| Input { what: "the file of --dataset", path }));
            refuse_overwriting("--plot", plot, &inputs)?;
        }
        let times = self.times()?;
        let errors = held_out_errors(&times.steps);
        let server = self.server(&times)?;
        self.warn(&times, &server);
        let mut out = std::io::stdout().lock();
        if !self.json {
            write!(out, "{}", report::head(&times, &server, &errors))?;
        }
        let mut figures = Vec::new();
        for (index, offered) in self.offer.offers().into_iter().enumerate() {
            let prediction = self.predict(&server, offered, LENGTHS + 1 + index as u64)?;
            if self.json {
                writeln!(out, "{}", prediction.json(&times, &server, &errors))?;
            } else {
                write!(out, "{}", prediction.table(&server))?;
            }
            figures.push(prediction.figures);
        }
        let Some(plot) = &self.plot else { return Ok(()) };
        let title = format!("{}, simulated,", times.model);
        let drawing = chart::draw(&figures, &title).map_err(Failure::other)?;
        let place = |error| Failure::other(format!("{}: {error}", plot.display()));
        std::fs::write(plot, drawing).map_err(place)
    }

    fn times(&self) -> Result<StepTimes, Failure> {
        let place = |reason: &dyn std::fmt::Display| {
            Failure::usage(format!("{}: {reason}", self.steps.display()))
        };
        let text = std::fs::read_to_string(&self.steps).map_err(|error| place(&error))?;
        StepTimes::parse(&text).map_err(|reason| place(&reason))
    }

    fn server(&self, times: &StepTimes) -> Result<Server, Failure> {
        let ServerOptions { slots, step_rows, queue, queue_timeout, request_timeout } = self.server;
        let mut shape = times.shape.clone();
        shape.step_rows = step_rows.unwrap_or(shape.step_rows);
        let slots = slots.unwrap_or(shape.slots);
        let queue = QueueLimit::new(slots, queue);
        // Whoever is refused asks again at once, and no time passes.
        let places = (slots + queue.least()) as usize;
        let endless = self.offer.bounds().requests.is_none();
        if self.offer.concurrency.is_some_and(|concurrency| concurrency > places) && endless {
            return Err(Failure::usage(format!(
                "--concurrency with --duration: there are {places} slots and places in the queue; give \
                 --requests as well"
            )));
        }
        let costs = StepCosts::fit(&times.steps);
        Ok(Server { shape, costs, slots, queue, queue_timeout, request_timeout })
    }

    /// Says where a prediction goes beyond what was measured.
    fn warn(&self, times: &StepTimes, server: &Server) {
        let most = times.steps.iter().map(|step| step.load.decode_rows).fold(0.0, f64::max);
        if f64::from(server.slots) > most {
            say(format_args!(
                "warning: steps were measured with up to {most} sequences that decode; what {} slots take \
                 is extrapolated",
                server.slots
            ));
        }
        if server.shape.step_rows > times.shape.step_rows {
            say(format_args!(
                "warning: steps were measured with up to {} rows; what {} take is extrapolated",
                times.shape.step_rows, server.shape.step_rows
            ));
        }
        if held_out_errors(&times.steps).is_empty() {
            say(format_args!(
                "warning: steps of a single setup were measured: nothing says what the fit is worth"
            ));
        }
    }

    fn predict(
        &self,
        server: &Server,
        offered: Offered,
        stream: u64,
    ) -> Result<Prediction, Failure> {
        let seed = self.offer.seed;
        let mut sizes = Sizes {
            prompts: self.what.prompt_tokens,
            answers: self.what.answer_tokens,
            dataset: self.dataset()?,
            draws: Draws::new(seed, LENGTHS),
        };
        let bounds = self.offer.bounds();
        let source = match offered {
            Offered::PerSecond { rate, burstiness } => {
                let draws = Draws::new(seed, stream);
                Source::open(Random::new(rate, burstiness, bounds, draws), &mut sizes)
            }
            Offered::Trace => {
                let recorded = self.offer.recorded(true, |_| Ok(()))?;
                Source::open(recorded.into_iter(), &mut sizes)
            }
            Offered::Closed { concurrency } => Source::closed(concurrency, bounds, &mut sizes),
            Offered::Unlimited => Source::closed(usize::MAX, bounds, &mut sizes),
        };
        let served = server.serve(source);
        let (sent, utilisation) = served.map_err(|error| Failure::usage(error.to_string()))?;
        Ok(Prediction { figures: Figures::new(offered, sent), utilisation })
    }

    fn dataset(&self) -> Result<Option<Prompts>, Failure> {
        let Some(path) = &self.what.dataset else { return Ok(None) };
        let prompts = Prompts::read(path, Endpoint::Chat, 1, Draws::new(self.offer.seed, LENGTHS))?;
        if prompts.count().is_none() {
            return Err(Failure::usage(format!(
                "--dataset {}: a text has no prompts; give their length with --prompt-tokens",
                path.display()
            )));
        }
        Ok(Some(prompts))
    }
}
