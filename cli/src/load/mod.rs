//! `weir load`: requests to an OpenAI-compatible server, and how long their answers take.
//!
//! Rates are measured one after another; a rate begins when the last answer of the one before it is
//! there. One thread does all of it, for server and generator may share a machine.

mod answer;
mod client;
mod events;
mod options;
mod runner;
mod said;
mod server;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value, json};
use weir_runtime::command::say;

use self::client::Client;
pub use self::options::Load;
use self::runner::{Form, Runner};
use self::server::Server;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::traffic::arrivals::{Arrival, Bounds, Random};
use crate::traffic::measure::Figures;
use crate::traffic::offer::Offered;
use crate::traffic::outcome::{Failed, Sent};
use crate::traffic::{Draws, chart};

/// The stream of draws of passages; rates have those behind it.
const PASSAGES: u64 = 0;

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
        measured.verdict()?;
        if self.what.same_answer {
            let all: usize = measured.texts.values().sum();
            say(format_args!("{all} answers, one text"));
        }
        Ok(())
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
        for (index, offered) in self.offer.offers().into_iter().enumerate() {
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

    /// How many requests there will be, if that is known.
    fn count(&self, offered: Offered, recorded: &[Arrival]) -> Option<u64> {
        match offered {
            Offered::Trace => Some(recorded.len() as u64),
            _ => self
                .offer
                .bounds()
                .requests
                .filter(|_| self.offer.duration.is_none())
                .map(|n| n as u64),
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
        let bounds = self.offer.bounds();
        match offered {
            Offered::PerSecond { rate, burstiness } => {
                let draws = Draws::new(self.offer.seed, stream);
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

#[cfg(test)]
mod tests;
