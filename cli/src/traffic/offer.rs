//! How requests are offered: options, and what they come to.

use std::fmt::{Display, Formatter};
use std::path::PathBuf;

use clap::Args;
use weir_runtime::command::whole;

use super::arrivals::{Arrival, Bounds};
use super::trace;
use crate::failure::Failure;

/// Requests of a rate unless something else bounds them.
const DEFAULT_REQUESTS: usize = 100;

/// Most requests of a rate: their figures are in memory together.
pub const MOST_REQUESTS: usize = 10_000_000;

/// Most tokens of an answer.
pub const MOST_TOKENS: u32 = 1 << 24;

/// Arrivals of requests.
#[derive(Args, Debug)]
#[command(next_help_heading = "When")]
pub struct Offer {
    /// Requests of each rate [default: 100, unless --duration or --trace says how many]
    #[arg(long, value_name = "N", value_parser = whole(1, MOST_REQUESTS), allow_hyphen_values = true)]
    pub requests: Option<usize>,

    /// Seconds in which requests of each rate are sent; their answers are waited for
    #[arg(long, value_name = "SECONDS", value_parser = number, allow_hyphen_values = true)]
    pub duration: Option<f64>,

    /// Requests per second, at random times that no answer delays (repeatable: one after another), or
    /// inf: as many at once as --concurrency says [default: inf]
    #[arg(long, value_name = "R", value_parser = rate, allow_hyphen_values = true)]
    pub rate: Vec<f64>,

    /// Requests at once with --rate inf [default: all]
    #[arg(long, value_name = "N", value_parser = whole(1, MOST_REQUESTS), allow_hyphen_values = true)]
    pub concurrency: Option<usize>,

    /// Shape of the gamma distribution of gaps between requests: 1 is a Poisson process, less comes in
    /// bursts, more evenly
    #[arg(long, value_name = "X", default_value = "1", value_parser = number, allow_hyphen_values = true)]
    pub burstiness: f64,

    /// Send requests at the times of a file: a JSON object a line, {"at": seconds}, with prompt or
    /// prompt_tokens and max_tokens if they are known
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rate", "concurrency", "burstiness"])]
    pub trace: Option<PathBuf>,

    /// Of random times, passages and lengths: the same seed gives the same
    #[arg(long, value_name = "N", default_value_t = 0, allow_hyphen_values = true)]
    pub seed: u64,
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

impl Offer {
    /// Refuses what can be seen to be wrong before anything is read or sent; `plots` says whether a
    /// drawing is asked for.
    pub fn check(&self, plots: bool) -> Result<(), Failure> {
        let offers = self.offers();
        let finite = offers.iter().any(|offered| offered.rate().is_some());
        let closed = offers.iter().any(|offered| matches!(offered, Offered::Closed { .. }));
        let endless = offers.contains(&Offered::Unlimited) && self.bounds().requests.is_none();
        let wrong = if self.concurrency.is_some() && !closed {
            "--concurrency belongs to --rate inf: at other rates no answer delays a request"
        } else if endless {
            "--rate inf with --duration needs --concurrency or --requests"
        } else if plots && !finite {
            "--plot draws latencies against rates: give --rate, several times at best"
        } else {
            return Ok(());
        };
        Err(Failure::usage(wrong))
    }

    /// The arrivals of the trace, within the bounds; none without a trace. See [`trace::read`].
    pub fn recorded(
        &self,
        has_prompts: bool,
        check: impl Fn(u32) -> Result<(), String>,
    ) -> Result<Vec<Arrival>, Failure> {
        let Some(path) = &self.trace else { return Ok(Vec::new()) };
        let mut arrivals = trace::read(path, has_prompts, check)?;
        let bounds = Bounds { requests: self.requests, seconds: self.duration };
        let kept =
            arrivals.iter().enumerate().take_while(|(sent, one)| bounds.allow(*sent, one.at));
        arrivals.truncate(kept.count());
        Ok(arrivals)
    }

    /// What is offered, in order.
    pub fn offers(&self) -> Vec<Offered> {
        if self.trace.is_some() {
            return vec![Offered::Trace];
        }
        let unlimited = match self.concurrency {
            Some(concurrency) => Offered::Closed { concurrency },
            None => Offered::Unlimited,
        };
        if self.rate.is_empty() {
            return vec![unlimited];
        }
        let burstiness = self.burstiness;
        let offer = |rate: &f64| match rate.is_finite() {
            true => Offered::PerSecond { rate: *rate, burstiness },
            false => unlimited,
        };
        self.rate.iter().map(offer).collect()
    }

    /// How much is sent at each rate.
    pub fn bounds(&self) -> Bounds {
        let default = self.duration.is_none().then_some(DEFAULT_REQUESTS);
        Bounds { requests: self.requests.or(default), seconds: self.duration }
    }
}

/// Reads a number above 0. The range keeps times within what clocks hold.
pub fn number(text: &str) -> Result<f64, String> {
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
